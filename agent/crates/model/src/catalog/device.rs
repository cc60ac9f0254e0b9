//! Metrics of a device. Vendor-neutral: a vendor's reader fills those that it can read.

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
        /// JPEG decoder.
        Jpeg = "jpeg",
        /// Optical flow accelerator.
        OpticalFlow = "optical_flow",
        /// Video codec, where one engine encodes and decodes.
        Video = "video",
    }
    /// Part of the aperture.
    ApertureState: attr::GPU_MEMORY_STATE {
        /// Mapped.
        Used = "used",
        /// Free.
        Free = "free",
    }
    /// What happens at a temperature.
    TemperatureLimit: attr::GPU_LIMIT_TYPE {
        /// The device may shut down to protect itself.
        Shutdown = "shutdown",
        /// Hardware may halve the clocks.
        Slowdown = "slowdown",
        /// The device may fall below its base clock.
        Operating = "operating",
        /// Software may slow the device down for its memory's temperature.
        MemoryOperating = "memory_operating",
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
        /// The hottest place of the die.
        Hotspot = "hotspot",
        /// The memory stacks.
        Memory = "memory",
        /// The hottest voltage regulator of the board.
        Regulator = "voltage_regulator",
    }
    /// Which fan, as the driver numbers them.
    Fan: attr::GPU_FAN {
        /// The first.
        First = "0",
        /// The second.
        Second = "1",
        /// The third.
        Third = "2",
        /// The fourth.
        Fourth = "3",
    }
    /// Which power limit.
    Limit: attr::GPU_LIMIT_TYPE {
        /// The limit the operator set.
        Management = "management",
        /// The lowest of all limits in force, including those set by a baseboard controller.
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
        /// Clock of the chip outside its compute units.
        Soc = "soc",
    }
    /// What keeps the clocks below their maximum.
    ThrottleReason: attr::GPU_THROTTLE_REASON {
        /// The device has no work.
        Idle = "idle",
        /// Clocks that a user set.
        ApplicationClocks = "application_clocks",
        /// Software, to stay within the power limit.
        PowerCap = "power_cap",
        /// Hardware: temperature, power brake or a fast rise of power.
        HardwareSlowdown = "hardware_slowdown",
        /// Another device of the same sync boost group.
        SyncBoost = "sync_boost",
        /// Software, to keep GPU or memory below their operating temperature.
        SoftwareThermal = "software_thermal",
        /// Hardware, because of the temperature: to half the clocks or less.
        HardwareThermal = "hardware_thermal",
        /// Hardware, because the system asserts the external power brake: to half the clocks or
        /// less.
        PowerBrake = "power_brake",
        /// The clocks of a display.
        DisplayClocks = "display_clocks",
        /// The board's limit.
        BoardLimit = "board_limit",
        /// The limit of voltage or reliability.
        Reliability = "reliability",
        /// The temperature, by software or hardware.
        Thermal = "thermal",
        /// The load is too low for the driver to raise them.
        LowUtilization = "low_utilization",
        /// A limit of electric current, of the chip or of a voltage regulator.
        CurrentLimit = "current_limit",
        /// The temperature of the memory.
        MemoryThermal = "memory_thermal",
        /// The temperature of a voltage regulator.
        RegulatorThermal = "regulator_thermal",
        /// A reason that the agent's table does not have; `gpu.unknown_code` has its bits.
        Other = "other",
    }
    /// What a number that no table knows stands for.
    CodeKind: attr::GPU_CODE_KIND {
        /// The bits of throttle reasons.
        Throttle = "throttle_reasons",
        /// The recovery action that the driver advises.
        RecoveryAction = "recovery_action",
        /// The state of the registration with the fabric.
        FabricState = "fabric_status",
        /// The revision of the driver's table of readings: format times 256 plus content.
        MetricsTable = "metrics_table",
    }
    /// Whether a device answers.
    DeviceState: attr::GPU_STATE {
        /// Answers.
        Ok = "ok",
        /// The driver reports that it is gone (fell off the bus) or needs a reset.
        Lost = "lost",
        /// A read has not returned within its deadline.
        Hung = "hung",
        /// The driver answers, but every reading of this device failed.
        Failing = "failing",
        /// Its handles are closed at the operator's request.
        Released = "released",
        /// The driver answers but does not list a device that was on this host before.
        Missing = "missing",
        /// It was on this host before, and another device is at its PCI address.
        Replaced = "replaced",
        /// No driver is loaded, or driver and library have different versions.
        NoDriver = "no_driver",
    }
}

