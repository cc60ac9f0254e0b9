//! Metrics of a device's configuration, of the driver's advice, and of the use of its video
//! engines. Textual facts are on `gpu.info`.

use super::attributes as attr;
use super::{dims, metrics};
use crate::ids::GpuId;

dims! {
    /// The recovery action that the driver advises.
    RecoveryAction: attr::GPU_RECOVERY_ACTION {
        /// Nothing.
        None = "none",
        /// Reset the device.
        Reset = "gpu_reset",
        /// Reboot the node.
        Reboot = "node_reboot",
        /// Stop traffic between devices.
        DrainP2p = "drain_p2p",
        /// Stop traffic between devices, then reset.
        DrainAndReset = "drain_and_reset",
        /// Recover the IMEX domain.
        RecoverImex = "recover_imex_domain",
        /// Reset the device's PCI bus.
        BusReset = "bus_reset",
        /// Reboot the whole system.
        SystemReboot = "system_reboot",
        /// An action that the agent's table does not have; `gpu.unknown_code` has its number.
        Other = "other",
    }
    /// A mode that is on or off.
    Mode: attr::GPU_MODE {
        /// The driver keeps the device's state while no process uses it.
        Persistence = "persistence",
        /// The driver keeps accounts of processes.
        Accounting = "accounting",
        /// The device's own processor runs the driver's firmware.
        Gsp = "gsp_firmware",
        /// The links to the CPU of the module.
        ChipLinks = "c2c",
    }
    /// Who may use a device.
    ComputeMode: attr::GPU_COMPUTE_MODE {
        /// Any number of processes.
        Default = "default",
        /// One thread; no longer in use.
        ExclusiveThread = "exclusive_thread",
        /// No process.
        Prohibited = "prohibited",
        /// One process.
        ExclusiveProcess = "exclusive_process",
    }
    /// The video use.
    Video: attr::GPU_VIDEO_USE {
        /// The encoder.
        Encoder = "encoder",
        /// Frame buffer capture.
        Capture = "capture",
    }
    /// Which memory of a device in confidential computing.
    Protection: attr::GPU_MEMORY_PROTECTION {
        /// Encrypted against the host.
        Protected = "protected",
        /// Shared with the host.
        Unprotected = "unprotected",
    }
}

metrics! {
    /// The recovery action that the driver advises: 1 for that action, 0 for the others.
    RECOVERY_ACTION: Gauge<i64> of GpuId, by RecoveryAction = "gpu.recovery.action" ["{state}"]
        from "field 230";
    /// Whether a mode is on: 1 or 0; absent for a mode that the device does not have.
    MODE: Gauge<i64> of GpuId, by Mode = "gpu.mode" ["{state}"]
        from "nvmlDeviceGetPersistenceMode, GetAccountingMode, GetGspFirmwareMode, GetC2cModeInfoV";
    /// Who may use a device: 1 for its current mode, 0 for the others.
    COMPUTE_MODE: Gauge<i64> of GpuId, by ComputeMode = "gpu.compute_mode" ["{state}"]
        from "nvmlDeviceGetComputeMode";
    /// Number of processes whose accounts the driver can keep; it drops the oldest beyond that.
    ACCOUNTING_LIMIT: Gauge<i64> of GpuId = "gpu.accounting.limit" ["{process}"]
        from "nvmlDeviceGetAccountingBufferSize";
    /// InfoROM checksum valid: 1 or 0. Read when the device
    /// is opened. The agent does not read the whole InfoROM, because that occupies the flash
    /// memory.
    INFOROM_VALID: Gauge<i64> of GpuId = "gpu.inforom.valid" ["{flag}"]
        from "nvmlDeviceGetInforomConfigurationChecksum";
    /// Sessions that encode or capture video.
    VIDEO_SESSIONS: Gauge<i64> of GpuId, by Video = "gpu.video.sessions" ["{session}"]
        from "nvmlDeviceGetEncoderStats, GetFBCStats";
    /// Frames a second, averaged over the sessions; absent without sessions.
    VIDEO_FRAME_RATE: Gauge<f64> of GpuId, by Video = "gpu.video.frame_rate" ["{frame}/s"]
        from "nvmlDeviceGetEncoderStats, GetFBCStats";
    /// Time for a frame, averaged over the sessions; absent without sessions.
    VIDEO_LATENCY: Gauge<f64> of GpuId, by Video = "gpu.video.latency" ["s"]
        from "nvmlDeviceGetEncoderStats, GetFBCStats (µs)";
    /// Whether devices accept work in confidential computing: 1 or 0; absent where it is off.
    CONFIDENTIAL_READY: Gauge<i64> of GpuId = "gpu.confidential_compute.ready" ["{flag}"]
        from "nvmlSystemGetConfComputeGpusReadyState";
    /// Device memory by protection in confidential computing; absent where it is off.
    CONFIDENTIAL_MEMORY: UpDownCounter<i64> of GpuId, by Protection = "gpu.confidential_compute.memory" ["By"]
        from "nvmlDeviceGetConfComputeMemSizeInfo (KiB)";
}
