//! A rank of PyTorch that asks NCCL for a known number of collectives, against what the kernel's
//! probes counted of it.

use super::{Bench, CheckError, Checked};
use crate::report::Row;
use crate::watch::Point;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::nccl as metric;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const CHECK: &str = "NCCL calls of PyTorch";
/// The rank, as a program for Python.
const RANK: &str = include_str!("rank.py");
/// A batch of the agent and some.
const COUNTED_WITHIN: Duration = Duration::from_secs(10);

/// What the rank says that it did.
#[derive(Debug, Deserialize)]
struct RankReport {
    pid: u32,
    version: String,
    calls: u64,
    bytes: u64,
}

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let begun = SystemTime::now();
    let child = Command::new("python3")
        .args(["-c", RANK])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(why) => return Ok(vec![Row::skip(CHECK, format!("no python3: {why}"))]),
    };
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        // A rank that says nothing has no PyTorch with NCCL.
        let _read = BufReader::new(out).read_line(&mut line);
    }
    let row = match serde_json::from_str::<RankReport>(&line) {
        Ok(reported) => compare(bench, begun, &reported)?,
        Err(_) => Row::skip(CHECK, "python3 has no PyTorch that can use NCCL here"),
    };
    // It waits for the end of its standard input, so that it is there while it is counted.
    drop(child.stdin.take());
    let _ended = child.wait();
    Ok(vec![row])
}

/// The last values of the rank's series of the counted operation, added up.
fn counted(points: &[Point], pid: u32, name: &str) -> u64 {
    let operation = [(attr::NCCL_OPERATION.name, "all_reduce")];
    let of = points.iter().filter(|point| point.pid() == Some(pid) && point.is(name, &operation));
    let last: BTreeMap<String, f64> =
        of.map(|point| (format!("{:?}", point.attributes), point.value.unwrap_or(0.0))).collect();
    // Counts, far below where a double is no whole number.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let sum = last.values().sum::<f64>() as u64;
    sum
}

fn compare(bench: &Bench<'_>, begun: SystemTime, reported: &RankReport) -> Result<Row, CheckError> {
    let calls = metric::CALLS.def().name;
    let all =
        |points: &[Point]| (counted(points, reported.pid, calls) >= reported.calls).then_some(());
    let arrived = bench.watched.wait_for(begun, COUNTED_WITHIN, all);
    let points = bench.watched.since(begun)?;
    let seen = counted(&points, reported.pid, calls);
    let bytes = counted(&points, reported.pid, metric::BYTES.def().name);
    let text = format!(
        "NCCL {}: the rank made {} calls of {} bytes, the probes counted {seen} of {bytes}",
        reported.version, reported.calls, reported.bytes
    );
    if arrived.is_none() && seen == 0 {
        return Ok(Row::skip(CHECK, format!("{text}; `gpuwho doctor` says why")));
    }
    Ok(Row::judged(CHECK, seen == reported.calls && bytes == reported.bytes, text))
}
