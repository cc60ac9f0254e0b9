//! Metrics of a device's links: NVLink, the link to the CPU of its module, the fabric. Metrics of
//! one link have names of their own, so that no sum over links counts a device's total again.
//! Values by link are read at every sixth reading (speeds of links to the CPU, bit error rates and
//! the history of corrections at every thirtieth) and exported at every reading.

use super::attributes as attr;
use super::{dims, index_dims, metrics};
use crate::ids::GpuId;

index_dims! {
    /// An NVLink of a device, by the driver's number. The newest generation has 36.
    Link: attr::GPU_LINK_INDEX [36];
    /// A link between a GPU and the CPU of its module, by the driver's number.
    ChipLink: attr::GPU_LINK_INDEX [16];
}

dims! {
    /// Which way, seen from the device.
    Direction: attr::IO_DIRECTION {
        /// Out of the device.
        Transmit = "transmit",
        /// Into the device.
        Receive = "receive",
    }
    /// State of a link.
    LinkState: attr::GPU_LINK_STATE {
        /// Carries data.
        Active = "active",
        /// Is down or not connected.
        Inactive = "inactive",
        /// Saves power and wakes up by itself.
        Sleep = "sleep",
        /// Is up, but must not carry data.
        Disabled = "disabled",
    }
    /// How the recovery of a link ended.
    Recovery: attr::GPU_LINK_RECOVERY {
        /// The link came back.
        Successful = "successful",
        /// The link went down.
        Failed = "failed",
    }
    /// Which bit error rate.
    BitErrors: attr::GPU_LINK_ERROR {
        /// After correction.
        Effective = "effective",
        /// Of symbols.
        Symbol = "symbol",
    }
    /// Symbols corrected in a codeword.
    Corrected: attr::GPU_LINK_FEC_BIN {
        /// None corrected.
        B0 = "0",
        /// One corrected.
        B1 = "1",
        /// 2 corrected.
        B2 = "2",
        /// 3 corrected.
        B3 = "3",
        /// 4 corrected.
        B4 = "4",
        /// 5 corrected.
        B5 = "5",
        /// 6 corrected.
        B6 = "6",
        /// 7 corrected.
        B7 = "7",
        /// 8 corrected.
        B8 = "8",
        /// 9 corrected.
        B9 = "9",
        /// 10 corrected.
        B10 = "10",
        /// 11 corrected.
        B11 = "11",
        /// 12 corrected.
        B12 = "12",
        /// 13 corrected.
        B13 = "13",
        /// 14 corrected.
        B14 = "14",
        /// 15 corrected.
        B15 = "15",
    }
    /// Kind of error on a link to the CPU.
    ChipLinkError: attr::GPU_LINK_ERROR {
        /// Wrong checksum.
        Crc = "crc",
        /// Sent again.
        Replay = "replay",
        /// Sent again twice in a row.
        ReplayBackToBack = "replay_back_to_back",
    }
    /// State of the registration with the fabric.
    FabricState: attr::GPU_FABRIC_STATE {
        /// It has not begun.
        NotStarted = "not_started",
        /// It is in progress.
        InProgress = "in_progress",
        /// It succeeded.
        Completed = "completed",
        /// It failed.
        Failed = "failed",
        /// A state that the agent's table does not have; `gpu.unknown_code` has its number.
        Other = "other",
    }
    /// Overall health of the fabric.
    FabricHealth: attr::GPU_FABRIC_HEALTH {
        /// Healthy.
        Healthy = "healthy",
        /// Unhealthy.
        Unhealthy = "unhealthy",
        /// Healthy, with reduced capacity.
        Limited = "limited_capacity",
    }
    /// A problem of the fabric.
    FabricCondition: attr::GPU_FABRIC_CONDITION {
        /// Reduced bandwidth.
        DegradedBandwidth = "degraded_bandwidth",
        /// A route is being recovered.
        RouteRecovery = "route_recovery",
        /// A route does not work.
        RouteUnhealthy = "route_unhealthy",
        /// An access that timed out is being recovered.
        AccessTimeout = "access_timeout_recovery",
        /// The system's GUID is wrong.
        SystemGuid = "incorrect_system_guid",
        /// The chassis's serial number is wrong.
        ChassisSerial = "incorrect_chassis_serial",
        /// The device is in no partition, by its configuration.
        NoPartition = "no_partition",
        /// There are too few links.
        TooFewLinks = "insufficient_nvlinks",
        /// The device's firmware is incompatible.
        Firmware = "incompatible_gpu_firmware",
        /// The device is in an invalid location.
        Location = "invalid_location",
        /// The device is in an invalid state.
        GpuState = "invalid_gpu_state",
        /// No partition has been assigned.
        Unassigned = "partition_unassigned",
        /// The fabric manager is not connected.
        Disconnected = "fabric_manager_disconnected",
        /// A board of a rack (GB200, GB300) whose driver says that it needs no fabric, or that it has joined
        /// one without a cluster. Not a bit of the driver's.
        Unregistered = "unregistered",
    }
}

