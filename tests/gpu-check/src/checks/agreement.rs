//! Each reading against the vendor's own tool.

use super::{Bench, CheckError, Checked};
use crate::report::{Row, Verdict};
use crate::smi::{self, Fields};
use crate::watch::{Point, values};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::device as metric;
use std::time::{Duration, SystemTime};

/// Bytes in nvidia-smi's MiB.
const MIB: f64 = 1_048_576.0;
/// Hertz in its MHz.
const MHZ: f64 = 1e6;

/// How a field of nvidia-smi is to be found among the points.
pub(super) enum Ours {
    /// As an attribute of `gpu.info`.
    Word(&'static str),
    /// As a value, which divided by the number may be that far off.
    Value(&'static str, &'static [(&'static str, &'static str)], f64, f64),
}

/// Every field that both tell, and how.
fn table() -> Vec<(&'static str, Ours)> {
    use Ours::{Value, Word};
    let limit = metric::POWER_LIMIT.def().name;
    let clock = metric::CLOCK_SPEED.def().name;
    vec![
        ("name", Word(attr::GPU_MODEL.name)),
        ("index", Word(attr::GPU_INDEX.name)),
        ("pci.bus_id", Word(attr::GPU_PCI_ADDRESS.name)),
        ("serial", Word(attr::GPU_SERIAL.name)),
        ("driver_version", Word(attr::GPU_DRIVER_VERSION.name)),
        ("memory.total", Value(metric::MEMORY_LIMIT.def().name, &[], MIB, 1.0)),
        (
            "memory.used",
            Value(metric::MEMORY_USAGE.def().name, &[("gpu.memory.state", "used")], MIB, 64.0),
        ),
        (
            "memory.reserved",
            Value(metric::MEMORY_USAGE.def().name, &[("gpu.memory.state", "reserved")], MIB, 64.0),
        ),
        (
            "temperature.gpu",
            Value(metric::TEMPERATURE.def().name, &[("gpu.temperature.sensor", "gpu")], 1.0, 3.0),
        ),
        (
            "temperature.memory",
            Value(
                metric::TEMPERATURE.def().name,
                &[("gpu.temperature.sensor", "memory")],
                1.0,
                3.0,
            ),
        ),
        ("power.limit", Value(limit, &[("gpu.limit.type", "management")], 1.0, 0.5)),
        ("enforced.power.limit", Value(limit, &[("gpu.limit.type", "enforced")], 1.0, 0.5)),
        ("clocks.mem", Value(clock, &[("gpu.clock.type", "memory")], MHZ, 1.0)),
        ("fan.speed", Value(metric::FAN_SPEED.def().name, &[], 0.01, 5.0)),
    ]
}

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    const CHECK: &str = "agrees with nvidia-smi";
    let table = table();
    let mut fields = vec!["uuid"];
    fields.extend(table.iter().map(|(field, _)| *field));
    let before = SystemTime::now();
    match smi::gpus(&fields) {
        Ok(reported) => rows(bench, CHECK, (&reported, &table), before),
        Err(why) => Ok(vec![Row::skip(CHECK, why)]),
    }
}

