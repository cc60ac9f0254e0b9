//! Naming profiles: names of other agents and of conventions for what the catalogue's metrics say.
//! A table of rows each (`l9gpu.rs`, `semconv.rs`); the sinks render from them, and `METRICS.md` has
//! them as tables.

use super::attributes::{AttrKey, attributes};
use super::level::Level;
use super::{Kind, MetricDef, l9gpu, semconv};
use std::fmt::Write as _;
use std::sync::LazyLock;

/// One output of a profile: a name with its constant attributes.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The metric's name.
    pub name: &'static str,
    /// Its unit, as the profile spells it.
    pub unit: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Attributes with constant values.
    pub with: &'static [(&'static AttrKey, &'static str)],
    /// What it is computed from.
    pub from: Origin,
    /// The same where the first gives nothing.
    pub or: Origin,
    /// Which series make one.
    pub per: Per,
    /// How it differs, or why it is not there; empty where it is the same.
    pub note: &'static str,
}

/// Which series make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// Those that differ only in dimensions and attributes which the profile does not have.
    Series,
    /// Those of a device.
    Device,
    /// Those of the host.
    Host,
    /// Each is a part of its device by this dimension, whose value follows the prefix in its id.
    Part(&'static AttrKey, &'static str),
}

/// How a value comes out of the catalogue's metrics. Increases are those of the last minute.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// There is none.
    None,
    /// The sum of the values.
    Sum(Input),
    /// The sum of the increases, for a second.
    Rate(Input),
    /// One sum by another.
    Ratio(Input, Input),
    /// The increase of one sum by that of another, and a constant.
    Increases(Input, Input, f64),
    /// A quantile of the increase of buckets.
    Quantile(Input, f64),
    /// The greatest value.
    Greatest(Input),
    /// The least value.
    Least(Input),
    /// The mean of the values.
    Mean(Input),
    /// 1 where the sum is below a limit, otherwise 0.
    Below(Input, f64),
    /// The sum of bits, by the value of a dimension.
    Bits(Input, &'static AttrKey, &'static [(&'static str, u32)]),
    /// The distribution as it is.
    Same(Input),
}

impl Origin {
    /// The metrics it is computed from; of a fraction the second is the divisor.
    pub fn inputs(&self) -> [Option<Input>; 2] {
        match *self {
            Self::None => [None, None],
            Self::Ratio(of, by) | Self::Increases(of, by, _) => [Some(of), Some(by)],
            Self::Sum(of)
            | Self::Rate(of)
            | Self::Quantile(of, _)
            | Self::Greatest(of)
            | Self::Least(of)
            | Self::Mean(of)
            | Self::Below(of, _)
            | Self::Bits(of, ..)
            | Self::Same(of) => [Some(of), None],
        }
    }
}

/// The series of a metric that a row is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// The metric.
    pub metric: &'static MetricDef,
    /// Only series that have one of the values of each attribute.
    pub only: &'static [(&'static AttrKey, &'static [&'static str])],
    /// Dimensions that stay, each under its name in the profile.
    pub keep: &'static [(&'static AttrKey, &'static AttrKey)],
    /// Which number of a distribution.
    pub part: Part,
    /// What it is multiplied by.
    pub scale: f64,
}

/// Which number of a distribution is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// How many observations.
    Count,
    /// Their sum.
    Sum,
}

/// All series of a metric.
pub(super) const fn of(metric: &'static MetricDef) -> Input {
    Input { metric, only: &[], keep: &[], part: Part::Count, scale: 1.0 }
}

impl Input {
    pub(super) const fn only(
        self,
        only: &'static [(&'static AttrKey, &'static [&'static str])],
    ) -> Self {
        Self { only, ..self }
    }

    pub(super) const fn keep(self, keep: &'static [(&'static AttrKey, &'static AttrKey)]) -> Self {
        Self { keep, ..self }
    }

    pub(super) const fn times(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    pub(super) const fn sum(self) -> Self {
        Self { part: Part::Sum, ..self }
    }
}

