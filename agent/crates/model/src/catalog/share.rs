//! Metrics of owners: the devices allocated to each, and its share of their use. The owners' shares
//! of a device, with the owner `unattributed`, add up to the device's own value.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;
use crate::sample::{Agent, GpuAllocation, GpuOwner};

dims! {
    /// The source of a device allocation.
    GrantSource: attr::GRANT_SOURCE {
        /// The kubelet (pod-resources).
        Kubelet = "kubelet",
        /// Slurm, by the device program of the job's cgroup.
        Slurm = "slurm",
        /// Slurm, by a mapping file that the site's prolog writes, where the kernel has no device
        /// program.
        File = "file",
    }
    /// The kind of a device allocation.
    GrantKind: attr::GRANT_KIND {
        /// The whole device to one owner.
        Exclusive = "exclusive",
        /// A MIG instance or another partition of it.
        Instance = "instance",
        /// A replica of a device that is shared by time slicing or MPS.
        Replica = "replica",
        /// A claim of Dynamic Resource Allocation.
        Claim = "claim",
    }
    /// How an owner's share of an interval was found.
    ShareMethod: attr::SHARE_METHOD {
        /// The only owner on the device gets all of it.
        Exclusive = "exclusive",
        /// By the driver's values of each process: samples of multiprocessor time, bytes of memory.
        Sampled = "sampled",
        /// By the MIG instances, or AMD's partitions, that the owners' processes are in.
        Instance = "instance",
        /// For an idle device: by allocation where no process is on it, otherwise by memory held.
        Allocated = "allocated",
        /// Several owners and no data to split by: unattributed.
        Unsplittable = "unsplittable",
        /// No owner is known.
        Nobody = "none",
    }
    /// An owner's use of a device that is allocated to it.
    AllocationState: attr::ALLOCATION_STATE {
        /// Kept it busy.
        Active = "active",
        /// Has processes on it that did not keep it busy.
        Idle = "idle",
        /// Has no process on it.
        Unused = "unused",
        /// The device was not read, or no data shows which of several owners kept it busy.
        Unknown = "unknown",
    }
    /// What shows that a process is on a device.
    Presence: attr::PRESENCE {
        /// The driver lists it: it has a context there.
        Listed = "listed",
        /// It opened the device's node, or inherited it from its parent.
        Opened = "opened",
    }
}

