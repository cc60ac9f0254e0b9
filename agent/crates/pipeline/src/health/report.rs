//! The health of all devices as `gpuwho health` prints it.

use crate::event::Severity;
use gpuwho_model::catalog::health::{ConditionSeverity, HealthStatus};
use gpuwho_model::screen::{Screen, Style};
use gpuwho_model::text::{device_name, plural, ranges};
use serde::{Deserialize, Serialize};

/// The version of the JSON (`agent/docs/json.md`).
pub const SCHEMA: u32 = 1;

/// The whole answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HealthReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Host name.
    pub host: String,
    /// Whether the rules are on.
    pub enabled: bool,
    /// Whether the agent has read its devices since it started.
    #[serde(default)]
    pub has_read: bool,
    /// Every device that was judged since the agent started.
    pub devices: Vec<DeviceView>,
}

/// A device's health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceView {
    /// UUID.
    pub uuid: String,
    /// Index in the driver's order.
    pub index: u32,
    /// Its vendor, which counts it.
    #[serde(default)]
    pub vendor: String,
    /// Product name.
    pub model: String,
    /// `ok`, `warning`, `critical` or `unknown`.
    pub status: String,
    /// 100 for a device without conditions; absent where nothing can be judged.
    pub score: Option<i64>,
    /// Seconds since it was judged.
    pub age_seconds: f64,
    /// What is wrong, the worst first.
    pub conditions: Vec<ConditionView>,
    /// Conditions for which this device, its driver or its vendor give no reading now.
    pub not_judged: Vec<String>,
}

/// A condition that lasts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConditionView {
    /// Its name: `memory_rows_failed`.
    pub condition: String,
    /// `warning` or `critical`.
    pub severity: String,
    /// The value that it has, in words.
    pub reason: String,
    /// What it means.
    pub meaning: String,
    /// What to do.
    pub advice: String,
    /// When it started, in UTC as RFC 3339 writes it.
    pub since: String,
    /// Where the rule comes from.
    pub citation: String,
}

impl ConditionView {
    /// Whether it is the same of another device, whenever it started.
    pub fn is_alike(&self, other: &Self) -> bool {
        (&self.condition, &self.severity, &self.reason)
            == (&other.condition, &other.severity, &other.reason)
    }
}

/// The worst of all that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No condition.
    Ok,
    /// A warning at the worst.
    Warning,
    /// A critical condition.
    Critical,
    /// A device cannot be judged, and no other has a condition.
    Unknown,
}

/// The score by the number of conditions of each severity.
pub(super) fn score(critical: usize, warnings: usize) -> i64 {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX / 100);
    let (critical, warnings) = (number(critical), number(warnings));
    let first = if critical > 0 { 60 + 20 * (critical - 1) } else { 0 };
    (100 - first - 10 * warnings).max(0)
}

/// The dimension of a condition's severity.
pub(super) fn dim(severity: Severity) -> ConditionSeverity {
    match severity {
        Severity::Critical => ConditionSeverity::Critical,
        _ => ConditionSeverity::Warning,
    }
}

impl HealthReport {
    /// The worst of the devices.
    pub fn verdict(&self) -> Verdict {
        let is = |status: HealthStatus| {
            self.devices.iter().any(|device| device.status == status.as_str())
        };
        if is(HealthStatus::Critical) {
            Verdict::Critical
        } else if is(HealthStatus::Warning) {
            Verdict::Warning
        } else if is(HealthStatus::Unknown) || self.devices.is_empty() {
            Verdict::Unknown
        } else {
            Verdict::Ok
        }
    }

    /// One line for a reason field: the devices by their conditions, the critical ones first.
    pub fn brief(&self) -> String {
        let mut devices: Vec<_> = self.devices.iter().filter(|one| one.status != "ok").collect();
        devices.sort_by_key(|device| device.status != HealthStatus::Critical.as_str());
        let mut alike: Vec<(String, Vec<String>)> = Vec::new();
        for device in devices {
            let names: Vec<&str> = device.conditions.iter().map(|one| &*one.condition).collect();
            let names = if names.is_empty() { device.status.clone() } else { names.join("+") };
            match alike.iter_mut().find(|(known, _)| *known == names) {
                Some((_, alike)) => alike.push(self.name(device)),
                None => alike.push((names, vec![self.name(device)])),
            }
        }
        let one =
            |(names, devices): &(String, Vec<String>)| format!("GPU {} {names}", ranges(devices));
        match alike.as_slice() {
            [] => format!("{} ok", plural(self.devices.len(), "GPU", "GPUs")),
            some => some.iter().map(one).collect::<Vec<_>>().join("; "),
        }
    }

    /// A device as `--gpu` takes it.
    pub fn name(&self, device: &DeviceView) -> String {
        let is_mixed = self.devices.iter().any(|other| other.vendor != device.vendor);
        device_name(&device.vendor, device.index, is_mixed)
    }

