//! `[metrics]`: which metrics the agent exports.

use super::{ConfigError, Tables};
use crate::catalog::level::Level;
use crate::series::Selection;
use serde::Deserialize;

/// The section's name.
pub(super) const NAME: &str = "metrics";

/// The section in the sample.
pub(super) const SAMPLE: &str = r#"# How much the agent exports: basic (some 40 series a device), default, or all. METRICS.md has the level
# and the number of series of each metric. Below all, a state that a device was never in, and a codec or
# copy engine that was never used, have no series.
#: level = "default"
# Metrics to add to the level, and to leave out; * stands for any text. What is in both is left out.
#: include = ["gpu.power.limit", "gpu.ecc.*"]
#: exclude = ["gpu.pcie.*"]
"#;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawMetrics {
    level: Option<String>,
    include: Option<Vec<String>>,
    exclude: Option<Vec<String>>,
}

pub(super) fn selection(tables: &Tables) -> Result<Selection, ConfigError> {
    let raw: RawMetrics = tables.read(NAME)?;
    let word = raw.level.as_deref().unwrap_or(Level::Default.as_str());
    let level = Level::ALL.into_iter().find(|level| level.as_str() == word);
    let level = level.ok_or_else(|| ConfigError::Value {
        key: "metrics.level".into(),
        problem: format!("there is no level `{word}`"),
        remedy: "write basic, default or all".into(),
    })?;
    let (include, exclude) = (raw.include.unwrap_or_default(), raw.exclude.unwrap_or_default());
    let wrong = |key: &'static str| {
        move |error: crate::series::PatternError| ConfigError::Value {
            key: key.into(),
            problem: error.to_string(),
            remedy: "`gpuwho metrics` lists the names; * stands for any text".into(),
        }
    };
    // Each list alone, so that the error names the right one.
    Selection::new(level, &include, &[]).map_err(wrong("metrics.include"))?;
    Selection::new(level, &include, &exclude).map_err(wrong("metrics.exclude"))
}
