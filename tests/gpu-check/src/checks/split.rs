//! Two processes that share a device in a known proportion.

use super::{Bench, Checked};
use crate::load::Running;
use crate::report::Row;
use crate::watch::mean;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::process as metric;
use std::time::{Duration, SystemTime};

const CHECK: &str = "split of two processes";
/// Percent of the time that each is busy.
const DUTIES: [&str; 2] = ["60", "20"];

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let loads = [
        Running::start(&["fma32", "--duty", DUTIES[0]])?,
        Running::start(&["fma32", "--duty", DUTIES[1]])?,
    ];
    std::thread::sleep(Duration::from_secs(2));
    let begun = SystemTime::now();
    std::thread::sleep(bench.options.window);
    let points = bench.of(&loads[0].ready.uuid, begun)?;
    let read = |pid: u32| {
        let of = points.iter().filter(|point| {
            point.is(metric::UTILIZATION.def().name, &[(attr::GPU_TASK.name, "sm")])
                && point.pid() == Some(pid)
        });
        mean(&of.filter_map(|point| point.value).collect::<Vec<_>>())
    };
    let pids = loads.each_ref().map(Running::pid);
    let seen = pids.map(read);
    let mut done = Vec::new();
    for load in loads {
        let done_one = load.stop()?;
        done.push(done_one.busy / done_one.wall);
    }
    let (Some(first), Some(second)) = (seen[0], seen[1]) else {
        return Ok(vec![Row::skip(CHECK, "the driver gives no utilisation of processes here")]);
    };
    let text = format!(
        "kernels ran {:.1} % and {:.1} % of the time, the driver says {:.1} % and {:.1} %",
        100.0 * done.first().copied().unwrap_or_default(),
        100.0 * done.last().copied().unwrap_or_default(),
        100.0 * first,
        100.0 * second,
    );
    // A kernel waits while the other's runs, so what each ran is more than its part.
    let holds = first > second && second > 0.02 && first + second < 1.1;
    Ok(vec![Row::judged(CHECK, holds, text)])
}
