//! The outcome of all test programs: counts, what was skipped and why, and what passed only when it
//! was run again.

use super::runner::{Run, Runner};
use crate::compile::TestProgram;
use anyhow::{Result, bail};
use std::fmt;
use std::time::Duration;

/// So many failed tests may be run again, and are named at the end; more are no accident.
const MAX_RERUNS: usize = 8;

/// So many tests may pass only when they are run again; more of them are a failure.
const MAX_FLAKY: usize = 2;

/// So many of the tests that took longest are named.
const SLOWEST: usize = 30;

/// What a run of the tests came to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Tests that passed, in their first or second run.
    passed: usize,
    /// Tests that failed, and programs that ended before their result.
    failed: Vec<String>,
    /// Tests that failed, and passed when they were run again alone.
    flaky: Vec<String>,
    /// Test and reason.
    skipped: Vec<(String, String)>,
    /// The time of each test, in seconds, and its name.
    seconds: Vec<(f64, String)>,
    /// How long it took to build and to run them.
    pub(super) times: (Duration, Duration),
}

/// A test that failed.
struct Failure<'a> {
    program: &'a TestProgram,
    test: String,
    output: Vec<String>,
}

impl Tally {
    /// Adds up the runs; runs the tests that failed again, where those are few.
    pub(super) fn of(runs: Vec<Run<'_>>, runner: &Runner) -> Result<Self> {
        let mut tally = Self::default();
        let mut failures = Vec::new();
        for run in runs {
            failures.extend(tally.add(run));
        }
        let few = failures.len() <= MAX_RERUNS;
        for failure in failures {
            let Failure { program, test, output } = &failure;
            let name = format!("{} {test}", program.name);
            (runner.print)(&format!("== {name} failed:\n{}\n", output.join("\n").trim_end()));
            if few && passed_alone(&runner.run_alone(program, test)?) {
                tally.passed += 1;
                tally.flaky.push(name);
            } else {
                tally.failed.push(name);
            }
        }
        Ok(tally)
    }