/// A gauge of a profile.
pub(super) const fn gauge(name: &'static str, unit: &'static str, from: Origin) -> Row {
    let (with, per) = (&[], Per::Series);
    Row { name, unit, kind: Kind::Gauge, with, from, or: Origin::None, per, note: "" }
}

/// A name that a profile does not have, with the reason.
pub(super) const fn absent(name: &'static str, unit: &'static str, reason: &'static str) -> Row {
    gauge(name, unit, Origin::None).note(reason)
}

impl Row {
    pub(super) const fn with(self, with: &'static [(&'static AttrKey, &'static str)]) -> Self {
        Self { with, ..self }
    }

    pub(super) const fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    pub(super) const fn or(self, or: Origin) -> Self {
        Self { or, ..self }
    }

    pub(super) const fn per(self, per: Per) -> Self {
        Self { per, ..self }
    }

    pub(super) const fn note(self, note: &'static str) -> Self {
        Self { note, ..self }
    }

    /// Whether sinks have it.
    pub fn is_served(&self) -> bool {
        !matches!(self.from, Origin::None)
    }
}

/// What becomes of an attribute that is no dimension of its metric.
#[derive(Clone, Copy, Debug)]
pub struct Rename {
    /// Its key in the catalogue.
    pub from: &'static AttrKey,
    /// Its key in the profile; `None` leaves it out.
    pub to: Option<&'static AttrKey>,
    /// Whether it stays under its own key as well.
    pub stays: bool,
}

/// A table of names.
#[derive(Debug)]
pub struct Table {
    /// The rows, those of one name together.
    pub rows: &'static [Row],
    /// Attributes with other names.
    pub renames: &'static [Rename],
    /// Attributes of the host that every point has.
    pub of_host: &'static [&'static AttrKey],
    /// The metrics of the rows, built at first use: by the row's place.
    metrics: LazyLock<Vec<MetricDef>>,
}

/// The names of l9gpu.
pub static L9GPU: Table = Table {
    rows: l9gpu::ROWS,
    renames: l9gpu::RENAMES,
    of_host: l9gpu::OF_HOST,
    metrics: LazyLock::new(|| metrics_of(l9gpu::ROWS)),
};

/// The names of OpenTelemetry's semantic conventions.
pub static SEMCONV: Table = Table {
    rows: semconv::ROWS,
    renames: semconv::RENAMES,
    of_host: &[],
    metrics: LazyLock::new(|| metrics_of(semconv::ROWS)),
};

fn metrics_of(rows: &'static [Row]) -> Vec<MetricDef> {
    let mut metrics: Vec<MetricDef> = Vec::new();
    for row in rows.iter().filter(|row| row.is_served()) {
        if metrics.last().is_none_or(|last| last.name != row.name) {
            metrics.push(MetricDef::of_profile(row.name, row.unit, row.kind));
        }
    }
    metrics
}

impl Table {
    /// The metrics that sinks have.
    pub fn metrics(&'static self) -> impl Iterator<Item = &'static MetricDef> {
        self.metrics.iter()
    }

    /// The rows that sinks have, each with its metric.
    pub fn served(&'static self) -> impl Iterator<Item = (&'static Row, &'static MetricDef)> {
        let served = self.rows.iter().filter(|row| row.is_served());
        served.filter_map(|row| {
            Some((row, self.metrics.iter().find(|metric| metric.name == row.name)?))
        })
    }
}

/// Whether a metric is a naming profile's.
pub fn is_of_profile(metric: &MetricDef) -> bool {
    metric.subject == "profile"
}

/// The metrics of all profiles.
pub(super) fn metrics() -> impl Iterator<Item = &'static MetricDef> {
    L9GPU.metrics().chain(SEMCONV.metrics())
}

