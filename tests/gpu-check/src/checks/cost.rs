//! What the agent took from the machine while all of this ran.

use super::{Bench, CheckError, Checked};
use crate::report::Row;
use std::fs;
use std::time::Duration;

/// What the agent and its children may keep resident together.
const MEMORY: u64 = 200 << 20;
/// Part of a core at a reading a second.
const CORE: f64 = 0.05;

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let family = bench.watched.family();
    let before: f64 = family.iter().map(|pid| seconds(*pid)).sum();
    std::thread::sleep(Duration::from_secs(10));
    let after: f64 = family.iter().map(|pid| seconds(*pid)).sum();
    let core = (after - before) / 10.0;
    let memory: u64 = family.iter().map(|pid| resident(*pid)).sum();
    if memory == 0 {
        return Err(CheckError::NoReading("smaps_rollup"));
    }
    let seen = format!(
        "{:.2} % of a core at one reading a second, {:.1} MiB resident in {} processes",
        100.0 * core,
        memory as f64 / f64::from(1 << 20),
        family.len(),
    );
    Ok(vec![Row::judged("cost", core < CORE && memory < MEMORY, seen)])
}

/// Processor time of a process, from the scheduler, which counts nanoseconds.
fn seconds(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    tasks.filter_map(of).sum::<f64>() / 1e9
}

fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}
