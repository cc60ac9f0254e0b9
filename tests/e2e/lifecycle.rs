//! The agent's start and end, and receivers that are away.

mod receivers;
mod usage;
