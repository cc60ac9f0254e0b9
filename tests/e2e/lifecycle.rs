//! The agent's start and end, and receivers that are away.

mod footprint;
mod log;
mod receivers;
mod reload;
mod table;
mod top;
mod usage;
