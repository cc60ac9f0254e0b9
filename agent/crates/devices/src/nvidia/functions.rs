//! The reader's calls and the library function behind each, so that an operator can identify a
//! hanging one. A call without a function, or with one that the bindings lack, does not compile.

use nvml_wrapper_sys::bindings::NvmlLib;

/// The call that opens the library, and its function.
const OPEN: (&str, &str) = ("Open", "nvmlInit_v2");

/// Declares the calls with their functions.
macro_rules! calls {
    ($($call:ident = $function:ident,)+) => {
        /// A call about a device that may be unsupported.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Call { $($call,)+ }

        /// A [`Call`] as it prints, and its function.
        const FUNCTIONS: &[(&str, &str)] = &[$((stringify!($call), stringify!($function))),+];

        impl Call {
            /// Its function in the library's header.
            pub(super) fn function(self) -> &'static str {
                match self { $(Self::$call => stringify!($function),)+ }
            }
        }

        /// Checks that every function exists in the library's bindings.
        const _: fn(&NvmlLib) = |library| { $(let _ = &library.$function;)+ };
    };
}

calls! {
    Handle = nvmlDeviceGetHandleByIndex_v2,
    Uuid = nvmlDeviceGetUUID,
    Minor = nvmlDeviceGetMinorNumber,
    Name = nvmlDeviceGetName,
    Pci = nvmlDeviceGetPciInfo_v3,
    Serial = nvmlDeviceGetSerial,
    MigMode = nvmlDeviceGetMigMode,
    Utilization = nvmlDeviceGetUtilizationRates,
    Encoder = nvmlDeviceGetEncoderUtilization,
    Decoder = nvmlDeviceGetDecoderUtilization,
    Jpeg = nvmlDeviceGetJpgUtilization,
    OpticalFlow = nvmlDeviceGetOfaUtilization,
    Memory = nvmlDeviceGetMemoryInfo_v2,
    Aperture = nvmlDeviceGetBAR1MemoryInfo,
    Margin = nvmlDeviceGetMarginTemperature,
    ThresholdShutdown = nvmlDeviceGetTemperatureThreshold,
    ThresholdSlowdown = nvmlDeviceGetTemperatureThreshold,
    ThresholdOperating = nvmlDeviceGetTemperatureThreshold,
    ThresholdMemory = nvmlDeviceGetTemperatureThreshold,
    HeldBy = nvmlDeviceGetCurrentClocksEventReasons,
    HeldByPossible = nvmlDeviceGetSupportedClocksEventReasons,
    HeldPower = nvmlDeviceGetViolationStatus,
    HeldThermal = nvmlDeviceGetViolationStatus,
    HeldSyncBoost = nvmlDeviceGetViolationStatus,
    HeldBoardLimit = nvmlDeviceGetViolationStatus,
    HeldLowUtilization = nvmlDeviceGetViolationStatus,
    HeldReliability = nvmlDeviceGetViolationStatus,
    ApplicationGraphics = nvmlDeviceGetApplicationsClock,
    ApplicationMemory = nvmlDeviceGetApplicationsClock,
    PcieGeneration = nvmlDeviceGetCurrPcieLinkGeneration,
    BusType = nvmlDeviceGetBusType,
    PcieWidth = nvmlDeviceGetCurrPcieLinkWidth,
    HighestPcieGeneration = nvmlDeviceGetMaxPcieLinkGeneration,
    HighestPcieWidth = nvmlDeviceGetMaxPcieLinkWidth,
    PcieReplays = nvmlDeviceGetPcieReplayCounter,
    EccMode = nvmlDeviceGetEccMode,
    SramErrors = nvmlDeviceGetSramEccErrorStatus,
    SramCorrectedVolatile = nvmlDeviceGetMemoryErrorCounter,
    SramCorrectedAggregate = nvmlDeviceGetMemoryErrorCounter,
    SramUncorrectedVolatile = nvmlDeviceGetMemoryErrorCounter,
    SramUncorrectedAggregate = nvmlDeviceGetMemoryErrorCounter,
    RemappedRows = nvmlDeviceGetRemappedRows,
    SpareRows = nvmlDeviceGetRowRemapperHistogram,
    Temperature = nvmlDeviceGetTemperature,
    Fields = nvmlDeviceGetFieldValues,
    Power = nvmlDeviceGetPowerUsage,
    PowerLimit = nvmlDeviceGetPowerManagementLimit,
    EnforcedLimit = nvmlDeviceGetEnforcedPowerLimit,
    Energy = nvmlDeviceGetTotalEnergyConsumption,
    ClockGraphics = nvmlDeviceGetClockInfo,
    ClockSm = nvmlDeviceGetClockInfo,
    ClockMemory = nvmlDeviceGetClockInfo,
    ClockVideo = nvmlDeviceGetClockInfo,
    HighestGraphics = nvmlDeviceGetMaxClockInfo,
    HighestSm = nvmlDeviceGetMaxClockInfo,
    HighestMemory = nvmlDeviceGetMaxClockInfo,
    HighestVideo = nvmlDeviceGetMaxClockInfo,
    PowerState = nvmlDeviceGetPerformanceState,
    Fans = nvmlDeviceGetNumFans,
    Fan = nvmlDeviceGetFanSpeed_v2,
    ComputeProcesses = nvmlDeviceGetComputeRunningProcesses_v3,
    GraphicsProcesses = nvmlDeviceGetGraphicsRunningProcesses_v3,
    MpsProcesses = nvmlDeviceGetMPSComputeRunningProcesses_v3,
    ProcessUtilization = nvmlDeviceGetProcessUtilization,
    Vbios = nvmlDeviceGetVbiosVersion,
    BoardPart = nvmlDeviceGetBoardPartNumber,
    GspVersion = nvmlDeviceGetGspFirmwareVersion,
    GspMode = nvmlDeviceGetGspFirmwareMode,
    InforomImage = nvmlDeviceGetInforomImageVersion,
    InforomOem = nvmlDeviceGetInforomVersion,
    InforomEcc = nvmlDeviceGetInforomVersion,
    InforomPower = nvmlDeviceGetInforomVersion,
    InforomChecksum = nvmlDeviceGetInforomConfigurationChecksum,
    ModuleId = nvmlDeviceGetModuleId,
    Platform = nvmlDeviceGetPlatformInfo,
    Addressing = nvmlDeviceGetAddressingMode,
    ChipLinkMode = nvmlDeviceGetC2cModeInfoV,
    PersistenceMode = nvmlDeviceGetPersistenceMode,
    ComputeMode = nvmlDeviceGetComputeMode,
    AccountingMode = nvmlDeviceGetAccountingMode,
    AccountingBuffer = nvmlDeviceGetAccountingBufferSize,
    Account = nvmlDeviceGetAccountingStats,
    AccountingPids = nvmlDeviceGetAccountingPids,
    EncoderSessions = nvmlDeviceGetEncoderStats,
    CaptureSessions = nvmlDeviceGetFBCStats,
    ConfidentialReady = nvmlSystemGetConfComputeGpusReadyState,
    ConfidentialMemory = nvmlDeviceGetConfComputeMemSizeInfo,
    Fabric = nvmlDeviceGetGpuFabricInfoV,
    OldFabric = nvmlDeviceGetGpuFabricInfoV,
    InstanceCount = nvmlDeviceGetMaxMigDeviceCount,
    InstanceHandle = nvmlDeviceGetMigDeviceHandleByIndex,
    InstanceUuid = nvmlDeviceGetUUID,
    InstanceName = nvmlDeviceGetName,
    GpuInstanceId = nvmlDeviceGetGpuInstanceId,
    ComputeInstanceId = nvmlDeviceGetComputeInstanceId,
    InstanceAttributes = nvmlDeviceGetAttributes_v2,
    InstanceMemory = nvmlDeviceGetMemoryInfo_v2,
    InstanceComputeProcesses = nvmlDeviceGetComputeRunningProcesses_v3,
    InstanceGraphicsProcesses = nvmlDeviceGetGraphicsRunningProcesses_v3,
    InstanceMpsProcesses = nvmlDeviceGetMPSComputeRunningProcesses_v3,
    GpmSupport = nvmlGpmQueryDeviceSupport,
    GpmStreaming = nvmlGpmQueryIfStreamingEnabled,
    GpmAlloc = nvmlGpmSampleAlloc,
    GpmSample = nvmlGpmSampleGet,
    GpmMigSample = nvmlGpmMigSampleGet,
    GpmMetrics = nvmlGpmMetricsGet,
}

