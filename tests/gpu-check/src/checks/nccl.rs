//! A rank of PyTorch that asks NCCL for a known number of collectives, against what the kernel's
//! probes counted of it.

use super::{Bench, CheckError, Checked};
use crate::python::Python;
use crate::report::{Row, Verdict};
use crate::watch::Point;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::nccl as metric;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

const CHECK: &str = "NCCL calls of PyTorch";
const TWO_RANKS: &str = "two ranks on one device";
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
    Ok(vec![ranks(bench, CHECK, "1")?, ranks(bench, TWO_RANKS, "2")?])
}

/// That many ranks on one device; the last comes late to its first collective.
fn ranks(bench: &Bench<'_>, check: &'static str, count: &str) -> Result<Row, CheckError> {
    let begun = SystemTime::now();
    // Of NCCL 2.30 on: more than one rank on a device, with fewer blocks each.
    let variables = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("NCCL_MAX_CTAS", "8")];
    let mut ranks = Vec::new();
    for rank in ["0", "1"].into_iter().take(count.parse().unwrap_or(1)) {
        match Python::start(RANK, &[rank, count], &variables) {
            Ok(python) => ranks.push(python),
            Err(why) => return Ok(Row::skip(check, why)),
        }
    }
    // They wait for the end of their standard input, so that they are there while they are counted.
    let reported: Vec<_> = ranks.iter_mut().map(Python::says::<RankReport>).collect();
    let Some(reported) = reported.into_iter().collect::<Option<Vec<_>>>() else {
        let why = "python3 has no PyTorch with an NCCL that makes these ranks here";
        return Ok(Row::skip(check, why));
    };
    let rows = reported.iter().map(|rank| compare(bench, check, begun, rank));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    let failed = rows.iter().find(|row| row.verdict != Verdict::Pass);
    let seen: Vec<_> = rows.iter().map(|row| row.seen.as_str()).collect();
    let verdict = failed.map_or(Verdict::Pass, |row| row.verdict);
    Ok(Row::new(check, verdict, seen.join("\n")))
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

fn compare(
    bench: &Bench<'_>,
    check: &'static str,
    begun: SystemTime,
    reported: &RankReport,
) -> Result<Row, CheckError> {
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
        return Ok(Row::skip(check, format!("{text}; `gpuwho doctor` says why")));
    }
    Ok(Row::judged(check, seen == reported.calls && bytes == reported.bytes, text))
}
