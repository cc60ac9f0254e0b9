//! The demo: a host with eight simulated GPUs and real work on them, watched by the real agent.
//!
//! Only the GPUs are not real. The cgroups are, the processes in them are, the device nodes they
//! open are, and so is everything the agent does.

pub mod cast;

use crate::agent::{Agent, AgentError, Config, Otlp};
use crate::fakes::{self, Host};
use crate::nvml::NvmlError;
use crate::program;
use crate::stage::{Stage, StageError};
use crate::vendors;
use crate::worker::{WorkerError, nodes};
use cast::{Cast, Scenery};
use serde_json::Value;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Between two looks at the table.
const REDRAW: Duration = Duration::from_secs(2);
/// Several times in an interval of the agent, so that its rates are even.
const SERVE: Duration = Duration::from_millis(250);

/// Between one short pod and the next.
const NEXT_POD: Duration = Duration::from_secs(20);

/// A processes' owner is known milliseconds after it opened a node; its memory a reading later.
const ALL_SEEN_WITHIN: Duration = Duration::from_secs(30);
/// In which those that a driver does not list are on their devices, where they ever are.
const ALL_READ_WITHIN: Duration = Duration::from_secs(3);

/// What the demo is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// A scenario of the fake driver.
    pub scenario: String,
    /// An OTLP receiver's URL, or the path of a file for JSON lines.
    pub otlp: Option<String>,
    /// Prints the table once, when everybody is in it, and ends.
    pub once: bool,
}

