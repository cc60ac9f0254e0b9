//! The only user-space code allowed `unsafe`.

pub mod bpf;
pub mod mounts;
