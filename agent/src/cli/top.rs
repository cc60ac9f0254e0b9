//! `gpuwho top`: what the screen asks the agent for, or reads without one.

use super::who::{ask, read_by_another, time};
use super::{Common, screen};
use crate::control::{self, ControlError, Reply, Request};
use crate::settings::Settings;
use crate::top::{self, Look, Options};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

/// How long the agent behind a socket may be silent before that is said.
const SILENT: Duration = Duration::from_secs(5);
/// The shortest pause between two looks.
const LEAST: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// What to show at first, like `temp>85 & user==alice`; `?` in it explains.
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Time between two looks.
    #[arg(short = 'd', long, value_name = "TIME", default_value = "2s", value_parser = time)]
    interval: Duration,
    /// Draw with ASCII only.
    #[arg(long)]
    ascii: bool,
    /// The agent's socket (default: gpuwho.sock in paths.run).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

pub(super) fn top(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let settings = args.common.load(None)?.settings;
    let options = Options {
        every: args.interval.max(LEAST),
        is_coloured: screen::colours(&std::io::stdout()),
        is_ascii: args.ascii,
    };
    let (socket, common) = (args.socket.clone(), args.common.clone());
    let look = move || look(socket.as_deref(), &settings, &common);
    top::run(options, &args.filter.join(" "), look)?;
    Ok(ExitCode::SUCCESS)
}

/// What the agent says; without one, what another process of this program reads.
fn look(socket: Option<&Path>, settings: &Settings, common: &Common) -> Result<Look, String> {
    let asked = |request: &Request| match socket {
        Some(socket) => control::ask_within(socket, request, SILENT),
        None => ask(settings, request),
    };
    let who = match asked(&Request::Who) {
        Ok(Reply::Who { who }) => *who,
        Ok(other) => return Err(format!("the agent answered {other:?}")),
        Err(ControlError::Connect { .. } | ControlError::Denied { .. }) if socket.is_none() => {
            let who = read_by_another(common, Stdio::null()).map_err(|why| format!("{why:#}"))?;
            return Ok(Look { who, health: None, events: None });
        }
        Err(why) => return Err(why.to_string()),
    };
    let health = match asked(&Request::Health) {
        Ok(Reply::Health { health }) => Some(*health),
        _ => None,
    };
    let events = match asked(&Request::Events) {
        Ok(Reply::Events { events }) => Some(*events),
        _ => None,
    };
    Ok(Look { who, health, events })
}
