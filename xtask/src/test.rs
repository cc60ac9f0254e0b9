//! Runs every test and counts what ran, what failed and what could not run here.
//!
//! All is built by one call of cargo; then the programs run side by side, since most tests wait. A
//! test that fails is run once more, alone: one that passes then is called flaky in the closing
//! line, and fails nothing. cargo-nextest does the same, but each new machine would build it first,
//! longer than cargo-deny, and it does not count the tests that say that they cannot run here.

mod report;
mod runner;
mod suites;
mod tally;

use crate::compile::{self, TestProgram};
use crate::setup::{self, Want, dist};
use crate::{collector, containerd, shell, unpacked};
use anyhow::{Result, bail};
use runner::Runner;
use std::ffi::OsString;
use std::time::Instant;
use suites::{Runs, SUITES};
pub(crate) use suites::{Selected, Suite, due, of_this_commit};
pub(crate) use tally::Tally;

/// The variable that tells the tests where the real NCCL is.
const NCCL_VARIABLE: &str = "GPUWHO_TEST_NCCL";

/// Prometheus' programs, and the variables that tell the tests where they are, if not on the path.
const PROMETHEUS: [(&str, &str); 2] =
    [("promtool", "GPUWHO_PROMTOOL"), ("prometheus", "GPUWHO_PROMETHEUS")];

/// The programs that take the longest, which therefore start first.
const START_FIRST: [&str; 3] = ["e2e", "gpuwho_nccl (lib)", "gpuwho_bpf (lib)"];

/// What `cargo xtask test` can be asked.
#[derive(Default, clap::Args)]
pub(crate) struct Request {
    /// Only test programs of this name (e2e, gpuwho_nccl, xtask); may be repeated
    #[arg(long = "program", short, value_name = "NAME")]
    programs: Vec<String>,
    /// Also the tests of the benchmark and of the check on real hardware
    #[arg(long)]
    all: bool,
    /// The slow suites whose sources have changed since they passed, instead of the other tests
    #[arg(long, conflicts_with_all = ["programs", "arguments"])]
    slow: bool,
    /// This slow suite, or all, changed or not; may be repeated
    #[arg(long = "suite", value_name = "NAME", conflicts_with_all = ["programs", "arguments", "slow"])]
    suites: Vec<String>,
    /// Handed on to every test program, such as a part of the tests' names
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// `cargo xtask test`.
pub(crate) fn test(request: &Request) -> Result<()> {
    if request.slow || !request.suites.is_empty() {
        return slow(request, &request.suites()?);
    }
    let selected = if request.arguments.is_empty() { Selected::Fast } else { Selected::All };
    perform(request, selected).map(drop)
}

/// Runs slow suites one after the other, and stamps each that passes.
pub(crate) fn slow(request: &Request, suites: &[&'static Suite]) -> Result<()> {
    let mut failed = Vec::new();
    for suite in suites {
        println!("== suite {}", suite.name);
        let passed = match suite.runs {
            Runs::Task(run) => run(),
            Runs::Tests(program, tests, more) => {
                perform(request, Selected::Only(program, tests, more))
                    .and_then(|tally| tally.has_any_passed())
            }
        };
        match passed {
            Ok(()) => suite.note()?,
            Err(error) => {
                println!("{error:#}");
                failed.push(suite.name);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}

/// Builds and runs.
pub(crate) fn perform(request: &Request, selected: Selected) -> Result<Tally> {
    perform_beside(request, selected, || Ok(()))
}

/// The same; `once_built` starts what runs beside the tests.
pub(crate) fn perform_beside(
    request: &Request,
    selected: Selected,
    once_built: impl FnOnce() -> Result<()>,
) -> Result<Tally> {
    compile::setup_toolchain()?;
    setup::ensure(&["test", "containerd", "systemd", "slurm", "nccl"], Want::Optional)?;
    let (environment, arguments) = (environment(), request.arguments.clone());
    let runner = Runner { environment, selected, arguments, print: |lines| print!("{lines}") };
    let began = Instant::now();
    let mut programs = if request.all { compile::all()? } else { compile::tested()? };
    programs.push(TestProgram::examples());
    programs.retain(|program| request.wants(program) && selected.has(&program.name));
    if programs.is_empty() {
        bail!("no test program is called {}", request.programs.join(" or "));
    }
    let place = |program: &TestProgram| START_FIRST.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| place(program).unwrap_or(START_FIRST.len()));
    let built = began.elapsed();
    once_built()?;
    let runs = runner.run_all(&programs)?;
    let mut tally = Tally::of(runs, &runner)?;
    tally.times = (built, began.elapsed().saturating_sub(built));
    println!("the slowest:\n{}", tally.slowest());
    if !tally.succeeded() {
        bail!("{tally}");
    }
    println!("{tally}");
    Ok(tally)
}

impl Request {
    /// The tests of every program.
    pub(crate) fn everything() -> Self {
        Self { all: true, ..Self::default() }
    }

    /// The slow suites that are asked for.
    fn suites(&self) -> Result<Vec<&'static Suite>> {
        if self.slow {
            return due();
        }
        if self.suites.iter().any(|name| name == "all") {
            return Ok(SUITES.iter().collect());
        }
        self.suites.iter().map(|name| Suite::named(name)).collect()
    }

    fn wants(&self, program: &TestProgram) -> bool {
        let name = program.name.split(' ').next().unwrap_or_default();
        self.programs.is_empty() || self.programs.iter().any(|wanted| wanted == name)
    }
}

/// Where the tests find programs and libraries that are not of this repository.
fn environment() -> Vec<(&'static str, OsString)> {
    let mut environment = Vec::new();
    match collector::for_tests() {
        Ok(path) => environment.push((collector::VARIABLE, path.into())),
        Err(error) => eprintln!("warning: the tests against the Collector are skipped: {error:#}"),
    }
    match containerd::for_tests() {
        Ok(folder) => {
            environment.extend(folder.map(|folder| (containerd::VARIABLE, folder.into())));
        }
        Err(error) => eprintln!("warning: the tests of containerd's events are skipped: {error:#}"),
    }
    for (program, variable) in PROMETHEUS {
        if shell::on_path(program).is_none() {
            match unpacked::program("prometheus", "bookworm", &format!("usr/bin/{program}")) {
                Ok(path) => environment.push((variable, path.into())),
                Err(error) => {
                    eprintln!("warning: tests that need {program} are skipped: {error:#}");
                }
            }
        }
    }
    // Its first build is too long for a test run: `cargo xtask collector --prometheus`.
    let prometheus = dist::built_go_program(dist::PROMETHEUS);
    environment.extend(prometheus.map(|path| (collector::PROMETHEUS, path.into())));
    environment.extend(setup::nccl().map(|library| (NCCL_VARIABLE, library.into())));
    environment
}
