//! Metrics of the host itself, by the names of OpenTelemetry's `system.*` conventions: what its
//! devices wait for when they wait for the host.

use super::attributes as attr;
use super::{dims, metrics};
use crate::sample::Host;

dims! {
    /// What CPUs did.
    CpuMode: attr::CPU_MODE {
        /// Programs, those in virtual machines included.
        User = "user",
        /// Programs of lower priority.
        Nice = "nice",
        /// The kernel.
        System = "system",
        /// Nothing.
        Idle = "idle",
        /// Nothing, while a task waited for a disk.
        IoWait = "iowait",
        /// Interrupts, soft ones included.
        Interrupt = "interrupt",
        /// Taken by the hypervisor.
        Steal = "steal",
    }
    /// A part of the host's memory; the parts add up to all of it.
    SystemMemoryState: attr::SYSTEM_MEMORY_STATE {
        /// Neither of the others.
        Used = "used",
        /// Unused.
        Free = "free",
        /// Blocks of file systems' own data.
        Buffers = "buffers",
        /// Files, and kernel objects that it can give back.
        Cached = "cached",
    }
}

metrics! {
    /// Time that the host's CPUs spent, all together, since it started.
    CPU_TIME: Counter<f64> of Host, by CpuMode = "system.cpu.time" ["s"]
        from "/proc/stat (cpu)";
    /// CPUs that are online.
    CPU_COUNT: UpDownCounter<i64> of Host = "system.cpu.logical.count" ["{cpu}"]
        from "/proc/stat (cpu0, cpu1, …)";
    /// Tasks that run, want to run or wait uninterruptibly, averaged by the kernel over a minute.
    LOAD_1M: Gauge<f64> of Host = "system.cpu.load_average.1m" ["{thread}"]
        from "/proc/loadavg";
    /// Load average over five minutes.
    LOAD_5M: Gauge<f64> of Host = "system.cpu.load_average.5m" ["{thread}"]
        from "/proc/loadavg";
    /// Load average over fifteen minutes.
    LOAD_15M: Gauge<f64> of Host = "system.cpu.load_average.15m" ["{thread}"]
        from "/proc/loadavg";
    /// Memory by what it is used for. Its used part over `system.memory.limit` is what l9gpu calls
    /// `host.memory.utilization`.
    MEMORY_USAGE: UpDownCounter<i64> of Host, by SystemMemoryState = "system.memory.usage" ["By"]
        from "/proc/meminfo (MemTotal, MemFree, Buffers, Cached, SReclaimable)";
    /// All memory that the kernel manages.
    MEMORY_LIMIT: UpDownCounter<i64> of Host = "system.memory.limit" ["By"]
        from "/proc/meminfo (MemTotal)";
    /// Memory that new programs could have without swapping, as the kernel estimates it.
    MEMORY_AVAILABLE: UpDownCounter<i64> of Host = "system.memory.linux.available" ["By"]
        from "/proc/meminfo (MemAvailable)";
}
