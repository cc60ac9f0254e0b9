//! The levels of `metrics.level`: how much of the catalogue the agent exports.
//!
//! Each level contains the one before. A metric that no list names is at `default`.

use super::{
    Dims as _, MetricDef, agent, board, cgroup, cost, device, event, gpm, health, inspector, link,
    process, share, wear,
};
use crate::sample::Sample;

/// How much is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What a first dashboard and the critical alerts need: some 40 series a device.
    Basic,
    /// What the shipped dashboard and alerts need, without what seldom changes or is nearly always 0.
    Default,
    /// Everything that can be read.
    All,
}

impl Level {
    /// Every level, the smallest first.
    pub const ALL: [Self; 3] = [Self::Basic, Self::Default, Self::All];

    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::Default => "default",
            Self::All => "all",
        }
    }

    /// The smallest level that has a metric.
    pub fn of(metric: &'static MetricDef) -> Self {
        if BASIC.contains(&metric) {
            return Self::Basic;
        }
        if ALL_ONLY.contains(&metric) { Self::All } else { Self::Default }
    }
}

/// Whether only the first value of this metric's dimension is exported below [`Level::All`]: of a
/// process its multiprocessor time, which every driver reports, not its memory controller and codecs.
pub fn is_detailed(metric: &'static MetricDef) -> bool {
    *metric == *process::UTILIZATION.def()
}

/// Whether a 0 of this metric says nothing until there was another value: a state that the subject
/// was never in, a unit of the device that was never used. Below [`Level::All`] these have no series.
/// Never true of counters, because the first increase of a counter needs the 0 before it.
pub fn is_sparse(metric: &'static MetricDef) -> bool {
    metric.is_state_set() || SPARSE.contains(&metric)
}

/// Whether a sample says only that a source has nothing to read on this host. Below [`Level::All`] it
/// has no series; of a source that was there, the series of its last state becomes 0.
pub fn is_absence(sample: &Sample) -> bool {
    *sample.metric == *agent::SOURCE_STATE.def()
        && sample.dims == agent::SourceState::Absent.indexes()
}

static SPARSE: &[&MetricDef] = &[device::UTILIZATION.def()];

static BASIC: &[&MetricDef] = &[
    device::INFO.def(),
    device::STATE.def(),
    device::UP.def(),
    device::UTILIZATION.def(),
    device::MEMORY_USAGE.def(),
    device::MEMORY_LIMIT.def(),
    device::TEMPERATURE.def(),
    device::POWER.def(),
    device::ENERGY.def(),
    device::CLOCK_SPEED.def(),
    device::THROTTLE_ACTIVE.def(),
    device::PROCESS_COUNT.def(),
    wear::ECC_ERRORS.def(),
    wear::REMAP_PENDING.def(),
    wear::REMAP_FAILED.def(),
    wear::RETIREMENT_PENDING.def(),
    wear::PCIE_REPLAYS.def(),
    board::RECOVERY_ACTION.def(),
    health::CONDITION.def(),
    health::SCORE.def(),
    link::NVLINK_IO.def(),
    link::NVLINKS.def(),
    link::FABRIC_STATE.def(),
    event::XID_ERRORS.def(),
    process::INFO.def(),
    process::MEMORY_USAGE.def(),
    process::UTILIZATION.def(),
    share::OWNER_UTILIZATION.def(),
    share::OWNER_MEMORY.def(),
    share::OWNER_POWER.def(),
    share::OWNER_BUSY_TIME.def(),
    share::OWNER_ENERGY.def(),
    share::BUSY_TIME.def(),
    share::UNATTRIBUTED_TIME.def(),
    cost::OWNER_COST.def(),
    cost::DEVICE_COST.def(),
    agent::SOURCE_STATE.def(),
    agent::DROPPED.def(),
    agent::SERIES.def(),
    agent::CPU.def(),
    agent::MEMORY.def(),
];

