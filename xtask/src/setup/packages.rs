//! System packages on Debian and its relatives.

use super::{State, is_root};
use crate::shell;
use anyhow::{Result, bail};
use std::io::IsTerminal as _;

/// A program and the package that has it.
pub(super) struct Tool {
    /// The file on the search path.
    pub(super) program: &'static str,
    /// Debian's package.
    pub(super) package: &'static str,
}

/// What Debian's packages ask before they start a daemon.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Runs a command with that file in place and saying no: the tests start their own daemons, and
/// nobody asked for one on this machine. A file of the system's own stays as it is.
const WITHOUT_DAEMONS: &str = "if [ ! -e $0 ]; then \
    trap 'rm -f $0' EXIT; trap 'exit 1' HUP INT TERM; \
    printf '#!/bin/sh\\nexit 101\\n' >$0 && chmod 755 $0; fi; \
    DEBIAN_FRONTEND=noninteractive \"$@\"";

/// Whether all programs are there.
pub(super) fn probe(tools: &[Tool]) -> State {
    let missing: Vec<_> = missing(tools).map(|tool| tool.program).collect();
    if !missing.is_empty() {
        return State::Missing(format!("no {}", missing.join(", ")));
    }
    let found: Vec<_> = tools.iter().map(|tool| tool.program).collect();
    State::Ready(found.join(", "))
}

/// Installs the packages of the programs that are missing.
pub(super) fn install_for(tools: &[Tool]) -> Result<()> {
    install(&missing(tools).map(|tool| tool.package.to_owned()).collect::<Vec<_>>())
}

fn missing(tools: &[Tool]) -> impl Iterator<Item = &Tool> {
    tools.iter().filter(|tool| shell::on_path(tool.program).is_none())
}

/// Installs packages as root or through sudo; the lists are fetched only if they are too old.
pub(super) fn install(packages: &[String]) -> Result<()> {
    if shell::on_path("apt-get").is_none() {
        bail!(
            "install with this system's package manager what Debian calls {}",
            packages.join(" ")
        );
    }
    let prefix = privilege(packages)?;
    if apt(prefix, &install_arguments(packages)).is_ok() {
        return Ok(());
    }
    eprintln!("setup: the package lists may be old: fetching them and trying again");
    apt(prefix, &["update".to_owned()])?;
    apt(prefix, &install_arguments(packages))
}

/// What to write before `apt-get` to be root.
fn privilege(packages: &[String]) -> Result<&'static [&'static str]> {
    if is_root() {
        return Ok(&[]);
    }
    let remedy = format!("sudo apt-get install --no-install-recommends {}", packages.join(" "));
    if shell::on_path("sudo").is_none() {
        bail!("neither root nor sudo here; as root, run `{remedy}`");
    }
    // A person at a terminal can be asked for the password, a script cannot.
    if std::io::stdin().is_terminal() {
        return Ok(&["sudo"]);
    }
    if shell::succeeds(&mut shell::program("sudo", ["-n", "true"])) {
        return Ok(&["sudo", "-n"]);
    }
    bail!("sudo wants a password; run `{remedy}`");
}

fn install_arguments(packages: &[String]) -> Vec<String> {
    let fixed = ["install", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"];
    fixed.iter().map(|word| (*word).to_owned()).chain(packages.iter().cloned()).collect()
}

fn apt(prefix: &[&str], args: &[String]) -> Result<()> {
    // In a shell of root, because sudo drops the caller's environment.
    let fixed = ["sh", "-c", WITHOUT_DAEMONS, POLICY, "apt-get"];
    let mut words = prefix.iter().copied().chain(fixed);
    let first = words.next().unwrap_or("apt-get");
    let mut command = shell::program(first, words);
    command.args(args);
    if prefix == ["sudo"] {
        command.stdin(std::process::Stdio::inherit());
    }
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::{State, Tool, WITHOUT_DAEMONS, install_arguments, probe};
    use crate::shell;

    #[test]
    fn a_program_that_is_nowhere_is_named() {
        let tools = &[
            Tool { program: "sh", package: "dash" },
            Tool { program: "no-such-program-4711", package: "none" },
        ];
        let State::Missing(what) = probe(tools) else { panic!("found a program that is not") };
        assert_eq!(what, "no no-such-program-4711");
    }

    #[test]
    fn daemons_are_kept_from_starting_while_the_command_runs_and_no_longer() {
        let policy = std::env::temp_dir().join(format!("policy-{}", std::process::id()));
        let run = || {
            let mut command = shell::program("sh", ["-c", WITHOUT_DAEMONS]);
            command.arg(&policy).args(["sh", "-c", "echo $DEBIAN_FRONTEND; tail -n 1 $0"]);
            shell::capture(command.arg(&policy)).unwrap()
        };
        assert_eq!(run(), "noninteractive\nexit 101\n");
        assert!(!policy.exists());
        std::fs::write(&policy, "exit 0\n").unwrap();
        assert_eq!(run(), "noninteractive\nexit 0\n");
        assert!(policy.exists());
        std::fs::remove_file(&policy).unwrap();
    }

    #[test]
    fn packages_come_without_their_recommendations() {
        let args = install_arguments(&["cpio".to_owned()]);
        assert!(args.contains(&"--no-install-recommends".to_owned()), "{args:?}");
        assert_eq!(args.last().map(String::as_str), Some("cpio"));
    }
}
