//! BPF probes: one file per probe, with the same stem as its programs (`agent-ebpf/src/bin`) and
//! its records (`agent-common/src`), and the code that they share. The probe
//! of NCCL is in the crate `nccl`, beside the other sources of collective communication.
//!
//! Rooms, from below: `attempts`, `btf`, `probe`, `layout`, `records`, `objects`, (`load`, `share`,
//! `losses`, `wake`, `watch`, `device_users`, `self_test`).

mod attempts;
pub mod btf;
pub mod device_users;
mod layout;
#[cfg(test)]
mod live_tests;
pub mod load;
mod losses;
pub mod objects;
pub mod probe;
mod records;
pub mod self_test;
mod share;
mod wake;
mod watch;
