//! Metrics of a process on a device. The series registry adds the owner's identity.

use super::attributes as attr;
use super::{dims, metrics};
use crate::sample::GpuProcess;

dims! {
    /// Engine a process kept busy.
    ProcessTask: attr::GPU_TASK {
        /// Streaming multiprocessors; of a device whose driver times each class of engines, the class
        /// that it kept busiest.
        Sm = "sm",
        /// Memory controller.
        Memory = "memory",
        /// Video encoder.
        Encoder = "encoder",
        /// Video decoder.
        Decoder = "decoder",
    }
    /// How a process uses the device, by the driver's lists. A process on several lists counts
    /// once, as the first of these.
    ProcessType: attr::GPU_PROCESS_TYPE {
        /// Serves MPS clients (`nvidia-cuda-mps-server`).
        MpsServer = "mps_server",
        /// Has a compute context through an MPS server.
        Mps = "mps",
        /// Has a compute context.
        Compute = "compute",
        /// Has a graphics context.
        Graphics = "graphics",
    }
}

metrics! {
    /// A process on a device: always 1, with everything known about its owner. Labels, the image
    /// and the less common attributes of identity are on this series only and join by
    /// `process.pid`.
    INFO: Gauge<i64> of GpuProcess = "gpu.process.info" ["{info}"]
        from "the driver's process list and the ownership table";
    /// Device memory of a process, once for each MIG instance that it is in. A process on several
    /// lists is counted once, so a sum over processes counts no byte twice. An MPS client's memory
    /// is counted for the client, and the server's own for the server (before Volta clients are not
    /// listed, and their memory is the server's). Absent where the driver has no value (vGPU,
    /// confidential computing).
    MEMORY_USAGE: UpDownCounter<i64> of GpuProcess, by ProcessType = "gpu.process.memory.usage" ["By"]
        from "nvmlDeviceGetComputeRunningProcesses_v3, GetGraphicsRunningProcesses_v3, GetMPSComputeRunningProcesses_v3";
    /// Fraction of time in which a process kept an engine busy, as sampled by the driver since the
    /// last reading (mean of the samples newer than this process's cursor). Not read while MIG is
    /// on, because the driver then has no value.
    UTILIZATION: Gauge<f64> of GpuProcess, by ProcessTask = "gpu.process.utilization" ["1"]
        from "nvmlDeviceGetProcessUtilization, one cursor a device and process";
    /// Largest device memory of a process so far. Only where accounting is on (`gpu.mode`); read
    /// when a process is new and at every sixth reading.
    MEMORY_PEAK: Gauge<i64> of GpuProcess = "gpu.process.memory.peak" ["By"]
        from "nvmlDeviceGetAccountingStats (maxMemoryUsage)";
    /// Fraction of a process's lifetime so far in which its kernels ran on the device. Only where
    /// accounting is on (`gpu.mode`); read when a process is new and at every sixth reading.
    LIFETIME_UTILIZATION: Gauge<f64> of GpuProcess = "gpu.process.lifetime.utilization" ["1"]
        from "nvmlDeviceGetAccountingStats (gpuUtilization)";
    /// Fraction of a device's compute units on which work of a process is, at the moment of the
    /// reading.
    OCCUPANCY: Gauge<f64> of GpuProcess = "gpu.process.occupancy" ["1"]
        from "the table of vendors";
    /// Time during which the driver kept the queues of a process off a device for lack of memory.
    EVICTED_TIME: Counter<f64> of GpuProcess = "gpu.process.evicted.time" ["s"]
        from "the table of vendors";
    /// Memory of a process that the driver moved from the device to the host for lack of room.
    MEMORY_EVICTED: UpDownCounter<i64> of GpuProcess = "gpu.process.memory.evicted" ["By"]
        from "the table of vendors";
}