metrics! {
    /// A device allocated to an owner, used or not: always 1, with everything known about the
    /// owner, the requested resource name, and the MIG instance or the number of replicas if it is
    /// only a part. One for each owner and device or instance, without the container's name where several
    /// of a pod have it. A claim for administration (a monitor's of all devices) is no allocation.
    ALLOCATION_INFO: Gauge<i64> of GpuAllocation, by (GrantSource, GrantKind) = "gpu.allocation.info" ["{info}"]
        from "kubelet pod-resources v1; slurmstepd's device program; a site's mapping files";
    /// Parts of a device that the kubelet can allocate, used or not: 1 for a whole device, one for
    /// each replica or MIG instance, 0 for a device that its plugin does not offer or reports as
    /// unhealthy. Absent where the kubelet offers no device of the vendor (claims are not in its
    /// list).
    ALLOCATABLE_PARTS: Gauge<i64> of GpuId = "gpu.allocatable" ["{part}"]
        from "kubelet pod-resources v1 GetAllocatableResources";
    /// Time during which a device was allocated to an owner, by the owner's use of it; the states
    /// add up to the time in which the agent knew of the allocation. The owner is the pod as a whole
    /// where several of its containers have the device or parts of it. A state applies to the
    /// interval that ends with a reading: `active` if the owner kept the device busy in it, however
    /// little. An owner without a process on the device is `unused` only where every process on the
    /// device is identified.
    ALLOCATION_TIME: Counter<f64> of GpuOwner, by AllocationState = "gpu.allocation.time" ["s"]
        from "allocations, the driver's process lists, the kernel's records of opened nodes";
    /// Processes of an owner on a device, by the evidence: they differ for a process that opened
    /// the device and has no context on it, and for a process that was not observed to open it.
    OWNER_PROCESSES: UpDownCounter<i64> of GpuOwner, by Presence = "gpu.owner.processes" ["{process}"]
        from "the driver's process lists; openings of device nodes";
    /// An owner's share of `gpu.busy.time`; the shares of all owners add up to it. Split by the
    /// driver's samples of multiprocessor time, scaled to the device's own value. The samples do
    /// not show how many multiprocessors a kernel used, nor other engines. The time of a GPU
    /// instance (MIG) or of a partition (AMD) belongs to its only owner.
    OWNER_BUSY_TIME: Counter<f64> of GpuOwner, by ShareMethod = "gpu.owner.busy.time" ["s"]
        from "gpu.utilization, gpu.process.utilization, gpu.instance.gr_engine.active and gpu.instance.utilization";
    /// An owner's share of `gpu.memory.byte_seconds`; the shares of all owners add up to it: the bytes that
    /// its processes hold, times the time. The driver's own memory is unattributed.
    OWNER_MEMORY_TIME: Counter<f64> of GpuOwner, by ShareMethod = "gpu.owner.memory.byte_seconds" ["{By.s}"]
        from "gpu.memory.usage and gpu.process.memory.usage";
    /// An owner's share of `gpu.accounted.energy`; the shares of all owners add up to it. The
    /// energy of a busy device is split by busy time. That of an idle device goes to the only owner
    /// on it, otherwise by memory held, otherwise to the owners to which it is allocated, otherwise
    /// it is unattributed. That of a device with MIG instances or AMD's partitions is split by
    /// compute slices.
    OWNER_ENERGY: Counter<f64> of GpuOwner, by ShareMethod = "gpu.owner.energy" ["J"]
        from "increases of gpu.energy";
    /// An owner's part of the device's utilisation at the reading; the parts of all owners add up to
    /// `gpu.utilization` (general), of a partitioned device to the busy part of its compute slices. Split
    /// like `gpu.owner.busy.time`.
    OWNER_UTILIZATION: Gauge<f64> of GpuOwner = "gpu.owner.utilization" ["1"]
        from "gpu.utilization, gpu.process.utilization, gpu.instance.gr_engine.active and gpu.instance.utilization";
    /// Memory of the device that an owner's processes hold at the reading; with `unattributed`, which has
    /// the driver's own, it adds up to `gpu.memory.usage` (used).
    OWNER_MEMORY: UpDownCounter<i64> of GpuOwner = "gpu.owner.memory.usage" ["By"]
        from "gpu.memory.usage and gpu.process.memory.usage";
    /// An owner's part of the device's power at the reading; the parts of all owners add up to
    /// `gpu.power`. Split like `gpu.owner.energy`.
    OWNER_POWER: Gauge<f64> of GpuOwner = "gpu.owner.power" ["W"]
        from "gpu.power";
    /// Time for which a device's use was accounted: between two consecutive readings. Time in which
    /// the device was not read is not accounted.
    ACCOUNTED_TIME: Counter<f64> of GpuId = "gpu.accounted.time" ["s"]
        from "times of the readings";
    /// Time during which a device was busy: `gpu.utilization` (general) at the end of each
    /// accounted interval, times its length. Of a partitioned device it is the sum of its
    /// partitions' times, each weighted by its part of the device's compute slices: GPU instances'
    /// performance counters (`gpu.instance.gr_engine.active`), AMD's partitions'
    /// `gpu.instance.utilization`. Where a partition has no value it is the device's own again,
    /// and absent with MIG on, where the driver has none.
    BUSY_TIME: Counter<f64> of GpuId = "gpu.busy.time" ["s"]
        from "gpu.utilization; gpu.instance.gr_engine.active; gpu.instance.utilization";
    /// Busy time of a device without a known owner: the part of `gpu.busy.time` of the owner
    /// `unattributed`.
    UNATTRIBUTED_TIME: Counter<f64> of GpuId = "gpu.unattributed.time" ["s"]
        from "gpu.busy.time less the shares of known owners";
    /// Used memory of a device over time: `gpu.memory.usage` (used) at the end of each accounted
    /// interval, times its length. Where the driver has no such value (GB10 and others that share the
    /// host's memory, Linux's xe) it is what the listed processes hold.
    MEMORY_TIME: Counter<f64> of GpuId = "gpu.memory.byte_seconds" ["{By.s}"]
        from "gpu.memory.usage, else gpu.process.memory.usage";
    /// Accounted energy of a device: the increase of `gpu.energy` since the agent first read it.
    /// Energy used while the device could not be read is included, as `unattributed`; energy before
    /// a reload of the driver that was not read is not.
    ACCOUNTED_ENERGY: Counter<f64> of GpuId = "gpu.accounted.energy" ["J"]
        from "increases of gpu.energy";
    /// Shares that went to the owner `other`, because a device had more active owners than the
    /// limit.
    FOLDED: Counter<i64> of Agent = "gpuwho.shares.folded_into_other" ["{share}"]
        from "the accounting of shares";
    /// Allocations that name no device that the agent reads, or several.
    UNBOUND_GRANTS: Gauge<i64> of Agent = "gpuwho.allocations.unbound" ["{allocation}"]
        from "allocations and the devices' identities";
}