/// Why the demo ended.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The cgroups.
    #[error("stage: {0}")]
    Stage(#[from] StageError),
    /// The processes.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The fake driver.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// Something that was not built.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// The machine.
    #[error("{what}: {source}")]
    Os {
        /// On what.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
}

/// Sets everything up, shows it until Ctrl-C (or once), and removes everything.
pub async fn run(options: &Options) -> Result<(), DemoError> {
    let os = |what| move |source| DemoError::Os { what, source };
    nodes::take_own_consoles(&fakes::nodes(&fakes::load(&options.scenario)?));
    // Listened for before anything is made, so that Ctrl-C never leaves anything.
    let mut stop = Stop::listen().map_err(os("signals"))?;
    let scenery = scenery()?;
    let folder = scenery.folder().to_owned();
    let host = Host::install(&folder, &options.scenario)?;
    let (sink, mut config) = configuration(options, &scenery)?;
    host.configure(&folder, &mut config);
    // Without the right to make nodes nobody has any open, and only a driver's list has processes.
    let has_nodes = nodes::host_nodes(&folder).is_ok();
    let is_listed = host.numbers().iter().any(|number| vendors::node_of(*number).is_none());
    println!("{}", welcome(options, &sink));
    let mut cast = Cast::enter(scenery, &host, &options.scenario)?;
    let agent = Agent::start(&folder, &config, host.nvml())?;
    let hint = hint(&agent, config.log_file.as_deref())?;
    println!("{hint}\n");
    for note in notes(&agent.who()?) {
        println!("{note}");
    }
    let pids = if has_nodes || is_listed { cast.pids() } else { Vec::new() };
    wait_for_all(&agent, &pids, options.once)?;
    draw(&agent, &sink, &hint)?;
    if options.once {
        return Ok(());
    }
    let terminal = io::stdout().is_terminal();
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut serving = interval(SERVE);
    serving.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_pod = Instant::now() + NEXT_POD;
    loop {
        tokio::select! {
            () = stop.reported() => {
                println!("Ending the agent and the processes.");
                return Ok(());
            }
            _ = serving.tick() => {
                cast.serve()?;
                continue;
            }
            _ = redraw.tick() => host.play().map_err(os("simulated files"))?,
        }
        let changed = Instant::now() >= next_pod;
        if changed {
            cast.next_pod(&host)?;
            next_pod += NEXT_POD;
        }
        if terminal || changed {
            draw(&agent, &sink, &hint)?;
        }
    }
}

/// Waits until the devices and every process are in the table, and the processes on their devices.
fn wait_for_all(agent: &Agent, pids: &[u32], once: bool) -> Result<(), DemoError> {
    let seen = agent.wait_for("every process in the table", ALL_SEEN_WITHIN, |who| {
        let has_devices = who["devices"].as_array().is_some_and(|devices| !devices.is_empty());
        (has_devices && pids.iter().all(|pid| known(who, *pid))).then_some(())
    });
    match seen {
        // A scenario may well have fewer devices, or broken ones.
        Err(_) if !once => println!("Not every process is in the table."),
        seen => seen?,
    }
    let read = |who: &Value| pids.iter().all(|pid| is_on_device(who, *pid)).then_some(());
    // Intel's are not: nobody has a client of DRM.
    let _ = agent.wait_for("every process on a device", ALL_READ_WITHIN, read);
    Ok(())
}

/// The real thing for root, and what is left of it for anybody else.
fn scenery() -> Result<Scenery, DemoError> {
    match Stage::new() {
        Ok(stage) => {
            Stage::sweep()?;
            Ok(Scenery::Real(stage))
        }
        Err(StageError::Unavailable(what)) => {
            println!(
                "Without pods, jobs and the kernel's own evidence, since these need {what}.\n\
                 The processes are real, but only their users can be told.\n"
            );
            let folder = tempfile::tempdir()
                .map_err(|source| DemoError::Os { what: "temporary folder", source })?;
            Ok(Scenery::Bare(folder))
        }
        Err(error) => Err(error.into()),
    }
}

/// Where the points go, in words, and the agent's configuration.
fn configuration(options: &Options, scenery: &Scenery) -> Result<(String, Config), DemoError> {
    let passwd = scenery.folder().join("passwd");
    fs::write(&passwd, cast::PASSWD)
        .map_err(|source| DemoError::Os { what: "user database", source })?;
    let mut config = Config {
        default_metrics: true,
        log_file: Some(scenery.folder().join("agent.log")),
        pod_logs: Some(scenery.folder().join("pods")),
        passwd: Some(passwd),
        ..Config::default()
    };
    let default = || scenery.folder().join("points.jsonl").display().to_string();
    let target = options.otlp.clone().unwrap_or_else(default);
    let sink = if target.contains("://") {
        config.otlp = Some(Otlp { endpoint: target.clone(), protocol: None });
        format!("OTLP to {target}")
    } else {
        config.file = Some(PathBuf::from(&target));
        format!("JSON lines in {target} (or --otlp http://HOST:4318)")
    };
    Ok((sink, config))
}

/// How to look at it from elsewhere.
fn hint(agent: &Agent, log: Option<&Path>) -> Result<String, DemoError> {
    let gpuwho = program::gpuwho()?.display().to_string();
    let socket = agent.socket().display().to_string();
    let log = log.unwrap_or(Path::new("-")).display();
    Ok(format!(
        "From another terminal: {gpuwho} --socket {socket}\n\
         Also: {gpuwho} events|doctor --socket {socket}. The agent's log: {log}"
    ))
}

fn welcome(options: &Options, sink: &str) -> String {
    format!(
        "These GPUs are SIMULATED: fake drivers play the scenario {}.\n\
         The processes, their cgroups, the device nodes they open and the agent are real.\n\
         Points: {sink}. Ctrl-C ends the demo within seconds and removes everything it made.\n",
        options.scenario
    )
}

/// What does not work as it should, from the agent's own account.
fn notes(who: &Value) -> Vec<String> {
    let sources = who["sources"].as_array().map_or(&[][..], Vec::as_slice);
    let notes = sources
        .iter()
        .filter(|source| !["ready", "absent"].contains(&source["state"].as_str().unwrap_or("")));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let note = |source: &Value| {
        let (name, state) = (text(&source["name"]), text(&source["state"]));
        format!("{name}: {state}: {} {}", text(&source["reason"]), text(&source["remedy"]))
    };
    notes.map(|source| note(source).trim_end().to_owned()).collect()
}

/// Whether a process is seen to use a device and its owner has been looked up.
fn known(who: &Value, pid: u32) -> bool {
    let holders = who["holders"].as_array().into_iter().flatten();
    on_devices(who).chain(holders).any(|process| {
        process["pid"] == pid && process["method"] != "pending" && process["method"] != "none"
    })
}

fn is_on_device(who: &Value, pid: u32) -> bool {
    on_devices(who).any(|process| process["pid"] == pid)
}

fn on_devices(who: &Value) -> impl Iterator<Item = &Value> {
    let devices = who["devices"].as_array().into_iter().flatten();
    devices.filter_map(|device| device["processes"].as_array()).flatten()
}

/// Prints `gpuwho`'s own table.
fn draw(agent: &Agent, sink: &str, hint: &str) -> Result<(), DemoError> {
    let os = |what| move |source| DemoError::Os { what, source };
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        write!(out, "\x1b[H\x1b[2J").map_err(os("standard output"))?;
        writeln!(out, "SIMULATED GPUs, real processes. Points: {sink}. Ctrl-C ends it.\n{hint}\n")
            .map_err(os("standard output"))?;
    }
    out.flush().map_err(os("standard output"))?;
    Command::new(program::gpuwho()?)
        .arg("--socket")
        .arg(agent.socket())
        .status()
        .map_err(os("gpuwho"))?;
    Ok(())
}

/// Being told to stop.
struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Stop {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn reported(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use nvidia_ml::curve::Place;
    use nvidia_ml::scenario::Scenario;
    use std::path::Path;

    #[test]
    fn what_the_processes_hold_and_use_is_what_each_device_shows() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fakes/nvml/scenarios/demo.toml");
        let scenario = Scenario::load(Path::new(path)).unwrap();
        let mut counts = Vec::new();
        for device in scenario.devices() {
            let place = |slot| Place { device: device.index, slot };
            let all: Vec<_> = device.processes().collect();
            let sum = |of: &dyn Fn(u32) -> f64| (0..).take(all.len()).map(of).sum::<f64>();
            let group = all[0].group;
            let memory = group.memory.as_ref().unwrap();
            let held = sum(&|slot| memory.at(0.0, place(slot)));
            let used = device.group.memory.used.at(0.0, place(0));
            let busy = sum(&|slot| group.sm.at(0.0, place(slot)));
            let utilization = device.group.utilization.as_ref().unwrap().at(0.0, place(0));
            assert!((held - used).abs() < 1.0, "{}: {held} of {used}", device.index);
            assert!((busy - utilization).abs() < 0.01, "{}: {busy} of {utilization}", device.index);
            counts.push(all.len());
        }
        // As many as the cast puts there.
        assert_eq!(counts, [3, 3, 2, 3, 1, 1, 2, 2]);
    }
}
