//! Metrics of the cgroups of owners that hold a device: a device that waits for its owner's CPU
//! limit is a finding. By the names of OpenTelemetry's `container.*` conventions where there are
//! any, for owners of every kind: to the kernel a container, a job and a service are the same
//! thing. What the conventions lack is `cgroup.*`.

use super::attributes as attr;
use super::{dims, metrics};
use crate::sample::OwnerCgroup;

dims! {
    /// What CPUs did for a cgroup.
    CgroupCpuMode: attr::CPU_MODE {
        /// Its programs.
        User = "user",
        /// The kernel, for them.
        System = "system",
    }
    /// What tasks wait for.
    PressureResource: attr::PRESSURE_RESOURCE {
        /// A CPU, or the end of a throttled period.
        Cpu = "cpu",
        /// Memory: reclaim, swap, and files that were dropped from the cache.
        Memory = "memory",
        /// Disks and other block devices.
        Io = "io",
    }
    /// How many of the tasks wait.
    PressureStall: attr::PRESSURE_STALL {
        /// At least one.
        Some = "some",
        /// All that are not idle, at the same time.
        Full = "full",
    }
}

metrics! {
    /// CPU time of the owner's cgroup and all below it, since it was made.
    CPU_TIME: Counter<f64> of OwnerCgroup, by CgroupCpuMode = "container.cpu.time" ["s"]
        from "cpu.stat (user_usec, system_usec); v1: cpuacct.usage_user, cpuacct.usage_sys";
    /// Memory that the owner's cgroup is charged for, files in the cache included.
    MEMORY_USAGE: UpDownCounter<i64> of OwnerCgroup = "container.memory.usage" ["By"]
        from "memory.current; v1: memory.usage_in_bytes";
    /// Working set of the owner's cgroup: memory without inactive files. The kubelet evicts by it.
    MEMORY_WORKING_SET: UpDownCounter<i64> of OwnerCgroup = "container.memory.working_set" ["By"]
        from "memory.current less memory.stat (inactive_file); v1: memory.usage_in_bytes, total_inactive_file";
    /// Anonymous memory of the owner's cgroup.
    MEMORY_RSS: UpDownCounter<i64> of OwnerCgroup = "container.memory.rss" ["By"]
        from "memory.stat (anon); v1: total_rss";
    /// Memory limit of the owner's cgroup. Absent where this cgroup has no limit of its own; one above it
    /// may have a lower one.
    MEMORY_LIMIT: Gauge<i64> of OwnerCgroup = "cgroup.memory.limit" ["By"]
        from "memory.max; v1: memory.limit_in_bytes";
    /// CPU limit of the owner's cgroup, averaged over a period of the scheduler. Absent where this cgroup has no
    /// limit of its own.
    CPU_LIMIT: Gauge<f64> of OwnerCgroup = "cgroup.cpu.limit" ["{cpu}"]
        from "cpu.max; v1: cpu.cfs_quota_us, cpu.cfs_period_us";
    /// Time its run queues were held back, because it had used up its CPU limit: of all CPUs
    /// together, so that it may grow faster than time passes.
    CPU_THROTTLED: Counter<f64> of OwnerCgroup = "cgroup.cpu.throttled.time" ["s"]
        from "cpu.stat (throttled_usec); v1: throttled_time";
    /// Time in which tasks of the owner's cgroup waited for a resource. Absent on kernels without pressure stall
    /// information, and for an owner without a cgroup of version 2.
    PRESSURE_TIME: Counter<f64> of OwnerCgroup, by (PressureResource, PressureStall) = "cgroup.pressure.time" ["s"]
        from "cpu.pressure, memory.pressure, io.pressure (total)";
}
