//! [`PROBES`]: every source that loads a BPF object.

use crate::collect::kernel::device_users;
use crate::collect::kernel::probe::ProbeDef;
use crate::collect::nccl;

/// Every probe. To add one, write its three files (here, in `agent-ebpf/src/bin` and in
/// `agent-common`) and its row.
pub static PROBES: &[ProbeDef] = &[device_users::source::PROBE, nccl::PROBE];
