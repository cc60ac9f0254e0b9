//! How long the driver takes for a reading, without an agent around it.

use super::Options;
use crate::report::{Row, Verdict};
use gpuwho::collect::device::{Opening, vendor};
use std::path::Path;

const CHECK: &str = "time in the driver";

pub(super) fn check(options: &Options) -> Vec<Row> {
    let Some(vendor) = vendor("nvidia") else { return Vec::new() };
    let library = options.library.as_deref().unwrap_or(Path::new(vendor.library));
    let mut opened = match (vendor.open)(&Opening { library, gpm: true }) {
        Ok(opened) => opened,
        Err(why) => return vec![Row::fail(CHECK, why)],
    };
    let mut lines = Vec::new();
    for (slot, device) in opened.devices.iter_mut().enumerate() {
        let first = device.read().cost;
        let mut spent: Vec<u64> = Vec::new();
        let mut calls = 0;
        for _ in 0..options.readings {
            let cost = device.read().cost;
            spent.push(cost.library_ns);
            calls = cost.calls;
        }
        spent.sort_unstable();
        let at = |part: usize| {
            let ns = spent.get(spent.len() * part / 100).copied().unwrap_or_default();
            ns as f64 / 1e6
        };
        lines.push(format!(
            "device {slot}: first reading {} calls {:.2} ms, then {calls} calls, p50 {:.2} ms, p99 {:.2} ms",
            first.calls,
            first.library_ns as f64 / 1e6,
            at(50),
            at(99),
        ));
    }
    (opened.close)();
    let verdict = if lines.is_empty() { Verdict::Fail } else { Verdict::Pass };
    vec![Row::new(CHECK, verdict, lines.join("\n"))]
}
