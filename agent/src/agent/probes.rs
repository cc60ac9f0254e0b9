//! [`PROBES`]: every source that loads a BPF object.

use gpuwho_bpf::device_users;
use gpuwho_bpf::probe::ProbeDef;
use gpuwho_nccl as nccl;

/// Every probe. To add one, write its three files (here, in `agent-ebpf/src/bin` and in
/// `agent-common`) and its row.
pub(crate) static PROBES: &[ProbeDef] = &[device_users::source::PROBE, nccl::PROBE];
