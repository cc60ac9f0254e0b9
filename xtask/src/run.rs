//! The agent at work: on this machine's GPUs, or on simulated ones where there is none.

use crate::compile::{self, Profile};
use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `cargo xtask run` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Send to this OTLP receiver, such as http://localhost:4318, instead of a local file
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Simulate this machine, even where there is a GPU
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Handed on to the demo, or to the agent on a machine with a GPU
    #[arg(last = true)]
    args: Vec<String>,
}

/// `cargo xtask run`. Becomes the agent or the demo, so that Ctrl-C reaches it alone.
pub(crate) fn run(request: &Request) -> Result<()> {
    compile::setup_toolchain()?;
    let mut command = match (real_gpu(), &request.scenario) {
        (Ok(()), None) => agent(request)?,
        (Err(why), None) => {
            println!("No GPU here ({why}): the GPUs you will see are simulated.");
            demo(request)?
        }
        (_, Some(scenario)) => {
            println!("The GPUs you will see are simulated (scenario {scenario}).");
            demo(request)?
        }
    };
    command.stdin(Stdio::inherit());
    eprintln!("+ {}", shell::line(&command));
    Err(command.exec()).with_context(|| format!("starting {}", shell::line(&command)))
}

fn agent(request: &Request) -> Result<Command> {
    compile::packages(Profile::Release, &["gpuwho"])?;
    let mut command = shell::program(compile::agent(Profile::Release), ["agent"]);
    if let Some(url) = &request.otlp {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    }
    command.args(&request.args);
    Ok(command)
}

fn demo(request: &Request) -> Result<Command> {
    compile::demo()?;
    let demo = place::target(Profile::Debug.folder()).join("demo");
    Ok(shell::program(demo, demo_arguments(request)))
}

fn demo_arguments(request: &Request) -> Vec<String> {
    let mut args = Vec::new();
    for (name, value) in [("--otlp", &request.otlp), ("--scenario", &request.scenario)] {
        if let Some(value) = value {
            args.extend([name.to_owned(), value.clone()]);
        }
    }
    args.extend(request.args.iter().cloned());
    args
}

/// Whether there is an NVIDIA GPU that the agent can read, or what is missing.
fn real_gpu() -> Result<(), &'static str> {
    if !Path::new("/dev/nvidiactl").exists() {
        return Err("no /dev/nvidiactl");
    }
    let ldconfig = shell::on_path("ldconfig").unwrap_or_else(|| "ldconfig".into());
    match shell::capture(&mut shell::program(ldconfig, ["-p"])) {
        Ok(libraries) if libraries.contains("libnvidia-ml.so.1") => Ok(()),
        _ => Err("no libnvidia-ml.so.1"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Request, demo_arguments};

    #[test]
    fn the_demo_gets_what_was_asked_and_nothing_else() {
        let request = Request {
            otlp: Some("http://localhost:4318".to_owned()),
            scenario: None,
            args: vec!["--once".to_owned()],
        };
        assert_eq!(demo_arguments(&request), ["--otlp", "http://localhost:4318", "--once"]);
    }
}
