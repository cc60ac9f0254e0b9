//! What a test program says about its tests, read from libtest's output with `--show-output`.
//!
//! A test that cannot run here prints `skipped: needs <what>` and returns; libtest counts it as
//! passed, so its output is searched for that line.

use std::collections::BTreeMap;
use std::process::ExitStatus;

/// What a test prints, with the reason behind it, when it cannot run on this machine.
const SKIPPED: &str = "skipped: needs ";

/// The outcome of one run of a test program.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Report {
    /// Tests that passed, skipped ones among them.
    pub(super) passed: usize,
    /// Tests that failed.
    pub(super) failed: usize,
    /// Test and reason.
    pub(super) skipped: Vec<(String, String)>,
    /// What each failed test printed.
    pub(super) outputs: BTreeMap<String, Vec<String>>,
    /// The names of the failed tests, from the list before each result.
    pub(super) names: Vec<String>,
    /// How long each test took, in seconds.
    pub(super) times: Vec<(String, f64)>,
    /// How many result lines there were: one from a test program, one a library from doc tests.
    results: usize,
    /// The list or the outputs that are being read.
    section: Section,
}

/// The part of the output that is being read.
#[derive(Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Progress,
    /// Of tests that passed.
    Successes(Option<String>),
    /// Of tests that failed; the names listed since the section began.
    Failures(Option<String>, Vec<String>),
}

impl Report {
    /// Reads one line.
    pub(super) fn read(&mut self, line: &str) {
        let result = line.strip_prefix("test result: ");
        if let Some(rest) = result.filter(|_| !self.is_in_output()) {
            self.end(rest);
        } else if line == "successes:" {
            self.section = Section::Successes(None);
        } else if line == "failures:" {
            self.section = Section::Failures(None, Vec::new());
        } else if let Some(rest) = line.strip_prefix("---- ") {
            let name = rest.strip_suffix(" stdout ----").unwrap_or(rest).to_owned();
            match &mut self.section {
                Section::Progress => {}
                Section::Successes(current) | Section::Failures(current, _) => {
                    *current = Some(name);
                }
            }
        } else {
            self.read_output(line);
        }
    }

    /// Whether a test's own output is being read; it may be another test program's.
    fn is_in_output(&self) -> bool {
        matches!(self.section, Section::Successes(Some(_)) | Section::Failures(Some(_), _))
    }

    fn read_output(&mut self, line: &str) {
        match &mut self.section {
            Section::Progress => self.times.extend(timed(line)),
            Section::Successes(None) => {}
            Section::Successes(Some(test)) => {
                let reason = line.trim_start().strip_prefix(SKIPPED);
                if let Some(reason) = reason
                    && !self.skipped.iter().any(|(skipped, _)| skipped == test)
                {
                    self.skipped.push((test.clone(), reason.to_owned()));
                }
            }
            Section::Failures(Some(test), _) => {
                self.outputs.entry(test.clone()).or_default().push(line.to_owned());
            }
            Section::Failures(None, names) => {
                names.extend(line.strip_prefix("    ").map(str::to_owned));
            }
        }
    }

    /// Reads the counts of a result line.
    fn end(&mut self, counts: &str) {
        self.results += 1;
        self.passed += count_before(counts, " passed");
        self.failed += count_before(counts, " failed");
        if let Section::Failures(_, names) = std::mem::take(&mut self.section) {
            self.names.extend(names);
        }
    }

    /// Why the run failed other than by tests with names; `None` where each failure has a name.
    pub(super) fn broken(&self, status: ExitStatus) -> Option<String> {
        if self.results == 0 {
            Some(format!("it ended with {status} before it gave a result"))
        } else if self.names.len() != self.failed {
            Some(format!("it names {} of {} failed tests", self.names.len(), self.failed))
        } else if self.failed == 0 && !status.success() {
            Some(format!("it ended with {status}, though no test failed"))
        } else if self.failed > 0 && status.code().is_none() {
            Some(format!("it ended with {status}"))
        } else {
            None
        }
    }
}

