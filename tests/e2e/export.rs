//! What arrives at receivers, and what is made of it there.

mod delivery;
mod deployed;
mod levels;
mod metrics;
mod names;
mod prometheus;
mod rules;
