//! What more series cost: sixteen devices, up to a thousand processes of five hundred pods, and as many as
//! the default limit of series lets through. The cost of a series must not grow with their number, and a
//! limit of series must bound memory.

use super::cost::{by_thread, cpu, reader, threads};
use super::crowd::{Crowd, Size};
use super::receiver::Receiver;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::Config;
use crate::footprint::{self, memory};
use crate::until::until;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(5);
/// Between ticks, and owners with processes of each, of eight GPUs: from few to a full node.
const EACH_SECOND: Duration = Duration::from_secs(1);
const NODES: [(u32, u32); 4] = [(16, 1), (16, 4), (64, 4), (250, 4)];
/// A tick of the fullest node may cost this.
const MAX_MS: f64 = 15.0;
/// The agent looks more often at processes that are new to it, for less than this.
const WARM_UP: Duration = Duration::from_secs(40);
/// Pods; each has a process on two devices.
const PODS: [u32; 3] = [125, 250, 500];
/// Pods of few processes and of many.
const SHARED: u32 = 16;
const EACH: [u32; 2] = [4, 62];
/// Pods whose processes have, at the level of all metrics, more series than the default limit.
const TOO_MANY: u32 = 1_500;
/// The most that the agent and its reader may hold then.
const MAX_MB: f64 = 80.0;
/// The most that a process may take, with all its series.
const MAX_KB_A_PROCESS: f64 = 20.0;
/// Series in the last run, where there are more.
const LIMIT: u32 = 5_000;
/// A series of the largest run may cost this many times one of the smallest.
const MAX_GROWTH: f64 = 1.5;

/// One run.
struct Cost {
    size: Size,
    series: u64,
    /// CPU of the agent and of the reader in microseconds a tick.
    micros: [f64; 2],
    /// The agent's by thread.
    threads: String,
    resident_mb: f64,
}

impl Cost {
    fn of_series(&self) -> f64 {
        self.micros.iter().sum::<f64>() / self.series.max(1) as f64
    }

    fn row(&self, more: &str) -> Row {
        let [agent, reader] = self.micros.map(|micros| micros / 1e3);
        let figure = format!(
            "{} series; agent {agent:.1}, reader {reader:.1} ms a tick, {:.2} µs a series; {:.1} MB RSS",
            self.series,
            self.of_series(),
            self.resident_mb,
        );
        let (processes, pods) = (self.processes(), self.size.pods);
        Row::plain(format!("{processes} processes of {pods} pods{more}"), figure)
    }

    fn processes(&self) -> u32 {
        self.size.pods * self.size.each
    }
}

/// Runs the agent on each size.
pub fn measure(watch: Duration) -> Result<Vec<Row>, BenchError> {
    let of = |pods, each| {
        let containers = Size::LARGE.containers.max(pods);
        Size { containers, pods, each, ..Size::LARGE }
    };
    let run = |size, limit| run((size, EVERY), limit, watch);
    let pairs = PODS.into_iter().map(|pods| run(of(pods, 2), None));
    let runs: Vec<Cost> = pairs.collect::<Result<_, _>>()?;
    let mut rows: Vec<Row> = runs.iter().map(|cost| cost.row("")).collect();
    if let [first, .., last] = runs.as_slice() {
        let growth = last.of_series() / first.of_series();
        let figure = format!("{growth:.2} times the smallest run's");
        let target = "≤ 1.5 times";
        rows.push(Row::against(
            "a series of the largest run",
            figure,
            target,
            growth <= MAX_GROWTH,
        ));
    }
    let [few, many] = EACH.map(|each| run(of(SHARED, each), None));
    let (few, many) = (few?, many?);
    rows.extend([few.row(""), many.row("")]);
    let each =
        (many.resident_mb - few.resident_mb) * 1e3 / f64::from(many.processes() - few.processes());
    let met = each <= MAX_KB_A_PROCESS;
    rows.push(Row::against("memory of one more process", format!("{each:.1} KB"), "≤ 20 KB", met));
    let full = run(of(TOO_MANY, 2), None)?;
    rows.push(full.row(", all metrics"));
    let (figure, target) = (format!("{:.1} MB RSS", full.resident_mb), "≤ 80 MB");
    rows.push(Row::against("memory at the limit", figure, target, full.resident_mb <= MAX_MB));
    let limited = run(Size::LARGE, Some(LIMIT))?;
    rows.push(limited.row(&format!(", at most {LIMIT} series")));
    Ok(rows)
}

