//! The only user-space code allowed `unsafe`.
//!
//! Rooms, from below: `amdsmi`, `bpf`, `clock`, `confine`, `handle`, `hlml`, `kernel_log`,
//! `memory`, `mounts`, `namespace`, `nvml`, `process`, `uprobes`.

pub mod amdsmi;
pub mod bpf;
pub mod clock;
pub mod confine;
pub mod handle;
pub mod hlml;
pub mod kernel_log;
pub mod memory;
pub mod mounts;
pub mod namespace;
pub mod nvml;
pub mod process;
pub mod uprobes;
