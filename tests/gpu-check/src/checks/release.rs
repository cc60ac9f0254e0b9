//! `gpuwho release` while a CUDA program runs: all handles closed within a second, the program
//! goes on, and the readings come back by themselves.

use super::{Bench, Checked};
use crate::load::Running;
use crate::report::Row;
use gpuwho_tests::program;
use gpuwho_tests::until::until;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const CHECK: &str = "release";
/// As long as somebody who wants to reset a GPU can be kept waiting.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// How long the release is to last.
const LENGTH: Duration = Duration::from_secs(4);

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let mut running = Running::start(&["fma32", "--duty", "20"])?;
    let uuid = running.ready.uuid.clone();
    let held = handles(bench);
    if held == 0 {
        return Ok(vec![Row::fail(CHECK, "the agent holds no device to release")]);
    }
    let program = match program::gpuwho() {
        Ok(program) => program,
        Err(why) => return Ok(vec![Row::fail(CHECK, why)]),
    };
    let begun = Instant::now();
    let asked = Command::new(program)
        .args(["release", "--for", &format!("{}s", LENGTH.as_secs()), "--socket"])
        .arg(bench.watched.agent.socket())
        .output();
    let said = match asked {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).into_owned()
        }
        Ok(output) => return Ok(vec![Row::fail(CHECK, String::from_utf8_lossy(&output.stderr))]),
        Err(why) => return Ok(vec![Row::fail(CHECK, why)]),
    };
    let closed = until(CLOSED_WITHIN * 3, || (handles(bench) == 0).then(|| begun.elapsed()));
    let ran_on = running.runs();
    let returned = SystemTime::now() + LENGTH;
    let back = bench.answers(&uuid, returned, LENGTH + Duration::from_secs(30));
    let ran_through = running.runs();
    drop(running);
    let seen = format!(
        "{held} device files of ours, {}; the program {}; readings {}\n{}",
        closed.map_or_else(
            || "not closed in 3 s".to_owned(),
            |after| format!("none after {after:.0?}")
        ),
        if ran_on && ran_through { "went on" } else { "ended" },
        if back { "came back by themselves" } else { "did not come back" },
        said.trim(),
    );
    let holds = closed.is_some_and(|after| after <= CLOSED_WITHIN) && ran_on && ran_through && back;
    Ok(vec![Row::judged(CHECK, holds, seen)])
}

/// Device files that the agent and its children hold open or mapped.
fn handles(bench: &Bench<'_>) -> usize {
    let of = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        let open = open.filter(|path| path.to_string_lossy().starts_with("/dev/nvidia")).count();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        open + maps.lines().filter(|line| line.contains(" /dev/nvidia")).count()
    };
    bench.watched.family().into_iter().map(of).sum()
}
