//! `gpuwho` alone: each accelerator and who is on it, from the agent or by reading once.

use super::screen::{self, Written};
use super::{Common, NO_DEVICE, print};
use crate::agent;
use crate::agent::configuration::Configuration;
use crate::control::{self, ControlError, Reply, Request};
use crate::settings::Settings;
use crate::who::{HostReport, Selection};
use anyhow::{Context as _, bail};
use clap::Args;
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
    /// Print JSON instead of text.
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print the table again every so many seconds, until stopped.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = clap::value_parser!(u32).range(1..=3600), conflicts_with = "json")]
    watch: Option<u32>,
    #[command(flatten)]
    selection: Selection,
    /// The agent's socket; default: gpuwho.sock in paths.run.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn who(args: &WhoArgs) -> anyhow::Result<ExitCode> {
    let configuration = args.common.load(None)?;
    let Some(seconds) = args.watch else {
        let report = report(args, &configuration)?;
        let chosen = args.selection.apply(report.clone())?;
        let no_match = args.selection.no_match(&report, &chosen);
        if args.json {
            let text = serde_json::to_string_pretty(&chosen).context("cannot write JSON")?;
            print(&format!("{text}\n"))?;
        } else if no_match.is_none() {
            screen::write(&chosen.render(screen::of_stdout(), SystemTime::now()))?;
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

fn report(args: &WhoArgs, configuration: &Configuration) -> anyhow::Result<HostReport> {
    let reply = match &args.socket {
        // Asked for a certain agent, only that agent's answer will do.
        Some(socket) => ask_that(socket, &Request::Who)?,
        None => match ask(&configuration.settings, &Request::Who) {
            Ok(reply) => reply,
            Err(ControlError::Connect { .. } | ControlError::Denied { .. }) => {
                return Ok(agent::read_once(configuration));
            }
            Err(error @ ControlError::Silent { .. }) => {
                screen::remark(&format!("{error}; reading without it"));
                return Ok(agent::read_once(configuration));
            }
            Err(error) => return Err(error.into()),
        },
    };
    match reply {
        Reply::Who { who } => Ok(*who),
        other => bail!("the agent answered {other:?} to a question about who"),
    }
}

/// The same for a command that goes on: what reads by itself keeps threads and files, so that each
/// time another process does it.
fn watched(args: &WhoArgs, configuration: &Configuration) -> anyhow::Result<HostReport> {
    let answer = match &args.socket {
        Some(_) => return report(args, configuration),
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
