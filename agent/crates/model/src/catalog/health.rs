//! Metrics of a device's health: the conditions that the rules in `health/rules.rs` find, whichever
//! vendor's reader took the readings.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;

dims! {
    /// What is wrong with a device.
    Condition: attr::GPU_HEALTH_CONDITION {
        /// Memory errors that were not corrected.
        MemoryUncorrected = "memory_uncorrected",
        /// Corrected memory errors rise fast.
        MemoryCorrected = "memory_corrected",
        /// A row could not be remapped.
        MemoryRowsFailed = "memory_rows_failed",
        /// Rows wait for a reset to be remapped.
        MemoryRowsPending = "memory_rows_pending",
        /// Banks have no or few spare rows left.
        MemoryRowsLow = "memory_rows_low",
        /// Pages wait for a reset to be retired.
        MemoryPagesPending = "memory_pages_pending",
        /// Nearly as many pages are retired as can be.
        MemoryPagesRetired = "memory_pages_retired",
        /// Static memories had more errors than the vendor allows.
        MemorySramExceeded = "memory_sram_exceeded",
        /// The driver reported a memory fault that needs a reset.
        MemoryFault = "memory_fault",
        /// The PCIe link has fewer lanes than device and slot support.
        BusWidth = "bus_width",
        /// The PCIe link of a busy device is slower than device and slot support.
        BusGeneration = "bus_generation",
        /// The PCIe link sends packets again.
        BusReplays = "bus_replays",
        /// The PCIe link had fatal errors.
        BusErrors = "bus_errors",
        /// The driver or the kernel reported a fault of the bus.
        BusFault = "bus_fault",
        /// A link between devices is down that was up.
        LinkDown = "link_down",
        /// Links between devices had to be recovered.
        LinkErrors = "link_errors",
        /// The link between the device and the CPU of its module is down.
        LinkChipDown = "link_chip_down",
        /// The device is not in its fabric.
        LinkFabric = "link_fabric",
        /// The fabric reports itself unhealthy or limited.
        LinkFabricUnhealthy = "link_fabric_unhealthy",
        /// The driver reported a fault of a link.
        LinkFault = "link_fault",
        /// Little is left until the device is slowed down for its temperature.
        ThermalMargin = "thermal_margin",
        /// The die is hot.
        ThermalHot = "thermal_hot",
        /// The device is slowed down for its temperature.
        ThermalSlowdown = "thermal_slowdown",
        /// The temperature rises though the power does not.
        ThermalRamp = "thermal_ramp",
        /// The system asserts the external power brake.
        PowerBrake = "power_brake",
        /// The board lacks auxiliary power.
        PowerSupply = "power_supply",
        /// The device is gone from its driver, or did not come back.
        DriverLost = "driver_lost",
        /// Reads of the device do not return.
        DriverHung = "driver_hung",
        /// Every reading of the device fails.
        DriverFailing = "driver_failing",
        /// No driver is loaded for it.
        DriverMissing = "driver_missing",
        /// The device's firmware processor does not answer the driver.
        DriverFirmware = "driver_firmware",
        /// The driver advises a recovery action.
        DriverRecovery = "driver_recovery",
        /// The board's own storage is damaged.
        DriverInforom = "driver_inforom",
        /// The driver reported another fault that needs an operator.
        DriverFault = "driver_fault",
        /// The device is slower than its peers on the host at the same work.
        PeersBehind = "peers_behind",
    }
    /// How severe a condition is.
    ConditionSeverity: attr::GPU_HEALTH_SEVERITY {
        /// Plan a repair; work goes on.
        Warning = "warning",
        /// Give the device no new work.
        Critical = "critical",
    }
    /// The worst of a device's conditions.
    HealthStatus: attr::GPU_HEALTH_STATUS {
        /// No condition.
        Ok = "ok",
        /// A warning.
        Warning = "warning",
        /// A critical condition.
        Critical = "critical",
        /// The device cannot be judged now.
        Unknown = "unknown",
    }
}

metrics! {
    /// A device's health conditions: 1 while a condition lasts, 0 after it has ended and, at level
    /// `all`, while it was judged and is not there. Absent for what this device, its driver or its
    /// vendor give no reading for: absent is not healthy. `gpuwho health` has reason, advice and
    /// the rule's source.
    CONDITION: Gauge<i64> of GpuId, by (Condition, ConditionSeverity) = "gpu.health.condition" ["{state}"]
        from "the rules of `[health]` over the device's readings and events";
    /// The worst of a device's conditions: 1 for that state, 0 for the others. `unknown` while the
    /// device is not read.
    STATUS: Gauge<i64> of GpuId, by HealthStatus = "gpu.health.status" ["{state}"]
        from "gpu.health.condition";
    /// A summary of the conditions for boards: 100, less 60 for the first critical condition, 20 for
    /// each further one and 10 for each warning, never below 0; 0 while the device does not answer.
    /// Absent while nothing can be judged. Alert on `gpu.health.condition`, not on this.
    SCORE: Gauge<i64> of GpuId = "gpu.health.score" ["{score}"]
        from "gpu.health.condition";
}