/// Writes the table of a profile for `METRICS.md`.
pub(super) fn table(rows: &[Row], out: &mut String) {
    for row in rows {
        let with: Vec<String> =
            row.with.iter().map(|(key, value)| format!("`{}={value}`", key.name)).collect();
        let here = match row.from {
            Origin::None => "no".to_owned(),
            from => words(from),
        };
        let or = match row.or {
            Origin::None => String::new(),
            other => format!(", else {}", words(other)),
        };
        let level = levels(row);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| `{}` | `{}` | {} | {here}{or}{level} | {} |",
            row.name,
            row.unit,
            with.join(" "),
            row.note
        );
    }
}

/// A remark where the metrics are not exported by default.
fn levels(row: &Row) -> &'static str {
    let inputs = row.from.inputs().into_iter().flatten();
    let is_all = inputs.into_iter().any(|input| Level::of(input.metric) == Level::All);
    if is_all { " (level `all`)" } else { "" }
}

fn words(from: Origin) -> String {
    match from {
        Origin::None => String::new(),
        Origin::Sum(of) | Origin::Same(of) => words_of(of),
        Origin::Rate(of) if of.metric.kind == Kind::Gauge => {
            format!("the change a second of {}", words_of(of))
        }
        Origin::Rate(of) => format!("the rate of {}", words_of(of)),
        Origin::Ratio(of, by) => format!("{} by {}", words_of(of), words_of(by)),
        Origin::Increases(of, by, plus) => {
            let plus = if plus == 0.0 { String::new() } else { format!("{plus} + ") };
            format!("{plus}the rate of {} by that of {}", words_of(of), words_of(by))
        }
        Origin::Quantile(of, quantile) => {
            format!("quantile {quantile} of {}", words_of(of))
        }
        Origin::Greatest(of) => format!("the greatest {}", words_of(of)),
        Origin::Least(of) => format!("the least {}", words_of(of)),
        Origin::Mean(of) => format!("the mean {}", words_of(of)),
        Origin::Below(of, limit) => format!("whether {} is below {limit}", words_of(of)),
        Origin::Bits(of, ..) => format!("{} as bits", words_of(of)),
    }
}

fn words_of(input: Input) -> String {
    let mut text = format!("`{}`", input.metric.name);
    if input.metric.kind == Kind::Histogram && input.part == Part::Sum {
        text.push_str(" (sum)");
    }
    let values = input.only.iter().map(|(_, values)| values.join("`, `"));
    let values: Vec<_> = values.collect();
    if !values.is_empty() {
        // Writing to a String cannot fail.
        let _ = write!(text, " of `{}`", values.join("` and `"));
    }
    match input.scale {
        scale if scale > 1.0 => {
            let _ = write!(text, " × {scale}");
        }
        scale if scale < 1.0 => {
            let _ = write!(text, " ÷ {:.0}", 1.0 / scale);
        }
        _ => {}
    }
    text
}

/// Attributes that only profiles have.
pub mod keys {
    use super::{AttrKey, attributes};

