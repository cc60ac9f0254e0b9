//! The library's functions by what the reader calls them, for a person who looks for the one that
//! hangs. One that is not here is told by the reader's own word.

/// A [`super::ask::Call`] as it prints, and what it calls.
const FUNCTIONS: &[(&str, &str)] = &[
    ("Open", "nvmlInit_v2"),
    ("Handle", "nvmlDeviceGetHandleByIndex_v2"),
    ("Uuid", "nvmlDeviceGetUUID"),
    ("Minor", "nvmlDeviceGetMinorNumber"),
    ("Name", "nvmlDeviceGetName"),
    ("Pci", "nvmlDeviceGetPciInfo_v3"),
    ("Serial", "nvmlDeviceGetSerial"),
    ("MigMode", "nvmlDeviceGetMigMode"),
    ("Utilization", "nvmlDeviceGetUtilizationRates"),
    ("Encoder", "nvmlDeviceGetEncoderUtilization"),
    ("Decoder", "nvmlDeviceGetDecoderUtilization"),
    ("Memory", "nvmlDeviceGetMemoryInfo_v2"),
    ("Temperature", "nvmlDeviceGetTemperature"),
    ("Fields", "nvmlDeviceGetFieldValues"),
    ("Power", "nvmlDeviceGetPowerUsage"),
    ("PowerLimit", "nvmlDeviceGetPowerManagementLimit"),
    ("EnforcedLimit", "nvmlDeviceGetEnforcedPowerLimit"),
    ("Energy", "nvmlDeviceGetTotalEnergyConsumption"),
    ("ClockGraphics", "nvmlDeviceGetClockInfo"),
    ("ClockSm", "nvmlDeviceGetClockInfo"),
    ("ClockMemory", "nvmlDeviceGetClockInfo"),
    ("ClockVideo", "nvmlDeviceGetClockInfo"),
    ("HighestGraphics", "nvmlDeviceGetMaxClockInfo"),
    ("HighestSm", "nvmlDeviceGetMaxClockInfo"),
    ("HighestMemory", "nvmlDeviceGetMaxClockInfo"),
    ("HighestVideo", "nvmlDeviceGetMaxClockInfo"),
    ("PowerState", "nvmlDeviceGetPerformanceState"),
    ("Fan", "nvmlDeviceGetFanSpeed_v2"),
    ("ComputeProcesses", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("GraphicsProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    ("MpsProcesses", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    ("ProcessUtilization", "nvmlDeviceGetProcessUtilization"),
    ("InstanceCount", "nvmlDeviceGetMaxMigDeviceCount"),
    ("InstanceHandle", "nvmlDeviceGetMigDeviceHandleByIndex"),
    ("InstanceAttributes", "nvmlDeviceGetAttributes_v2"),
];

/// What a call is called in the library's own header.
pub(super) fn name(call: &str) -> &str {
    FUNCTIONS.iter().find(|row| row.0 == call).map_or(call, |row| row.1)
}