metrics! {
    /// Identity of a device: always 1; the slow facts (driver, CUDA, PCI address, serial number,
    /// MIG mode, versions of the board's firmware, its place in the rack, its NVLink fabric,
    /// confidential computing) are on this series only and join by `gpu.uuid`.
    INFO: Gauge<i64> of GpuId = "gpu.info" ["{info}"]
        from "nvmlDeviceGetUUID, GetName, GetPciInfo_v3, GetSerial, GetMigMode, nvmlSystemGetDriverVersion, GetCudaDriverVersion_v2, GetConfComputeState; of the board nvmlDeviceGetVbiosVersion, GetBoardPartNumber, GetGspFirmwareVersion, GetInforomImageVersion, GetInforomVersion, GetInforomConfigurationChecksum, GetModuleId, GetPlatformInfo, GetAddressingMode; field 166 and nvmlDeviceGetGpuFabricInfoV";
    /// State of a device: 1 for its current state, 0 for the others.
    STATE: Gauge<i64> of GpuId, by DeviceState = "gpu.status" ["{state}"]
        from "return codes of the reader's calls and its deadline";
    /// Whether a device answers: 1, or 0 with the reason in `gpu.status`. A device that was on this
    /// host before is 0 until it returns or the operator runs `gpuwho forget UUID`, even after
    /// restarts of the agent and the host. Absent while the operator has it released, and for a
    /// replaced device.
    UP: Gauge<i64> of GpuId = "gpu.up" ["{flag}"]
        from "gpu.status; the known devices stored in paths.state";
    /// Age of the last good reading; grows while a device is lost or hung.
    READ_AGE: Gauge<f64> of GpuId = "gpu.read.age" ["s"]
        from "the agent's clock at the last complete reading";
    /// Fraction of the driver's last sample period (1/6 s to 1 s) in which the engine was busy.
    /// While MIG is on, most drivers have no value; a value that the driver returns is exported.
    UTILIZATION: Gauge<f64> of GpuId, by Task = "gpu.utilization" ["1"]
        from "nvmlDeviceGetUtilizationRates, GetEncoderUtilization, GetDecoderUtilization, GetJpgUtilization, GetOfaUtilization";
    /// Fraction of the driver's last sample period in which device memory was being read or
    /// written.
    MEMORY_BANDWIDTH_UTILIZATION: Gauge<f64> of GpuId = "gpu.memory.bandwidth.utilization" ["1"]
        from "nvmlDeviceGetUtilizationRates (memory)";
    /// Device memory by state; the states add up to `gpu.memory.limit`. Of a device that shares the host's
    /// memory it is what is set aside for it and what it takes of the host's together (AMD's APUs), or absent
    /// (GB10).
    MEMORY_USAGE: UpDownCounter<i64> of GpuId, by MemoryState = "gpu.memory.usage" ["By"]
        from "nvmlDeviceGetMemoryInfo_v2";
    /// Size of the device memory.
    MEMORY_LIMIT: UpDownCounter<i64> of GpuId = "gpu.memory.limit" ["By"]
        from "nvmlDeviceGetMemoryInfo_v2 (total)";
    /// Host memory that the device can use, by state; the states add up to `gpu.memory.host.limit`.
    HOST_MEMORY_USAGE: UpDownCounter<i64> of GpuId, by ApertureState = "gpu.memory.host.usage" ["By"]
        from "the table of vendors";
    /// Limit of the host memory that the device can use.
    HOST_MEMORY_LIMIT: UpDownCounter<i64> of GpuId = "gpu.memory.host.limit" ["By"]
        from "the table of vendors";
    /// BAR1 aperture: CPU and other devices access device memory through it. When it is
    /// full, no more memory can be mapped, for example for GPUDirect RDMA. Read at every thirtieth
    /// reading.
    APERTURE_USAGE: UpDownCounter<i64> of GpuId, by ApertureState = "gpu.memory.aperture.usage" ["By"]
        from "nvmlDeviceGetBAR1MemoryInfo";
    /// Size of the BAR1 aperture.
    APERTURE_LIMIT: UpDownCounter<i64> of GpuId = "gpu.memory.aperture.limit" ["By"]
        from "nvmlDeviceGetBAR1MemoryInfo (total)";
    /// Temperature of each sensor.
    TEMPERATURE: Gauge<f64> of GpuId, by Sensor = "gpu.temperature" ["Cel"]
        from "nvmlDeviceGetTemperature; field 82 (memory)";
    /// Degrees until thermal throttling; below zero while throttled.
    TEMPERATURE_MARGIN: Gauge<f64> of GpuId = "gpu.temperature.margin" ["Cel"]
        from "nvmlDeviceGetMarginTemperature";
    /// Temperatures at which the device acts, read at every thirtieth reading.
    TEMPERATURE_LIMIT: Gauge<f64> of GpuId, by TemperatureLimit = "gpu.temperature.limit" ["Cel"]
        from "nvmlDeviceGetTemperatureThreshold";
    /// Values of `gpu.temperature.margin` at which the device acts. Ada and later; read
    /// at every thirtieth reading.
    TEMPERATURE_MARGIN_LIMIT: Gauge<f64> of GpuId, by TemperatureLimit = "gpu.temperature.margin.limit" ["Cel"]
        from "fields 193 to 196";
    /// Power drawn by the board now. A sampled level (on A100 and H100 sampled a quarter of the
    /// time); for energy use `gpu.energy`, which is complete.
    POWER: Gauge<f64> of GpuId = "gpu.power" ["W"]
        from "field 186 (mW); nvmlDeviceGetPowerUsage, a second's mean from Ampere on, where the driver has no such field";
    /// Power drawn by the board, mean of the last second. Ampere (but GA100) and later.
    POWER_AVERAGE: Gauge<f64> of GpuId = "gpu.power.average" ["W"]
        from "field 185 (mW)";
    /// Power drawn now by the whole module of the device, CPU included (Grace).
    MODULE_POWER: Gauge<f64> of GpuId = "gpu.module.power" ["W"]
        from "field 186 of scope 1 (mW)";
    /// Power limits, read at every thirtieth reading.
    POWER_LIMIT: Gauge<f64> of GpuId, by Limit = "gpu.power.limit" ["W"]
        from "fields 187 to 190 and 192 (mW); nvmlDeviceGetPowerManagementLimit, GetEnforcedPowerLimit where the driver has no such fields";
    /// Energy used since the driver was loaded. Absent while the counter stands still (a minute or longer): no
    /// device draws nothing.
    ENERGY: Counter<f64> of GpuId = "gpu.energy" ["J"]
        from "field 83 (mJ); nvmlDeviceGetTotalEnergyConsumption where the driver has no such field";
    /// Active throttle reasons: 1 for each active reason, 0 for the others that the device
    /// supports. `gpu.throttle.time` covers the time between samples.
    THROTTLE_ACTIVE: Gauge<i64> of GpuId, by ThrottleReason = "gpu.throttle.active" ["{state}"]
        from "nvmlDeviceGetCurrentClocksEventReasons, GetSupportedClocksEventReasons (or ClocksThrottleReasons)";
    /// Throttled time since the driver was loaded, by reason. Reasons
    /// overlap.
    THROTTLE_TIME: Counter<f64> of GpuId, by ThrottleReason = "gpu.throttle.time" ["s"]
        from "fields 74 to 79 and, renumbered by driver 580.82, 251 to 253 or 269 to 271 (ns); nvmlDeviceGetViolationStatus (ns) where the driver has no such fields";
    /// A number of the driver that no table of this agent knows, as it is: of throttle reasons the
    /// bits without a name, of a state the state. Absent while every number is known. The metric of
    /// that reason or state has the value `other`.
    UNKNOWN_CODE: Gauge<i64> of GpuId, by CodeKind = "gpu.unknown_code" ["{code}"]
        from "nvmlDeviceGetCurrentClocksEventReasons; field 230; nvmlDeviceGetGpuFabricInfoV (state)";
    /// Clock rates now.
    CLOCK_SPEED: Gauge<f64> of GpuId, by Clock = "gpu.clock.speed" ["Hz"]
        from "nvmlDeviceGetClockInfo (MHz)";
    /// Highest clock rates, read once.
    CLOCK_LIMIT: Gauge<f64> of GpuId, by Clock = "gpu.clock.limit" ["Hz"]
        from "nvmlDeviceGetMaxClockInfo (MHz)";
    /// Clock rates that a user set for applications, read at every thirtieth reading.
    CLOCK_APPLICATION: Gauge<f64> of GpuId, by Clock = "gpu.clock.application" ["Hz"]
        from "nvmlDeviceGetApplicationsClock (MHz)";
    /// Performance state, 0 (fastest) to 15.
    POWER_STATE: Gauge<i64> of GpuId = "gpu.power.state" ["{state}"]
        from "nvmlDeviceGetPerformanceState";
    /// Set speed of each fan as a fraction of its maximum; absent on passively cooled boards.
    FAN_SPEED: Gauge<f64> of GpuId, by Fan = "gpu.fan.speed_ratio" ["1"]
        from "nvmlDeviceGetNumFans, nvmlDeviceGetFanSpeed_v2 (percent)";
    /// Thermal shutdowns since the device was powered.
    THERMAL_SHUTDOWNS: Counter<i64> of GpuId = "gpu.thermal.shutdowns" ["{shutdown}"]
        from "the table of vendors";
    /// Processes the driver lists on the device.
    PROCESS_COUNT: Gauge<i64> of GpuId = "gpu.process.count" ["{process}"]
        from "nvmlDeviceGetComputeRunningProcesses_v3, GetGraphicsRunningProcesses_v3";
}
