//! What arrives at receivers, and what is made of it there.

mod delivery;
mod deployed;
mod levels;
mod metrics;
mod names;
mod otlp_receiver;
mod prometheus;
pub(crate) mod rules;
mod two_hosts;
