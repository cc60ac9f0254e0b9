//! `gpuwho` alone: each accelerator and who is on it, from the agent or by reading once.

use super::screen::{self, Written};
use super::{Common, NO_DEVICE, print};
use crate::agent;
use crate::agent::configuration::Configuration;
use crate::control::{self, ControlError, Reply, Request};
use crate::settings::Settings;
use crate::who::{HostReport, Selection};
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

/// How long an agent may be silent before that is said, and the devices are read without it.
const SILENT: Duration = Duration::from_secs(2);
/// And how long one is waited for that was asked for by its socket.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct WhoArgs {
    /// Print JSON instead of text; the agent: log in JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Output format; `json` is the same as --json.
    #[arg(short, long, global = true, value_name = "FORMAT")]
    output: Option<Format>,
    /// Repeat the table every SECONDS (default: 2), until stopped.
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = seconds, conflicts_with_all = ["json", "output"])]
    watch: Option<u32>,
    #[command(flatten)]
    selection: Selection,
    /// The agent's socket (default: gpuwho.sock in paths.run).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl WhoArgs {
    /// Whether JSON is asked for, in either way.
    pub(super) fn is_json(&self) -> bool {
        self.json || self.output == Some(Format::Json)
    }
}

fn seconds(text: &str) -> Result<u32, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=3600).contains(seconds));
    seconds.ok_or_else(|| "write seconds from 1 to 3600".to_owned())
}

/// A length of time, for options.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| "write a length of time, like 10m or 2h".to_owned())
}

pub(super) fn who(args: &WhoArgs) -> anyhow::Result<ExitCode> {
    let configuration = args.common.load(None)?;
    let Some(seconds) = args.watch else {
        let (report, is_alone) = report(args, &configuration)?;
        let chosen = args.selection.apply(report.clone())?;
        let no_match = args.selection.no_match(&report, &chosen);
        if args.is_json() {
            let text = serde_json::to_string_pretty(&chosen).context("cannot write JSON")?;
            print(&format!("{text}\n"))?;
        } else if no_match.is_none() {
            let screen = screen::of_stdout();
            let mut text = chosen.render(screen, SystemTime::now());
            if is_alone {
                let is_root = rustix::process::geteuid().is_root();
                let notes = notes(&configuration.settings.paths.run, is_root, is_in_container());
                text.push('\n');
                text.extend(notes.iter().map(|note| screen.wrap(0, note)));
            }
            screen::write(&text)?;
        }
        return no_match.map_or_else(|| Ok(exit_code(&report)), |text| bail!(text));
    };
    loop {
        let report = watched(args, &configuration)?;
        let code = exit_code(&report);
        let chosen = args.selection.apply(report.clone())?;
        let table = match args.selection.no_match(&report, &chosen) {
            // There may be one later.
            Some(text) => screen::of_stdout().wrap(0, &text),
            None => chosen.render(screen::of_stdout(), SystemTime::now()),
        };
        if screen::write_frame(&table)? == Written::ReaderGone {
            return Ok(code);
        }
        thread::sleep(Duration::from_secs(seconds.into()));
    }
}

/// 3 where there is no accelerator, or no driver for one.
fn exit_code(report: &HostReport) -> ExitCode {
    if report.devices.is_empty() { ExitCode::from(NO_DEVICE) } else { ExitCode::SUCCESS }
}

/// What limits a reading without an agent, and what to do next.
fn notes(run: &Path, is_root: bool, is_in_container: bool) -> Vec<String> {
    let socket = run.join(control::SOCKET);
    let no_agent = format!("no agent answers on {}: the devices were read once", socket.display());
    let notes = [
        (true, no_agent.as_str()),
        (!is_root, "not root: other users' processes have no owner here; run it with sudo"),
        (
            is_in_container,
            "in a container: needs the host's PIDs (hostPID, --pid=host) and the driver's libraries",
        ),
        (true, "next: `gpuwho doctor` checks this host, `gpuwho agent` starts the agent"),
    ];
    notes.into_iter().filter(|(is_true, _)| *is_true).map(|(_, note)| note.to_owned()).collect()
}

