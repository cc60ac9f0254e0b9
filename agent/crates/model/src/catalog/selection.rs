//! Which metrics are exported: a level of the catalogue, and patterns that add to it or take away.

use crate::catalog::level::{Level, is_absence, is_detailed, is_sparse};
use crate::catalog::{self, MetricDef};
use crate::sample::{Sample, Value};

/// Most patterns in a list, and the longest one: more than the catalogue has metrics.
const MAX_PATTERNS: usize = 512;
const MAX_PATTERN_LEN: usize = 128;

/// Most families with a limit of their own.
const MAX_FAMILIES: usize = 16;

/// A pattern that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// No metric has such a name.
    #[error("no metric is called `{0}`")]
    NoMetric(String),
    /// Too many, or too long.
    #[error("more than {MAX_PATTERNS} patterns, or one of more than {MAX_PATTERN_LEN} bytes")]
    TooMuch,
    /// Two families have a metric in common.
    #[error("`{0}` and `{1}` both name `{2}`")]
    InTwo(String, String, &'static str),
    /// A family without room.
    #[error("`{0}` has a limit of 0")]
    NoRoom(String),
    /// Too many families.
    #[error("more than {MAX_FAMILIES} patterns")]
    TooManyFamilies,
}

/// Metrics with a limit of the number of their series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// What their names match.
    pub pattern: String,
    /// The most series that they have together.
    pub limit: usize,
}

/// The metrics that are exported.
#[derive(Clone, Debug)]
pub struct Selection {
    /// By the metric's place in the catalogue.
    wanted: Box<[bool]>,
    /// Whether a 0 that says nothing is left out until there is another value.
    is_sparse: bool,
    families: Vec<Family>,
    /// The family of a metric by its place in the catalogue; empty without families.
    by_metric: Box<[Option<u8>]>,
}

impl Selection {
    /// The metrics of a level and those that `include` names, without those that `exclude` names. In
    /// a pattern `*` stands for any text.
    pub fn new(level: Level, include: &[String], exclude: &[String]) -> Result<Self, PatternError> {
        for pattern in include.iter().chain(exclude) {
            if include.len().max(exclude.len()) > MAX_PATTERNS || pattern.len() > MAX_PATTERN_LEN {
                return Err(PatternError::TooMuch);
            }
            if !catalog::all().any(|metric| matches(pattern, metric.name)) {
                return Err(PatternError::NoMetric(pattern.clone()));
            }
        }
        let is_in = |list: &[String], metric: &MetricDef| {
            list.iter().any(|pattern| matches(pattern, metric.name))
        };
        let is_wanted = |metric: &'static MetricDef| {
            (Level::of(metric) <= level || is_in(include, metric)) && !is_in(exclude, metric)
        };
        let wanted = catalog::all().map(is_wanted).collect();
        Ok(Self { wanted, is_sparse: level != Level::All, ..Self::all() })
    }

    /// The whole catalogue.
    pub fn all() -> Self {
        Self {
            wanted: catalog::all().map(|_| true).collect(),
            is_sparse: false,
            families: Vec::new(),
            by_metric: Box::default(),
        }
    }

    /// How many metrics are exported.
    pub fn count(&self) -> usize {
        self.wanted.iter().filter(|is_wanted| **is_wanted).count()
    }

    /// Whether a metric is exported.
    pub fn wants(&self, metric: &'static MetricDef) -> bool {
        self.wanted.get(usize::from(catalog::index_of(metric))).is_none_or(|wanted| *wanted)
    }

    /// With a limit for the series of each family of metrics.
    pub fn with_families(mut self, families: Vec<Family>) -> Result<Self, PatternError> {
        if families.len() > MAX_FAMILIES {
            return Err(PatternError::TooManyFamilies);
        }
        let mut by_metric: Box<[Option<u8>]> = catalog::all().map(|_| None).collect();
        for (number, family) in (0..).zip(&families) {
            let mut is_any = false;
            if family.pattern.len() > MAX_PATTERN_LEN {
                return Err(PatternError::TooMuch);
            }
            if family.limit == 0 {
                return Err(PatternError::NoRoom(family.pattern.clone()));
            }
            for (metric, of) in catalog::all().zip(&mut by_metric) {
                if !matches(&family.pattern, metric.name) {
                    continue;
                }
                is_any = true;
                if let Some(other) = of.replace(number).and_then(|at| families.get(usize::from(at)))
                {
                    let (one, two) = (other.pattern.clone(), family.pattern.clone());
                    return Err(PatternError::InTwo(one, two, metric.name));
                }
            }
            if !is_any {
                return Err(PatternError::NoMetric(family.pattern.clone()));
            }
        }
        (self.families, self.by_metric) = (families, by_metric);
        Ok(self)
    }

    /// The families of metrics with a limit of their own.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The family of a metric.
    pub fn family(&self, metric: &'static MetricDef) -> Option<u8> {
        if self.families.is_empty() {
            return None;
        }
        *self.by_metric.get(usize::from(catalog::index_of(metric)))?
    }

    /// The largest number of series that one subject of a metric can have.
    pub fn most_series(&self, metric: &'static MetricDef) -> usize {
        let all = metric.series_per_subject();
        let one = if self.is_sparse && is_detailed(metric) { all.min(1) } else { all };
        if self.wants(metric) { one } else { 0 }
    }

    /// Whether a sample is of a dimension that this level does not have.
    pub fn is_detail(&self, sample: &Sample) -> bool {
        self.is_sparse && is_detailed(sample.metric) && sample.dims.first() != Some(&0)
    }

    /// Whether a sample is left out unless its series has begun.
    pub fn is_unused(&self, sample: &Sample) -> bool {
        let is_zero = match sample.value {
            Value::Int(value) => value == 0,
            Value::Double(value) => value == 0.0,
            Value::Histogram(_) => false,
        };
        // The first value of a dimension that is no set of states is the whole device or process.
        let is_first = !sample.metric.is_state_set() && sample.dims.first() == Some(&0);
        let says_nothing = is_zero && is_sparse(sample.metric) && !is_first;
        self.is_sparse && (says_nothing || is_absence(sample))
    }
}

