//! The only user-space code allowed `unsafe`.

pub mod nvml;
pub mod process;
