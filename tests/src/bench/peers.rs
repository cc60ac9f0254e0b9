//! What other exporters cost, and the agent, on the same devices and processes: each is scraped every ten seconds, as
//! Prometheus would. Which ones, and where they are, a file says that `cargo xtask bench --peers` has written.

use super::load::Load;
use super::table::Row;
use super::{BenchError, stage};
use crate::agent::{Agent, Config};
use crate::footprint::{Memory, Threads, memory, spent, threads};
use crate::prometheus::{free_address, get};
use crate::until::until;
use serde::Deserialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between two scrapes.
const EVERY: Duration = Duration::from_secs(10);
/// A program starts, imports what it needs and answers within this.
const START: Duration = Duration::from_mins(1);
/// Where a scenario begins is not the cost of a scrape.
const WARM_UP: Duration = Duration::from_secs(15);

/// What the page of one that reads the devices has of each.
const DEVICE: &str = "GPU-";

/// An exporter.
#[derive(Clone, Debug, Deserialize)]
struct Peer {
    /// With its version.
    name: String,
    program: PathBuf,
    /// `ADDRESS` and `PORT` stand for where it listens.
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// What its page has of each device, if it reads any.
    device: Option<String>,
}

/// What one costs.
struct Cost {
    name: String,
    /// CPU, in seconds an hour.
    hourly: f64,
    memory: Memory,
    series: usize,
}

/// Measures the agent and each of the file's exporters.
pub fn measure(list: &Path, watch: Duration) -> Result<Vec<Row>, BenchError> {
    let text = fs::read(list).map_err(BenchError::os(list))?;
    let peers: Vec<Peer> = serde_json::from_slice(&text).map_err(|_| {
        let what = list.display().to_string();
        BenchError::Strange { what, expected: "which exporters there are" }
    })?;
    let load = Load::start(stage()?)?;
    let ours = agent(&load, watch)?;
    let mut rows = vec![ours.row(ours.hourly)];
    for peer in &peers {
        let row = run(&load, peer, watch).map(|cost| cost.row(ours.hourly));
        eprintln!("measured: {}", peer.name);
        rows.push(row.unwrap_or_else(|why| Row::missing(&peer.name, why.to_string())));
    }
    Ok(rows)
}

impl Cost {
    fn row(&self, ours: f64) -> Row {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let figure = format!(
            "{:.2} s of CPU an hour ({:.1} times gpuwho's), {:.1} MB RSS, {:.1} MB PSS, {} series",
            self.hourly,
            self.hourly / ours,
            megabytes(self.memory.resident),
            megabytes(self.memory.proportional),
            self.series,
        );
        Row::plain(&self.name, figure)
    }
}

fn agent(load: &Load, watch: Duration) -> Result<Cost, BenchError> {
    let address = address(load)?;
    let config = Config {
        default_metrics: true,
        interval: Some("10s".to_owned()),
        pod_logs: Some(load.stage.pod_logs()),
        more: format!("[prometheus]\nlisten = {address:?}\n"),
        ..Config::default()
    };
    let agent = Agent::start(load.stage.folder(), &config, Some(&load.nvml))?;
    let version = format!("gpuwho {}", env!("CARGO_PKG_VERSION"));
    observe(version, (&address, DEVICE), watch, || {
        agent.children().into_iter().map(|(_, pid)| pid).chain([agent.pid()]).collect()
    })
}

fn run(load: &Load, peer: &Peer, watch: Duration) -> Result<Cost, BenchError> {
    let address = address(load)?;
    let port = address.rsplit(':').next().unwrap_or_default();
    let of = |text: &String| text.replace("ADDRESS", &address).replace("PORT", port);
    let mut command = Command::new(&peer.program);
    command.args(peer.arguments.iter().map(of)).stdin(Stdio::null()).stdout(Stdio::null());
    let folder = load.nvml.library();
    command.env("LD_LIBRARY_PATH", folder.parent().unwrap_or(&folder)).stderr(Stdio::null());
    command.envs(peer.environment.iter().map(|(name, value)| (name, value)));
    let started = load.nvml.apply(&mut command).spawn().map_err(BenchError::os(&peer.program))?;
    let running = Running(started);
    let device = peer.device.as_deref().unwrap_or_default();
    observe(peer.name.clone(), (&address, device), watch, || vec![running.0.id()])
}

/// A program that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already is fine too.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Scrapes a program for a time, whose page must have a text; `pids` are its processes.
fn observe(
    name: String,
    (address, device): (&str, &str),
    watch: Duration,
    pids: impl Fn() -> Vec<u32>,
) -> Result<Cost, BenchError> {
    let is_whole = |answer: &String| answer.contains(" 200 ") && answer.contains(device);
    let scrape = || get(address, "/metrics").ok().filter(is_whole);
    let expected = "any device's series";
    let strange = || BenchError::Strange { what: name.clone(), expected };
    until(START, &scrape).ok_or_else(strange)?;
    let begun = Instant::now();
    while begun.elapsed() < WARM_UP {
        thread::sleep(EVERY / 4);
        scrape().ok_or_else(strange)?;
    }
    let of_all = || -> io::Result<Vec<(u32, Threads)>> {
        pids().into_iter().map(|pid| Ok((pid, threads(pid)?))).collect()
    };
    let failed = || BenchError::os(format!("{name}'s files in /proc"));
    let before = of_all().map_err(failed())?;
    let (begun, mut page) = (Instant::now(), String::new());
    while begun.elapsed() < watch {
        thread::sleep(EVERY);
        page = scrape().ok_or_else(strange)?;
    }
    let (took, after) = (begun.elapsed(), of_all().map_err(failed())?);
    let (mut nanos, mut sum) = (0, Memory::default());
    for (pid, now) in &after {
        let was = before.iter().find(|(known, _)| known == pid).map(|(_, was)| was.clone());
        nanos += spent(&was.unwrap_or_default(), now).values().sum::<u64>();
        let held = memory(*pid).map_err(failed())?;
        sum.resident += held.resident;
        sum.proportional += held.proportional;
    }
    let (_, body) = page.split_once("\r\n\r\n").unwrap_or_default();
    let series = body.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    let hourly = nanos as f64 / 1e9 / took.as_secs_f64() * 3600.0;
    Ok(Cost { name, hourly, memory: sum, series })
}

fn address(load: &Load) -> Result<String, BenchError> {
    let what = "a port";
    free_address(load.stage.folder()).map_err(|why| BenchError::os(what)(io::Error::other(why)))
}