/// A test and its seconds, from the line that says how it ended.
fn timed(line: &str) -> Option<(String, f64)> {
    let (test, end) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, seconds) = end.strip_suffix("s>")?.rsplit_once('<')?;
    Some((test.to_owned(), seconds.parse().ok()?))
}

/// The number right before a word.
fn count_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit([' ', '.']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::Report;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    /// Of libtest in Rust 1.95: two tests that printed, one of which failed.
    const ONE_FAILED: &str = "\nrunning 3 tests\ntest a ... ok <0.250s>\ntest b::c ... FAILED\ntest d ... ok\n\n\
        successes:\n\n---- a stdout ----\nskipped: needs root\nskipped: needs root\n\n\n\
        successes:\n    a\n    d\n\nfailures:\n\n---- b::c stdout ----\n\n\
        thread 'b::c' (7) panicked at src/b.rs:3:5:\n    indented\n\n\n\
        failures:\n    b::c\n\n\
        test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 4 filtered out; \
        finished in 0.01s\n\n";

    fn report(text: &str) -> Report {
        let mut report = Report::default();
        text.lines().for_each(|line| report.read(line));
        report
    }

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn a_failed_test_is_read_with_its_name_and_its_output() {
        let read = report(ONE_FAILED);
        assert_eq!((read.passed, read.failed), (2, 1));
        assert_eq!(read.names, ["b::c"]);
        let output = &read.outputs["b::c"];
        assert!(output.contains(&"thread 'b::c' (7) panicked at src/b.rs:3:5:".to_owned()));
        assert_eq!(read.broken(exit(101)), None);
    }

    #[test]
    fn a_test_that_gives_twice_the_reason_why_it_cannot_run_is_skipped_once() {
        assert_eq!(report(ONE_FAILED).skipped, [("a".to_owned(), "root".to_owned())]);
    }

    #[test]
    fn a_test_has_its_time_where_libtest_tells_it() {
        assert_eq!(report(ONE_FAILED).times, [("a".to_owned(), 0.25)]);
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let read = report(
            "test result: ok. 12 passed; 0 failed; 0 ignored\n\
             test result: ok. 3 passed; 0 failed; 1 ignored\n",
        );
        assert_eq!((read.passed, read.failed, read.broken(exit(0))), (15, 0, None));
    }

    #[test]
    fn a_program_that_ends_before_its_result_is_broken() {
        let cut = ONE_FAILED.split("test result").next().unwrap();
        for text in [cut, "\nrunning 3 tests\ntest a ... ok\n", ""] {
            assert!(report(text).broken(ExitStatus::from_raw(6)).is_some(), "{text}");
            assert!(report(text).broken(exit(0)).is_some(), "{text}");
        }
    }

    #[test]
    fn a_program_that_fails_without_a_failed_test_is_broken() {
        let passed = report("test result: ok. 3 passed; 0 failed; 0 ignored\n");
        assert_eq!(passed.broken(exit(0)), None);
        assert!(passed.broken(exit(101)).is_some());
        assert!(passed.broken(ExitStatus::from_raw(11)).is_some());
        assert!(report(ONE_FAILED).broken(ExitStatus::from_raw(11)).is_some());
    }

    #[test]
    fn failures_without_names_are_not_taken_for_others() {
        let unnamed = report("test result: FAILED. 3 passed; 2 failed; 0 ignored\n");
        assert!(unnamed.broken(exit(101)).is_some());
        // A test that prints what libtest prints.
        for printed in ["failures:\n    no_such_test\n", "test result: ok. 9 passed; 0 failed\n"] {
            let confused = report(&ONE_FAILED.replace("    indented\n", printed));
            assert_eq!((confused.passed, confused.names), (2, vec!["b::c".to_owned()]));
        }
    }
}