    attributes! {
        /// What of the device is busy (l9gpu).
        TASK_TYPE = "gpu.task.type";
        /// Kind of link (l9gpu).
        LINK_TYPE = "gpu.interconnect.type";
        /// Direction on a link (l9gpu).
        LINK_DIRECTION = "gpu.interconnect.direction";
        /// Where a throughput is from (l9gpu).
        LINK_SOURCE = "gpu.interconnect.source";
        /// Block with the error (l9gpu).
        MEMORY_BLOCK = "gpu.ecc.memory_block";
        /// State of rows (l9gpu).
        ROW_STATE = "gpu.row_remap.state";
        /// Why the device is slowed down (l9gpu).
        THROTTLE_CAUSE = "gpu.throttle.cause";
        /// Whether the point is of a MIG instance (l9gpu).
        MIG_ENABLED = "gpu.mig.enabled";
        /// The MIG instance (l9gpu).
        MIG_INSTANCE = "gpu.mig.instance_id";
        /// Quantile: `p50`, `p95`, `p99` (l9gpu).
        QUANTILE = "quantile";
        /// Whose cache (l9gpu).
        CACHE_TYPE = "cache.type";
        /// The same under another key (l9gpu).
        GEN_AI_CACHE_TYPE = "gen_ai.cache.type";
        /// Why a request ended (l9gpu).
        FINISH_REASON = "finish_reason";
        /// The model (l9gpu).
        MODEL_NAME = "model.name";
        /// The model's version (l9gpu).
        MODEL_VERSION = "model.version";
        /// Tokens of prompts or answers (OpenTelemetry).
        TOKEN_TYPE = "gen_ai.token.type";
        /// The collective operation (l9gpu).
        COLLECTIVE_TYPE = "nccl.collective.type";
        /// The user of the Slurm job (l9gpu).
        SLURM_USER = "slurm.user";
        /// Identifies the component (OpenTelemetry).
        HW_ID = "hw.id";
        /// The component it is a part of (OpenTelemetry).
        HW_PARENT = "hw.parent";
        /// A short name of the component (OpenTelemetry).
        HW_NAME = "hw.name";
        /// Its model (OpenTelemetry).
        HW_MODEL = "hw.model";
        /// Its vendor (OpenTelemetry).
        HW_VENDOR = "hw.vendor";
        /// Kind of component (OpenTelemetry).
        HW_TYPE = "hw.type";
        /// State of the component (OpenTelemetry).
        HW_STATE = "hw.state";
        /// What of the device is busy (OpenTelemetry).
        HW_GPU_TASK = "hw.gpu.task";
        /// Where a sensor is (OpenTelemetry).
        HW_SENSOR_LOCATION = "hw.sensor_location";
        /// Kind of limit (OpenTelemetry).
        HW_LIMIT_TYPE = "hw.limit_type";
        /// Who makes the engine (OpenTelemetry).
        GEN_AI_PROVIDER = "gen_ai.provider.name";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;
    use std::collections::HashSet;

    fn tables() -> [&'static Table; 2] {
        [&L9GPU, &SEMCONV]
    }

    #[test]
    fn rows_of_one_name_stand_together_with_one_unit_and_kind() {
        for table in tables() {
            let mut seen = HashSet::new();
            for same in table.rows.chunk_by(|a, b| a.name == b.name) {
                let first = &same[0];
                assert!(seen.insert(first.name), "{} stands in two places", first.name);
                for row in same.iter().filter(|row| row.is_served()) {
                    assert_eq!((row.unit, row.kind), (first.unit, first.kind), "{}", row.name);
                }
            }
        }
    }

    #[test]
    fn a_row_names_only_values_that_its_metric_has() {
        for row in tables().into_iter().flat_map(|table| table.rows) {
            let inputs = row.from.inputs().into_iter().chain(row.or.inputs()).flatten();
            for input in inputs {
                for (key, values) in input.only {
                    let dims = input.metric.dims.iter();
                    let Some(dim) = dims.clone().find(|dim| dim.key.name == key.name) else {
                        continue;
                    };
                    for value in *values {
                        assert!(dim.values.contains(value), "{}: no {value}", row.name);
                    }
                }
            }
        }
    }

    #[test]
    fn no_two_rows_make_the_same_series() {
        for table in tables() {
            let mut seen = HashSet::new();
            for row in table.rows.iter().filter(|row| row.is_served()) {
                let with: Vec<_> = row.with.iter().map(|(key, value)| (key.name, *value)).collect();
                let [input, _] = row.from.inputs();
                let engine = input.map(|input| (input.metric.name, format!("{:?}", input.only)));
                assert!(seen.insert((row.name, with, engine)), "{} twice", row.name);
            }
        }
    }

    #[test]
    fn what_is_not_there_has_a_reason() {
        for row in tables().into_iter().flat_map(|table| table.rows) {
            assert!(row.is_served() || row.note.len() > 10, "{}", row.name);
            assert!(!row.note.contains('|'), "{}: a table's cell", row.name);
        }
    }

    #[test]
    fn a_metric_of_a_profile_has_a_place_behind_the_catalogue() {
        let own = catalog::all().count();
        let mut places = HashSet::new();
        for metric in metrics() {
            let place = usize::from(catalog::index_of(metric));
            assert!(place >= own && places.insert(place), "{}", metric.name);
        }
    }
}