/// Limits that never change, details behind a total, and what is 0 on nearly every device.
static ALL_ONLY: &[&MetricDef] = &[
    device::APERTURE_USAGE.def(),
    device::APERTURE_LIMIT.def(),
    device::HOST_MEMORY_LIMIT.def(),
    device::TEMPERATURE_LIMIT.def(),
    device::TEMPERATURE_MARGIN_LIMIT.def(),
    device::POWER_AVERAGE.def(),
    device::POWER_LIMIT.def(),
    device::CLOCK_LIMIT.def(),
    device::CLOCK_APPLICATION.def(),
    wear::ECC_ENABLED_NEXT.def(),
    wear::ECC_AGGREGATE.def(),
    wear::ECC_SRAM.def(),
    wear::PCIE_GENERATION.def(),
    wear::PCIE_GENERATION_LIMIT.def(),
    wear::PCIE_ERRORS.def(),
    wear::BLOCK_ERRORS.def(),
    board::ACCOUNTING_LIMIT.def(),
    board::VIDEO_SESSIONS.def(),
    board::VIDEO_FRAME_RATE.def(),
    board::VIDEO_LATENCY.def(),
    link::NVLINK_RAW_IO.def(),
    link::NVLINK_FEC.def(),
    link::LINK_BIT_ERRORS.def(),
    gpm::MEDIA_ACTIVE.def(),
    gpm::INSTANCE_MEDIA_ACTIVE.def(),
    cgroup::PRESSURE_TIME.def(),
    share::ACCOUNTED_TIME.def(),
    share::ACCOUNTED_ENERGY.def(),
    cost::OWNER_TIME.def(),
    agent::STAGE_CPU.def(),
    agent::SOURCE_ERRORS.def(),
    agent::SOURCE_RESTARTS.def(),
    agent::SOURCE_HANGS.def(),
    agent::SOURCE_DURATION.def(),
    agent::SOURCE_CPU.def(),
    inspector::FILES.def(),
    inspector::LINES.def(),
    inspector::SKIPPED.def(),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Kind, all};

    /// The folder of what is shipped beside the agent.
    const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../dashboards");

    #[test]
    fn a_counter_is_never_left_out_because_it_is_zero() {
        for metric in all().filter(|metric| is_sparse(metric)) {
            assert_eq!(metric.kind, Kind::Gauge, "{}", metric.name);
        }
    }

    #[test]
    fn a_metric_is_in_one_list() {
        for metric in BASIC {
            assert!(!ALL_ONLY.contains(metric), "{}", metric.name);
        }
    }

    /// Those that an expression names; descriptions may name more.
    #[test]
    fn what_dashboards_and_alerts_ask_for_is_at_the_default_level() {
        for file in ["alerts.yaml", "overview.json"] {
            let text = std::fs::read_to_string(format!("{DASHBOARDS}/{file}")).unwrap();
            let text: String = text.lines().filter(|line| !line.contains("description")).collect();
            for metric in ALL_ONLY {
                let name = metric.name.replace('.', "_");
                let mut names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let found = names.find(|word| {
                    let rest = word.strip_prefix(name.as_str());
                    rest.is_some_and(|rest| {
                        ["", "_total", "_watts", "_celsius", "_hertz", "_bytes"].contains(&rest)
                    })
                });
                assert_eq!(found, None, "{file} asks for {}", metric.name);
            }
        }
    }

    #[test]
    fn a_device_has_few_series_at_the_basic_level() {
        let of_device = |level| {
            let defs = all().filter(move |def| def.subject == "gpu" && Level::of(def) <= level);
            let each = |def: &'static MetricDef| {
                if is_sparse(def) { 1 } else { def.series_per_subject() }
            };
            defs.map(each).sum::<usize>()
        };
        let [basic, default, every] = Level::ALL.map(of_device);
        assert!(basic <= 45, "{basic} series");
        assert!(basic < default && default < every, "{basic} {default} {every}");
    }
}
