//! What arrives at receivers, and what is made of it there.

mod delivery;
mod levels;
mod metrics;
mod prometheus;
mod rules;
