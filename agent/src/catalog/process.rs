//! Metrics of a process on a device; the owner's identity is added by the enrich stage.

use super::attributes as attr;
use super::{dims, metrics};
use crate::sample::GpuProcess;

dims! {
    /// Engine a process kept busy.
    ProcessTask: attr::GPU_TASK {
        /// Streaming multiprocessors.
        Sm = "sm",
        /// Memory controller.
        Memory = "memory",
        /// Video encoder.
        Encoder = "encoder",
        /// Video decoder.
        Decoder = "decoder",
    }
    /// How a process uses the device, from the driver's lists it is on. One on several counts once,
    /// as the first of these that fits.
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
    /// A process on a device: always 1, with everything known about whose it is. Labels, the image
    /// and the long tail of identity are on this series only and join by `process.pid`.
    INFO: Gauge<i64> of GpuProcess = "gpu.process.info" ["1"]
        from "the driver's process list and the ownership table";
    /// Device memory of a process, once for each MIG instance it is in. A process is counted once,
    /// whatever lists it is on, so a sum over processes counts no byte again; an MPS client's memory
    /// is its own, and the server's what the server itself takes (before Volta clients are not
    /// listed, and theirs is the server's). Absent where the driver does not tell (vGPU, confidential
    /// computing).
    MEMORY_USAGE: UpDownCounter<i64> of GpuProcess, by ProcessType = "gpu.process.memory.usage" ["By"]
        from "nvmlDeviceGetComputeRunningProcesses_v3, GetGraphicsRunningProcesses_v3, GetMPSComputeRunningProcesses_v3";
    /// Fraction of time a process kept an engine busy, as the driver sampled it since the last
    /// reading (mean of the samples newer than this process's cursor). Not read while MIG is on, where
    /// the driver has no value.
    UTILIZATION: Gauge<f64> of GpuProcess, by ProcessTask = "gpu.process.utilization" ["1"]
        from "nvmlDeviceGetProcessUtilization, one cursor a device and process";
    /// Most device memory a process has had at any time. Only where accounting is on (`gpu.mode`);
    /// asked when a process is new and at every sixth reading.
    MEMORY_PEAK: Gauge<i64> of GpuProcess = "gpu.process.memory.peak" ["By"]
        from "nvmlDeviceGetAccountingStats (maxMemoryUsage)";
    /// Fraction of its life so far in which a process had a kernel on the device. Only where
    /// accounting is on (`gpu.mode`); asked when a process is new and at every sixth reading.
    LIFETIME_UTILIZATION: Gauge<f64> of GpuProcess = "gpu.process.lifetime.utilization" ["1"]
        from "nvmlDeviceGetAccountingStats (gpuUtilization)";
}
