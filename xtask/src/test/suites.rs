//! The tests that take long: storms, attacks, real runtimes, days in minutes. Each suite has a stamp, a
//! hash of what it tests, in a committed file that only its passing run writes. `cargo xtask tidy`
//! compares it, so a change of what a suite tests needs a run of it, once; the CI runs one of them at
//! each commit, so that another machine's word counts too.

use super::Tally;
use crate::{place, shell, stamp};
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fs;
use std::iter;

/// The file with the stamps.
const FILE: &str = "xtask/slow-passed.txt";

/// Its first line.
const HEADER: &str =
    "# Written by passing runs of `cargo xtask test --slow`: suite, hash of its sources.";

/// Tests of one test program that are run together.
#[derive(Debug)]
pub(crate) struct Suite {
    /// As `cargo xtask test --suite` has it.
    pub(crate) name: &'static str,
    /// The test program, as it is called in the list of times.
    pub(super) program: &'static str,
    /// How the names of its tests begin.
    pub(super) tests: &'static [&'static str],
    /// Files and folders: what it tests, and the tests.
    sources: &'static [&'static str],
}

/// Every suite.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "probes",
        program: "gpuwho_nccl (lib)",
        tests: &["probe::live_tests::"],
        sources: &[
            "agent-common",
            "agent-ebpf",
            "agent/crates/bpf",
            "agent/crates/nccl/src/probe",
            "agent/crates/nccl/src/probe.rs",
            "tests/fakes/nccl",
        ],
    },
    Suite {
        name: "attacks",
        program: "e2e",
        tests: &["security::"],
        sources: &[
            "agent/crates/bpf",
            "agent/crates/export/src",
            "agent/crates/nccl/src/inspector",
            "agent/crates/nccl/src/ras",
            "agent/crates/owners/src",
            "agent/src/privilege.rs",
            "deploy",
            "tests/e2e/security",
            "tests/e2e/security.rs",
            "tests/src/attacker",
        ],
    },
    Suite {
        name: "runtimes",
        program: "e2e",
        tests: &["docker::", "harness::containerd::", "kubernetes::", "slurm::"],
        sources: &[
            "agent/crates/owners/src/attribute",
            "deploy/slurm",
            "tests/e2e/docker.rs",
            "tests/e2e/kubernetes",
            "tests/e2e/slurm",
            "tests/e2e/slurm.rs",
            "tests/fakes/kubelet",
        ],
    },
    Suite {
        name: "endurance",
        program: "e2e",
        tests: &[
            "attribution::cadence::",
            "device::sick::",
            "device::soak::",
            "device::upgrade::",
            "events::",
            "export::delivery::",
            "lifecycle::footprint::",
            "lifecycle::reload::",
        ],
        sources: &[
            "agent/crates/collect/src",
            "agent/crates/devices/src",
            "agent/crates/export/src",
            "tests/e2e/device",
            "tests/e2e/events",
            "tests/e2e/export/delivery",
            "tests/e2e/lifecycle",
        ],
    },
];

/// Which tests of a program are run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Selected {
    /// All, or those that the words for libtest name.
    All,
    /// All that are of no suite.
    Fast,
    /// Those of one suite.
    Only(&'static Suite),
}

impl Selected {
    /// Whether any of a program's tests are meant.
    pub(super) fn has(self, program: &str) -> bool {
        !matches!(self, Self::Only(suite) if suite.program != program)
    }

    /// What says that to libtest.
    pub(super) fn words(self, program: &str) -> Vec<&'static str> {
        match self {
            Self::All => Vec::new(),
            Self::Only(suite) => suite.tests.to_vec(),
            Self::Fast => {
                let slow = SUITES.iter().filter(|suite| suite.program == program);
                slow.flat_map(|suite| suite.tests).flat_map(|test| ["--skip", test]).collect()
            }
        }
    }
}

impl Suite {
    /// The suite of that name.
    pub(super) fn named(name: &str) -> Result<&'static Self> {
        let names = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
        let found = SUITES.iter().find(|suite| suite.name == name);
        found.with_context(|| format!("no suite is called {name}: {}", names()))
    }

    /// Notes that it has passed with today's sources.
    pub(super) fn note(&self) -> Result<()> {
        let mut stamps = stamps();
        stamps.insert(self.name.to_owned(), stamp::of(self.sources, &[])?);
        let lines = stamps.iter().filter(|(name, _)| Self::named(name).is_ok());
        let lines = lines.map(|(name, hash)| format!("{name} {hash}"));
        let text: Vec<_> = iter::once(HEADER.to_owned()).chain(lines).collect();
        fs::write(place::root().join(FILE), text.join("\n") + "\n")
            .with_context(|| format!("writing {FILE}"))?;
        println!("{FILE} says that the suite {} passed: commit it", self.name);
        Ok(())
    }

    /// Whether its stamp is of today's sources.
    fn is_current(&self) -> Result<bool> {
        Ok(stamps().get(self.name) == Some(&stamp::of(self.sources, &[])?))
    }
}

/// The suites whose sources are others than when they passed.
pub(crate) fn due() -> Result<Vec<&'static Suite>> {
    let due = |suite: &'static Suite| Ok((!suite.is_current()?).then_some(suite));
    SUITES.iter().filter_map(|suite| due(suite).transpose()).collect()
}

/// The suite that the CI runs at this commit.
pub(crate) fn of_this_commit() -> Result<&'static Suite> {
    let commit = shell::capture(&mut shell::program("git", ["rev-parse", "HEAD"]))?;
    Ok(chosen(commit.trim()))
}

fn chosen(commit: &str) -> &'static Suite {
    let sum: usize = commit.bytes().map(usize::from).sum();
    &SUITES[sum % SUITES.len()]
}

fn stamps() -> BTreeMap<String, String> {
    let text = fs::read_to_string(place::root().join(FILE)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(name, hash)| (name.to_owned(), hash.to_owned())).collect()
}

/// Whether a run says enough for a stamp.
pub(super) fn has_passed(tally: &Tally) -> bool {
    tally.succeeded() && tally.passed() > 0
}

#[cfg(test)]
mod tests {
    use super::{SUITES, Selected, Suite, chosen};
    use crate::place;

    #[test]
    fn a_suites_tests_are_left_out_of_the_others_and_its_sources_exist() {
        for suite in SUITES {
            let fast = Selected::Fast.words(suite.program);
            for tests in suite.tests {
                assert!(fast.windows(2).any(|pair| pair == ["--skip", tests]), "{tests}");
            }
            assert!(Selected::Fast.words("xtask (bin)").is_empty());
            for source in suite.sources {
                assert!(place::root().join(source).exists(), "{source}");
            }
        }
    }

    #[test]
    fn each_suite_has_its_commits() {
        let commits = ["0", "1", "2", "3", "4", "5"];
        for suite in SUITES {
            assert!(commits.iter().any(|commit| chosen(commit).name == suite.name));
        }
        assert!(Suite::named("attacks").is_ok() && Suite::named("attack").is_err());
    }

    #[test]
    fn a_suite_is_of_one_program() {
        let suite = Selected::Only(&SUITES[0]);
        assert!(suite.has(SUITES[0].program) && !suite.has("e2e") && Selected::Fast.has("e2e"));
        assert_eq!(suite.words(SUITES[0].program), SUITES[0].tests);
    }
}
