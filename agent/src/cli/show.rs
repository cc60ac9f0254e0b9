//! The commands that ask and print: who, release, resume, forget, metrics, config.

use super::{
    ConfigCommand, ForgetArgs, MetricsArgs, ReleaseArgs, SocketArgs, Usage, WhoArgs, print,
};
use crate::agent;
use crate::agent::configuration::{self, Configuration};
use crate::catalog::{self, document};
use crate::collect::device::DEVICES;
use crate::config::Settings;
use crate::control::{self, ControlError, Reply, Request};
use crate::who::HostReport;
use anyhow::{Context as _, bail};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

pub(super) fn who(args: &WhoArgs) -> anyhow::Result<ExitCode> {
    let configuration = args.common.load(None)?;
    let answer = match &args.socket {
        Some(socket) => control::ask(socket, &Request::Who),
        None => ask_who(&configuration.settings),
    };
    let who = match answer {
        Ok(Reply::Who { who }) => *who,
        Ok(other) => bail!("the agent answered {other:?} to a question about who"),
        // Asked for a certain agent, only that agent's answer will do.
        Err(error) if args.socket.is_some() => return Err(error.into()),
        Err(ControlError::Connect { .. }) => agent::read_once(&configuration),
        Err(error) => return Err(error.into()),
    };
    show(&who, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn show(who: &HostReport, json: bool) -> anyhow::Result<()> {
    if json {
        let mut text = serde_json::to_string_pretty(who).context("cannot write JSON")?;
        text.push('\n');
        return print(&text);
    }
    print(&who.render())
}

pub(super) fn release(args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    if args.length < Duration::from_secs(1) {
        bail!(Usage("--for is shorter than a second; write something like 10m".into()));
    }
    command(&args.socket, &Request::Release { seconds: args.length.as_secs() })
}

pub(super) fn resume(args: &SocketArgs) -> anyhow::Result<ExitCode> {
    command(args, &Request::Resume)
}

pub(super) fn forget(args: &ForgetArgs) -> anyhow::Result<ExitCode> {
    command(&args.socket, &Request::Forget { uuid: args.uuid.clone() })
}

fn command(args: &SocketArgs, request: &Request) -> anyhow::Result<ExitCode> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => args.common.load(None)?.settings.paths.run.join(control::SOCKET),
    };
    match control::ask(&socket.with_file_name(control::ADMIN_SOCKET), request)? {
        Reply::Done { message } => print(&format!("{message}\n"))?,
        Reply::Refused { reason } => bail!("{reason}"),
        other @ (Reply::Who { .. } | Reply::Busy) => bail!("the agent answered {other:?}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks over root's own socket, which nobody else keeps busy, where this user may use it.
pub(super) fn ask_who(settings: &Settings) -> Result<Reply, ControlError> {
    let run = &settings.paths.run;
    match control::ask(&run.join(control::ADMIN_SOCKET), &Request::Who) {
        Err(ControlError::Connect { .. }) => {
            control::ask(&run.join(control::SOCKET), &Request::Who)
        }
        answer => answer,
    }
}

pub(super) fn metrics(args: &MetricsArgs) -> anyhow::Result<ExitCode> {
    if args.markdown {
        let vendors: Vec<_> = DEVICES.iter().map(|vendor| (vendor.name, vendor.source)).collect();
        print(&document::markdown(&vendors))?;
    } else if args.json {
        print(&format!("{}\n", document::json().context("cannot write JSON")?))?;
    } else {
        let mut out = String::new();
        for def in catalog::all() {
            let kind = def.kind.as_str();
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{:<34} {:<13} {:<10} {}", def.name, kind, def.unit, def.subject);
        }
        print(&out)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn config(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => {
            Configuration::check(file)?;
            print(&format!("{}: ok\n", file.display()))?;
        }
        ConfigCommand::Sample => print(&configuration::sample())?,
    }
    Ok(ExitCode::SUCCESS)
}
