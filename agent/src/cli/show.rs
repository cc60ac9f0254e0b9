//! The commands that ask and print: release, resume, forget, metrics, config.

use super::{
    ConfigCommand, ForgetArgs, MetricsArgs, ReleaseArgs, SocketArgs, Usage, print, screen,
};
use crate::agent::configuration::{self, Configuration};
use crate::agent::worst_case::WorstCase;
use crate::control::{self, Reply, Request};
use anyhow::{Context as _, bail};
use gpuwho_devices::{DEVICES, Vendor};
use gpuwho_model::catalog::level::Level;
use gpuwho_model::catalog::{self, MetricDef, document};
use gpuwho_model::finding::{Finding, NOTICE};
use gpuwho_model::screen::Screen;
use std::process::ExitCode;
use std::time::Duration;

/// Longest release: who forgets to end it has an agent again the next day.
const MAX_RELEASE: Duration = Duration::from_hours(24);

pub(super) fn release(args: &ReleaseArgs, json: bool) -> anyhow::Result<ExitCode> {
    if args.length < Duration::from_secs(1) {
        bail!(Usage("--for is shorter than a second; write something like 10m".into()));
    }
    if args.length > MAX_RELEASE {
        bail!(Usage("--for is longer than a day, in which nothing would be read".into()));
    }
    command(&args.socket, &Request::Release { seconds: args.length.as_secs() }, json)
}

pub(super) fn resume(args: &SocketArgs, json: bool) -> anyhow::Result<ExitCode> {
    command(args, &Request::Resume, json)
}

pub(super) fn forget(args: &ForgetArgs, json: bool) -> anyhow::Result<ExitCode> {
    command(&args.socket, &Request::Forget { uuid: args.uuid.clone() }, json)
}

fn command(args: &SocketArgs, request: &Request, json: bool) -> anyhow::Result<ExitCode> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => args.common.load(None)?.settings.paths.run.join(control::SOCKET),
    };
    match control::ask(&socket.with_file_name(control::ADMIN_SOCKET), request)? {
        Reply::Done { message } => answer(&message, json)?,
        Reply::Refused { reason } => bail!("{reason}"),
        other => bail!("the agent answered {other:?} to a command"),
    }
    Ok(ExitCode::SUCCESS)
}

/// A sentence, or an object that has it.
fn answer(message: &str, json: bool) -> anyhow::Result<()> {
    let object = || serde_json::json!({ "message": message });
    let text = if json { format!("{:#}", object()) } else { message.to_owned() };
    print(&format!("{text}\n"))
}

pub(super) fn version(json: bool) -> anyhow::Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    let object = || serde_json::json!({ "version": version });
    print(&if json { format!("{:#}\n", object()) } else { format!("gpuwho {version}\n") })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn metrics(args: &MetricsArgs, json: bool) -> anyhow::Result<ExitCode> {
    let part = args.part.as_deref().unwrap_or_default();
    if args.markdown {
        let vendors: Vec<_> = DEVICES.iter().map(Vendor::column).collect();
        print(&document::markdown(&vendors))?;
    } else if json {
        print(&format!("{}\n", document::json(part).context("cannot write JSON")?))?;
    } else {
        print(&listed(part, screen::of_stdout())?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The metrics with a part in their names, and what they are.
fn listed(part: &str, screen: Screen) -> anyhow::Result<String> {
    let line = |name: &str, kind: &str, unit: &str, level: &str, subject: &str| {
        format!("{name:<36} {kind:<13} {unit:<10} {level:<7} {subject}\n")
    };
    let mut out = line("METRIC", "KIND", "UNIT", "LEVEL", "OF");
    let all = catalog::all().filter(|def| def.name.contains(part));
    let of = |def: &'static MetricDef| {
        let level = Level::of(def).as_str();
        let head = line(def.name, def.kind.as_str(), def.unit, level, def.subject);
        format!("{head}{}", screen.wrap(4, &document::paragraph(def.description)))
    };
    let lines: Vec<String> = all.map(of).collect();
    if lines.is_empty() {
        bail!("no metric has `{part}` in its name");
    }
    out.extend(lines);
    Ok(out)
}

/// What the receivers cannot do on this host now, and what should be known of them, a line each.
fn faults(configuration: &Configuration) -> Vec<String> {
    let found = configuration.sinks.iter().flat_map(|(_, sink)| sink.diagnose());
    let line = |found: Finding| format!("{}: {}; {}", found.subject, found.facts, found.remedy);
    let is_shown = |finding: &Finding| finding.is_fault() || finding.state == NOTICE;
    found.filter(is_shown).map(line).collect()
}

pub(super) fn config(command: &ConfigCommand, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => {
            let configuration = Configuration::check(file)?;
            let check = configuration.check_start();
            check.map_err(|error| Usage(format!("{}: {error}", file.display())))?;
            let (message, worst) =
                (format!("{}: ok", file.display()), WorstCase::of(&configuration));
            let (faults, warnings) = (faults(&configuration), configuration.warnings());
            let object = || serde_json::json!({ "message": message, "worst_case": worst, "faults": faults, "warnings": warnings });
            let lines = || {
                let all = faults.iter().chain(warnings);
                all.flat_map(|line| [line, "\n"]).collect::<String>()
            };
            let text = || format!("{message}\n{}{}", worst.text(), lines());
            print(&if json { format!("{:#}\n", object()) } else { text() })?;
        }
        ConfigCommand::Sample => print(&configuration::sample())?,
    }
    Ok(ExitCode::SUCCESS)
}
