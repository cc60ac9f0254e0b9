//! The only user-space code allowed `unsafe`.

pub mod bpf;
pub(crate) mod handle;
pub mod mounts;
pub mod nvml;
pub mod process;