/// What another tool has told of every GPU, against readings since `before`.
pub(super) fn rows(
    bench: &Bench<'_>,
    check: &'static str,
    (reported, table): (&[Fields], &[(&'static str, Ours)]),
    before: SystemTime,
) -> Checked {
    let enough = |points: &[Point]| {
        let seen = values(points, metric::MEMORY_LIMIT.def().name, &[]).len();
        (seen >= bench.gpus.len()).then_some(())
    };
    bench
        .watched
        .wait_for(before, Duration::from_secs(20), enough)
        .ok_or(CheckError::NoReading(metric::MEMORY_LIMIT.def().name))?;
    let points = bench.watched.since(SystemTime::UNIX_EPOCH)?;
    let (mut agree, mut differ) = (0, Vec::new());
    for gpu in reported {
        for (field, ours) in table {
            match compare(gpu, field, ours, &points) {
                Some(Ok(())) => agree += 1,
                Some(Err(difference)) => differ.push(difference),
                None => {}
            }
        }
    }
    let listed: Vec<&str> =
        reported.iter().filter_map(|gpu| gpu.get("uuid").map(String::as_str)).collect();
    differ.extend(
        bench
            .gpus
            .iter()
            .filter(|gpu| !listed.contains(&gpu.as_str()))
            .map(|gpu| format!("{gpu} is not the tool's")),
    );
    differ.extend(
        listed
            .iter()
            .filter(|gpu| !bench.gpus.iter().any(|ours| ours == *gpu))
            .map(|gpu| format!("{gpu} is not read")),
    );
    let verdict = if differ.is_empty() && agree > 0 { Verdict::Pass } else { Verdict::Fail };
    let seen = format!(
        "{agree} readings of {} GPUs agree, {} do not\n{}",
        reported.len(),
        differ.len(),
        differ.join("\n")
    );
    Ok(vec![Row::new(check, verdict, seen.trim_end())])
}

/// `None` where the tool does not tell.
fn compare(
    gpu: &Fields,
    field: &'static str,
    ours: &Ours,
    points: &[Point],
) -> Option<Result<(), String>> {
    let (uuid, theirs) = (gpu.get("uuid")?, gpu.get(field)?);
    let on = (attr::GPU_UUID.name, uuid.as_str());
    let (agree, seen) = match ours {
        Ours::Word(key) => {
            let info = points.iter().rev().find(|point| point.is(metric::INFO.def().name, &[on]));
            let seen = info.and_then(|info| info.attribute(key)).unwrap_or("nothing");
            (seen.eq_ignore_ascii_case(theirs), seen.to_owned())
        }
        Ours::Value(name, attributes, unit, tolerance) => {
            let number: f64 = theirs.parse().ok()?;
            let wanted: Vec<_> = attributes.iter().copied().chain([on]).collect();
            match values(points, name, &wanted).last() {
                Some(value) => {
                    ((value / unit - number).abs() <= *tolerance, (value / unit).to_string())
                }
                None => (false, "nothing".to_owned()),
            }
        }
    };
    Some(if agree {
        Ok(())
    } else {
        Err(format!("{uuid} {field}: the tool {theirs}, gpuwho {seen}"))
    })
}

#[cfg(test)]
mod tests {
    use super::{Fields, Ours, compare, metric};
    use crate::watch::Point;

    fn point(metric: &str, value: f64, model: &str) -> Point {
        let line = serde_json::json!({
            "time": "2026-11-21T09:38:14Z", "metric": metric, "value": value,
            "attributes": {"gpu.uuid": "GPU-1", "gpu.model": model},
        });
        serde_json::from_value(line).unwrap()
    }

    #[test]
    fn a_difference_is_told_with_both_values_and_a_silent_tool_is_no_difference() {
        let reported = [("uuid", "GPU-1"), ("name", "NVIDIA H200"), ("memory.total", "1024")];
        let gpu = Fields::from(reported.map(|(key, value)| (key, value.to_owned())));
        let points = [
            point(metric::INFO.def().name, 1.0, "NVIDIA H200"),
            point(metric::MEMORY_LIMIT.def().name, 1e9, ""),
        ];
        let word = Ours::Word("gpu.model");
        assert_eq!(compare(&gpu, "name", &word, &points), Some(Ok(())));
        let memory = Ours::Value(metric::MEMORY_LIMIT.def().name, &[], super::MIB, 1.0);
        let differs = compare(&gpu, "memory.total", &memory, &points).unwrap().unwrap_err();
        assert_eq!(differs, "GPU-1 memory.total: the tool 1024, gpuwho 953.67431640625");
        assert_eq!(compare(&gpu, "serial", &word, &points), None);
    }
}