    /// What a person reads: devices that are alike stand together.
    pub fn render(&self, screen: Screen) -> String {
        let mut out = String::new();
        if self.devices.is_empty() {
            out.push_str(&screen.wrap(0, &format!("{}: no device was judged", self.host)));
        }
        let mut alike: Vec<(&DeviceView, Vec<String>)> = Vec::new();
        for device in &self.devices {
            match alike.iter_mut().find(|(known, _)| known.is_alike(device)) {
                Some((_, devices)) => devices.push(self.name(device)),
                None => alike.push((device, vec![self.name(device)])),
            }
        }
        for (device, names) in alike {
            let style = match &*device.status {
                "ok" => Style::Good,
                "critical" => Style::Bad,
                _ => Style::Warning,
            };
            let score = device.score.map_or(String::new(), |score| format!(", score {score}"));
            let DeviceView { model, status, .. } = device;
            let head = format!("GPU {} {model}: {status}{score}", ranges(&names));
            out.push_str(&screen.wrap_painted(style, 0, &head));
            for condition in &device.conditions {
                let ConditionView { condition, severity, reason, meaning, advice, since, .. } =
                    condition;
                let text = format!("{severity} {condition} since {since}: {reason}");
                out.push_str(&screen.wrap(5, &text));
                out.push_str(&screen.wrap(7, &format!("meaning: {meaning}")));
                out.push_str(&screen.wrap(7, &format!("remedy: {advice}")));
            }
            if device.status == HealthStatus::Unknown.as_str() {
                out.push_str(&screen.wrap(5, "not judged: no reading from the device now"));
            }
        }
        out
    }
}

impl DeviceView {
    /// Whether another device of the same model has the same conditions, whenever they started.
    fn is_alike(&self, other: &Self) -> bool {
        let words = |one: &Self| (one.model.clone(), one.status.clone(), one.score);
        let mut pairs = self.conditions.iter().zip(&other.conditions);
        words(self) == words(other)
            && self.conditions.len() == other.conditions.len()
            && pairs.all(|(one, other)| one.is_alike(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_score_follows_from_the_conditions() {
        let all =
            [(0, 0, 100), (0, 1, 90), (1, 0, 40), (1, 2, 20), (2, 0, 20), (3, 0, 0), (0, 20, 0)];
        for (critical, warnings, expected) in all {
            assert_eq!(score(critical, warnings), expected, "{critical} {warnings}");
        }
    }

    fn report(devices: &[(&str, &[&str])]) -> HealthReport {
        let view = |(at, (status, conditions)): (usize, &(&str, &[&str]))| DeviceView {
            index: u32::try_from(at).unwrap(),
            status: (*status).into(),
            conditions: conditions
                .iter()
                .map(|name| ConditionView { condition: (*name).into(), ..ConditionView::default() })
                .collect(),
            ..DeviceView::default()
        };
        HealthReport {
            devices: devices.iter().enumerate().map(view).collect(),
            ..HealthReport::default()
        }
    }

    #[test]
    fn the_worst_device_decides_and_the_reason_begins_with_it() {
        let all = report(&[("warning", &["thermal_hot"]), ("ok", &[]), ("critical", &["a", "b"])]);
        assert_eq!(
            (all.verdict(), &*all.brief()),
            (Verdict::Critical, "GPU 2 a+b; GPU 0 thermal_hot")
        );
        let unknown = report(&[("ok", &[]), ("unknown", &[])]);
        assert_eq!((unknown.verdict(), &*unknown.brief()), (Verdict::Unknown, "GPU 1 unknown"));
        assert_eq!(report(&[]).verdict(), Verdict::Unknown);
        let fine = report(&[("ok", &[]), ("ok", &[])]);
        assert_eq!((fine.verdict(), &*fine.brief()), (Verdict::Ok, "2 GPUs ok"));
        let sick: (&str, &[&str]) = ("warning", &["a"]);
        let many = report(&[sick; 4]);
        assert_eq!(many.brief(), "GPU 0-3 a");
    }

    #[test]
    fn devices_that_are_alike_stand_together_and_vendors_are_named_where_there_are_two() {
        let (hot, ok): (&[&str], &[&str]) = (&["thermal_hot"], &[]);
        let mut all = report(&[("ok", ok), ("ok", ok), ("warning", hot), ("unknown", ok)]);
        let heads = |all: &HealthReport| {
            let text = all.render(Screen::new(80, false));
            let heads = text.lines().filter(|line| line.starts_with("GPU"));
            heads.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(heads(&all), ["GPU 0,1 : ok", "GPU 2 : warning", "GPU 3 : unknown"]);
        all.devices[1].vendor = "amd".into();
        assert_eq!(heads(&all)[0], "GPU :0,amd:1 : ok");
        let text = all.render(Screen::new(80, false));
        assert!(text.ends_with("     not judged: no reading from the device now\n"), "{text}");
    }
}
