//! The live series of NVIDIA's devices under the names and labels of dcgm-exporter.

use super::store::{Live, Store};
use super::text::{Format, Number, Page, put_label};
use crate::naming::owner::takes_owner;
use gpuwho_model::catalog::attributes::{self as attr, AttrKey};
use gpuwho_model::catalog::dcgm::{ALL, DcgmMetric, DcgmOrigin, Vocabulary};
use gpuwho_model::catalog::device::INFO;
use gpuwho_model::point::Labels;
use gpuwho_model::sample::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::time::Instant;

/// The vendor whose devices dcgm-exporter has.
const VENDOR: &str = "nvidia";

/// dcgm-exporter's labels of the one owner of a device.
const OWNER: [(&str, &AttrKey); 4] = [
    ("pod", &attr::K8S_POD_NAME),
    ("namespace", &attr::K8S_NAMESPACE_NAME),
    ("container", &attr::K8S_CONTAINER_NAME),
    ("hpc_job", &attr::SLURM_JOB_ID),
];

/// Writes every metric that has series; returns how many series.
pub(super) fn render(store: &Store, of: Vocabulary, page: &mut Page, now: Instant) -> u64 {
    let labels = devices(store, of, now);
    let mut points = 0;
    for metric in ALL {
        let (Some(name), Ok(origin)) = (metric.name(of), &metric.from) else { continue };
        let series = series(store, origin, &labels, now);
        if series.is_empty() {
            continue;
        }
        head(page, (name, metric.help(of)), metric);
        for (labels, value) in series {
            page.line([name, ""], [&labels, ""], Number::Double(scaled(value, origin.scale(of))));
            points += 1;
        }
    }
    points
}

/// In DCGM's unit, without the last digit's error: 56 % and not 56.00000000000001 %.
fn scaled(value: f64, scale: f64) -> f64 {
    let exact = value * scale;
    let round = (exact * 1e9).round() / 1e9;
    if (round - exact).abs() <= exact.abs() * 1e-14 { round } else { exact }
}

/// A counter's name has no `_total`, which OpenMetrics does not allow, so it has no type there.
fn head(page: &mut Page, (name, help): (&str, &str), metric: &DcgmMetric) {
    let kind = match (metric.is_counter, page.format) {
        (false, _) => "gauge",
        (true, Format::Text) => "counter",
        (true, Format::OpenMetrics) => "unknown",
    };
    // Writing to a String cannot fail.
    let _ = writeln!(page.text, "# TYPE {name} {kind}\n# HELP {name} {help}");
}

/// The sums of the series, by their labels.
fn series(
    store: &Store,
    origin: &DcgmOrigin,
    devices: &HashMap<&str, String>,
    now: Instant,
) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    if origin.or_zero {
        sums.extend(devices.values().map(|labels| (labels.clone(), 0.0)));
    }
    let metrics = [Some(origin.device), origin.instance];
    for Live { labels, value, .. } in metrics.into_iter().flatten().flat_map(|m| store.of(m, now)) {
        let set = &**labels;
        let is_one = origin.only.is_none_or(|(key, value)| text(set, key) == Some(value));
        let device = text(set, &attr::GPU_UUID).and_then(|uuid| devices.get(uuid));
        let (true, Some(device)) = (is_one, device) else { continue };
        let mut labels = device.clone();
        if takes_owner(origin.device) {
            put_owner(&mut labels, store, set);
        }
        if let Some(profile) = text(set, &attr::GPU_MIG_PROFILE) {
            put_label(&mut labels, "GPU_I_PROFILE", profile);
        }
        if let Some(id) = set.get(&attr::GPU_MIG_GPU_INSTANCE) {
            put_label(&mut labels, "GPU_I_ID", &id.to_string());
        }
        let number = match value {
            Value::Int(number) => *number as f64,
            Value::Double(number) => *number,
            Value::Histogram(_) => continue,
        };
        *sums.entry(labels).or_insert(0.0) += number;
    }
    sums
}

/// The labels of each device of the vendor, by its UUID.
fn devices(store: &Store, of: Vocabulary, now: Instant) -> HashMap<&str, String> {
    let (host, driver) = match of {
        Vocabulary::Old => ("Hostname", "DCGM_FI_DRIVER_VERSION"),
        Vocabulary::New => ("hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"),
    };
    let info = store.of(INFO.def(), now).map(|live| &*live.labels);
    let ours = info.filter(|set| text(set, &attr::GPU_VENDOR) == Some(VENDOR));
    ours.filter_map(|set| {
        let uuid = text(set, &attr::GPU_UUID)?;
        let index = text(set, &attr::GPU_INDEX)?;
        let mut labels = String::new();
        put_label(&mut labels, "gpu", index);
        put_label(&mut labels, "UUID", uuid);
        if let Some(address) = text(set, &attr::GPU_PCI_ADDRESS) {
            put_label(&mut labels, "pci_bus_id", &bus_id(address));
        }
        put_label(&mut labels, "device", &format!("{VENDOR}{index}"));
        put_label(&mut labels, "modelName", text(set, &attr::GPU_MODEL).unwrap_or_default());
        put_label(&mut labels, host, store.host());
        if let Some(version) = text(set, &attr::GPU_DRIVER_VERSION) {
            put_label(&mut labels, driver, version);
        }
        Some((uuid, labels))
    })
    .collect()
}

/// The owner that has the device alone.
fn put_owner(labels: &mut String, store: &Store, device: &Labels) {
    let owner = text(device, &attr::GPU_UUID).and_then(|uuid| store.owner(uuid));
    for (label, key) in OWNER {
        if let Some(name) = owner.and_then(|owner| owner.get(key)?.as_text()) {
            put_label(labels, label, name);
        }
    }
}

/// A PCI address as NVML spells it: a domain of eight digits, and capitals.
fn bus_id(address: &str) -> String {
    let (domain, rest) = address.split_once(':').unwrap_or(("", address));
    format!("{domain:0>8}:{rest}").to_ascii_uppercase()
}

fn text<'a>(set: &'a Labels, key: &AttrKey) -> Option<&'a str> {
    set.get(key).and_then(|value| value.as_text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_has_no_digits_of_its_own() {
        let printed = |value, scale| scaled(value, scale).to_string();
        assert_eq!(printed(0.56, 100.0), "56");
        assert_eq!(printed(0.123_456_789_012, 100.0), "12.3456789012");
        assert_eq!(printed(1.0, 1.0 / 1_048_576.0), "0.00000095367431640625");
    }

    #[test]
    fn an_address_is_spelled_as_nvml_does() {
        assert_eq!(bus_id("0000:3b:00.0"), "00000000:3B:00.0");
        assert_eq!(bus_id("00000000:07:00.0"), "00000000:07:00.0");
    }
}
