//! The commands that ask and print: release, resume, forget, metrics, config.

use super::{
    ConfigCommand, ForgetArgs, MetricsArgs, ReleaseArgs, SocketArgs, Usage, print, screen,
};
use crate::agent::configuration::{self, Configuration};
use crate::catalog::{self, MetricDef, document};
use crate::collect::device::DEVICES;
use crate::control::{self, Reply, Request};
use crate::who::Screen;
use anyhow::{Context as _, bail};
use std::process::ExitCode;
use std::time::Duration;

/// Longest release: who forgets to end it has an agent again the next day.
const MAX_RELEASE: Duration = Duration::from_hours(24);

pub(super) fn release(args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    if args.length < Duration::from_secs(1) {
        bail!(Usage("--for is shorter than a second; write something like 10m".into()));
    }
    if args.length > MAX_RELEASE {
        bail!(Usage("--for is longer than a day, in which nothing would be read".into()));
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
        print(&listed(args.part.as_deref().unwrap_or_default(), screen::of_stdout())?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The metrics with a part in their names, and what they are.
fn listed(part: &str, screen: Screen) -> anyhow::Result<String> {
    let line = |name: &str, kind: &str, unit: &str, subject: &str| {
        format!("{name:<36} {kind:<13} {unit:<10} {subject}\n")
    };
    let mut out = line("METRIC", "KIND", "UNIT", "OF");
    let all = catalog::all().filter(|def| def.name.contains(part));
    let of = |def: &'static MetricDef| {
        let head = line(def.name, def.kind.as_str(), def.unit, def.subject);
        format!("{head}{}", screen.wrap(4, def.description))
    };
    let lines: Vec<String> = all.map(of).collect();
    if lines.is_empty() {
        bail!("no metric has `{part}` in its name");
    }
    out.extend(lines);
    Ok(out)
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