/// Declares kinds of link errors: after its own, each has those that drivers report from Blackwell
/// on, per link and in sum.
macro_rules! link_errors {
    ($($(#[doc = $doc:literal])+ $name:ident { $($own:tt)+ })+) => { dims! { $(
        $(#[doc = $doc])+
        $name: attr::GPU_LINK_ERROR {
            $($own)+
            /// A malformed packet was received.
            Malformed = "malformed",
            /// A packet was received for which there was no buffer.
            Overrun = "buffer_overrun",
            /// A packet was received with an error of any kind.
            Received = "received",
            /// A packet was received that the other end had marked as bad.
            Remote = "remote",
            /// A packet was received with an invalid header.
            General = "header",
            /// Local errors passed their threshold.
            Integrity = "link_integrity",
            /// A packet was not sent.
            Discarded = "transmit_discarded",
            /// An error remained after correction.
            Effective = "effective",
            /// A wrong symbol was received.
            Symbol = "symbol",
        }
    )+ } };
}

link_errors! {
    /// Kind of error on the links of a device. Up to Hopper the driver reports the first five; from
    /// Blackwell on recoveries and the rest are sums over links.
    TotalError {
        /// Wrong checksum, of links whose driver has no sum by kind.
        Crc = "crc",
        /// Wrong checksum of a flow control digit.
        CrcFlit = "crc_flit",
        /// Wrong checksum of data.
        CrcData = "crc_data",
        /// Wrong ECC of data.
        EccData = "ecc_data",
        /// Sent again.
        Replay = "replay",
        /// The link was recovered.
        Recovery = "recovery",
        /// The link could not be recovered and went down.
        RecoveryFailed = "recovery_failed",
    }
    /// Kind of error on a link. The driver reports the first three up to Hopper, the rest from
    /// Blackwell on.
    LinkError {
        /// Wrong checksum.
        Crc = "crc",
        /// Sent again.
        Replay = "replay",
        /// The link was recovered.
        Recovery = "recovery",
    }
}

metrics! {
    /// NVLinks of a device by state; read at every sixth reading, like all values by link.
    NVLINKS: UpDownCounter<i64> of GpuId, by LinkState = "gpu.nvlink.links" ["{link}"]
        from "fields 91 (count), 165 (state of each link)";
    /// Payload carried by all NVLinks of a device.
    NVLINK_IO: Counter<i64> of GpuId, by Direction = "gpu.nvlink.io" ["By"]
        from "fields 138, 139 of all links (KiB)";
    /// Payload and protocol overhead carried by all NVLinks of a device.
    NVLINK_RAW_IO: Counter<i64> of GpuId, by Direction = "gpu.nvlink.raw.io" ["By"]
        from "fields 140, 141 of all links (KiB)";
    /// Errors on all NVLinks of a device, also where `nvidia.by_link` is off.
    NVLINK_ERRORS: Counter<i64> of GpuId, by TotalError = "gpu.nvlink.errors" ["{error}"]
        from "fields 38, 45, 160, 52, 59; where they are missing 161 to 163; 206 to 214, 219, 221: summed over links";
    /// Codewords that the NVLinks of a device have received, by the number of corrected symbols.
    /// The higher numbers grow before a link fails. Read at every thirtieth reading.
    NVLINK_FEC: Counter<i64> of GpuId, by Corrected = "gpu.nvlink.fec.codewords" ["{codeword}"]
        from "fields 235 to 250, summed over links";
    /// Whether an NVLink is active: 1 or 0. `gpu.nvlink.links` has the other states.
    LINK_ACTIVE: Gauge<i64> of GpuId, by Link = "gpu.nvlink.link.active" ["{flag}"]
        from "field 165 of the link";
    /// Speed of an active NVLink in each direction.
    LINK_SPEED: Gauge<f64> of GpuId, by Link = "gpu.nvlink.link.speed" ["By/s"]
        from "field 164 of the link (MB/s)";
    /// Payload carried by an NVLink; part of the device's `gpu.nvlink.io`.
    LINK_IO: Counter<i64> of GpuId, by (Link, Direction) = "gpu.nvlink.link.io" ["By"]
        from "fields 138, 139 of the link (KiB)";
    /// Errors on an NVLink.
    LINK_ERRORS: Counter<i64> of GpuId, by (Link, LinkError) = "gpu.nvlink.link.errors" ["{error}"]
        from "fields 161 to 163, 206 to 212, 219, 221 of the link";
    /// Recoveries of an NVLink, from Blackwell on.
    LINK_RECOVERIES: Counter<i64> of GpuId, by (Link, Recovery) = "gpu.nvlink.link.recoveries" ["{recovery}"]
        from "fields 213, 214 of the link";
    /// Bit error rate of an NVLink, from Blackwell on. A link without errors has the smallest rate
    /// the library can express, 15e-255.
    LINK_BIT_ERRORS: Gauge<f64> of GpuId, by (Link, BitErrors) = "gpu.nvlink.link.bit_error_rate" ["1"]
        from "fields 220, 222 of the link (4 bits mantissa, 8 bits negated decimal exponent)";
    /// Whether a link to the CPU of the module is active: 1 or 0.
    C2C_ACTIVE: Gauge<i64> of GpuId, by ChipLink = "gpu.c2c.link.active" ["{flag}"]
        from "fields 170 (count), 171 of the link";
    /// Speed of an active link to the CPU of the module.
    C2C_SPEED: Gauge<f64> of GpuId, by ChipLink = "gpu.c2c.link.speed" ["By/s"]
        from "field 172 of the link (MB/s)";
    /// Whether a link to the CPU of the module saves power: 1 or 0.
    C2C_LOW_POWER: Gauge<i64> of GpuId, by ChipLink = "gpu.c2c.link.low_power" ["{flag}"]
        from "field 234 of the link";
    /// Errors on a link to the CPU of the module.
    C2C_ERRORS: Counter<i64> of GpuId, by (ChipLink, ChipLinkError) = "gpu.c2c.link.errors" ["{error}"]
        from "fields 231 to 233 of the link";
    /// Registration with the NVLink fabric: 1 for the current state, 0 for the others. Absent for
    /// devices that need none; cluster and clique are on `gpu.info`.
    FABRIC_STATE: Gauge<i64> of GpuId, by FabricState = "gpu.fabric.status" ["{state}"]
        from "nvmlDeviceGetGpuFabricInfoV (state, status)";
    /// Health of the NVLink fabric as this device reports it: 1 for the current state, 0 for the
    /// others.
    FABRIC_HEALTH: Gauge<i64> of GpuId, by FabricHealth = "gpu.fabric.health" ["{state}"]
        from "nvmlDeviceGetGpuFabricInfoV (healthSummary; structure version 3)";
    /// Problems of the NVLink fabric: 1 or 0; absent for problems that the driver does not watch.
    FABRIC_CONDITION: Gauge<i64> of GpuId, by FabricCondition = "gpu.fabric.condition" ["{state}"]
        from "nvmlDeviceGetGpuFabricInfoV (healthMask)";
}
