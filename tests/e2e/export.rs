//! What arrives at receivers, and what is made of it there.

mod delivery;
mod deployed;
mod levels;
mod metrics;
mod names;
mod otlp_receiver;
mod prometheus;
mod rules;
