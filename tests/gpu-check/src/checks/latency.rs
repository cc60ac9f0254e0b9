//! How long the driver takes for a reading and for each of its functions, without an agent around it.

use super::Options;
use crate::report::{Row, Verdict};
use gpuwho_devices::{CallTimes, OpenOptions, vendor};
use gpuwho_model::paths::Paths;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const CHECK: &str = "time in the driver";

pub(super) fn check(options: &Options) -> Vec<Row> {
    let Some(vendor) = vendor("nvidia") else { return Vec::new() };
    let name = vendor.library.as_ref().map_or("", |library| library.name);
    let library = options.library.as_deref().unwrap_or(Path::new(name));
    let mut opened =
        match (vendor.open)(&OpenOptions { library, paths: &Paths::default(), off: &[] }) {
            Ok(opened) => opened,
            Err(why) => return vec![Row::fail(CHECK, why)],
        };
    let mut lines = Vec::new();
    let mut functions: BTreeMap<String, CallTimes> = BTreeMap::new();
    for (slot, device) in opened.devices.iter_mut().enumerate() {
        let first = device.read(&[]).cost;
        device.time_calls();
        let mut spent: Vec<Duration> = Vec::new();
        let mut calls = 0;
        for _ in 0..options.readings {
            let cost = device.read(&[]).cost;
            spent.push(Duration::from_nanos(cost.library_ns));
            calls += cost.calls;
        }
        spent.sort_unstable();
        let at = |part: usize| spent.get(spent.len() * part / 100).copied().unwrap_or_default();
        lines.push(format!(
            "device {slot}: first reading {} calls {:.2?}, then {:.1} calls, p50 {:.2?}, p99 {:.2?}",
            first.calls,
            Duration::from_nanos(first.library_ns),
            f64::from(calls) / f64::from(options.readings.max(1)),
            at(50),
            at(99),
        ));
        for row in device.times() {
            let of = functions.entry(row.function.clone()).or_default();
            of.calls += row.calls;
            of.total += row.total;
            of.longest = of.longest.max(row.longest);
        }
    }
    (opened.close)();
    let verdict = if lines.is_empty() { Verdict::Fail } else { Verdict::Pass };
    let mut rows: Vec<_> = functions.into_iter().collect();
    rows.sort_by_key(|(_, times)| std::cmp::Reverse(times.total));
    lines.extend(rows.iter().map(|(function, times)| {
        let mean = times.total / times.calls.max(1);
        format!(
            "{function:<44} {:>7} calls, mean {mean:>9.2?}, longest {:>9.2?}, all {:>9.2?}",
            times.calls, times.longest, times.total
        )
    }));
    vec![Row::new(CHECK, verdict, lines.join("\n"))]
}
