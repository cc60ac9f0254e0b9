//! Metrics of owners: what each was granted, holds and uses of a device. The owners' parts of a
//! device, with what nobody is known for, add up to the device's own value.

use super::attributes as attr;
use super::{dims, metrics};
use crate::sample::GpuParty;

dims! {
    /// Who granted a device.
    GrantSource: attr::GRANT_SOURCE {
        /// The kubelet (pod-resources).
        Kubelet = "kubelet",
        /// Slurm, by the device program of the job's cgroup.
        Slurm = "slurm",
        /// A file that a prolog wrote.
        File = "file",
    }
    /// How a device was granted.
    GrantKind: attr::GRANT_KIND {
        /// The whole device to one owner.
        Exclusive = "exclusive",
        /// A MIG instance of it.
        Instance = "instance",
        /// A replica of a device that is shared by time slicing or MPS.
        Replica = "replica",
        /// A claim of dynamic resource allocation.
        Claim = "claim",
    }
}

metrics! {
    /// A device granted to an owner, used or not: always 1, with everything known about the owner.
    ALLOCATION_INFO: Gauge<i64> of GpuParty, by (GrantSource, GrantKind) = "gpu.allocation.info" ["1"]
        from "kubelet pod-resources v1; slurmstepd's device program; prolog files";
}
