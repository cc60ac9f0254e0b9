//! Metrics of a device's performance counters: NVIDIA's GPM, on Hopper and later; where there is
//! none, the profiling fields of DCGM's exporter, if one runs. A MIG instance
//! has the same metrics under names of its own, so that a sum over instances does not count a
//! device again.
//!
//! Every value is the mean over the time between two readings, so that it includes all load.

use super::attributes as attr;
use super::link::Direction;
use super::{dims, metrics};
use crate::ids::{GpuId, InstanceId};

dims! {
    /// A part of the multiprocessors that works on one kind of operation.
    Pipe: attr::GPU_PIPE {
        /// Any operation of the tensor cores.
        Tensor = "tensor",
        /// Half-precision and 8-bit floating-point tensor operations.
        TensorHmma = "tensor_hmma",
        /// Integer tensor operations.
        TensorImma = "tensor_imma",
        /// Double-precision tensor operations.
        TensorDfma = "tensor_dfma",
        /// Double-precision tensor operations, as newer devices count them.
        TensorDmma = "tensor_dmma",
        /// Double precision, not on tensor cores.
        Fp64 = "fp64",
        /// Single precision, not on tensor cores.
        Fp32 = "fp32",
        /// Half precision, not on tensor cores.
        Fp16 = "fp16",
        /// Integers, not on tensor cores.
        Int = "int",
    }
    /// One of a device's engines for video and images.
    MediaEngine: attr::GPU_MEDIA_ENGINE {
        /// Video decoder 0.
        Nvdec0 = "nvdec0",
        /// Video decoder 1.
        Nvdec1 = "nvdec1",
        /// Video decoder 2.
        Nvdec2 = "nvdec2",
        /// Video decoder 3.
        Nvdec3 = "nvdec3",
        /// Video decoder 4.
        Nvdec4 = "nvdec4",
        /// Video decoder 5.
        Nvdec5 = "nvdec5",
        /// Video decoder 6.
        Nvdec6 = "nvdec6",
        /// Video decoder 7.
        Nvdec7 = "nvdec7",
        /// JPEG decoder 0.
        Nvjpg0 = "nvjpg0",
        /// JPEG decoder 1.
        Nvjpg1 = "nvjpg1",
        /// JPEG decoder 2.
        Nvjpg2 = "nvjpg2",
        /// JPEG decoder 3.
        Nvjpg3 = "nvjpg3",
        /// JPEG decoder 4.
        Nvjpg4 = "nvjpg4",
        /// JPEG decoder 5.
        Nvjpg5 = "nvjpg5",
        /// JPEG decoder 6.
        Nvjpg6 = "nvjpg6",
        /// JPEG decoder 7.
        Nvjpg7 = "nvjpg7",
        /// Optical flow accelerator 0.
        Ofa0 = "ofa0",
        /// Optical flow accelerator 1.
        Ofa1 = "ofa1",
        /// Video encoder 0.
        Nvenc0 = "nvenc0",
        /// Video encoder 1.
        Nvenc1 = "nvenc1",
        /// Video encoder 2.
        Nvenc2 = "nvenc2",
        /// Video encoder 3.
        Nvenc3 = "nvenc3",
    }
    /// State of a device's performance counters.
    CounterState: attr::GPU_COUNTERS_STATE {
        /// The agent reads them.
        Ok = "ok",
        /// There is only one sample yet: after the start, a new partitioning or a pause.
        Waiting = "waiting",
        /// The device or its driver has none.
        Unsupported = "unsupported",
        /// Another program, for example a profiler, uses them; retried later.
        Busy = "busy",
        /// The agent's user may not read them; retried later.
        Forbidden = "forbidden",
        /// Reading them failed.
        Failing = "failing",
    }
}

