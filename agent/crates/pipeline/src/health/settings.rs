//! `[health]`: which rules judge the devices, and with which figures.

use super::rules::{Figures, RULES};
use crate::event::Severity;
use gpuwho_model::catalog::health::Condition;
use gpuwho_model::config::{ConfigError, Section, Tables};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time of a figure: a typing error beyond that.
const MAX_TIME: Duration = Duration::from_hours(24 * 30);

/// The section.
pub const SECTION: Section = Section::of::<RawHealth>("health", SAMPLE);

const SAMPLE: &str = r#"# Judge the health of the devices by what is read anyway: gpu.health.*, `gpuwho health`, and the events
# gpu.health.started and gpu.health.ended.
#: enabled = true
# Rules not to judge by; METRICS.md has the names (gpu.health.condition).
#: disabled = ["thermal_ramp"]
# Other figures of a rule: the value at which the condition starts, the one at which it can end (below
# the first where that is an upper bound, above it otherwise), for how long each must hold, and the
# severity, warning or critical. `gpuwho health --rules` prints all of them with their sources.
#: rules = { thermal_hot = { start = 90.0, end = 85.0, for = "5m", clear = "5m", severity = "warning" } }
"#;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHealth {
    enabled: Option<bool>,
    disabled: Option<Vec<String>>,
    rules: Option<BTreeMap<String, RawFigures>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawFigures {
    start: Option<f64>,
    end: Option<f64>,
    #[serde(rename = "for")]
    after: Option<String>,
    clear: Option<String>,
    severity: Option<String>,
}

/// The figures of each rule in the order of [`RULES`]; `None` for a rule that is off.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthSettings {
    /// By rule.
    pub figures: Vec<Option<Figures>>,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self { figures: RULES.iter().map(|rule| Some(rule.figures)).collect() }
    }
}

impl HealthSettings {
    /// Reads the section.
    pub fn resolve(tables: &Tables) -> Result<Self, ConfigError> {
        let raw: RawHealth = tables.read(SECTION.name)?;
        let mut settings = Self::default();
        for (name, raw) in raw.rules.unwrap_or_default() {
            let at = place(&name)?;
            if let Some(Some(figures)) = settings.figures.get_mut(at) {
                *figures = changed(*figures, &name, raw)?;
            }
        }
        for name in raw.disabled.unwrap_or_default() {
            let at = place(&name)?;
            if let Some(figures) = settings.figures.get_mut(at) {
                *figures = None;
            }
        }
        if raw.enabled == Some(false) {
            settings.figures.iter_mut().for_each(|figures| *figures = None);
        }
        Ok(settings)
    }

    /// Whether any rule is on.
    pub fn is_enabled(&self) -> bool {
        self.figures.iter().any(Option::is_some)
    }
}

fn place(name: &str) -> Result<usize, ConfigError> {
    let found = Condition::ALL.iter().position(|condition| condition.as_str() == name);
    found.ok_or_else(|| ConfigError::Value {
        key: "health".into(),
        problem: format!("there is no rule `{name}`"),
        remedy: "`gpuwho health --rules` lists the names".into(),
    })
}

fn changed(figures: Figures, name: &str, raw: RawFigures) -> Result<Figures, ConfigError> {
    let wrong = |problem: String, remedy: &str| ConfigError::Value {
        key: format!("health.rules.{name}"),
        problem,
        remedy: remedy.into(),
    };
    let seconds = |text: Option<String>, default: f64| match text {
        None => Ok(default),
        Some(text) => match humantime::parse_duration(&text) {
            Ok(time) if time <= MAX_TIME => Ok(time.as_secs_f64()),
            _ => Err(wrong(
                format!("`{text}` is no time"),
                "write a time like 5m, of 30 days at most",
            )),
        },
    };
    let severity = match raw.severity.as_deref() {
        None => figures.severity,
        Some("warning") => Severity::Warning,
        Some("critical") => Severity::Critical,
        Some(other) => {
            return Err(wrong(
                format!("there is no severity `{other}`"),
                "write warning or critical",
            ));
        }
    };
    let new = Figures {
        start: raw.start.unwrap_or(figures.start),
        end: raw.end.unwrap_or(figures.end),
        after: seconds(raw.after, figures.after)?,
        clear: seconds(raw.clear, figures.clear)?,
        severity,
    };
    let is_upper = |figures: &Figures| figures.end < figures.start;
    let is_sound = new.start.is_finite() && new.end.is_finite() && new.ends(new.end);
    if !is_sound || new.starts(new.end) || is_upper(&new) != is_upper(&figures) {
        let side = if is_upper(&figures) { "below" } else { "above" };
        let remedy = format!("set both start and end, with end {side} start");
        return Err(wrong(format!("start {} and end {}", new.start, new.end), &remedy));
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<HealthSettings, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpuwho.toml");
        std::fs::write(&file, text).unwrap();
        let tables = Tables::load(Some(&file), &[], &[SECTION], &[]).map_err(|e| e.to_string())?;
        HealthSettings::resolve(&tables).map_err(|error| error.to_string())
    }

    #[test]
    fn figures_of_a_rule_are_overridden_and_rules_switched_off() {
        assert_eq!(resolve("").unwrap(), HealthSettings::default());
        let text = "[health]\ndisabled = [\"thermal_ramp\"]\n[health.rules]\n\
                    thermal_hot = { start = 90.0, end = 88.0, for = \"1m\", severity = \"critical\" }";
        let figures = resolve(text).unwrap().figures;
        let of = |name| figures[place(name).unwrap()];
        assert_eq!(of("thermal_ramp"), None);
        let expected = Figures {
            start: 90.0,
            end: 88.0,
            after: 60.0,
            clear: 300.0,
            severity: Severity::Critical,
        };
        assert_eq!(of("thermal_hot"), Some(expected));
        assert!(!resolve("[health]\nenabled = false").unwrap().is_enabled());
    }

    #[test]
    fn figures_that_make_no_hysteresis_and_rules_that_are_none_are_refused() {
        for (text, expected) in [
            ("disabled = [\"nope\"]", "no rule `nope`"),
            ("rules = { thermal_hot = { start = 70.0 } }", "with end below start"),
            ("rules = { thermal_margin = { end = 2.0 } }", "with end above start"),
            ("rules = { thermal_hot = { start = inf } }", "set both start and end"),
            ("rules = { thermal_hot = { for = \"400d\" } }", "30 days at most"),
            ("rules = { thermal_hot = { severity = \"bad\" } }", "no severity `bad`"),
        ] {
            let error = resolve(&format!("[health]\n{text}")).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
