//! Runs every test and counts what ran, what failed and what could not run here.
//!
//! A test that cannot run here prints `skipped: needs <what>` and returns; libtest counts it as
//! passed, so its output is read for those lines.

use crate::compile::{self, Profile};
use crate::setup::{self, Want};
use crate::{collector, containerd, shell, unpacked};
use anyhow::{Context as _, Result, bail};
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

/// Built before the tests, which start or load them.
const FAKES: &[&str] =
    &["gpuwho", "gpuwho-fake-cuda", "gpuwho-fake-nccl", "gpuwho-fake-nvml", "gpuwho-tests"];

/// The variable that tells the tests where the real NCCL is.
const NCCL_VARIABLE: &str = "GPUWHO_TEST_NCCL";

/// The variable that tells the tests where `promtool` is, if it is not on the path.
const PROMTOOL_VARIABLE: &str = "GPUWHO_PROMTOOL";

/// What a test prints, with the reason behind it, when it cannot run on this machine.
const SKIPPED: &str = "skipped: needs ";

/// What a run of the tests came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: usize,
    failed: usize,
    /// Test and reason.
    skipped: Vec<(String, String)>,
    /// The test whose output is being read.
    current: String,
}

/// `cargo xtask test`; arguments go to `cargo test`, those after `--` to the test programs.
pub(crate) fn test(args: &[OsString]) -> Result<Tally> {
    compile::setup_toolchain()?;
    setup::ensure(&["test", "containerd", "systemd", "slurm", "nccl"], Want::Optional)?;
    compile::packages(Profile::Debug, FAKES)?;
    let mut command = shell::cargo(["test", "--no-fail-fast"]);
    let (for_cargo, for_tests) = split(args);
    command.args(for_cargo).args(["--", "--show-output"]).args(for_tests);
    match collector::for_tests() {
        Ok(path) => {
            command.env(collector::VARIABLE, path);
        }
        Err(error) => eprintln!("warning: the tests against the Collector are skipped: {error:#}"),
    }
    match containerd::for_tests() {
        Ok(folder) => {
            folder.map(|folder| command.env(containerd::VARIABLE, folder));
        }
        Err(error) => eprintln!("warning: the tests of containerd's events are skipped: {error:#}"),
    }
    if shell::on_path("promtool").is_none() {
        match unpacked::program("prometheus", "bookworm", "usr/bin/promtool") {
            Ok(path) => {
                command.env(PROMTOOL_VARIABLE, path);
            }
            Err(error) => eprintln!("warning: the tests of the rules are skipped: {error:#}"),
        }
    }
    if let Some(library) = setup::nccl() {
        command.env(NCCL_VARIABLE, library);
    }
    eprintln!("+ {}", shell::line(&command));
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting cargo test")?;
    let output = child.stdout.take().context("cargo test has no output")?;
    let mut tally = Tally::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading what cargo test prints")?;
        tally.read(&line);
        writeln!(std::io::stdout(), "{line}").context("printing")?;
    }
    let status = child.wait().context("waiting for cargo test")?;
    println!("{tally}");
    if !status.success() {
        bail!("cargo test ended with {status}");
    }
    Ok(tally)
}

/// What comes before the first `--`, and what comes after it.
fn split(args: &[OsString]) -> (&[OsString], &[OsString]) {
    match args.iter().position(|arg| arg == "--") {
        Some(at) => (args.get(..at).unwrap_or(&[]), args.get(at + 1..).unwrap_or(&[])),
        None => (args, &[]),
    }
}

impl Tally {
    /// Takes one line of the output of `cargo test -- --show-output`.
    fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += count_before(rest, " passed");
            self.failed += count_before(rest, " failed");
        } else if let Some(rest) = line.strip_prefix("---- ") {
            rest.strip_suffix(" stdout ----").unwrap_or(rest).clone_into(&mut self.current);
        } else if let Some(reason) = line.trim_start().strip_prefix(SKIPPED) {
            let test = self.current.clone();
            if !self.skipped.iter().any(|(known, _)| *known == test) {
                self.skipped.push((test, reason.to_owned()));
            }
        }
    }
}

/// The list of skipped tests, then the closing line that counts.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (test, reason) in &self.skipped {
            writeln!(f, "skipped {test}: needs {reason}")?;
        }
        let skipped = self.skipped.len();
        let passed = self.passed.saturating_sub(skipped);
        write!(f, "{passed} passed, {} failed, {skipped} skipped", self.failed)
    }
}

/// The number right before a word.
fn count_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit([' ', '.']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Tally, split};
    use std::ffi::OsString;

    fn tally(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.read(line));
        tally
    }

    #[test]
    fn results_of_all_test_programs_add_up() {
        let read = tally(
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
             test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 1 filtered out\n",
        );
        assert_eq!(read.to_string(), "15 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn a_skipped_test_is_not_counted_as_passed() {
        let read = tally(
            "successes:\n\n---- sends_to_the_collector stdout ----\n\
             skipped: needs Go >= 1.26 (cargo xtask setup collector)\n\n\
             test result: ok. 2 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!(
            read.to_string(),
            "skipped sends_to_the_collector: needs Go >= 1.26 (cargo xtask setup collector)\n\
             1 passed, 0 failed, 1 skipped"
        );
    }

    #[test]
    fn a_test_that_says_twice_why_it_cannot_run_counts_once() {
        let read = tally(
            "---- a stdout ----\nskipped: needs root\nskipped: needs root\n\
             test result: ok. 1 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!(read.skipped.len(), 1);
    }

    #[test]
    fn arguments_after_two_dashes_go_to_the_test_programs() {
        let args = ["-p", "gpuwho", "--", "--exact"].map(OsString::from);
        let (cargo, tests) = split(&args);
        assert_eq!((cargo, tests), (&args[..2], &args[3..]));
        assert_eq!(split(&args[..2]), (&args[..2], &[] as &[OsString]));
    }
}
