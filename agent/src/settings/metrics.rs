//! `[metrics]`: which metrics the agent exports.

use gpuwho_model::catalog::level::Level;
use gpuwho_model::catalog::selection::{Family, Selection};
use gpuwho_model::config::{ConfigError, Tables};
use serde::Deserialize;
use std::collections::BTreeMap;

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
# The most series of a family of metrics, within agent.series_limit; * stands for any text. More are dropped and
# counted as metric_limit, and the owners of a family share its room. The agent's own series always pass.
#: limits = { "gpu.process.*" = 5000, "nccl.*" = 10000 }
"#;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawMetrics {
    level: Option<String>,
    include: Option<Vec<String>>,
    exclude: Option<Vec<String>>,
    limits: BTreeMap<String, u32>,
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
        move |error: gpuwho_model::catalog::selection::PatternError| ConfigError::Value {
            key: key.into(),
            problem: error.to_string(),
            remedy: "`gpuwho metrics` lists the names; * stands for any text".into(),
        }
    };
    // Each list alone, so that the error names the right one.
    Selection::new(level, &include, &[]).map_err(wrong("metrics.include"))?;
    let selection = Selection::new(level, &include, &exclude).map_err(wrong("metrics.exclude"))?;
    let family = |(pattern, limit)| Family { pattern, limit: limit as usize };
    let families = raw.limits.into_iter().map(family).collect();
    selection.with_families(families).map_err(wrong("metrics.limits"))
}
