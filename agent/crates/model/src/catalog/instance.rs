//! Metrics of a MIG instance. Their names differ from those of a device, so that no sum over
//! devices counts an instance again. These calls of the driver have no utilisation of an instance.

use super::device::MemoryState;
use super::metrics;
use crate::ids::InstanceId;

metrics! {
    /// Identity of a MIG instance: always 1 while it exists. A new partitioning ends the series of
    /// the instances that it destroys, even where new ones get their ids.
    INFO: Gauge<i64> of InstanceId = "gpu.instance.info" ["{info}"]
        from "nvmlDeviceGetMigDeviceHandleByIndex, GetUUID, GetName, GetGpuInstanceId, GetComputeInstanceId, GetAttributes_v2";
    /// Memory of a MIG instance by state; the states add up to `gpu.instance.memory.limit`. It is
    /// part of its device's `gpu.memory.usage`: never add the two. Memory belongs to the GPU
    /// instance: where several compute instances share one, it is on the first of them only, so
    /// that a sum over instances is right.
    MEMORY_USAGE: UpDownCounter<i64> of InstanceId, by MemoryState = "gpu.instance.memory.usage" ["By"]
        from "nvmlDeviceGetMemoryInfo_v2 of the MIG device";
    /// Memory size of a MIG instance; with several compute instances in a GPU instance, on the
    /// first.
    MEMORY_LIMIT: UpDownCounter<i64> of InstanceId = "gpu.instance.memory.limit" ["By"]
        from "nvmlDeviceGetMemoryInfo_v2 of the MIG device (total)";
    /// Fraction of the driver's last sample period in which the engines of an instance were busy,
    /// averaged over its engines. MIG instances have `gpu.instance.sm.active` instead.
    UTILIZATION: Gauge<f64> of InstanceId = "gpu.instance.utilization" ["1"]
        from "the table of vendors";
}
