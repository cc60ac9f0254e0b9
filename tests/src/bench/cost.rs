//! CPU time, memory and the rest of the agent's footprint with each of its children, on eight GPUs with
//! 64 processes.

use super::load::Load;
use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::Agent;
use crate::budget::Figures;
use crate::footprint::{self, Memory, Process, Threads};
use nvidia_ml::counts;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// What happens once (loading programs, the first request, the first look at 64 processes) is not
/// the cost of a tick.
const WARM_UP: Duration = Duration::from_secs(5);

/// Between two looks, shorter than a helper is idle before it ends: none of its work is missed.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What has been spent so far.
struct Look {
    at: Instant,
    sent: (u64, u64),
    processes: Vec<Process>,
    /// Those that have ended, as they last were.
    ended: Vec<Process>,
    /// CPU time inside the vendor's library.
    library: u64,
}

impl Look {
    fn take(agent: &Agent, receiver: &Receiver, calls: &Path) -> Result<Self, BenchError> {
        let all = counts::read(calls).map_err(BenchError::os(calls))?;
        Ok(Self {
            at: Instant::now(),
            sent: receiver.received(),
            processes: processes(agent)?,
            ended: Vec::new(),
            library: all.values().map(|count| count.cpu_ns).sum(),
        })
    }

    /// Looks again at the end of this time, with those in between that have ended by then.
    fn after(&self, watch: Duration, from: (&Agent, &Receiver, &Path)) -> Result<Self, BenchError> {
        let (agent, receiver, calls) = from;
        let ends = self.at + watch;
        let mut seen = self.processes.clone();
        loop {
            let left = ends.saturating_duration_since(Instant::now());
            thread::sleep(left.min(LOOK_EVERY));
            let mut look = Self::take(agent, receiver, calls)?;
            let is_there = |one: &Process| look.processes.iter().any(|other| other.pid == one.pid);
            look.ended = seen.iter().filter(|one| !is_there(one)).cloned().collect();
            if left <= LOOK_EVERY {
                return Ok(look);
            }
            seen = look.processes.iter().chain(&look.ended).cloned().collect();
        }
    }

    /// What was spent since: by each process of now, and the percentage of a core with and without
    /// the library's own.
    fn since(&self, before: &Self) -> Spent {
        let took = self.at - before.at;
        let mut spent =
            Spent { ticks: self.sent.0.saturating_sub(before.sent.0), ..<_>::default() };
        spent.bytes = (self.sent.1 - before.sent.1).checked_div(spent.ticks).unwrap_or_default();
        for process in self.processes.iter().chain(&self.ended) {
            // One that has come since has spent everything since.
            let was = before.processes.iter().find(|was| was.pid == process.pid);
            let threads = was
                .map_or(process.spent.clone(), |was| footprint::spent(&was.spent, &process.spent));
            let since = |of: fn(&Process) -> u64| of(process).saturating_sub(was.map_or(0, of));
            spent.wakes += since(|process| process.wakes);
            spent.reads += since(|process| process.reads);
            let cpu = since(|process| process.cpu);
            spent.of_processes.push(OfProcess { name: process.name.clone(), cpu, threads });
        }
        let sum: u64 = spent.of_processes.iter().map(|process| process.cpu).sum();
        let percent = |nanos: u64| nanos as f64 / took.as_nanos() as f64 * 100.0;
        let library = self.library.saturating_sub(before.library);
        spent.percent = percent(sum);
        spent.own_percent = percent(sum.saturating_sub(library));
        spent.took = took;
        spent
    }
}

#[derive(Default)]
struct Spent {
    took: Duration,
    ticks: u64,
    bytes: u64,
    wakes: u64,
    reads: u64,
    of_processes: Vec<OfProcess>,
    percent: f64,
    own_percent: f64,
}

struct OfProcess {
    name: String,
    /// Nanoseconds of all, with threads that have ended.
    cpu: u64,
    threads: Threads,
}

/// Runs the agent at an interval and watches it twice; also gives the figures that have a budget, of
/// the second time.
pub fn measure(every: &str, watch: Duration) -> Result<(Vec<Row>, Figures), BenchError> {
    let mut load = Load::start(stage()?)?;
    let calls = load.nvml.count_calls();
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let agent = load.agent(every, &receiver)?;
    thread::sleep(WARM_UP);
    reader(&agent)?;
    let begun = Look::take(&agent, &receiver, &calls)?;
    let first = begun.after(watch, (&agent, &receiver, &calls))?;
    let last = first.after(watch, (&agent, &receiver, &calls))?;
    let started = first.since(&begun);
    let spent = last.since(&first);
    let (mut rows, mut figures) = (Vec::new(), Figures::new());
    for OfProcess { name, threads, .. } in &started.of_processes {
        let what = format!("  by thread, {name}, the first {} s", watch.as_secs());
        rows.push(Row::plain(what, by_thread(threads, started.ticks)));
    }
    let started = started.own_percent;
    for OfProcess { name, cpu, threads } in &spent.of_processes {
        let what = format!("CPU of the {name} at {every}");
        rows.push(row_of_cpu(what, *cpu, spent.ticks, spent.took));
        rows.push(Row::plain(format!("  by thread, {name}"), by_thread(threads, spent.ticks)));
    }
    let sent = format!("{} requests of {} B", spent.ticks, spent.bytes);
    rows.push(Row::plain(format!("sent at {every}"), sent));
    let (target, text, key) = match every {
        "10s" => (0.05, "≤ 0.05 %", "cpu_percent_at_10s"),
        _ => (0.35, "≤ 0.35 %", "cpu_percent_at_1s"),
    };
    figures.insert(key, spent.own_percent);
    let figure = format!(
        "{:.4} % of a core ({:.4} % with the fake library's own; {started:.4} % in the {} s from 5 s after \
         the start)",
        spent.own_percent,
        spent.percent,
        watch.as_secs()
    );
    let all = format!("CPU of all at {every}");
    rows.push(Row::against(all, figure, text, spent.own_percent <= target));
    if every == "10s" {
        figures.insert("cpu_percent_at_10s_first_minute", started);
        let wakes = spent.wakes as f64 / spent.took.as_secs_f64();
        figures.insert("wakes_a_second_at_10s", wakes);
        rows.push(Row::against("wake-ups", format!("{wakes:.1} a second"), "≤ 3", wakes <= 3.0));
        let reads = spent.reads as f64 / spent.ticks.max(1) as f64;
        figures.insert("reads_a_tick_at_10s", reads);
        rows.push(Row::plain("reads of files and sockets", format!("{reads:.0} a tick")));
        rows.extend(held(&last.processes, &mut figures));
    }
    Ok((rows, figures))
}

