//! Matrix products of known size against tensor activity and clock: what the counters say was computed is
//! what was computed (the idea of OFU, arXiv 2605.20799).

use super::{Bench, Checked};
use crate::load::Running;
use crate::python::Python;
use crate::report::Row;
use crate::watch::{mean, values};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::device::CLOCK_SPEED;
use gpuwho_model::catalog::gpm::PIPE_ACTIVE;
use serde::Deserialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CHECK: &str = "matrix products";
const PRODUCTS: &str = include_str!("products.py");
/// Floating-point operations of a Hopper multiprocessor in a cycle, dense (H100's data sheet: 989.4 TFLOP/s of
/// FP16 and BF16, 494.7 of TF32, 132 multiprocessors, 1.83 GHz).
const IN_A_CYCLE: [(&str, f64); 3] =
    [("float16", 4_096.0), ("bfloat16", 4_096.0), ("tf32", 2_048.0)];
/// How far the mean over the sizes may be off; small matrices fill no tile.
const TOLERANCE: f64 = 0.15;
/// Between the beginning of a load and the first reading that is of it alone.
const SETTLED: Duration = Duration::from_millis(1_500);

/// Products of one type and size.
#[derive(Debug, Deserialize)]
struct Products {
    of: String,
    size: u32,
    began: f64,
    ended: f64,
    flop: f64,
}

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let seconds = bench.options.window.as_secs_f64().clamp(3.0, 5.0).to_string();
    let mut python = match Python::start(PRODUCTS, &[&seconds], &[]) {
        Ok(python) => python,
        Err(why) => return Ok(vec![Row::skip(CHECK, why)]),
    };
    let multiprocessors = Running::start(&["idle", "--memory", "64"])?.ready.multiprocessors;
    let (mut lines, mut parts) = (Vec::new(), Vec::new());
    while let Some(done) = python.says::<Products>() {
        let Some((counted, line)) = compare(bench, multiprocessors, &done)? else { continue };
        if done.size >= 4096 {
            parts.push(counted);
        }
        lines.push(line);
    }
    let Some(part) = mean(&parts) else {
        return Ok(vec![Row::skip(CHECK, "no PyTorch, or no performance counters here")]);
    };
    let seen = format!(
        "from 4,096 on the counters say {:.1} % of what was computed\n{}",
        100.0 * part,
        lines.join("\n")
    );
    Ok(vec![Row::judged(CHECK, (part - 1.0).abs() < TOLERANCE, seen)])
}

/// What the counters say was computed, as a part of what was, and that in words.
fn compare(
    bench: &Bench<'_>,
    multiprocessors: u32,
    done: &Products,
) -> Result<Option<(f64, String)>, super::CheckError> {
    let moment = |seconds: f64| UNIX_EPOCH + Duration::from_secs_f64(seconds.max(0.0));
    let (began, ended): (SystemTime, SystemTime) = (moment(done.began), moment(done.ended));
    let mut points = bench.watched.since(began + SETTLED)?;
    points.retain(|point| point.time <= ended);
    let active = mean(&values(&points, PIPE_ACTIVE.def().name, &[(attr::GPU_PIPE.name, "tensor")]));
    let clock =
        mean(&values(&points, CLOCK_SPEED.def().name, &[(attr::GPU_CLOCK_TYPE.name, "sm")]));
    let in_a_cycle = IN_A_CYCLE.iter().find(|(of, _)| *of == done.of);
    let (Some(active), Some(clock), Some((_, in_a_cycle))) = (active, clock, in_a_cycle) else {
        return Ok(None);
    };
    let counted = active * clock * f64::from(multiprocessors) * in_a_cycle;
    let computed = done.flop / (done.ended - done.began);
    let line = format!(
        "{} {}: {:.0} TFLOP/s, counters {:.0} (tensor {:.1} %, {:.0} MHz)",
        done.of,
        done.size,
        computed / 1e12,
        counted / 1e12,
        100.0 * active,
        clock / 1e6
    );
    Ok(Some((counted / computed, line)))
}
