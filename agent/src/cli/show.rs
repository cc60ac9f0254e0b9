//! The commands that ask and print: release, resume, forget, metrics, config.

use super::{ConfigCommand, ForgetArgs, MetricsArgs, ReleaseArgs, SocketArgs, Usage, print};
use crate::agent::configuration::{self, Configuration};
use crate::catalog::{self, document};
use crate::collect::device::DEVICES;
use crate::control::{self, Reply, Request};
use anyhow::{Context as _, bail};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

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
        other => bail!("the agent answered {other:?} to a command"),
    }
    Ok(ExitCode::SUCCESS)
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
