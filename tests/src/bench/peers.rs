//! What other exporters cost, and the agent, on the same devices and processes: each alone, scraped every ten seconds
//! as Prometheus would. Which ones, and where they are, a file says that `cargo xtask bench --peers` has written.

mod commands;
mod contender;
mod scrape;

use super::load::Load;
use super::table::{aligned, source};
use super::{BenchError, stage};
use crate::agent::{Agent, Config};
use crate::prometheus::free_address;
use crate::until::until;
use contender::{Contender, Held};
use scrape::{scrape, series};
use serde::Deserialize;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Between two scrapes.
const EVERY: Duration = Duration::from_secs(10);
/// A program starts, imports what it needs and answers within this.
const START: Duration = Duration::from_mins(1);
/// Where a scenario begins is not the cost of a scrape.
const WARM_UP: Duration = Duration::from_secs(15);

/// What the page of one that reads the devices has of each.
const DEVICE: &str = "GPU-";

const HEAD: [&str; 9] =
    ["exporter", "CPU s/h", "× gpuwho", "RSS MB", "PSS MB", "threads", "calls", "series", "owners"];

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
    /// Whose it says that a process is.
    owner: String,
    /// Why it could not be installed.
    missing: Option<String>,
}

/// What one costs.
struct Cost {
    name: String,
    owner: String,
    /// CPU, in seconds an hour: its own, and the library's.
    hourly: [f64; 2],
    held: Held,
    /// Calls into the library between two scrapes.
    calls: f64,
    series: usize,
}

/// What is scraped.
struct Page<'a> {
    address: String,
    /// What it must have.
    device: &'a str,
}

/// Measures the agent and each of the file's exporters; gives what the page has of it.
pub fn measure(list: &Path, watch: Duration) -> Result<String, BenchError> {
    let text = fs::read(list).map_err(BenchError::os(list))?;
    let peers: Vec<Peer> = serde_json::from_slice(&text).map_err(|_| {
        let what = list.display().to_string();
        BenchError::Strange { what, expected: "which exporters there are" }
    })?;
    let mut source = source();
    let mut load = Load::start(stage()?)?;
    load.nvml.count_calls();
    // Writing to a string cannot fail.
    let _ = write!(source, ", {} processes", processes()?);
    let mut costs = vec![agent(&mut load, watch)?];
    let mut missing = Vec::new();
    for peer in &peers {
        let why = match &peer.missing {
            Some(why) => why.clone(),
            None => match run(&mut load, peer, watch) {
                Ok(cost) => {
                    eprintln!("measured: {}", peer.name);
                    costs.push(cost);
                    continue;
                }
                Err(why) => why.to_string(),
            },
        };
        missing.push(format!("{} is not measured: {why}.", peer.name));
    }
    Ok(render(&source, &costs, &missing))
}

fn render(source: &str, costs: &[Cost], missing: &[String]) -> String {
    let first = costs.first().map_or(f64::NAN, |cost| cost.hourly[0]);
    let rows = costs.iter().map(|cost| cost.row(first));
    let all: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(rows).collect();
    let library: Vec<_> = costs.iter().map(|cost| format!("{:.1}", cost.hourly[1])).collect();
    let mut notes = vec![format!(
        "The fake library's own CPU, row by row, is not in it: {} s/h.",
        library.join(", ")
    )];
    let with_maps = costs.iter().filter(|cost| cost.held.maps > 0);
    notes.extend(with_maps.map(|Cost { name, held, .. }| {
        format!("Beside its memory {name} has {:.1} MB of BPF maps.", megabytes(held.maps))
    }));
    notes.extend_from_slice(missing);
    format!("{source}\n\n{}\n{}\n", aligned(&all), notes.join("\n"))
}

/// Processes of this machine.
fn processes() -> Result<usize, BenchError> {
    let is_one = |name: &OsString| name.to_string_lossy().parse::<u32>().is_ok();
    let entries = fs::read_dir("/proc").map_err(BenchError::os("/proc"))?;
    Ok(entries.flatten().filter(|entry| is_one(&entry.file_name())).count())
}