/// The library's function for a call's name; an unknown name is returned unchanged.
pub(super) fn name(call: &str) -> &str {
    let mut rows = FUNCTIONS.iter().chain([&OPEN]);
    rows.find(|row| row.0 == call).map_or(call, |row| row.1)
}

#[cfg(test)]
mod tests {
    use super::{Call, FUNCTIONS, name};

    #[test]
    fn a_calls_name_maps_to_the_librarys_function() {
        let words = [Call::Jpeg, Call::HeldPower, Call::GpmAlloc].map(|call| format!("{call:?}"));
        let functions =
            ["nvmlDeviceGetJpgUtilization", "nvmlDeviceGetViolationStatus", "nvmlGpmSampleAlloc"];
        assert_eq!(words.each_ref().map(|word| name(word)), functions);
        assert_eq!(name("Open"), "nvmlInit_v2");
        assert_eq!(name("nvml of another day"), "nvml of another day");
    }

    #[test]
    fn every_call_has_a_function_and_its_own_bit() {
        let reported = FUNCTIONS.iter().map(|(call, _)| name(call));
        assert_eq!(
            reported.filter(|reported| !reported.starts_with("nvml")).collect::<Vec<_>>(),
            [""; 0]
        );
        assert!(FUNCTIONS.len() <= 128, "{} calls do not fit in a u128", FUNCTIONS.len());
    }
}