/// Runs the agent each second on a node of eight GPUs that is ever fuller.
pub fn each_second(watch: Duration) -> Result<Vec<Row>, BenchError> {
    let of = |(pods, each)| Size { containers: pods, pods, each, ..Size::USUAL };
    let runs = NODES.map(|node| run((of(node), EACH_SECOND), None, watch));
    let runs: Vec<Cost> = runs.into_iter().collect::<Result<_, _>>()?;
    let mut rows: Vec<Row> = runs.iter().map(|cost| cost.row(", each second")).collect();
    rows.extend(runs.iter().map(|cost| {
        Row::plain(format!("  by thread, {} processes", cost.processes()), cost.threads.clone())
    }));
    if let Some(full) = runs.last() {
        let all = full.micros.iter().sum::<f64>() / 1e3;
        rows.push(Row::against(
            "a full node",
            format!("{all:.1} ms a tick"),
            "≤ 15 ms",
            all <= MAX_MS,
        ));
    }
    Ok(rows)
}

fn run(
    (size, every): (Size, Duration),
    limit: Option<u32>,
    watch: Duration,
) -> Result<Cost, BenchError> {
    let crowd = Crowd::of(stage()?, size)?;
    let receiver = Receiver::start().map_err(BenchError::os("receiver"))?;
    let points = crowd.folder().join("series.jsonl");
    let config = Config {
        default_metrics: size.pods < TOO_MANY,
        series_limit: limit,
        file: Some(points.clone()),
        // Goes on in the section of the file.
        more: "file_filter = { metrics = [\"gpuwho.series\"] }\n".to_owned(),
        ..Config::default()
    };
    let agent = crowd.agent(&format!("{}s", every.as_secs()), receiver.endpoint(), config)?;
    thread::sleep(WARM_UP);
    let reader = reader(&agent)?;
    let (begun, before) = (Instant::now(), [cpu(agent.pid())?, cpu(reader)?]);
    let threads_before = threads(agent.pid())?;
    thread::sleep(watch);
    let (took, after) = (begun.elapsed(), [cpu(agent.pid())?, cpu(reader)?]);
    let ticks = took.as_secs_f64() / every.as_secs_f64();
    let spent = footprint::spent(&threads_before, &threads(agent.pid())?);
    let of = |which: usize| (after[which] - before[which]) as f64 / 1e3 / ticks;
    let mut resident = 0;
    for pid in [agent.pid(), reader] {
        resident += memory(pid).map_err(BenchError::os("the agent's memory"))?.resident;
    }
    Ok(Cost {
        size,
        series: series(&points)?,
        micros: [of(0), of(1)],
        threads: by_thread(
            &spent,
            u64::try_from(took.as_millis() / every.as_millis()).unwrap_or(u64::MAX),
        ),
        resident_mb: resident as f64 / 1e6,
    })
}

/// The series that were alive last.
fn series(points: &Path) -> Result<u64, BenchError> {
    let last = || {
        let text = fs::read_to_string(points).ok()?;
        let lines = text.lines().rev();
        let mut alive = lines.filter_map(|line| {
            let point: serde_json::Value = serde_json::from_str(line).ok()?;
            point["value"].as_u64()
        });
        alive.next()
    };
    let what = points.display().to_string();
    until(WARM_UP, last).ok_or(BenchError::Strange { what, expected: "how many series live" })
}
