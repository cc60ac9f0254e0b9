//! What a reading asks of the library with everything on: the calls of a tick by the time they take,
//! and what the agent adds to that time. The library is the fake one, which takes as long as has been
//! published of the real one.

use super::cost::{cpu, reader, threads};
use super::load::Load;
use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::footprint::spent;
use nvidia_ml::counts::{self, Count};
use nvidia_ml::scenario::failure::Latency;
use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The machine, and the interval.
const SCENARIO: &str = "h200x8-nvlink";
const EVERY: &str = "10s";
/// Two readings: how many links there are is known after the first, and after the second what they
/// do not tell.
const WARM_UP: Duration = Duration::from_secs(15);
/// One for each device and tick.
const EVERY_TICK: &str = "nvmlDeviceGetFieldValues";
/// Devices of the scenario.
const DEVICES: u64 = 8;
/// Not readings: these are awaited on a thread of its own.
const WAITS: &[&str] = &["nvmlEventSetWait_v2", "nvmlSystemEventSetWait"];
/// The agent's thread that takes readings.
const COLLECTOR: &str = "collect:nvidia";
/// Of the time inside the library.
const TARGET: f64 = 0.2;
/// Functions that have a row.
const ROWS: usize = 8;

/// Runs the agent and watches the library.
pub fn measure(watch: Duration) -> Result<Vec<Row>, BenchError> {
    let mut load = Load::of(stage()?, SCENARIO)?;
    let path = load.nvml.count_calls();
    load.nvml.take_time()?;
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let agent = load.agent(EVERY, &receiver)?;
    thread::sleep(WARM_UP);
    let (agent, reader) = (agent.pid(), reader(&agent)?);
    let before = (look(&path)?, threads(agent)?, cpu(reader)?);
    thread::sleep(watch);
    let after = (look(&path)?, threads(agent)?, cpu(reader)?);
    let asked = grown(&before.0, &after.0);
    let ticks = asked.get(EVERY_TICK).map_or(0, |count| count.calls) / DEVICES;
    let sum = asked.values().copied().fold(Count::default(), Count::and);
    let of_reader = after.2 - before.2;
    let taking = spent(&before.1, &after.1).get(COLLECTOR).copied().unwrap_or_default();
    // Waiting for events costs the reader, too, but is no reading.
    let waiting = WAITS.iter().map(|call| {
        let count = |look: &BTreeMap<String, Count>| look.get(*call).copied().unwrap_or_default();
        count(&after.0).since(count(&before.0)).cpu_ns
    });
    let waiting: u64 = waiting.sum();
    let own = (of_reader + taking).saturating_sub(sum.cpu_ns + waiting);
    let nominal = nominal(&asked, &load.nvml.truth()?.latencies);
    let mut rows = vec![calls(sum, ticks), floor(sum, nominal, ticks), share(own, nominal, ticks)];
    rows.extend(by_time(&asked, ticks));
    Ok(rows)
}

fn look(path: &Path) -> Result<BTreeMap<String, Count>, BenchError> {
    counts::read(path).map_err(BenchError::os(path))
}

/// What was done to each function between two looks, but for the wait.
fn grown(
    before: &BTreeMap<String, Count>,
    after: &BTreeMap<String, Count>,
) -> BTreeMap<String, Count> {
    let none = Count::default();
    let since = |(name, count): (&String, &Count)| {
        (name.clone(), count.since(*before.get(name).unwrap_or(&none)))
    };
    let all = after.iter().filter(|(name, _)| !WAITS.contains(&name.as_str())).map(since);
    all.filter(|(_, count)| count.calls > 0).collect()
}

fn calls(sum: Count, ticks: u64) -> Row {
    let each = sum.calls as f64 / ticks.max(1) as f64;
    let figure = format!("{each:.1} a tick, {:.1} a device ({ticks} ticks)", each / DEVICES as f64);
    Row::plain(format!("calls of {DEVICES} H200 at {EVERY}, everything on"), figure)
}

/// Nanoseconds that the calls take by what has been published: what they took here is more on a busy
/// machine, and would make our own share look small.
fn nominal(asked: &BTreeMap<String, Count>, latencies: &[Latency]) -> u64 {
    let micros = |name: &str| {
        let of = |call: &str| latencies.iter().find(|latency| latency.call == call);
        of(name).or_else(|| of("*")).map_or(0, |latency| latency.us)
    };
    asked.iter().map(|(name, count)| count.calls * micros(name) * 1000).sum()
}

fn floor(sum: Count, nominal: u64, ticks: u64) -> Row {
    let [nominal, wall] = [nominal, sum.wall_ns].map(|nanos| millis(nanos, ticks));
    let figure = format!("{nominal:.2} ms a tick by what is published ({wall:.2} ms here)");
    Row::plain("time inside the library (the floor)", figure)
}

fn share(own: u64, floor: u64, ticks: u64) -> Row {
    let share = own as f64 / floor.max(1) as f64;
    let figure = format!("{:.2} ms a tick, {:.1} % of it", millis(own, ticks), share * 100.0);
    Row::against("CPU of the reading beside it", figure, "at most a fifth", share <= TARGET)
}

/// The dearest functions, one row each, and the rest in one.
fn by_time(asked: &BTreeMap<String, Count>, ticks: u64) -> Vec<Row> {
    let mut all: Vec<_> = asked.iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(count.wall_ns));
    let row = |name: String, count: Count| {
        let calls = count.calls as f64 / ticks.max(1) as f64;
        Row::plain(name, format!("{calls:.1} calls, {:.3} ms", millis(count.wall_ns, ticks)))
    };
    let (dear, others) = all.split_at(all.len().min(ROWS));
    let mut rows: Vec<_> =
        dear.iter().map(|(name, count)| row(format!("    {name}"), **count)).collect();
    let rest = others.iter().map(|(_, count)| **count).fold(Count::default(), Count::and);
    rows.push(row(format!("    {} other functions", others.len()), rest));
    rows
}

fn millis(nanos: u64, ticks: u64) -> f64 {
    nanos as f64 / 1e6 / ticks.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::table::render;

    #[test]
    fn the_dearest_function_is_first_and_the_wait_is_not_counted() {
        let count = |calls, wall_ns| Count { calls, wall_ns, ..Count::default() };
        let named = |name: &str, count| (name.to_owned(), count);
        let before = [named("nvmlA", count(2, 10)), named(WAITS[0], count(5, 500))].into();
        let after = [
            named("nvmlA", count(4, 2_000_010)),
            named("nvmlB", count(1, 9_000_000)),
            named(WAITS[0], count(9, 9_000)),
            named(WAITS[1], count(9, 9)),
        ];
        let asked = grown(&before, &after.into());
        assert_eq!(
            asked,
            [named("nvmlA", count(2, 2_000_000)), named("nvmlB", count(1, 9_000_000))].into()
        );
        let latency = |call: &str, us| Latency { call: call.to_owned(), us };
        let latencies = [latency("nvmlB", 4500), latency("*", 12)];
        assert_eq!(nominal(&asked, &latencies), 4_500_000 + 2 * 12_000);
        let table = render(&by_time(&asked, 1));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let reported: Vec<_> = table.lines().skip(2).map(words).collect();
        let expected = [
            "| nvmlB | 1.0 calls, 9.000 ms | | |",
            "| nvmlA | 2.0 calls, 2.000 ms | | |",
            "| 0 other functions | 0.0 calls, 0.000 ms | | |",
        ];
        assert_eq!(reported, expected);
    }
}