    /// Adds a program's first run; gives the tests that failed in it.
    fn add<'a>(&mut self, run: Run<'a>) -> Vec<Failure<'a>> {
        let Run { program, mut report, status, took } = run;
        println!("{:>7.1} s  {}", took.as_secs_f64(), program.name);
        self.passed += report.passed - report.skipped.len().min(report.passed);
        self.skipped.append(&mut report.skipped);
        let times = std::mem::take(&mut report.times).into_iter();
        self.seconds.extend(times.map(|(test, took)| (took, format!("{} {test}", program.name))));
        if let Some(why) = report.broken(status) {
            self.failed.push(format!("{} ({why})", program.name));
        }
        let names = std::mem::take(&mut report.names).into_iter();
        names
            .map(|test| {
                let output = report.outputs.remove(&test).unwrap_or_default();
                Failure { program, test, output }
            })
            .collect()
    }

    /// An error where every test was skipped: that says nothing.
    pub(super) fn has_any_passed(&self) -> Result<()> {
        if self.passed == 0 {
            bail!("no test of it can run here");
        }
        Ok(())
    }

    /// The tests that took longest, a line each.
    pub(super) fn slowest(&self) -> String {
        let mut all: Vec<_> = self.seconds.iter().collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let lines = all.iter().take(SLOWEST).map(|(took, name)| format!("{took:>7.1} s  {name}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Whether nothing failed, and not more than a few tests at first.
    pub(super) fn succeeded(&self) -> bool {
        self.failed.is_empty() && self.flaky.len() <= MAX_FLAKY
    }
}

/// Whether the one test of a second run passed. One that could not run has not.
fn passed_alone(run: &Run<'_>) -> bool {
    let Run { report, status, .. } = run;
    (report.passed, report.failed, report.skipped.len()) == (1, 0, 0)
        && report.broken(*status).is_none()
}

/// The list of skipped tests, then the closing line that counts and names.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (test, reason) in &self.skipped {
            writeln!(f, "skipped {test}: needs {reason}")?;
        }
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())?;
        write!(f, ", {} skipped", self.skipped.len())?;
        let (built, ran) = self.times;
        write!(f, " (built in {:.0} s, ran in {:.0} s)", built.as_secs_f64(), ran.as_secs_f64())?;
        for (word, names) in [("failed", &self.failed), ("flaky", &self.flaky)] {
            if !names.is_empty() {
                let shown = names.get(..MAX_RERUNS).unwrap_or(names);
                write!(f, "; {word}: {}", shown.join(", "))?;
                if shown.len() < names.len() {
                    write!(f, " and {} more", names.len() - shown.len())?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;
    use crate::compile::TestProgram;
    use crate::test::runner::Runner;
    use crate::test::suites::Selected;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    /// What libtest prints of two tests, the second of which fails.
    const FAILS: &str = "printf 'failures:\\n\\n---- b stdout ----\\nfirst words\\n\\n\
        failures:\\n    b\\n\\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\\n'; exit 101";
    const PASSES: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";

    /// A test program that does one thing with every test and another with one alone.
    fn program(folder: &Path, name: &str, all: &str, alone: &str) -> TestProgram {
        let path = folder.join(name);
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n'--show-output b --exact --test-threads=1'*) {alone} ;;\n\
             '--show-output'*) {all} ;;\nesac\n"
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        TestProgram { name: name.to_owned(), path, folder: folder.to_owned(), first: &[] }
    }

    fn tally(programs: &[(&str, &str, &str)]) -> Tally {
        let folder = tempfile::tempdir().unwrap();
        let make =
            |(name, all, alone): &(&str, &str, &str)| program(folder.path(), name, all, alone);
        let programs: Vec<_> = programs.iter().map(make).collect();
        let (environment, arguments) = (Vec::new(), Vec::new());
        let runner = Runner { environment, selected: Selected::All, arguments, print: |_| () };
        Tally::of(runner.run_all(&programs).unwrap(), &runner).unwrap()
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_named() {
        let tally = tally(&[("p", FAILS, PASSES), ("q", PASSES, "exit 1")]);
        assert!(tally.succeeded());
        let text = tally.to_string();
        assert_eq!(text, "3 passed, 0 failed, 0 skipped (built in 0 s, ran in 0 s); flaky: p b");
    }

    #[test]
    fn a_test_that_fails_again_has_failed() {
        let skips = "printf 'successes:\\n\\n---- b stdout ----\\nskipped: needs luck\\n\\n\
            successes:\\n    b\\n\\ntest result: ok. 1 passed; 0 failed; 0 ignored\\n'";
        for alone in [FAILS, skips, "exit 0", "kill -ABRT $$", "echo 'test result: ok. 0 passed'"] {
            let tally = tally(&[("p", FAILS, alone)]);
            assert!(!tally.succeeded(), "{alone}");
            let text = tally.to_string();
            assert!(text.starts_with("1 passed, 1 failed, 0 skipped"), "{text}");
            assert!(text.ends_with("; failed: p b"), "{text}");
        }
    }

    #[test]
    fn a_program_that_aborts_has_failed() {
        let tally = tally(&[("p", "echo 'test a ... ok'; kill -ABRT $$", PASSES)]);
        assert!(!tally.succeeded());
        let text = tally.to_string();
        assert!(text.contains("; failed: p (it ended with signal: 6"), "{text}");
    }

    #[test]
    fn many_failures_are_not_run_again() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let programs = names.map(|name| (name, FAILS, PASSES));
        let (few, many) = (tally(&programs[1..]), tally(&programs));
        assert!(!few.succeeded() && tally(&programs[7..]).succeeded());
        assert_eq!((few.flaky.len(), many.flaky.len(), many.failed.len()), (8, 0, 9));
        assert!(many.to_string().ends_with(", h b and 1 more"), "{many}");
    }
}
