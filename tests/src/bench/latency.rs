//! Time from a device's opening to its owner being known: the agent's own histogram, whose clock
//! starts in the kernel at the open, over processes that stay and processes that exit at once. Beside
//! them a thread wakes another through a pipe: what the machine's other programs add to each wake-up.

use super::table::Row;
use super::{BenchError, needs_kernel, stage};
use crate::agent::{Agent, AgentError, Config};
use crate::stage::{Driver, PodSpec, Qos};
use crate::until::until;
use crate::worker::Worker;
use crate::worker::script::{Hold, Script};
use serde_json::Value;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Openers of each kind.
const OPENERS: u32 = 100;
/// How fast the short ones come: a busy host's data loaders.
const PER_SECOND: u32 = 100;
/// The first tenths of a second of an agent whose binary a build has just written hold up the openers
/// for up to 100 ms; of one that is on the disk nothing shows.
const WARM_UP: Duration = Duration::from_secs(1);
/// All of them are in the table a tick after the last one opened.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Seconds.
const TARGET: f64 = 0.005;

/// A histogram as the file sink writes it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    count: u64,
    sum: f64,
    bounds: Vec<f64>,
    counts: Vec<u64>,
}

/// Starts the openers and reads the agent's histogram.
pub fn measure() -> Result<Vec<Row>, BenchError> {
    let mut stage = stage()?;
    let points = stage.folder().join("points.jsonl");
    let config = Config {
        default_metrics: true,
        pod_logs: Some(stage.pod_logs()),
        file: Some(points.clone()),
        more: "[nvidia]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, None)?;
    needs_kernel(&agent)?;
    thread::sleep(WARM_UP);
    let pod = stage.pod(&PodSpec {
        namespace: "research",
        name: "openers",
        container: "main",
        qos: Qos::Burstable,
        driver: Driver::Cgroupfs,
    })?;
    let script = Script { gpus: vec![0], ..Script::default() };
    let short = Hold::Storm { count: OPENERS, per_second: PER_SECOND };
    let mut rows = Vec::new();
    let mut before = Seen::default();
    for (kind, hold) in [("exit at once", short), ("stay", Hold::UntilTold)] {
        let script = Script { hold, ..script.clone() };
        let count = if hold == short { 1 } else { OPENERS };
        let wanted = before.count + u64::from(OPENERS);
        let (after, wakes) = beside_wakes(|| {
            let workers: Result<Vec<_>, _> =
                (0..count).map(|_| Worker::start(Some(&pod), &script)).collect();
            let after = wait(&agent, &points, wanted)?;
            drop(workers?);
            Ok(after)
        })?;
        rows.push(row(kind, &after.since(&before)));
        rows.push(row_of_wakes(wakes));
        before = after;
    }
    Ok(rows)
}

/// Measures something, and meanwhile how late a thread wakes for a byte in a pipe, as often as the
/// openers come.
fn beside_wakes<T>(
    measure: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, Vec<Duration>), BenchError> {
    let (mut reader, writer) = io::pipe().map_err(BenchError::os("a pipe"))?;
    let (since, is_over) = (Instant::now(), &AtomicBool::new(false));
    thread::scope(|scope| {
        let wakes = scope.spawn(|| {
            let (mut wakes, mut sent) = (Vec::new(), [0; size_of::<u64>()]);
            while reader.read_exact(&mut sent).is_ok() {
                let sent = Duration::from_nanos(u64::from_le_bytes(sent));
                wakes.push(since.elapsed().saturating_sub(sent));
            }
            wakes
        });
        scope.spawn(move || {
            // Dropped at the end, which ends the reader.
            let mut writer = writer;
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_secs(1) / PER_SECOND);
                let now = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                // The reader is there as long as the writer.
                let _ = writer.write_all(&now.to_le_bytes());
            }
        });
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        Ok((measured?, wakes.join().unwrap_or_default()))
    })
}

