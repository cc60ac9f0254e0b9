//! Kinds of throttle reasons: what of the device is limited, and who limits it.

use super::device::ThrottleReason;

impl ThrottleReason {
    /// Its kinds: `power` or `thermal`, and `software` (the driver or an operator) or `hardware`
    /// (with the firmware). A reason that no table knows counts as hardware; an idle device has none.
    pub fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Idle | Self::LowUtilization => &[],
            Self::PowerCap => &["power", "software"],
            Self::PowerBrake | Self::CurrentLimit | Self::BoardLimit => &["power", "hardware"],
            Self::SoftwareThermal => &["thermal", "software"],
            Self::HardwareThermal | Self::MemoryThermal | Self::RegulatorThermal => {
                &["thermal", "hardware"]
            }
            Self::Thermal => &["thermal"],
            Self::ApplicationClocks | Self::SyncBoost | Self::DisplayClocks => &["software"],
            Self::HardwareSlowdown | Self::Reliability | Self::Other => &["hardware"],
        }
    }
}
