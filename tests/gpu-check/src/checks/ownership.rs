//! Whose work is on a device: a child that has the device from its parent, and processes that are gone
//! before any poll sees them.

use super::{Bench, Checked};
use crate::load::Running;
use crate::report::Row;
use crate::watch::Point;
use gpuwho_model::catalog::share as metric;
use gpuwho_tests::until::until;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

const TOLD_WITHIN: Duration = Duration::from_secs(3);
/// Programs of a fraction of a second each.
const SHORT: usize = 12;
const EACH: Duration = Duration::from_millis(400);
/// Part of a device's busy time that may have no owner: a program's last moments.
const UNKNOWN: f64 = 0.1;

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    Ok(vec![forked(bench), short(bench)?])
}

/// A child that has inherited the device, and opened nothing itself.
fn forked(bench: &Bench<'_>) -> Row {
    const CHECK: &str = "owner after a fork";
    let child = Command::new("sh")
        .args(["-c", "exec 3</dev/nvidiactl 4</dev/nvidia0; sleep 5 & echo $!; read end"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(why) => return Row::skip(CHECK, why),
    };
    let Some(pid) = first_line(&mut child).and_then(|line| line.trim().parse::<u64>().ok()) else {
        return Row::skip(CHECK, "no /dev/nvidia0");
    };
    let reported = until(TOLD_WITHIN, || {
        let who = bench.watched.agent.who().ok()?;
        let mut holders = who["holders"].as_array()?.iter();
        holders.find(|holder| holder["pid"] == pid).cloned()
    });
    drop(child.stdin.take());
    // It ends by itself.
    let _ended = child.wait();
    let seen = format!(
        "PID {pid} has /dev/nvidia0 from its parent; {}",
        match &reported {
            Some(holder) => format!("reported as a holder of {}", holder["nodes"]),
            None => format!("not reported within {TOLD_WITHIN:?}"),
        }
    );
    Row::judged(CHECK, reported.is_some(), seen)
}

fn first_line(child: &mut Child) -> Option<String> {
    use std::io::{BufRead as _, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut()?).read_line(&mut line).ok()?;
    Some(line)
}

/// The busy time of short programs has an owner, or is little.
fn short(bench: &Bench<'_>) -> Result<Row, super::CheckError> {
    const CHECK: &str = "owners of short programs";
    let begun = SystemTime::now();
    let before = bench.watched.since(begun - Duration::from_secs(5))?;
    for _ in 0..SHORT {
        let load = Running::start(&["fma32", "--memory", "64"])?;
        std::thread::sleep(EACH);
        load.stop()?;
    }
    std::thread::sleep(Duration::from_secs(3));
    let after = bench.watched.since(begun)?;
    let last = |points: &[Point], name: &str| {
        let value = points.iter().rfind(|point| point.metric == name);
        value.and_then(|point| point.value).unwrap_or(0.0)
    };
    let more = |name: &str| last(&after, name) - last(&before, name);
    let busy = more(metric::BUSY_TIME.def().name);
    let unknown = more(metric::UNATTRIBUTED_TIME.def().name);
    let seen = format!(
        "{SHORT} programs of {EACH:?}: the device was busy {busy:.2} s, {unknown:.2} s of it without an owner"
    );
    Ok(Row::judged(CHECK, busy > 0.5 && unknown <= UNKNOWN * busy, seen))
}