fn wait(agent: &Agent, points: &Path, wanted: u64) -> Result<Seen, BenchError> {
    let mut last = None;
    let found = until(KNOWN_WITHIN, || {
        last = newest(&fs::read_to_string(points).unwrap_or_default());
        last.clone().filter(|seen| seen.count >= wanted)
    });
    found.ok_or_else(|| {
        let seen = format!("{last:?}\n{}", agent.log().join("\n"));
        let what = format!("{wanted} openers with an owner");
        AgentError::NotSeen { what, waited: KNOWN_WITHIN, last: seen }.into()
    })
}

/// The last such point in a file of JSON lines.
fn newest(text: &str) -> Option<Seen> {
    let line = text.lines().rev().find(|line| line.contains("\"gpuwho.ownership.latency\""))?;
    let point: Value = serde_json::from_str(line).ok()?;
    let value = &point["value"];
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    Some(Seen {
        count: value["count"].as_u64()?,
        sum: value["sum"].as_f64()?,
        bounds: list("bounds").iter().filter_map(Value::as_f64).collect(),
        counts: list("counts").iter().filter_map(Value::as_u64).collect(),
    })
}

impl Seen {
    fn since(&self, before: &Self) -> Self {
        let earlier = before.counts.iter().copied().chain(std::iter::repeat(0));
        Self {
            count: self.count - before.count,
            sum: self.sum - before.sum,
            bounds: self.bounds.clone(),
            counts: self.counts.iter().zip(earlier).map(|(now, then)| now - then).collect(),
        }
    }

    /// The bound below which this share of the openers is.
    fn below(&self, share: f64) -> f64 {
        let wanted = self.count as f64 * share;
        let mut sum = 0;
        for (count, bound) in self.counts.iter().zip(&self.bounds) {
            sum += count;
            if sum as f64 >= wanted {
                return *bound;
            }
        }
        f64::INFINITY
    }
}

fn row(kind: &str, seen: &Seen) -> Row {
    let millis = |seconds: f64| seconds * 1e3;
    let figure = format!(
        "mean {:.2} ms; half below {} ms, 99 % below {} ms, all below {} ms ({} openers)",
        millis(seen.sum / seen.count as f64),
        millis(seen.below(0.5)),
        millis(seen.below(0.99)),
        millis(seen.below(1.0)),
        seen.count
    );
    let what = format!("open to owner, processes that {kind}");
    Row::against(what, figure, "< 5 ms", seen.below(0.99) <= TARGET)
}

fn row_of_wakes(mut wakes: Vec<Duration>) -> Row {
    wakes.sort_unstable();
    let count = wakes.len().max(1);
    let millis = |wake: Duration| wake.as_secs_f64() * 1e3;
    let within = |share: usize| {
        let last = (count * share).div_ceil(100) - 1;
        millis(wakes.get(last).copied().unwrap_or_default())
    };
    let mean = millis(wakes.iter().sum()) / count as f64;
    let figure = format!(
        "mean {mean:.2} ms; half within {:.2} ms, 99 % within {:.2} ms, all within {:.2} ms ({count})",
        within(50),
        within(99),
        within(100)
    );
    Row::plain("the same moments, a thread that wakes for a pipe", figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_from_what_was_new() {
        let line = r#"{"metric":"gpuwho.ownership.latency","value":{"count":4,"sum":0.5,"bounds":[0.1,0.2],"counts":[1,2,1]}}"#;
        let before = newest(line);
        let after = before.clone().map(|seen| Seen { count: 8, counts: vec![4, 3, 1], ..seen });
        let new = after.zip(before).map(|(after, before)| after.since(&before)).unwrap();
        assert_eq!((new.count, new.counts.clone()), (4, vec![3, 1, 0]));
        assert_eq!(
            [new.below(0.5), new.below(1.0)].map(|bound| format!("{bound:.1}")),
            ["0.1", "0.2"]
        );
    }
}
