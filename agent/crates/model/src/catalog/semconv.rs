//! The names of OpenTelemetry's semantic conventions 1.44 for hardware and generative AI: the profile
//! `semconv` of the sinks. All of them have the status "development".

use super::attributes as attr;
use super::profile::Origin::{Greatest, Ratio, Same, Sum};
use super::profile::keys as key;
use super::profile::{Per, Rename, Row, absent, gauge, of};
use super::{Kind, device, engine, health, wear};

const GPU: &[(&attr::AttrKey, &str)] = &[(&key::HW_TYPE, "gpu")];
const TASK: &[(&attr::AttrKey, &attr::AttrKey)] = &[(&attr::GPU_TASK, &key::HW_GPU_TASK)];
const SENSOR: &[(&attr::AttrKey, &attr::AttrKey)] =
    &[(&attr::GPU_TEMPERATURE_SENSOR, &key::HW_SENSOR_LOCATION)];
const USED: &[(&attr::AttrKey, &[&str])] = &[(&attr::GPU_MEMORY_STATE, &["used"])];
/// Conditions that say of a device's memory that it will fail: spares run out, errors increase.
const PREDICTS_FAILURE: &[&str] = &[
    "memory_corrected",
    "memory_rows_low",
    "memory_rows_failed",
    "memory_pages_retired",
    "memory_sram_exceeded",
];
const SPARSE: &str = "below level `all` only after the device was in this state";

/// Attributes under the conventions' keys.
pub(super) static RENAMES: &[Rename] = &[
    Rename { from: &attr::GPU_UUID, to: Some(&key::HW_ID), stays: false },
    Rename { from: &attr::GPU_INDEX, to: Some(&key::HW_NAME), stays: false },
    Rename { from: &attr::GPU_MODEL, to: Some(&key::HW_MODEL), stays: false },
    Rename { from: &attr::GPU_VENDOR, to: Some(&key::HW_VENDOR), stays: false },
    Rename { from: &attr::ENGINE_NAME, to: Some(&key::GEN_AI_PROVIDER), stays: false },
];

