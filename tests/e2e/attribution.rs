//! Whose a process is, and what each owner is charged with.

mod cadence;
mod driver_lists;
mod identity;
mod money;
mod ownership;
mod receipts;
mod resources;
mod shares;
mod short_processes;
