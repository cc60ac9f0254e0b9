//! CPU time and memory of the agent and of each of its children, from `/proc`, with every thread
//! apart: the scheduler's own nanoseconds, not the clock's ticks.

use super::load::Load;
use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::Agent;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// What happens once (loading programs, the first request, the first look at 64 processes) is not
/// the cost of a tick.
const WARM_UP: Duration = Duration::from_secs(5);
/// Of one core.
const CPU_TARGET_PERCENT: f64 = 0.05;
/// The agent and all of its children together.
const MEMORY_TARGET_MB: f64 = 15.0;

/// Nanoseconds of CPU by thread name.
pub(super) type Threads = BTreeMap<String, u64>;

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    resident: u64,
    proportional: u64,
    anonymous: u64,
}

/// Runs the agent at an interval and watches it.
pub fn measure(every: &str, watch: Duration) -> Result<Vec<Row>, BenchError> {
    let load = Load::start(stage()?)?;
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let agent = load.agent(every, &receiver)?;
    thread::sleep(WARM_UP);
    let pids = processes(&agent)?;
    let (begun, sent) = (Instant::now(), receiver.received());
    let before: Vec<_> = pids.iter().map(|(_, pid)| threads(*pid)).collect();
    thread::sleep(watch);
    let after: Vec<_> = pids.iter().map(|(_, pid)| threads(*pid)).collect();
    let (took, received) = (begun.elapsed(), receiver.received());
    let ticks = received.0.saturating_sub(sent.0);
    let mut rows = Vec::new();
    let mut total = 0;
    for ((name, _), (before, after)) in pids.iter().zip(before.into_iter().zip(after)) {
        let spent = spent(&before?, &after?);
        let sum: u64 = spent.values().sum();
        total += sum;
        rows.push(cpu(&format!("CPU of the {name} at {every}"), sum, ticks, took));
        rows.push(Row::plain(format!("  by thread, {name}"), by_thread(&spent, ticks)));
    }
    let percent = total as f64 / took.as_nanos() as f64 * 100.0;
    let figure = format!("{percent:.4} % of a core");
    let all = format!("CPU of all at {every}");
    rows.push(match every {
        "10s" => Row::against(all, figure, "< 0.05 %", percent < CPU_TARGET_PERCENT),
        _ => Row::plain(all, figure),
    });
    let bytes = (received.1 - sent.1).checked_div(ticks).unwrap_or_default();
    rows.push(Row::plain(format!("sent at {every}"), format!("{ticks} requests of {bytes} B")));
    if every == "10s" {
        rows.extend(memory_rows(&pids)?);
    }
    Ok(rows)
}

fn cpu(what: &str, nanos: u64, ticks: u64, took: Duration) -> Row {
    let (nanos, seconds) = (nanos as f64, took.as_secs_f64());
    let tick = nanos / 1e6 / ticks.max(1) as f64;
    let hour = nanos / 1e9 / seconds * 3600.0;
    Row::plain(what, format!("{tick:.3} ms a tick ({ticks} ticks), {hour:.2} s an hour"))
}

fn memory_rows(pids: &[(String, u32)]) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    let mut sum = Memory::default();
    for (name, pid) in pids {
        let memory = memory(*pid)?;
        sum.resident += memory.resident;
        sum.proportional += memory.proportional;
        sum.anonymous += memory.anonymous;
        rows.push(Row::plain(format!("memory of the {name}"), memory.figure()));
    }
    let met = megabytes(sum.resident) < MEMORY_TARGET_MB;
    rows.push(Row::against("memory of all", sum.figure(), "< 15 MB RSS", met));
    Ok(rows)
}

impl Memory {
    fn figure(self) -> String {
        format!(
            "{:.1} MB RSS, {:.1} MB PSS, {:.1} MB of it anonymous",
            megabytes(self.resident),
            megabytes(self.proportional),
            megabytes(self.anonymous)
        )
    }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

pub(super) fn spent(before: &Threads, after: &Threads) -> Threads {
    let since = |name: &String| before.get(name).copied().unwrap_or_default();
    after.iter().map(|(name, now)| (name.clone(), now.saturating_sub(since(name)))).collect()
}

fn by_thread(spent: &Threads, ticks: u64) -> String {
    let mut all: Vec<_> = spent.iter().filter(|(_, nanos)| **nanos > 0).collect();
    all.sort_by_key(|(_, nanos)| std::cmp::Reverse(**nanos));
    let each = |nanos: u64| nanos as f64 / 1e3 / ticks.max(1) as f64;
    let texts: Vec<_> =
        all.iter().map(|(name, nanos)| format!("{name} {:.0} µs", each(**nanos))).collect();
    texts.join(", ")
}

fn read(path: &Path) -> Result<String, BenchError> {
    fs::read_to_string(path).map_err(BenchError::os(path))
}

/// The agent and its children, by what they do.
fn processes(agent: &Agent) -> Result<Vec<(String, u32)>, BenchError> {
    reader(agent)?;
    Ok([("agent".to_owned(), agent.pid())].into_iter().chain(agent.children()).collect())
}

/// The child that reads devices.
pub(super) fn reader(agent: &Agent) -> Result<u32, BenchError> {
    let what = "the agent".to_owned();
    agent.reader().ok_or(BenchError::Strange { what, expected: "that it has a reader" })
}

fn tasks(pid: u32) -> Result<Vec<PathBuf>, BenchError> {
    let folder = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&folder).map_err(BenchError::os(&folder))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

pub(super) fn threads(pid: u32) -> Result<Threads, BenchError> {
    let mut all = Threads::new();
    for folder in tasks(pid)? {
        let name = read(&folder.join("comm"))?.trim_end().to_owned();
        let text = read(&folder.join("schedstat"))?;
        let nanos = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        *all.entry(name).or_default() += nanos.unwrap_or_default();
    }
    Ok(all)
}

fn memory(pid: u32) -> Result<Memory, BenchError> {
    Ok(rollup(&read(Path::new(&format!("/proc/{pid}/smaps_rollup")))?))
}

fn rollup(text: &str) -> Memory {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let kib = line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    };
    Memory { resident: field("Rss:"), proportional: field("Pss:"), anonymous: field("Anonymous:") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_by_the_whole_name() {
        let text = "Rss:   10 kB\nPss:   4 kB\nPss_Dirty: 3 kB\nAnonymous:  2 kB\n";
        let expected = Memory { resident: 10_240, proportional: 4_096, anonymous: 2_048 };
        assert_eq!(rollup(text), expected);
    }
}