/// The rows.
pub(super) static ROWS: &[Row] = &[
    gauge(
        "hw.gpu.utilization",
        "1",
        Sum(of(device::UTILIZATION.def())
            .only(&[(&attr::GPU_TASK, &["general", "encoder", "decoder"])])
            .keep(TASK)),
    ),
    gauge("hw.gpu.memory.usage", "By", Sum(of(device::MEMORY_USAGE.def()).only(USED)))
        .kind(Kind::UpDownCounter),
    gauge("hw.gpu.memory.limit", "By", Sum(of(device::MEMORY_LIMIT.def())))
        .kind(Kind::UpDownCounter),
    gauge(
        "hw.gpu.memory.utilization",
        "1",
        Ratio(of(device::MEMORY_USAGE.def()).only(USED), of(device::MEMORY_LIMIT.def())),
    ),
    gauge(
        "hw.gpu.io",
        "By",
        Sum(of(wear::PCIE_IO.def()).keep(&[(&attr::IO_DIRECTION, &attr::IO_DIRECTION)])),
    )
    .kind(Kind::Counter)
    .note("over PCIe"),
    gauge("hw.energy", "J", Sum(of(device::ENERGY.def()))).kind(Kind::Counter).with(GPU),
    gauge("hw.power", "W", Sum(of(device::POWER.def()))).with(GPU),
    gauge("hw.temperature", "Cel", Sum(of(device::TEMPERATURE.def()).keep(SENSOR)))
        .per(Per::Part(&attr::GPU_TEMPERATURE_SENSOR, ""))
        .note("`hw.id` is that of the sensor, `hw.parent` the device"),
    gauge(
        "hw.temperature.limit",
        "Cel",
        Sum(of(device::TEMPERATURE_LIMIT.def()).only(&[(&attr::GPU_LIMIT_TYPE, &["slowdown"])])),
    )
    .with(&[(&key::HW_LIMIT_TYPE, "throttled")]),
    gauge(
        "hw.temperature.limit",
        "Cel",
        Sum(of(device::TEMPERATURE_LIMIT.def()).only(&[(&attr::GPU_LIMIT_TYPE, &["shutdown"])])),
    )
    .with(&[(&key::HW_LIMIT_TYPE, "critical")]),
    gauge("hw.fan.speed_ratio", "1", Sum(of(device::FAN_SPEED.def())))
        .per(Per::Part(&attr::GPU_FAN, "fan"))
        .note("`hw.id` is that of the fan, `hw.parent` the device"),
    gauge(
        "hw.errors",
        "{error}",
        Sum(of(wear::ECC_ERRORS.def()).only(&[
            (&attr::GPU_ECC_ERROR_TYPE, &["corrected"]),
            (&attr::GPU_ECC_COUNT_TYPE, &["volatile"]),
        ])),
    )
    .kind(Kind::Counter)
    .with(&[(&key::HW_TYPE, "gpu"), (&attr::ERROR_TYPE, "corrected")]),
    gauge(
        "hw.errors",
        "{error}",
        Sum(of(wear::ECC_ERRORS.def()).only(&[
            (&attr::GPU_ECC_ERROR_TYPE, &["uncorrected"]),
            (&attr::GPU_ECC_COUNT_TYPE, &["volatile"]),
        ])),
    )
    .kind(Kind::Counter)
    .with(&[(&key::HW_TYPE, "gpu"), (&attr::ERROR_TYPE, "uncorrected")]),
    gauge("hw.errors", "{error}", Sum(of(wear::PCIE_REPLAYS.def())))
        .kind(Kind::Counter)
        .with(&[(&key::HW_TYPE, "gpu"), (&attr::ERROR_TYPE, "pcie_replay")]),
    gauge(
        "hw.status",
        "1",
        Sum(of(health::STATUS.def()).only(&[(&attr::GPU_HEALTH_STATUS, &["ok"])])),
    )
    .kind(Kind::UpDownCounter)
    .with(&[(&key::HW_TYPE, "gpu"), (&key::HW_STATE, "ok")])
    .note(SPARSE),
    gauge(
        "hw.status",
        "1",
        Sum(of(health::STATUS.def()).only(&[(&attr::GPU_HEALTH_STATUS, &["warning"])])),
    )
    .kind(Kind::UpDownCounter)
    .with(&[(&key::HW_TYPE, "gpu"), (&key::HW_STATE, "degraded")])
    .note(SPARSE),
    gauge(
        "hw.status",
        "1",
        Sum(of(health::STATUS.def()).only(&[(&attr::GPU_HEALTH_STATUS, &["critical"])])),
    )
    .kind(Kind::UpDownCounter)
    .with(&[(&key::HW_TYPE, "gpu"), (&key::HW_STATE, "failed")])
    .note(SPARSE),
    gauge(
        "hw.status",
        "1",
        Greatest(
            of(health::CONDITION.def()).only(&[(&attr::GPU_HEALTH_CONDITION, PREDICTS_FAILURE)]),
        ),
    )
    .kind(Kind::UpDownCounter)
    .with(&[(&key::HW_TYPE, "gpu"), (&key::HW_STATE, "predicted_failure")])
    .note(
        "memory that wears out: 1 beside `degraded` or `failed` (the states are no enumeration); below level \
         `all` only after the device was in this state",
    ),
    gauge("gen_ai.server.request.duration", "s", Same(of(engine::REQUEST_DURATION.def())))
        .kind(Kind::Histogram)
        .note("with the native names as well, the native series alone"),
    gauge("gen_ai.server.time_to_first_token", "s", Same(of(engine::TIME_TO_FIRST_TOKEN.def())))
        .kind(Kind::Histogram)
        .note("the same"),
    gauge(
        "gen_ai.server.time_per_output_token",
        "s",
        Same(of(engine::TIME_PER_OUTPUT_TOKEN.def())),
    )
    .kind(Kind::Histogram)
    .note("the same"),
    absent(
        "gen_ai.client.token.usage",
        "{token}",
        "a client's histogram; the agent reads servers, whose tokens are counters (`inference.tokens.*`)",
    ),
    absent("hw.host.power", "W", "the agent does not read the host's power supply"),
    absent(
        "gpu.cuda.*",
        "",
        "OpenTelemetry's eBPF instrumentation counts CUDA calls in processes; the agent does not",
    ),
];

const HEAD: &str = "
## Names of OpenTelemetry's semantic conventions

A sink with the names `semconv` has devices under `hw.*` of the semantic conventions 1.44, whose status is
\"development\", beside or instead of the native names. Engines' buckets are the engine's own.
`gen_ai.operation.name`, which the conventions require, is not there: no engine's page says it.

