//! [`RULES`]: every condition, what it is judged by, its figures, and where they come from. A rule
//! reads neutral samples or events, so it holds for every vendor whose reader has them.
//!
//! `[health]` overrides the figures of a rule; the rest is fixed.

pub(super) mod faults;

use crate::event::{Advised, Observation, Severity};
use gpuwho_model::catalog::board::{self, RecoveryAction};
use gpuwho_model::catalog::device::{self, DeviceState, Sensor, ThrottleReason};
use gpuwho_model::catalog::health::Condition;
use gpuwho_model::catalog::link::{
    self, FabricCondition, FabricHealth, FabricState, LinkState, TotalError,
};
use gpuwho_model::catalog::wear::{
    self, EccCount, EccError, PcieError, RetirementCause, SpareRows,
};
use gpuwho_model::catalog::{DimIndexes, MetricDef, NO_DIM};

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 24.0 * HOUR;

/// A series of a device: a metric with values of its dimensions. [`NO_DIM`] in the first place of a
/// metric with dimensions stands for the sum over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    /// The metric.
    pub metric: &'static MetricDef,
    /// Its dimensions.
    pub dims: DimIndexes,
}

/// What a rule's value is made of.
#[derive(Clone, Copy, Debug)]
pub enum Signal {
    /// The sum of readings.
    Value(&'static [Input]),
    /// A reading of the PCIe link as a part of what is expected of it ([`super::peers::links`]).
    Link(Input, LinkPart),
    /// The increase of counters in the last so many seconds, restarts of the agent included.
    Increase(&'static [Input], f64),
    /// The same of that counter which has increased most, where they count the same time.
    MostIncrease(&'static [Input], f64),
    /// How far the sum of readings is below the highest there ever was on this device.
    Loss(&'static [Input]),
    /// The rise of the temperature in the last so many seconds, while the power does not rise.
    Ramp(f64),
    /// The device's clock as a part of the median of its peers on the host at the same work.
    Peers,
    /// 1 when such an event arrives, else 0. Judged only once there was one.
    Event(fn(&Observation) -> bool),
}

/// A part of the PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPart {
    /// The number of its lanes.
    Lanes,
    /// Its generation.
    Generation,
}

/// The figures of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// The condition starts at this value, and beyond.
    pub start: f64,
    /// It can end where the value is back at this one: below `start` where `start` is an upper
    /// bound, above it where it is a lower one.
    pub end: f64,
    /// Seconds for which the value stays beyond `start` before the condition starts.
    pub after: f64,
    /// Seconds for which the value stays back at `end` before the condition ends.
    pub clear: f64,
    /// Its severity.
    pub severity: Severity,
}

impl Figures {
    /// Whether a value is where the condition starts.
    pub fn starts(&self, value: f64) -> bool {
        if self.end < self.start { value >= self.start } else { value <= self.start }
    }

    /// Whether a value is where the condition can end.
    pub fn ends(&self, value: f64) -> bool {
        if self.end < self.start { value <= self.end } else { value >= self.end }
    }
}

/// One condition.
#[derive(Debug)]
pub struct Rule {
    /// The condition, what it means and what to do.
    pub about: Advised,
    /// What it is judged by.
    pub signal: Signal,
    /// The value in words; `{}` stands for the number.
    pub says: &'static str,
    /// Its figures, unless `[health]` has others.
    pub figures: Figures,
    /// Where the rule and its figures come from.
    pub citation: &'static str,
}

const fn plain(metric: &'static MetricDef) -> Input {
    Input { metric, dims: [NO_DIM; 2] }
}

const fn of(metric: &'static MetricDef, dim: u8) -> Input {
    Input { metric, dims: [dim, NO_DIM] }
}

const fn ecc(kind: EccError) -> Input {
    Input { metric: wear::ECC_ERRORS.def(), dims: [kind as u8, EccCount::Volatile as u8] }
}

const fn throttled(by: ThrottleReason) -> Input {
    of(device::THROTTLE_TIME.def(), by as u8)
}

const fn status(state: DeviceState) -> Input {
    of(device::STATE.def(), state as u8)
}

/// The figures of a flag: it is set or not.
const fn flag(severity: Severity, after: f64, clear: f64) -> Figures {
    Figures { start: 1.0, end: 0.0, after, clear, severity }
}

/// The figures of an event: the condition lasts a day from the last one, or until the device is
/// reset, the driver is loaded again or the host restarts.
const EVENT: Figures = flag(Severity::Critical, 0.0, DAY);

const NVIDIA_MEMORY: &str = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/";
const PAGES: &str = "https://docs.nvidia.com/deploy/dynamic-page-retirement/ and, of AMD's bad pages, \
                     https://docs.kernel.org/gpu/amdgpu/ras.html";
const MEMORY: &str = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/ and, of AMD's \
                      uncorrectable errors, https://docs.kernel.org/gpu/amdgpu/ras.html";
const NVIDIA_XID: &str = "https://docs.nvidia.com/deploy/xid-errors/";
const DCGM_HEALTH: &str =
    "https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html";
const NVML: &str = "https://docs.nvidia.com/deploy/nvml-api/";
const OWN: &str = "gpuwho's own figure; no vendor publishes one";

macro_rules! rule {
    ($condition:ident, $meaning:literal, $advice:literal, $signal:expr, $says:literal, $figures:expr, $citation:expr) => {
        Rule {
            about: Advised { condition: Condition::$condition, meaning: $meaning, advice: $advice },
            signal: $signal,
            says: $says,
            figures: $figures,
            citation: $citation,
        }
    };
}

/// Every rule, one for each condition.
#[rustfmt::skip]
pub static RULES: &[Rule] = &[
    rule!(MemoryUncorrected, "memory errors that ECC did not correct",
        "drain the device and reset it; replace the board if they come back",
        Signal::Increase(&[ecc(EccError::Uncorrected)], DAY), "{} uncorrected memory errors in one day",
        Figures { start: 1.0, end: 0.0, after: 0.0, clear: 0.0, severity: Severity::Critical }, MEMORY),
    rule!(MemoryCorrected, "corrected memory errors are rising fast; uncorrected ones often follow",
        "watch the remaining spare rows; plan a reset, then a replacement",
        Signal::Increase(&[ecc(EccError::Corrected)], HOUR), "{} corrected memory errors in one hour",
        Figures { start: 6000.0, end: 600.0, after: 0.0, clear: 10.0 * MINUTE, severity: Severity::Warning }, OWN),
    rule!(MemoryRowsFailed, "a memory row could not be remapped to a spare row",
        "drain the device and replace the board",
        Signal::Value(&[plain(wear::REMAP_FAILED.def())]), "row remapping failed",
        flag(Severity::Critical, 0.0, 0.0), NVIDIA_MEMORY),
    rule!(MemoryRowsPending, "bad memory rows are remapped at the next GPU reset",
        "drain and reset the device at the next maintenance",
        Signal::Value(&[plain(wear::REMAP_PENDING.def())]), "row remapping pending: needs a GPU reset",
        flag(Severity::Warning, 0.0, 0.0), NVIDIA_MEMORY),
    rule!(MemoryRowsLow, "memory banks have few or no spare rows left",
        "plan a replacement: the next errors in these banks cannot be repaired",
        Signal::Value(&[of(wear::SPARE_ROWS.def(), SpareRows::None as u8), of(wear::SPARE_ROWS.def(), SpareRows::Low as u8)]),
        "{} memory banks low on spare rows",
        Figures { start: 1.0, end: 0.0, after: 0.0, clear: 0.0, severity: Severity::Warning }, NVIDIA_MEMORY),
    rule!(MemoryPagesPending, "bad memory pages are retired at the next GPU reset",
        "drain and reset the device at the next maintenance",
        Signal::Value(&[plain(wear::RETIREMENT_PENDING.def())]), "page retirement pending: needs a GPU reset",
        flag(Severity::Warning, 0.0, 0.0), PAGES),
    rule!(MemoryPagesRetired, "nearly the maximum of 64 memory pages is retired",
        "plan a replacement of the board",
        Signal::Value(&[
            of(wear::RETIRED_PAGES.def(), RetirementCause::Corrected as u8),
            of(wear::RETIRED_PAGES.def(), RetirementCause::Uncorrected as u8),
        ]),
        "{} retired pages",
        Figures { start: 60.0, end: 59.0, after: 0.0, clear: 0.0, severity: Severity::Warning }, PAGES),
    rule!(MemorySramExceeded, "SRAM errors exceeded the threshold of the vendor's field diagnostic",
        "drain the device and replace the board",
        Signal::Value(&[plain(wear::ECC_SRAM_EXCEEDED.def())]), "SRAM error threshold exceeded",
        flag(Severity::Critical, 0.0, 0.0), NVIDIA_MEMORY),
    rule!(MemoryFault, "the driver reported a memory fault that needs a reset",
        "drain the device and reset it; replace the board if it comes back",
        Signal::Event(faults::is_memory), "memory fault", EVENT, NVIDIA_XID),
    rule!(BusWidth, "the PCIe link has fewer lanes than before in this slot, or than most cards of this model here",
        "reseat the board; check riser and slot; after rewiring: `gpuwho forget UUID`",
        Signal::Link(plain(wear::PCIE_WIDTH.def()), LinkPart::Lanes),
        "{} of the expected PCIe lanes",
        Figures { start: 0.99, end: 1.0, after: 5.0 * MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, NVML),
    rule!(BusGeneration, "under load, the PCIe link is slower than before in this slot, or than most cards of this model here",
        "reseat the board; check riser, slot and PCIe firmware settings; after changing them: `gpuwho forget UUID`",
        Signal::Link(plain(wear::PCIE_GENERATION.def()), LinkPart::Generation),
        "{} of the expected PCIe generation",
        Figures { start: 0.99, end: 1.0, after: 5.0 * MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, NVML),
    rule!(BusReplays, "PCIe packets are replayed, more than eight a minute",
        "reseat the board; check riser and slot",
        Signal::Increase(&[plain(wear::PCIE_REPLAYS.def())], 10.0 * MINUTE), "{} PCIe replays in ten minutes",
        Figures { start: 80.0, end: 20.0, after: 0.0, clear: 10.0 * MINUTE, severity: Severity::Warning }, DCGM_HEALTH),
    rule!(BusErrors, "the PCIe link had fatal errors",
        "drain the node and restart it; check seating, riser and slot",
        Signal::Increase(&[of(wear::PCIE_ERRORS.def(), PcieError::Fatal as u8)], HOUR), "{} fatal PCIe errors in one hour",
        Figures { start: 1.0, end: 0.0, after: 0.0, clear: 0.0, severity: Severity::Critical },
        "https://docs.kernel.org/PCI/pcieaer-howto.html"),
    rule!(BusFault, "the driver or the kernel cannot reach the device over PCIe",
        "drain the node and restart it; check power, seating and PCIe",
        Signal::Event(faults::is_bus), "PCIe bus fault", EVENT, NVIDIA_XID),
    rule!(LinkDown, "a link between devices went down",
        "restart the host; then check cable and board",
        Signal::Loss(&[of(link::NVLINKS.def(), LinkState::Active as u8), of(link::NVLINKS.def(), LinkState::Sleep as u8)]),
        "{} links down",
        Figures { start: 1.0, end: 0.0, after: 2.0 * MINUTE, clear: MINUTE, severity: Severity::Critical }, DCGM_HEALTH),
    rule!(LinkErrors, "links between devices had errors and were retrained; traffic stops meanwhile",
        "find the link in gpu.nvlink.link.errors; check its cable, connector and board",
        Signal::Increase(&[
            of(link::NVLINK_ERRORS.def(), TotalError::Recovery as u8),
            of(link::NVLINK_ERRORS.def(), TotalError::RecoveryFailed as u8),
        ], HOUR),
        "{} link recoveries in one hour",
        Figures { start: 1.0, end: 0.0, after: 0.0, clear: 0.0, severity: Severity::Warning }, DCGM_HEALTH),
    rule!(LinkChipDown, "the link between the device and the CPU of its module is down",
        "restart the host; replace the module if it stays down",
        Signal::Loss(&[plain(link::C2C_ACTIVE.def())]), "{} links to the CPU down",
        Figures { start: 1.0, end: 0.0, after: 2.0 * MINUTE, clear: MINUTE, severity: Severity::Critical }, NVML),
    rule!(LinkFabric, "the device has not joined its NVLink fabric; CUDA does not start on it",
        "check nvidia-fabricmanager and its log",
        Signal::Value(&[of(link::FABRIC_STATE.def(), FabricState::Completed as u8)]), "not in the NVLink fabric",
        Figures { start: 0.0, end: 1.0, after: 10.0 * MINUTE, clear: 0.0, severity: Severity::Critical }, NVML),
    rule!(LinkFabricUnhealthy, "the NVLink fabric has reduced bandwidth, errors or an unregistered board",
        "see gpu.fabric.condition; check the switches, nvidia-fabricmanager and their logs",
        Signal::Value(&[
            of(link::FABRIC_HEALTH.def(), FabricHealth::Unhealthy as u8),
            of(link::FABRIC_HEALTH.def(), FabricHealth::Limited as u8),
            of(link::FABRIC_CONDITION.def(), FabricCondition::Unregistered as u8),
        ]),
        "NVLink fabric degraded",
        Figures { start: 1.0, end: 0.0, after: 5.0 * MINUTE, clear: MINUTE, severity: Severity::Warning }, NVML),
    rule!(LinkFault, "the driver reported a link fault between devices",
        "reset the device and its link peers; check the cable if it comes back",
        Signal::Event(faults::is_link), "link fault", EVENT, NVIDIA_XID),
    rule!(ThermalMargin, "the temperature is close to thermal throttling",
        "check fans, filters, coolant and the temperature of the inlet air",
        Signal::Value(&[plain(device::TEMPERATURE_MARGIN.def())]), "{} °C below the slowdown temperature",
        Figures { start: 5.0, end: 8.0, after: 5.0 * MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, NVML),
    rule!(ThermalHot, "the GPU is hot",
        "check fans, filters, coolant and the temperature of the inlet air",
        Signal::Value(&[of(device::TEMPERATURE.def(), Sensor::Gpu as u8)]), "{} °C",
        Figures { start: 85.0, end: 80.0, after: 5.0 * MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, OWN),
    rule!(ThermalSlowdown, "the device is thermally throttled more than a tenth of the time",
        "check fans, filters, coolant and the temperature of the inlet air; compare with the neighbours",
        Signal::MostIncrease(&[
            throttled(ThrottleReason::HardwareThermal),
            throttled(ThrottleReason::SoftwareThermal),
            throttled(ThrottleReason::Thermal),
        ], 5.0 * MINUTE),
        "throttled for {} s of the last 300 s",
        Figures { start: 30.0, end: 5.0, after: 5.0 * MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, DCGM_HEALTH),
    rule!(ThermalRamp, "the temperature rises while the power does not",
        "check fans, pump and coolant of this device now",
        Signal::Ramp(5.0 * MINUTE), "{} °C hotter than five minutes ago at the same power",
        Figures { start: 10.0, end: 3.0, after: MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, OWN),
    rule!(PowerBrake, "the system asserts the external power brake",
        "check power supplies and the rack's power limit",
        Signal::Increase(&[throttled(ThrottleReason::PowerBrake)], 5.0 * MINUTE), "power brake for {} s of the last 300 s",
        Figures { start: 1.0, end: 0.0, after: MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, DCGM_HEALTH),
    rule!(PowerSupply, "the board lacks auxiliary power",
        "check the board's power connectors",
        Signal::Event(faults::is_power), "auxiliary power not connected", EVENT, NVIDIA_XID),
    rule!(DriverLost, "the driver has lost the device, or it is missing after a restart",
        "drain the node and restart it; check power, seating and PCIe; `gpuwho forget UUID` if it was removed",
        Signal::Value(&[status(DeviceState::Lost), status(DeviceState::Missing)]), "device lost",
        flag(Severity::Critical, 0.0, 0.0), NVIDIA_XID),
    rule!(DriverHung, "reads of the device do not return; processes in its driver cannot be killed",
        "drain the node and restart it; report driver version and dmesg to the vendor if it repeats",
        Signal::Value(&[status(DeviceState::Hung)]), "driver not responding",
        flag(Severity::Critical, MINUTE, 0.0), OWN),
    rule!(DriverFailing, "the driver answers, but every reading of the device fails",
        "drain the device and reset it",
        Signal::Value(&[status(DeviceState::Failing)]), "every reading fails",
        flag(Severity::Critical, 2.0 * MINUTE, 0.0), OWN),
    rule!(DriverMissing, "no driver is loaded for the device, or driver and library have different versions",
        "load the driver; after an upgrade restart the host",
        Signal::Value(&[status(DeviceState::NoDriver)]), "no driver loaded",
        flag(Severity::Critical, 5.0 * MINUTE, 0.0), OWN),
    rule!(DriverFirmware, "the device's firmware processor (GSP) does not answer the driver",
        "drain the device and reset it; update driver and firmware if it comes back",
        Signal::Event(faults::is_firmware), "firmware processor not responding", EVENT, NVIDIA_XID),
    rule!(DriverRecovery, "the driver advises a reset, a restart or a drain",
        "drain the device, then take the action in gpu.recovery.action",
        Signal::Value(&[of(board::RECOVERY_ACTION.def(), RecoveryAction::None as u8)]), "recovery action advised",
        Figures { start: 0.0, end: 1.0, after: MINUTE, clear: 0.0, severity: Severity::Critical }, NVML),
    rule!(DriverInforom, "the board's InfoROM is damaged; its error counts cannot be trusted",
        "plan a replacement of the board",
        Signal::Value(&[plain(board::INFOROM_VALID.def())]), "InfoROM checksum mismatch",
        Figures { start: 0.0, end: 1.0, after: 0.0, clear: 0.0, severity: Severity::Warning }, NVML),
    rule!(DriverFault, "the driver reported a fault that needs an operator",
        "see `gpuwho events` for the fault and its remedy",
        Signal::Event(faults::is_other), "driver-reported fault", EVENT, NVIDIA_XID),
    rule!(PeersBehind, "the device's clock is behind that of its peers on the host at the same work",
        "compare temperature, power limit and throttle reasons with the neighbours; run the vendor's diagnosis",
        Signal::Peers, "{} of its peers' clock",
        Figures { start: 0.8, end: 0.9, after: 10.0 * MINUTE, clear: 5.0 * MINUTE, severity: Severity::Warning }, OWN),
];

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::Dim;

    #[test]
    fn every_condition_has_one_rule_in_the_order_of_the_catalogue() {
        let ruled: Vec<_> = RULES.iter().map(|rule| rule.about.condition).collect();
        assert_eq!(ruled, Condition::ALL);
    }

    #[test]
    fn every_input_exists_and_every_rule_says_where_it_comes_from() {
        for rule in RULES {
            assert!(!rule.citation.is_empty() && !rule.about.advice.is_empty());
            for text in [rule.about.meaning, rule.about.advice, rule.says] {
                assert!(text.split_whitespace().count() <= 25, "{text}");
            }
            let inputs: Vec<Input> = match rule.signal {
                Signal::Value(all)
                | Signal::Increase(all, _)
                | Signal::MostIncrease(all, _)
                | Signal::Loss(all) => all.to_vec(),
                Signal::Link(one, _) => vec![one],
                _ => Vec::new(),
            };
            for Input { metric, dims } in inputs {
                let has =
                    |(dim, at): (&&Dim, u8)| at == NO_DIM || usize::from(at) < dim.values.len();
                assert!(metric.dims.iter().zip(dims).all(has), "{}", metric.name);
                assert!(metric.dims.len() < 2 || dims[1] != NO_DIM, "{}", metric.name);
            }
        }
    }

    #[test]
    fn where_a_condition_starts_it_does_not_end() {
        for rule in RULES {
            let figures = &rule.figures;
            assert!(figures.starts(figures.start), "{:?}", rule.about.condition);
            assert!(!figures.ends(figures.start), "{:?}", rule.about.condition);
            assert!(figures.ends(figures.end) && !figures.starts(figures.end));
            assert!(figures.severity >= Severity::Warning);
        }
    }
}
