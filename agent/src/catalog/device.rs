//! Metrics of a device. Vendor-neutral: a vendor fills those it can read.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;

dims! {
    /// Engine that was busy.
    Task: attr::GPU_TASK {
        /// Any kernel or copy on the device.
        General = "general",
        /// Video encoder.
        Encoder = "encoder",
        /// Video decoder.
        Decoder = "decoder",
    }
    /// Part of the device memory; the parts add up to the limit.
    MemoryState: attr::GPU_MEMORY_STATE {
        /// Allocated by processes and their contexts.
        Used = "used",
        /// Free.
        Free = "free",
        /// Kept by the driver and firmware.
        Reserved = "reserved",
    }
    /// Place of a temperature sensor.
    Sensor: attr::GPU_TEMPERATURE_SENSOR {
        /// The GPU die.
        Gpu = "gpu",
        /// The memory stacks.
        Memory = "memory",
    }
    /// Which power limit.
    Limit: attr::GPU_LIMIT_TYPE {
        /// The limit the operator set.
        Management = "management",
        /// The lowest of all limits in force, also those that a baseboard controller set.
        Enforced = "enforced",
        /// The limit the device starts with.
        Default = "default",
        /// The lowest the operator can set.
        Minimum = "minimum",
        /// The highest the operator can set.
        Maximum = "maximum",
    }
    /// Which clock.
    Clock: attr::GPU_CLOCK_TYPE {
        /// Graphics (shader) clock.
        Graphics = "graphics",
        /// Streaming multiprocessor clock.
        Sm = "sm",
        /// Memory clock.
        Memory = "memory",
        /// Video encoder and decoder clock.
        Video = "video",
    }
    /// Why memory was taken out of use.
    RetirementCause: attr::GPU_MEMORY_RETIREMENT_CAUSE {
        /// Errors that were corrected, at one place again and again.
        Corrected = "corrected",
        /// An error that could not be corrected.
        Uncorrected = "uncorrected",
    }
    /// What holds the clocks below what they could be.
    ThrottleReason: attr::GPU_THROTTLE_REASON {
        /// Nothing to do.
        Idle = "idle",
        /// Clocks that a user set.
        ApplicationClocks = "application_clocks",
        /// Software, to keep to the power limit.
        PowerCap = "power_cap",
        /// Hardware: temperature, power brake or a fast rise of power.
        HardwareSlowdown = "hardware_slowdown",
        /// Another device of the same sync boost group.
        SyncBoost = "sync_boost",
        /// Software, to keep GPU or memory below their operating temperature.
        SoftwareThermal = "software_thermal",
        /// Hardware, because of the temperature: to half the clocks or less.
        HardwareThermal = "hardware_thermal",
        /// Hardware, because the system asserts the external power brake: to half the clocks or less.
        PowerBrake = "power_brake",
        /// The clocks of a display.
        DisplayClocks = "display_clocks",
        /// The board's limit.
        BoardLimit = "board_limit",
        /// The limit of voltage or reliability.
        Reliability = "reliability",
        /// The load is too low for the driver to raise them.
        LowUtilization = "low_utilization",
    }
    /// Whether a device answers.
    DeviceState: attr::GPU_STATE {
        /// Answers.
        Ok = "ok",
        /// The driver says it is gone (fell off the bus) or needs a reset.
        Lost = "lost",
        /// A read has not come back within its deadline.
        Hung = "hung",
        /// The driver answers, but every reading of this device failed.
        Failing = "failing",
        /// Its handles are closed at the operator's request.
        Released = "released",
        /// The driver answers and does not list it, though it was on this host before.
        Missing = "missing",
        /// It was on this host before, and another device is at its PCI address.
        Replaced = "replaced",
        /// No driver is loaded, or its library and it are not of one version.
        NoDriver = "no_driver",
    }
}