metrics! {
    /// State of the performance counters behind the metrics below: 1 for the current state, 0 for
    /// the others. Absent where they are disabled (`nvidia.gpm`).
    STATUS: Gauge<i64> of GpuId, by CounterState = "gpu.counters.status" ["{state}"]
        from "return codes of nvmlGpmQueryDeviceSupport, SampleGet, MigSampleGet, MetricsGet";
    /// Fraction of the time in which any graphics or compute work was on the device.
    GR_ENGINE_ACTIVE: Gauge<f64> of GpuId = "gpu.gr_engine.active" ["1"]
        from "GPM metric 1 (NVML_GPM_METRIC_GRAPHICS_UTIL, percent); else DCGM's exporter: DCGM_FI_PROF_GR_ENGINE_ACTIVE";
    /// Fraction of the multiprocessors that were busy, on average: unlike `gpu.utilization` it
    /// distinguishes one small kernel from a full device. With MIG on, it is of the whole device,
    /// if the driver has a value; the instances have their own.
    SM_ACTIVE: Gauge<f64> of GpuId = "gpu.sm.active" ["1"]
        from "GPM metric 2 (NVML_GPM_METRIC_SM_UTIL, percent); else DCGM's exporter: DCGM_FI_PROF_SM_ACTIVE";
    /// Resident warps as a fraction of the maximum.
    SM_OCCUPANCY: Gauge<f64> of GpuId = "gpu.sm.occupancy" ["1"]
        from "GPM metric 3 (NVML_GPM_METRIC_SM_OCCUPANCY, percent); else DCGM's exporter: DCGM_FI_PROF_SM_OCCUPANCY";
    /// Fraction of the time in which a pipe of the multiprocessors worked. Pipes work in parallel,
    /// and `tensor` includes all tensor kinds: never add them.
    PIPE_ACTIVE: Gauge<f64> of GpuId, by Pipe = "gpu.pipe.active" ["1"]
        from "GPM metrics 4 to 9 and 11 to 13 (NVML_GPM_METRIC_INTEGER_UTIL, ANY_TENSOR, DFMA, HMMA, DMMA, IMMA, FP64, FP32, FP16, percent); else DCGM's exporter: DCGM_FI_PROF_PIPE_*";
    /// Bytes moved to and from device memory as a fraction of the maximum.
    DRAM_ACTIVE: Gauge<f64> of GpuId = "gpu.dram.active" ["1"]
        from "GPM metric 10 (NVML_GPM_METRIC_DRAM_BW_UTIL, percent); else DCGM's exporter: DCGM_FI_PROF_DRAM_ACTIVE";
    /// Fraction of the time in which a video or image engine worked; only for existing engines.
    MEDIA_ACTIVE: Gauge<f64> of GpuId, by MediaEngine = "gpu.media.active" ["1"]
        from "GPM metrics 30 to 37 (NVDEC), 40 to 47 (NVJPG), 50 and 51 (OFA), 166 to 169 (NVENC), percent";
    /// Bytes a second over PCIe, without the 20 ms wait of the driver's other call.
    PCIE_THROUGHPUT: Gauge<f64> of GpuId, by Direction = "gpu.pcie.throughput" ["By/s"]
        from "GPM metrics 20 and 21 (NVML_GPM_METRIC_PCIE_TX_PER_SEC, RX, MiB/s); else DCGM's exporter: DCGM_FI_PROF_PCIE_TX_BYTES, RX";
    /// Bytes a second over PCIe in 20 ms since the reading before, of boards without performance
    /// counters: a sample, not a mean. Only with `[nvidia] pcie_sampling`; absent while the driver
    /// has not answered.
    PCIE_SAMPLED: Gauge<f64> of GpuId, by Direction = "gpu.pcie.throughput.sampled" ["By/s"]
        from "nvmlDeviceGetPcieThroughput (KB/s, of 1,000 bytes), on a thread of its own";
    /// Bytes a second over all NVLinks together; for sums use the counter `gpu.nvlink.io`.
    NVLINK_THROUGHPUT: Gauge<f64> of GpuId, by Direction = "gpu.nvlink.throughput" ["By/s"]
        from "GPM metrics 60 and 61 (NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, TX, MiB/s); else DCGM's exporter: DCGM_FI_PROF_NVLINK_TX_BYTES, RX";
    /// Bytes a second over the links to the CPU of the device's module.
    C2C_THROUGHPUT: Gauge<f64> of GpuId, by Direction = "gpu.c2c.throughput" ["By/s"]
        from "GPM metrics 100 and 101 (NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC, RX, MiB/s)";
    /// Fraction of the time in which any graphics or compute work was on a MIG instance. Counters
    /// belong to the GPU instance: where several compute instances share one, this and the others
    /// below are on the first of them only.
    INSTANCE_GR_ENGINE_ACTIVE: Gauge<f64> of InstanceId = "gpu.instance.gr_engine.active" ["1"]
        from "GPM metric 1 of the GPU instance (nvmlGpmMigSampleGet, percent)";
    /// Fraction of a MIG instance's own multiprocessors that were busy, on average.
    INSTANCE_SM_ACTIVE: Gauge<f64> of InstanceId = "gpu.instance.sm.active" ["1"]
        from "GPM metric 2 of the GPU instance (nvmlGpmMigSampleGet, percent)";
    /// Resident warps of a MIG instance as a fraction of the maximum.
    INSTANCE_SM_OCCUPANCY: Gauge<f64> of InstanceId = "gpu.instance.sm.occupancy" ["1"]
        from "GPM metric 3 of the GPU instance (nvmlGpmMigSampleGet, percent)";
    /// Fraction of the time in which a pipe of a MIG instance's multiprocessors worked.
    INSTANCE_PIPE_ACTIVE: Gauge<f64> of InstanceId, by Pipe = "gpu.instance.pipe.active" ["1"]
        from "GPM metrics 4 to 9 and 11 to 13 of the GPU instance (nvmlGpmMigSampleGet, percent)";
    /// Bytes moved to and from a MIG instance's memory as a fraction of the maximum.
    INSTANCE_DRAM_ACTIVE: Gauge<f64> of InstanceId = "gpu.instance.dram.active" ["1"]
        from "GPM metric 10 of the GPU instance (nvmlGpmMigSampleGet, percent)";
    /// Fraction of the time in which a video or image engine of a MIG instance worked.
    INSTANCE_MEDIA_ACTIVE: Gauge<f64> of InstanceId, by MediaEngine = "gpu.instance.media.active" ["1"]
        from "GPM metrics 30 to 37, 40 to 47, 50, 51 and 166 to 169 of the GPU instance (nvmlGpmMigSampleGet, percent)";
    /// Bytes a second of a MIG instance over PCIe; part of its device's.
    INSTANCE_PCIE_THROUGHPUT: Gauge<f64> of InstanceId, by Direction = "gpu.instance.pcie.throughput" ["By/s"]
        from "GPM metrics 20 and 21 of the GPU instance (nvmlGpmMigSampleGet, MiB/s)";
}
