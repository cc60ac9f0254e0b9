//! The only user-space code allowed `unsafe`.

pub mod amdsmi;
pub mod bpf;
pub(crate) mod clock;
pub mod confine;
pub(crate) mod handle;
pub mod hlml;
pub(crate) mod kernel_log;
pub mod memory;
pub mod mounts;
pub mod namespace;
pub mod nvml;
pub mod process;
pub mod uprobes;