metrics! {
    /// Identity of a device: always 1; the slow facts (driver, CUDA, PCI address, serial number,
    /// MIG mode) are on this series only and join by `gpu.uuid`.
    INFO: Gauge<i64> of GpuId = "gpu.info" ["1"]
        from "nvmlDeviceGetUUID, GetName, GetPciInfo_v3, GetSerial, GetMigMode, nvmlSystemGetDriverVersion, GetCudaDriverVersion_v2";
    /// State of a device: 1 on the state it is in, 0 on the others.
    STATE: Gauge<i64> of GpuId, by DeviceState = "gpu.status" ["1"]
        from "return codes of the reader's calls and its deadline";
    /// Whether a device answers: 1, or 0 with the reason in `gpu.status`. A device that was on this
    /// host before is 0 until it is back or forgotten (`gpuwho forget UUID`), also after restarts of
    /// the agent and the host. Absent while the operator has it released, and of a device that was
    /// replaced.
    UP: Gauge<i64> of GpuId = "gpu.up" ["1"]
        from "gpu.status; the devices remembered in paths.state";
    /// Age of the last good reading; grows while a device is lost or hung.
    READ_AGE: Gauge<f64> of GpuId = "gpu.read.age" ["s"]
        from "the agent's clock at the last complete reading";
    /// Fraction of the driver's last sample period (1/6 s to 1 s) in which the engine was busy.
    /// Not read while MIG is on, where the driver has no value.
    UTILIZATION: Gauge<f64> of GpuId, by Task = "gpu.utilization" ["1"]
        from "nvmlDeviceGetUtilizationRates, GetEncoderUtilization, GetDecoderUtilization";
    /// Fraction of the driver's last sample period in which device memory was being read or
    /// written.
    MEMORY_BANDWIDTH_UTILIZATION: Gauge<f64> of GpuId = "gpu.memory.bandwidth.utilization" ["1"]
        from "nvmlDeviceGetUtilizationRates (memory)";
    /// Device memory by state; the states add up to `gpu.memory.limit`.
    MEMORY_USAGE: UpDownCounter<i64> of GpuId, by MemoryState = "gpu.memory.usage" ["By"]
        from "nvmlDeviceGetMemoryInfo_v2";
    /// Device memory there is.
    MEMORY_LIMIT: UpDownCounter<i64> of GpuId = "gpu.memory.limit" ["By"]
        from "nvmlDeviceGetMemoryInfo_v2 (total)";
    /// Temperature.
    TEMPERATURE: Gauge<f64> of GpuId, by Sensor = "gpu.temperature" ["Cel"]
        from "nvmlDeviceGetTemperature; field 82 (memory)";
    /// Power drawn by the board now. A sampled level (on A100 and H100 a quarter of the time): for
    /// energy use `gpu.energy`, which misses nothing.
    POWER: Gauge<f64> of GpuId = "gpu.power" ["W"]
        from "field 186 (mW); nvmlDeviceGetPowerUsage, a second's mean from Ampere on, where the driver has no such field";
    /// Power limits, asked at every thirtieth reading.
    POWER_LIMIT: Gauge<f64> of GpuId, by Limit = "gpu.power.limit" ["W"]
        from "fields 187 to 190 and 192 (mW); nvmlDeviceGetPowerManagementLimit, GetEnforcedPowerLimit where the driver has no such fields";
    /// Energy used since the driver was loaded.
    ENERGY: Counter<f64> of GpuId = "gpu.energy" ["J"]
        from "field 83 (mJ); nvmlDeviceGetTotalEnergyConsumption where the driver has no such field";
    /// Time the clocks were held down since the driver was loaded, by reason. Reasons overlap.
    THROTTLE_TIME: Counter<f64> of GpuId, by ThrottleReason = "gpu.throttle.time" ["s"]
        from "fields 74, 76 to 79 and, renumbered by driver 580.82, 251 to 253 or 269 to 271 (ns)";
    /// Current clock rates.
    CLOCK_SPEED: Gauge<f64> of GpuId, by Clock = "gpu.clock.speed" ["Hz"]
        from "nvmlDeviceGetClockInfo (MHz)";
    /// Highest clock rates, asked once.
    CLOCK_LIMIT: Gauge<f64> of GpuId, by Clock = "gpu.clock.limit" ["Hz"]
        from "nvmlDeviceGetMaxClockInfo (MHz)";
    /// Rows of device memory that spare rows stand in for, since the board was made, by cause.
    /// Ampere and later.
    REMAPPED_ROWS: Counter<i64> of GpuId, by RetirementCause = "gpu.memory.remapped_rows" ["{row}"]
        from "fields 142, 143; nvmlDeviceGetRemappedRows where the driver has no such fields";
    /// Whether rows wait for a reset to be remapped: 1 if so.
    REMAP_PENDING: Gauge<i64> of GpuId = "gpu.memory.remap.pending" ["1"]
        from "field 144; nvmlDeviceGetRemappedRows";
    /// Whether a row could not be remapped: 1 if so. The board is to be replaced.
    REMAP_FAILED: Gauge<i64> of GpuId = "gpu.memory.remap.failed" ["1"]
        from "field 145; nvmlDeviceGetRemappedRows";
    /// Performance state, 0 (fastest) to 15.
    POWER_STATE: Gauge<i64> of GpuId = "gpu.power.state" ["{state}"]
        from "nvmlDeviceGetPerformanceState";
    /// Fan speed as a fraction of its maximum; absent on passively cooled boards.
    FAN_SPEED: Gauge<f64> of GpuId = "gpu.fan.speed_ratio" ["1"]
        from "nvmlDeviceGetFanSpeed_v2 (fan 0, percent)";
    /// Processes the driver lists on the device.
    PROCESS_COUNT: Gauge<i64> of GpuId = "gpu.process.count" ["{process}"]
        from "nvmlDeviceGetComputeRunningProcesses_v3, GetGraphicsRunningProcesses_v3";
}