/// Whether a name is what a pattern says, in which `*` stands for any text.
pub fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::device;

    #[test]
    fn a_star_stands_for_any_text() {
        let cases = [
            ("gpu.power", "gpu.power", true),
            ("gpu.power", "gpu.power.limit", false),
            ("gpu.power*", "gpu.power.limit", true),
            ("*.limit", "gpu.power.limit", true),
            ("gpu.*.limit", "gpu.power.limit", true),
            ("gpu.*.limit", "gpu.limit", false),
            ("*", "gpu.power", true),
            ("g**r", "gpu.power", true),
            ("", "gpu.power", false),
            ("*a*a*a*", "aa", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn patterns_add_to_a_level_and_take_away_from_it() {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let basic = Selection::new(Level::Basic, &[], &[]).unwrap();
        assert!(basic.wants(device::POWER.def()) && !basic.wants(device::POWER_LIMIT.def()));
        let (include, exclude) = (texts(&["gpu.power.*"]), texts(&["gpu.power", "gpu.power.st*"]));
        let changed = Selection::new(Level::Basic, &include, &exclude).unwrap();
        assert!(!changed.wants(device::POWER.def()) && changed.wants(device::POWER_LIMIT.def()));
        assert!(!changed.wants(device::POWER_STATE.def()), "what is excluded stays out");
        let every = Selection::new(Level::All, &[], &[]).unwrap();
        assert_eq!(every.count(), catalog::all().count());
    }

    #[test]
    fn a_pattern_that_no_metric_has_is_refused() {
        let wrong = Selection::new(Level::Default, &["gpu.pwer".to_owned()], &[]);
        assert_eq!(wrong.unwrap_err(), PatternError::NoMetric("gpu.pwer".into()));
        let many = vec!["*".to_owned(); MAX_PATTERNS + 1];
        assert_eq!(Selection::new(Level::All, &[], &many).unwrap_err(), PatternError::TooMuch);
        let long = ["*".repeat(MAX_PATTERN_LEN + 1)];
        assert_eq!(Selection::new(Level::All, &long, &[]).unwrap_err(), PatternError::TooMuch);
    }

    #[test]
    fn families_have_metrics_of_their_own_and_a_limit() {
        let family = |pattern: &str, limit| Family { pattern: pattern.into(), limit };
        let with = |families| Selection::all().with_families(families);
        let both = with(vec![family("gpu.power*", 5), family("nccl.*", 7)]).unwrap();
        assert_eq!(both.family(device::POWER_LIMIT.def()), Some(0));
        assert_eq!(both.family(device::UTILIZATION.def()), None);
        let wrong = |families| with(families).unwrap_err();
        let two = wrong(vec![family("gpu.p*", 5), family("gpu.power", 7)]);
        assert_eq!(two.to_string(), "`gpu.p*` and `gpu.power` both name `gpu.power`");
        assert_eq!(wrong(vec![family("gpu.pwer", 5)]), PatternError::NoMetric("gpu.pwer".into()));
        assert_eq!(wrong(vec![family("gpu.*", 0)]), PatternError::NoRoom("gpu.*".into()));
        assert_eq!(wrong(vec![family("*", 1); 17]), PatternError::TooManyFamilies);
        assert_eq!(wrong(vec![family(&"*".repeat(129), 1)]), PatternError::TooMuch);
    }

    #[test]
    fn below_the_highest_level_a_state_that_never_was_has_no_series() {
        use crate::catalog::device::{DeviceState, Task};
        use crate::catalog::process::{ProcessTask, UTILIZATION};
        use crate::ids::GpuId;
        use crate::ids::ProcKey;
        use crate::sample::GpuProcess;
        let gpu = GpuId(0);
        let default = Selection::new(Level::Default, &[], &[]).unwrap();
        let is_unused = |sample: Sample| default.is_unused(&sample);
        assert!(is_unused(device::STATE.sample(gpu, DeviceState::Ok, 0)));
        assert!(!is_unused(device::STATE.sample(gpu, DeviceState::Lost, 1)));
        assert!(!is_unused(device::UTILIZATION.sample(gpu, Task::General, 0.0)), "idle is a value");
        assert!(is_unused(device::UTILIZATION.sample(gpu, Task::Encoder, 0.0)));
        let process =
            GpuProcess { gpu, instance: None, process: ProcKey { pid: 1, start_ticks: 1 } };
        let of = |task| UTILIZATION.sample(process, task, 0.5);
        let is_detail = |task| default.is_detail(&of(task));
        assert!(!is_detail(ProcessTask::Sm) && is_detail(ProcessTask::Memory));
        assert!(!Selection::all().is_unused(&device::STATE.sample(gpu, DeviceState::Ok, 0)));
    }

    #[test]
    fn below_the_highest_level_what_is_not_on_this_host_has_no_series() {
        use crate::catalog::agent::{SOURCE_STATE, SourceState};
        use crate::sample::Source;
        let absent = SOURCE_STATE.sample(Source("docker"), SourceState::Absent, 1);
        let default = Selection::new(Level::Default, &[], &[]).unwrap();
        assert!(default.is_unused(&absent) && !Selection::all().is_unused(&absent));
        assert!(!default.is_unused(&SOURCE_STATE.sample(Source("docker"), SourceState::Failed, 1)));
    }
}
