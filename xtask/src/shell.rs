//! Running other programs: each is printed before it runs, reads nothing, and must succeed.

use crate::place;
use anyhow::{Context as _, Result, bail};
use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A program to run in the repository's top folder, without standard input.
pub fn program<A: AsRef<OsStr>>(
    name: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(place::root()).stdin(Stdio::null());
    command
}

/// The cargo that runs this task, so that the toolchain is the same. It builds what `Cargo.lock` says
/// and nothing else.
pub fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = program(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), ["--locked"]);
    command.args(args);
    // What cargo told this program of itself: a build script that asks for it (ring's does) would
    // run again whenever cargo is called by hand in between, and all that is built upon it.
    for (name, _) in env::vars_os() {
        let reported = name
            .to_str()
            .is_some_and(|name| TOLD_BY_CARGO.iter().any(|start| name.starts_with(start)));
        if reported {
            command.env_remove(&name);
        }
    }
    command
}

/// Where the names of the variables begin that cargo sets for a program it runs.
const TOLD_BY_CARGO: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// Prints the command, runs it, and fails if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", line(command));
    let status = command.status().with_context(|| format!("starting {}", line(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", line(command));
    }
    Ok(())
}

/// What the command writes to standard output; its standard error is part of the error.
pub fn capture(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("starting {}", line(command)))?;
    if !status.success() {
        let said = String::from_utf8_lossy(&stderr);
        bail!("{} ended with {status}: {}", line(command), said.trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Prints the command, runs it, and gives what it writes to standard output; its standard error is
/// this program's.
pub fn output(command: &mut Command) -> Result<String> {
    eprintln!("+ {}", line(command));
    let output = command.stderr(Stdio::inherit()).output();
    let Output { status, stdout, .. } =
        output.with_context(|| format!("starting {}", line(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", line(command));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Whether the command runs and succeeds; it is silent.
pub fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The first file of this name on the search path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    // System programs (qemu's firmware tools, ldconfig) may be in sbin, which users lack.
    let more = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    env::split_paths(&path).chain(more).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The command as a person would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    words.join(" ")
}
