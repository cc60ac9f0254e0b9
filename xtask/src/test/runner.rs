//! Runs test programs, several at a time, and prints what they print: of the first, the longest, as
//! it comes, of each other at its end.

use super::report::Report;
use super::suites::Selected;
use crate::compile::TestProgram;
use crate::{parallel, shell};
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::num::NonZero;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Programs at a time, each with as many tests at a time as there are processors.
const SIDE_BY_SIDE: usize = 2;

/// Tests at a time of the first program, for each processor: those mostly wait for other processes.
const FIRST_AT_A_TIME: usize = 2;

/// What each program is run with.
pub(super) struct Runner {
    /// Tell the tests where programs and libraries are.
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// Which tests.
    pub(super) selected: Selected,
    /// For libtest.
    pub(super) arguments: Vec<OsString>,
    /// Prints whole lines.
    pub(super) print: fn(&str),
}

/// One run of a program that has ended.
pub(super) struct Run<'a> {
    pub(super) program: &'a TestProgram,
    pub(super) report: Report,
    pub(super) status: ExitStatus,
    pub(super) took: Duration,
}

impl Runner {
    /// Runs every program; starts them in the given order, so the longest belongs first.
    pub(super) fn run_all<'a>(&self, programs: &'a [TestProgram]) -> Result<Vec<Run<'a>>> {
        parallel::map(SIDE_BY_SIDE, programs, |program| {
            let is_first = programs.first().is_some_and(|first| std::ptr::eq(first, program));
            let mut words: Vec<OsString> =
                self.selected.words(&program.name).into_iter().map(OsString::from).collect();
            words.extend_from_slice(&self.arguments);
            self.run(program, &words, is_first)
        })
    }

    /// Runs one test of a program, with nothing beside it.
    pub(super) fn run_alone<'a>(&self, program: &'a TestProgram, test: &str) -> Result<Run<'a>> {
        self.run(program, &[test, "--exact", "--test-threads=1"].map(OsString::from), true)
    }

    fn run<'a>(
        &self,
        program: &'a TestProgram,
        arguments: &[OsString],
        as_it_comes: bool,
    ) -> Result<Run<'a>> {
        let began = Instant::now();
        let mut command = program.command();
        command.args(["--show-output"]).args(arguments);
        if program.first.is_empty() {
            // How long each test takes: libtest tells it only who says that he knows that the option
            // may change. Not through cargo, which would build everything again.
            command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
        }
        if as_it_comes && matches!(self.selected, Selected::Fast) {
            let processors = thread::available_parallelism().map_or(1, NonZero::get);
            command.env("RUST_TEST_THREADS", (FIRST_AT_A_TIME * processors).to_string());
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let line = shell::line(&command);
        eprintln!("+ {line}");
        let spawned = command.stdout(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| format!("starting {line}"))?;
        let output = child.stdout.take().context("a test program without an output")?;
        let mut report = Report::default();
        let mut waiting = format!("\nRunning {}\n", program.name);
        // A test's children may print any bytes.
        for line in BufReader::new(output).split(b'\n') {
            let line = line.with_context(|| format!("reading what {} prints", program.name))?;
            let line = String::from_utf8_lossy(&line);
            report.read(&line);
            waiting.push_str(&line);
            waiting.push('\n');
            if as_it_comes {
                (self.print)(&std::mem::take(&mut waiting));
            }
        }
        (self.print)(&waiting);
        let status = child.wait().with_context(|| format!("waiting for {line}"))?;
        Ok(Run { program, report, status, took: began.elapsed() })
    }
}
