//! The BPF objects embedded at build time; each is empty where there was no BPF toolchain.

/// The users of devices.
pub(crate) static DEVICE_USERS: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/device_users"));
/// Collective communication; loaded by the crate that knows its records.
pub static NCCL: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nccl"));
/// What the benchmark of the collective calls measures against; no part of the agent.
pub static PER_CALL: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/per_call"));