impl Cost {
    fn row(&self, first: f64) -> [String; HEAD.len()] {
        let Self { hourly: [own, _], held, .. } = self;
        [
            self.name.clone(),
            format!("{own:.2}"),
            format!("{:.1}", own / first),
            format!("{:.1}", megabytes(held.resident)),
            format!("{:.1}", megabytes(held.proportional)),
            held.threads.to_string(),
            format!("{:.0}", self.calls),
            self.series.to_string(),
            self.owner.clone(),
        ]
    }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn agent(load: &mut Load, watch: Duration) -> Result<Cost, BenchError> {
    let address = address(load)?;
    let config = Config {
        default_metrics: true,
        interval: Some("10s".to_owned()),
        pod_logs: Some(load.stage.pod_logs()),
        more: format!("[prometheus]\nlisten = {address:?}\n"),
        ..Config::default()
    };
    let agent = Agent::start(load.stage.folder(), &config, Some(&load.nvml))?;
    let page = Page { address, device: DEVICE };
    let name = format!("gpuwho {}", env!("CARGO_PKG_VERSION"));
    page.awaited(&name)?;
    let pids: Vec<u32> =
        agent.children().into_iter().map(|(_, pid)| pid).chain([agent.pid()]).collect();
    let owner = "pod, job, unit, user".to_owned();
    observe((name, owner), &page, load, &pids, watch)
}

fn run(load: &mut Load, peer: &Peer, watch: Duration) -> Result<Cost, BenchError> {
    let address = address(load)?;
    let port = address.rsplit(':').next().unwrap_or_default();
    let of = |text: &String| text.replace("ADDRESS", &address).replace("PORT", port);
    let mut command = Command::new(&peer.program);
    command.args(peer.arguments.iter().map(of)).stdin(Stdio::null()).stdout(Stdio::null());
    let library = load.nvml.library();
    command.env("LD_LIBRARY_PATH", library.parent().unwrap_or(&library)).stderr(Stdio::null());
    let mut path = OsString::from(commands::make(load.stage.folder(), &load.nvml.truth()?)?);
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path);
    command.envs(peer.environment.iter().map(|(name, value)| (name, value)));
    let started = load.nvml.apply(&mut command).spawn().map_err(BenchError::os(&peer.program))?;
    let running = Running(started);
    let page = Page { address, device: peer.device.as_deref().unwrap_or_default() };
    page.awaited(&peer.name)?;
    let names = (peer.name.clone(), peer.owner.clone());
    observe(names, &page, load, &[running.0.id()], watch)
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

impl Page<'_> {
    /// The page now, if it has the devices.
    fn scrape(&self) -> Option<String> {
        scrape(&self.address).ok().filter(|page| page.contains(self.device))
    }

    /// Waits for it, as long as a start may take.
    fn awaited(&self, of: &str) -> Result<(), BenchError> {
        until(START, || self.scrape()).map(drop).ok_or_else(|| strange(of))
    }
}

fn strange(name: &str) -> BenchError {
    BenchError::Strange { what: format!("the page of {name}"), expected: "anything of a device" }
}

/// Scrapes some processes for a time.
fn observe(
    (name, owner): (String, String),
    page: &Page<'_>,
    load: &mut Load,
    pids: &[u32],
    watch: Duration,
) -> Result<Cost, BenchError> {
    let calls = load.nvml.count_calls();
    let contender = Contender::of(&mut load.stage, pids, &calls)?;
    thread::sleep(WARM_UP);
    page.scrape().ok_or_else(|| strange(&name))?;
    let (before, mut last) = (contender.look()?, String::new());
    while before.at.elapsed() < watch {
        thread::sleep(EVERY);
        last = page.scrape().ok_or_else(|| strange(&name))?;
    }
    let after = contender.look()?;
    let took = (after.at - before.at).as_secs_f64();
    let library = after.library.since(before.library);
    let own = after.cpu.saturating_sub(before.cpu).saturating_sub(library.cpu_ns);
    let hourly = [own, library.cpu_ns].map(|nanos| nanos as f64 / 1e9 / took * 3600.0);
    let calls = library.calls as f64 * EVERY.as_secs_f64() / took;
    Ok(Cost { name, owner, hourly, held: contender.held()?, calls, series: series(&last) })
}

fn address(load: &Load) -> Result<String, BenchError> {
    let what = "a port";
    free_address(load.stage.folder()).map_err(|why| BenchError::os(what)(io::Error::other(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_compares_with_its_first_row_and_fits_a_page() {
        let held =
            Held { resident: 24_300_000, proportional: 19_700_000, maps: 3_640_000, threads: 14 };
        let cost = |name: &str, own: f64, held: Held| Cost {
            name: name.to_owned(),
            owner: "user".to_owned(),
            hourly: [own, 0.6],
            held,
            calls: 197.2,
            series: 1166,
        };
        let without_maps = Held { maps: 0, ..held };
        let costs = [cost("ours", 1.5, held), cost("theirs", 3.0, without_maps)];
        let text = render("2026-11-26", &costs, &["other is not measured: why.".to_owned()]);
        let expected = "\
2026-11-26

| exporter | CPU s/h | × gpuwho | RSS MB | PSS MB | threads | calls | series | owners |
|----------|---------|----------|--------|--------|---------|-------|--------|--------|
| ours     | 1.50    | 1.0      | 24.3   | 19.7   | 14      | 197   | 1166   | user   |
| theirs   | 3.00    | 2.0      | 24.3   | 19.7   | 14      | 197   | 1166   | user   |

The fake library's own CPU, row by row, is not in it: 0.6, 0.6 s/h.
Beside its memory ours has 3.6 MB of BPF maps.
other is not measured: why.
";
        assert_eq!(text, expected);
    }
}