| convention | unit | attributes | here | remark |
|---|---|---|---|---|
";

/// The table in `METRICS.md`.
pub(super) fn table(out: &mut String) {
    out.push_str(HEAD);
    super::profile::table(ROWS, out);
    out.push_str("\n| convention's attribute | here |\n|---|---|\n");
    for Rename { from, to, .. } in RENAMES {
        if let Some(to) = to {
            out.extend(["| `", to.name, "` | `", from.name, "` |\n"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::catalog::{self, Kind, attributes, profile};
    use std::collections::HashMap;

    const REGISTRY: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/fixtures/semconv/registry-1.44.0.tsv"
    ));

    /// The namespaces of which every name must be the registry's.
    const THEIRS: [&str; 11] = [
        "hw.",
        "gen_ai.",
        "k8s.",
        "host.",
        "process.",
        "container.",
        "service.",
        "error.",
        "cloud.",
        "os.",
        "system.",
    ];

    /// Names that the registry lacks and the Collector's receivers have: `hostmetrics`, `k8s_cluster`.
    const COLLECTOR: [&str; 4] = [
        "system.cpu.load_average.1m",
        "system.cpu.load_average.5m",
        "system.cpu.load_average.15m",
        "k8s.pod.qos_class",
    ];

    /// The registry's word for each name: an attribute's type, a metric's instrument and unit.
    fn registry(kind: &str) -> HashMap<&'static str, (&'static str, &'static str)> {
        let rows = REGISTRY.lines().filter(|line| !line.starts_with('#'));
        let rows = rows.map(|line| line.split('\t').collect::<Vec<_>>());
        let of_kind = rows.filter(|row| row[0] == kind);
        of_kind.map(|row| (row[1], (row[2], row[3]))).collect()
    }

    fn is_theirs(name: &str) -> bool {
        THEIRS.iter().any(|theirs| name.starts_with(theirs)) && !COLLECTOR.contains(&name)
    }

    /// Whether the conventions still have it: `gen_ai.*` has moved, whole.
    fn is_current(name: &str, stability: &str) -> bool {
        stability != "deprecated" || name.starts_with("gen_ai.")
    }

    #[test]
    fn every_attribute_of_a_common_namespace_is_the_registry_s() {
        let registry = registry("attribute");
        let ours = attributes::ALL.iter().map(|key| key.name);
        let renamed = super::RENAMES.iter().filter_map(|rename| rename.to).map(|key| key.name);
        let with = super::ROWS.iter().flat_map(|row| row.with).map(|(key, _)| key.name);
        let is_one = |name: &str| {
            let mut of_template =
                registry.iter().filter(|(_, (kind, _))| kind.starts_with("template"));
            of_template.any(|(template, _)| name.starts_with(&format!("{template}.")))
                || registry.get(name).is_some_and(|(_, stability)| is_current(name, stability))
        };
        let findings: Vec<_> = ours
            .chain(renamed)
            .chain(with)
            .filter(|name| is_theirs(name) && !is_one(name))
            .collect();
        assert!(findings.is_empty(), "not in the registry, or deprecated: {findings:#?}");
    }

    #[test]
    fn every_metric_of_a_common_namespace_has_the_registry_s_kind_and_unit() {
        let registry = registry("metric");
        let metrics = catalog::all().chain(profile::SEMCONV.metrics());
        let mut findings = Vec::new();
        for metric in metrics.filter(|metric| is_theirs(metric.name)) {
            let instrument = match metric.kind {
                Kind::Counter => "counter",
                Kind::UpDownCounter => "updowncounter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let ours = format!("{instrument} {}", metric.unit);
            match registry.get(metric.name) {
                Some((theirs, stability))
                    if *theirs == ours && is_current(metric.name, stability) => {}
                other => findings.push((metric.name, ours, other.copied())),
            }
        }
        assert!(findings.is_empty(), "{findings:#?}");
    }

    #[test]
    fn a_constant_value_of_an_enumeration_is_one_of_it() {
        let registry = registry("attribute");
        for (key, value) in super::ROWS.iter().flat_map(|row| row.with) {
            let values = registry.get(key.name).and_then(|(kind, _)| kind.strip_prefix("enum:"));
            let is_one = values.is_none_or(|values| values.split(',').any(|one| one == *value));
            // The class of an error may be one's own.
            assert!(is_one || key.name == "error.type", "{}={value}: {values:?}", key.name);
        }
    }
}