fn row_of_cpu(what: String, nanos: u64, ticks: u64, took: Duration) -> Row {
    let (nanos, seconds) = (nanos as f64, took.as_secs_f64());
    let tick = nanos / 1e6 / ticks.max(1) as f64;
    let hour = nanos / 1e9 / seconds * 3600.0;
    Row::plain(what, format!("{tick:.3} ms a tick ({ticks} ticks), {hour:.2} s an hour"))
}

/// What the processes hold.
fn held(processes: &[Process], figures: &mut Figures) -> Vec<Row> {
    let mut rows = Vec::new();
    let (mut sum, mut maps, mut descriptors) = (Memory::default(), 0, 0);
    for Process { name, memory, threads, .. } in processes {
        rows.push(Row::plain(format!("memory of the {name}"), figure(memory)));
        sum.resident += memory.resident;
        sum.proportional += memory.proportional;
        sum.anonymous += memory.anonymous;
        let target = match name.as_str() {
            "agent" => Some(("threads_of_the_agent", 10, "≤ 10")),
            "device-reader" => Some(("threads_of_the_reader", 4, "≤ 4")),
            _ => None,
        };
        if let Some((key, most, target)) = target {
            figures.insert(key, *threads as f64);
            let what = format!("threads of the {name}");
            rows.push(Row::against(what, threads.to_string(), target, *threads <= most));
        }
    }
    for process in processes {
        maps += process.map_bytes;
        descriptors += process.descriptors;
    }
    figures.insert("processes", processes.len() as f64);
    figures.insert("resident_mb", megabytes(sum.resident));
    figures.insert("proportional_mb", megabytes(sum.proportional));
    figures.insert("anonymous_mb", megabytes(sum.anonymous));
    figures.insert("descriptors", descriptors as f64);
    figures.insert("bpf_maps_mb", megabytes(maps));
    let is_met = megabytes(sum.resident) <= 24.0 && megabytes(sum.proportional) <= 20.0;
    let target = "≤ 24 MB RSS, 20 MB PSS";
    rows.push(Row::against("memory of all", figure(&sum), target, is_met));
    rows.push(Row::plain("descriptors of all", descriptors.to_string()));
    let is_met = megabytes(maps) <= 8.0;
    let figure = format!("{:.2} MB in the kernel", megabytes(maps));
    rows.push(Row::against("BPF maps", figure, "≤ 8 MB", is_met));
    rows
}

fn figure(memory: &Memory) -> String {
    format!(
        "{:.1} MB RSS, {:.1} MB PSS, {:.1} MB of it anonymous",
        megabytes(memory.resident),
        megabytes(memory.proportional),
        megabytes(memory.anonymous)
    )
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

pub(super) fn by_thread(spent: &Threads, ticks: u64) -> String {
    let mut all: Vec<_> = spent.iter().filter(|(_, nanos)| **nanos > 0).collect();
    all.sort_by_key(|(_, nanos)| std::cmp::Reverse(**nanos));
    let each = |nanos: u64| nanos as f64 / 1e3 / ticks.max(1) as f64;
    let texts: Vec<_> =
        all.iter().map(|(name, nanos)| format!("{name} {:.0} µs", each(**nanos))).collect();
    texts.join(", ")
}

/// The agent and its children, by what they do.
fn processes(agent: &Agent) -> Result<Vec<Process>, BenchError> {
    footprint::of(agent).map_err(BenchError::os("the agent's files in /proc"))
}

/// The child that reads devices.
pub(super) fn reader(agent: &Agent) -> Result<u32, BenchError> {
    let what = "the agent".to_owned();
    agent.reader().ok_or(BenchError::Strange { what, expected: "that it has a reader" })
}

/// CPU time of a process in nanoseconds.
pub(super) fn cpu(pid: u32) -> Result<u64, BenchError> {
    footprint::cpu(pid).map_err(BenchError::os("the agent's clock"))
}

/// CPU time by thread.
pub(super) fn threads(pid: u32) -> Result<Threads, BenchError> {
    footprint::threads(pid).map_err(BenchError::os("the agent's threads"))
}
