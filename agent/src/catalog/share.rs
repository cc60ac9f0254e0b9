//! Metrics of owners: what each was granted, holds and uses of a device. The owners' parts of a
//! device, with what nobody is known for, add up to the device's own value.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;
use crate::sample::{Agent, GpuAllocation, GpuOwner};

dims! {
    /// Who granted a device.
    GrantSource: attr::GRANT_SOURCE {
        /// The kubelet (pod-resources).
        Kubelet = "kubelet",
        /// Slurm, by the device program of the job's cgroup.
        Slurm = "slurm",
        /// Slurm, by a mapping file that the site's prolog writes, where the kernel does not tell.
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
    /// How an owner's share of an interval was found.
    ShareMethod: attr::SHARE_METHOD {
        /// The only owner on the device: all of it.
        Exclusive = "exclusive",
        /// By what the driver says of each process: samples of its multiprocessor time, its bytes.
        Sampled = "sampled",
        /// By the MIG instances that the owners' processes are in.
        Instance = "instance",
        /// Of an idle device: by grant where nobody is on it, else by memory held.
        Allocated = "allocated",
        /// Several owners and nothing to split by: nobody's.
        Unsplittable = "unsplittable",
        /// Nobody is known for it.
        Nobody = "none",
    }
    /// What an owner did with a device it was granted.
    AllocationState: attr::ALLOCATION_STATE {
        /// Kept it busy.
        Active = "active",
        /// Has processes on it that did not keep it busy.
        Idle = "idle",
        /// Has no process on it.
        Unused = "unused",
        /// The device was not read, or nothing tells which of several owners kept it busy.
        Unknown = "unknown",
    }
    /// What shows that a process is on a device.
    Presence: attr::PRESENCE {
        /// The driver lists it: it has a context there.
        Listed = "listed",
        /// It was seen to open the device's node, or has it from its parent.
        Opened = "opened",
    }
}

metrics! {
    /// A device granted to an owner, used or not: always 1, with everything known about the owner,
    /// the name it was asked for by, and the MIG instance or the replica if it is only a part.
    ALLOCATION_INFO: Gauge<i64> of GpuAllocation, by (GrantSource, GrantKind) = "gpu.allocation.info" ["1"]
        from "kubelet pod-resources v1; slurmstepd's device program; a site's mapping files";
    /// Parts of a device that the kubelet has to grant, used or not: 1 for a whole device, one for
    /// each replica or MIG instance, 0 for one that its plugin does not offer or calls unhealthy.
    /// Absent where the kubelet offers no device of the vendor (claims are not in its list).
    ALLOCATABLE_PARTS: Gauge<i64> of GpuId = "gpu.allocatable" ["{part}"]
        from "kubelet pod-resources v1 GetAllocatableResources";
    /// Time a device was granted to an owner, by what the owner did with it; the states add up to
    /// the time in which the agent saw the grant. A state holds for the interval that a reading
    /// ends: `active` if the owner kept the device busy in it, however little. An owner without a
    /// process on the device is `unused` only where every process on the device is identified.
    ALLOCATION_TIME: Counter<f64> of GpuOwner, by AllocationState = "gpu.allocation.time" ["s"]
        from "grants, the driver's process lists, the kernel's record of openings";
    /// Processes of an owner on a device, by the evidence: they differ for a process that opened
    /// the device and has no context on it, and for one that nobody saw open it.
    OWNER_PROCESSES: UpDownCounter<i64> of GpuOwner, by Presence = "gpu.owner.processes" ["{process}"]
        from "the driver's process lists; openings of device nodes";
    /// An owner's share of `gpu.busy.time`, to which the shares of all owners add up. Split by the
    /// driver's samples of multiprocessor time, scaled to the device's own value: it cannot see how
    /// many multiprocessors a kernel used, nor engines other than these. With MIG on, what a GPU
    /// instance did is its only owner's.
    OWNER_BUSY_TIME: Counter<f64> of GpuOwner, by ShareMethod = "gpu.owner.busy.time" ["s"]
        from "gpu.utilization, gpu.process.utilization and gpu.instance.gr_engine.active";
    /// An owner's share of `gpu.memory.time`, to which the shares of all owners add up: the bytes
    /// its processes hold, times the time. What the driver keeps for itself is nobody's.
    OWNER_MEMORY_TIME: Counter<f64> of GpuOwner, by ShareMethod = "gpu.owner.memory.time" ["By.s"]
        from "gpu.memory.usage and gpu.process.memory.usage";
    /// An owner's share of `gpu.accounted.energy`, to which the shares of all owners add up. Of a
    /// busy device all energy goes with the busy time; of an idle one to the only owner on it, else
    /// by memory held, else to those it is granted to, else to nobody; of one cut into MIG
    /// instances by compute slices.
    OWNER_ENERGY: Counter<f64> of GpuOwner, by ShareMethod = "gpu.owner.energy" ["J"]
        from "increases of gpu.energy";
    /// Time for which a device's use was accounted: between two readings of it that follow each
    /// other. Nothing is claimed for the time in which a device was not read.
    ACCOUNTED_TIME: Counter<f64> of GpuId = "gpu.accounted.time" ["s"]
        from "times of the readings";
    /// Time a device was busy: `gpu.utilization` (general) at the end of each accounted interval,
    /// times its length. While MIG is on, where the driver has no utilisation, what its GPU
    /// instances' performance counters say (`gpu.instance.gr_engine.active`), each by its part of
    /// the device's compute slices; absent where an instance with a process in it does not tell.
    BUSY_TIME: Counter<f64> of GpuId = "gpu.busy.time" ["s"]
        from "gpu.utilization; gpu.instance.gr_engine.active";
    /// Busy time of a device for which no owner is known: the part of `gpu.busy.time` that is on
    /// the owner `unattributed`.
    UNATTRIBUTED_TIME: Counter<f64> of GpuId = "gpu.unattributed.time" ["s"]
        from "gpu.busy.time less the shares of known owners";
    /// Used memory of a device over time: `gpu.memory.usage` (used) at the end of each accounted
    /// interval, times its length.
    MEMORY_TIME: Counter<f64> of GpuId = "gpu.memory.time" ["By.s"]
        from "gpu.memory.usage";
    /// Energy of a device that was accounted: the increase of `gpu.energy` since the agent first
    /// read it. What was used while the device could not be read is in it, on `unattributed`; what
    /// a reload of the driver hid is not.
    ACCOUNTED_ENERGY: Counter<f64> of GpuId = "gpu.accounted.energy" ["J"]
        from "increases of gpu.energy";
    /// Shares that went to the owner `other`, because as many owners as are told apart on a device
    /// were active at once.
    FOLDED: Counter<i64> of Agent = "gpuwho.shares.folded" ["{share}"]
        from "the ledger";
    /// Grants that name no device the agent reads.
    UNBOUND_GRANTS: Gauge<i64> of Agent = "gpuwho.grants.unbound" ["{grant}"]
        from "grants and the devices' identities";
}
