//! Performance counters under loads whose parts are known: half of the multiprocessors is half, a
//! load of one pipe is on that pipe, and bytes are the bytes that were moved.

use super::{Bench, Checked};
use crate::report::Row;
use crate::watch::{Point, mean, values};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::gpm as metric;

/// How far a part may be from what the load is.
const TOLERANCE: f64 = 0.1;

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    const CHECK: &str = "performance counters";
    let active = metric::SM_ACTIVE.def().name;
    let (half, _, points) = bench.under(&["fma32", "--multiprocessors", "50", "--blocks", "1"])?;
    half.stop()?;
    let Some(sm) = mean(&values(&points, active, &[])) else {
        let state = points
            .iter()
            .rfind(|point| point.metric == metric::STATUS.def().name && point.value == Some(1.0));
        let state = state.and_then(|point| point.attribute(attr::GPU_COUNTERS_STATE.name));
        let why = format!("no counters here: {}", state.unwrap_or("the device tells no state"));
        return Ok(vec![Row::skip(CHECK, why)]);
    };
    let occupancy = mean(&values(&points, metric::SM_OCCUPANCY.def().name, &[])).unwrap_or(0.0);
    let seen = format!(
        "half of the multiprocessors with one block each: active {:.1} %, occupancy {:.1} %",
        100.0 * sm,
        100.0 * occupancy
    );
    let holds = (sm - 0.5).abs() < TOLERANCE && (occupancy - 0.25).abs() < TOLERANCE;
    let mut rows = vec![Row::judged(CHECK, holds, seen)];

    let (load, _, points) = bench.under(&["fma32", "--duty", "50"])?;
    let done = load.stop()?;
    let busy = done.busy / done.wall;
    let sm = mean(&values(&points, active, &[])).unwrap_or(0.0);
    let seen = format!("kernels ran {:.1} %, active {:.1} %", 100.0 * busy, 100.0 * sm);
    rows.push(Row::judged("half of the time", (sm - busy).abs() < TOLERANCE, seen));

    for (kind, pipe) in [("fma32", "fp32"), ("fma64", "fp64"), ("tensor", "tensor")] {
        let (load, _, points) = bench.under(&[kind])?;
        load.stop()?;
        rows.push(busiest(&points, pipe));
    }
    rows.push(bytes(bench)?);
    Ok(rows)
}

/// The pipe that the load is on is the busiest one.
fn busiest(points: &[Point], pipe: &'static str) -> Row {
    let name = metric::PIPE_ACTIVE.def().name;
    let of =
        |pipe: &str| mean(&values(points, name, &[(attr::GPU_PIPE.name, pipe)])).unwrap_or(0.0);
    let all = ["fp32", "fp64", "tensor"].map(|pipe| (pipe, of(pipe)));
    let words: Vec<String> =
        all.iter().map(|(pipe, part)| format!("{pipe} {:.1} %", 100.0 * part)).collect();
    let (first, part) =
        all.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default();
    let check = match pipe {
        "fp32" => "FP32 load",
        "fp64" => "FP64 load",
        _ => "tensor load",
    };
    Row::judged(check, first == pipe && part > 0.2, words.join(", "))
}

/// A load that only moves bytes keeps the memory busy, and the less so the less it moves.
fn bytes(bench: &Bench<'_>) -> Result<Row, super::CheckError> {
    let mut seen = Vec::new();
    for duty in ["100", "50"] {
        let (load, _, points) = bench.under(&["stream", "--memory", "4096", "--duty", duty])?;
        let done = load.stop()?;
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = done.bytes as f64 / done.wall / 1e9;
        let part = mean(&values(&points, metric::DRAM_ACTIVE.def().name, &[])).unwrap_or(0.0);
        seen.push((rate, part));
    }
    let words: Vec<String> = seen
        .iter()
        .map(|(rate, part)| format!("{rate:.0} GB/s moved, memory busy {:.1} %", 100.0 * part))
        .collect();
    // Both loads say the same of the device's bandwidth.
    let full: Vec<f64> = seen.iter().map(|(rate, part)| rate / part.max(0.001)).collect();
    let same = full.iter().all(|one| full.iter().all(|other| (one / other - 1.0).abs() < 0.15));
    let busy = seen.first().is_some_and(|(_, part)| *part > 0.5);
    Ok(Row::judged("memory load", same && busy, words.join("; ")))
}