/// Docker and Podman leave a file, Kubernetes and systemd a variable.
fn is_in_container() -> bool {
    let files = ["/.dockerenv", "/run/.containerenv"];
    let variables = ["KUBERNETES_SERVICE_HOST", "container"];
    files.iter().any(|file| Path::new(file).exists())
        || variables.iter().any(|name| std::env::var_os(name).is_some())
}

/// The report, and whether no agent gave it.
fn report(args: &WhoArgs, configuration: &Configuration) -> anyhow::Result<(HostReport, bool)> {
    let reply = match &args.socket {
        // Asked for a certain agent, only that agent's answer will do.
        Some(socket) => ask_that(socket, &Request::Who)?,
        None => match ask(&configuration.settings, &Request::Who) {
            Ok(reply) => reply,
            Err(ControlError::Connect { .. } | ControlError::Denied { .. }) => {
                return Ok((agent::read_once(configuration), true));
            }
            Err(error @ ControlError::Silent { .. }) => {
                screen::remark(&format!("{error}; reading without it"));
                return Ok((agent::read_once(configuration), false));
            }
            Err(error) => return Err(error.into()),
        },
    };
    match reply {
        Reply::Who { who } => Ok((*who, false)),
        other => bail!("the agent answered {other:?} to a question about who"),
    }
}

/// The same for a command that goes on: what reads by itself keeps threads and files, so that each
/// time another process does it.
fn watched(args: &WhoArgs, configuration: &Configuration) -> anyhow::Result<HostReport> {
    let answer = match &args.socket {
        Some(_) => return Ok(report(args, configuration)?.0),
        None => ask(&configuration.settings, &Request::Who),
    };
    if let Ok(Reply::Who { who }) = answer {
        return Ok(*who);
    }
    read_by_another(&args.common, Stdio::inherit())
}

/// What another process of this program reads once, without an agent.
pub(super) fn read_by_another(common: &Common, errors: Stdio) -> anyhow::Result<HostReport> {
    let mut command = Command::new(std::env::current_exe().context("no program of its own")?);
    command.arg("--json");
    let flags = [("--config", &common.config), ("--nvidia-library", &common.nvidia_library)];
    for (flag, path) in flags {
        if let Some(path) = path {
            command.arg(flag).arg(path);
        }
    }
    let output = command.stderr(errors).output().context("cannot start a reader")?;
    serde_json::from_slice(&output.stdout).context("the reader gave no report")
}

/// Asks over root's own socket, which nobody else keeps busy, where this user may use it.
pub(super) fn ask(settings: &Settings, request: &Request) -> Result<Reply, ControlError> {
    let run = &settings.paths.run;
    match control::ask_within(&run.join(control::ADMIN_SOCKET), request, SILENT) {
        Err(ControlError::Connect { .. } | ControlError::Denied { .. }) => {
            control::ask_within(&run.join(control::SOCKET), request, SILENT)
        }
        answer => answer,
    }
}

/// Asks the agent behind a socket, and says so if it is silent.
pub(super) fn ask_that(socket: &Path, request: &Request) -> Result<Reply, ControlError> {
    match control::ask_within(socket, request, SILENT) {
        Err(error @ ControlError::Silent { .. }) => {
            screen::remark(&format!("{error}; waiting"));
            control::ask_within(socket, request, AGENT_TIMEOUT.saturating_sub(SILENT))
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_agent_one_screen_says_what_limits_the_reading_and_what_to_do() {
        let run = Path::new("/run/gpuwho");
        let as_nobody = notes(run, false, true);
        let expected =
            ["no agent answers on /run/gpuwho/gpuwho.sock", "not root", "in a container", "next: "];
        assert!(as_nobody.iter().zip(expected).all(|(note, part)| note.starts_with(part)));
        assert_eq!((as_nobody.len(), notes(run, true, false).len()), (4, 2));
    }
}
