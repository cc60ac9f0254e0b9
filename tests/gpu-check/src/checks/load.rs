//! Readings under loads of known kind: a device that works reads as working, one that does not as
//! idle, the memory taken is on the process that took it, and energy is power over time.

use super::{Bench, CheckError, Checked};
use crate::report::Row;
use crate::watch::{Point, mean, values};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::process as process_metric;

/// MiB that a load takes.
const MEMORY: &str = "2048";
/// What a context takes beside it, on the largest devices.
const CONTEXT: f64 = 1.5 * (1 << 30) as f64;
/// How far the energy counter may be from the mean of the sampled power.
const ENERGY_TOLERANCE: f64 = 0.15;

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let general = [(attr::GPU_TASK.name, "general")];
    let power = metric::POWER.def().name;
    let (running, _, points) = bench.under(&["idle", "--memory", MEMORY])?;
    let idle = mean(&values(&points, power, &[]));
    let mut rows = vec![owner(&points, running.pid(), running.ready.memory as f64)];
    drop(running);

    let (running, _, points) = bench.under(&["fma32", "--memory", MEMORY])?;
    let busy = mean(&values(&points, metric::UTILIZATION.def().name, &general))
        .ok_or(CheckError::NoReading(metric::UTILIZATION.def().name))?;
    let drawn = mean(&values(&points, power, &[]));
    let done = running.stop()?;
    let seen = format!(
        "kernels ran {:.1} % of the time, gpu.utilization {:.1} %, power {} (idle {})",
        100.0 * done.busy / done.wall,
        100.0 * busy,
        watts(drawn),
        watts(idle),
    );
    let rises = drawn.zip(idle).is_none_or(|(drawn, idle)| drawn > 1.2 * idle);
    rows.push(Row::judged("busy device", busy > 0.9 && rises, seen));
    rows.extend(energy(&points));
    Ok(rows)
}

/// The memory is on the PID that took it, and there is its owner.
fn owner(points: &[Point], pid: u32, taken: f64) -> Row {
    const CHECK: &str = "memory of a process";
    let of = |point: &&Point| point.pid() == Some(pid);
    let memory = points
        .iter()
        .filter(of)
        .rfind(|point| point.metric == process_metric::MEMORY_USAGE.def().name);
    let Some(value) = memory.and_then(|point| point.value) else {
        return Row::fail(
            CHECK,
            format!("no {} of PID {}", process_metric::MEMORY_USAGE.def().name, pid),
        );
    };
    let info =
        points.iter().filter(of).rfind(|point| point.metric == process_metric::INFO.def().name);
    let owner = info.and_then(|info| info.attribute(attr::PROCESS_OWNER.name)).unwrap_or("nobody");
    let program = info
        .and_then(|info| info.attribute(attr::PROCESS_EXECUTABLE_NAME.name))
        .unwrap_or("no name");
    let seen = format!(
        "took {:.0} MiB, reads {:.0} MiB on PID {pid} ({program} of {owner})",
        taken / f64::from(1 << 20),
        value / f64::from(1 << 20)
    );
    let holds =
        (taken..taken + CONTEXT).contains(&value) && program == "gpu-load" && owner != "nobody";
    Row::judged(CHECK, holds, seen)
}

/// The counter against the samples between its first and its last reading.
fn energy(points: &[Point]) -> Option<Row> {
    let of: Vec<&Point> =
        points.iter().filter(|point| point.metric == metric::ENERGY.def().name).collect();
    let (first, last) = (of.first()?, of.last()?);
    let seconds = last.time.duration_since(first.time).ok()?.as_secs_f64();
    let counted = (last.value? - first.value?) / seconds;
    let sampled = mean(&values(points, metric::POWER.def().name, &[]))?;
    let seen =
        format!("counter {counted:.1} W, mean of the samples {sampled:.1} W over {seconds:.1} s");
    Some(Row::judged("energy", (counted / sampled - 1.0).abs() < ENERGY_TOLERANCE, seen))
}

fn watts(power: Option<f64>) -> String {
    power.map_or_else(|| "not told".to_owned(), |power| format!("{power:.0} W"))
}
