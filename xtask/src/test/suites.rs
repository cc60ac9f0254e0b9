//! The tests that take long: storms, attacks, real runtimes, days in minutes. Each suite has a stamp, a
//! hash of what it tests, in a committed file that only its passing run writes. `cargo xtask tidy`
//! compares it, so a change of what a suite tests needs a run of it, once; the CI runs one of them at
//! each commit, so that another machine's word counts too.

use crate::{additions, compile, place, shell, stamp, vm};
use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fs;
use std::iter;

/// The file with the stamps.
const FILE: &str = "xtask/slow-passed.txt";

/// Its first line.
const HEADER: &str =
    "# Written by passing runs of `cargo xtask test --slow`: suite, hash of its sources.";

/// What is run together.
#[derive(Debug)]
pub(crate) struct Suite {
    /// As `cargo xtask test --suite` has it.
    pub name: &'static str,
    /// What it runs.
    pub(super) runs: Runs,
    /// Files and folders: what it tests, and the tests. None: it has no stamp, or one elsewhere.
    sources: &'static [&'static str],
}

/// What a suite runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Runs {
    /// Tests of a test program, as it is called in the list of times, whose names begin so; and
    /// further words for libtest.
    Tests(&'static str, &'static [&'static str], &'static [&'static str]),
    /// Something else.
    Task(fn() -> Result<()>),
}

/// Every suite.
pub(crate) const SUITES: &[Suite] = &[
    Suite {
        name: "probes",
        runs: Runs::Tests("gpuwho_nccl (lib)", &["probe::live_tests::"], &[]),
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
        name: "storms",
        runs: Runs::Tests(
            "e2e",
            &[
                "security::descriptors::",
                "security::fairness::",
                "security::hang::",
                "security::libraries::",
                "security::memory::",
                "security::probes::",
                "security::ring::",
            ],
            // A storm is felt by every agent on the machine.
            &["--test-threads=1"],
        ),
        sources: &[
            "agent/crates/bpf",
            "agent/crates/nccl/src/probe",
            "agent/crates/owners/src",
            "tests/e2e/security/descriptors.rs",
            "tests/e2e/security/fairness.rs",
            "tests/e2e/security/hang.rs",
            "tests/e2e/security/libraries.rs",
            "tests/e2e/security/memory.rs",
            "tests/e2e/security/probes.rs",
            "tests/e2e/security/ring.rs",
            "tests/src/attacker",
        ],
    },
    Suite {
        name: "attacks",
        runs: Runs::Tests(
            "e2e",
            &[
                "security::claims::",
                "security::endpoint::",
                "security::engines::",
                "security::events::",
                "security::packaging::",
                "security::places::",
                "security::ras::",
                "security::receipts::",
                "security::squat::",
                "security::teams::",
                "security::tpu::",
            ],
            &[],
        ),
        sources: &[
            "agent/crates/engines/src",
            "agent/crates/export/src",
            "agent/crates/nccl/src/inspector",
            "agent/crates/nccl/src/ras",
            "agent/crates/owners/src",
            "agent/src/privilege.rs",
            "deploy",
            "tests/e2e/security",
            "tests/src/attacker",
        ],
    },
    Suite {
        name: "runtimes",
        runs: Runs::Tests(
            "e2e",
            &["docker::", "harness::containerd::", "kubernetes::", "slurm::"],
            &[],
        ),
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
        runs: Runs::Tests(
            "e2e",
            &[
                "attribution::cadence::",
                "attribution::short_processes::",
                "device::sick::",
                "device::soak::",
                "device::upgrade::",
                // Each reading is of its own tick only where the machine has time.
                "device::vendors::who_opens_a_vendors_node_is_its_owner",
                "events::",
                "export::delivery::",
                "lifecycle::reload::",
            ],
            &[],
        ),
        sources: &[
            "agent/crates/collect/src",
            "agent/crates/devices/src",
            "agent/crates/export/src",
            "tests/e2e/attribution/short_processes.rs",
            "tests/e2e/device",
            "tests/e2e/events",
            "tests/e2e/export/delivery",
            "tests/e2e/lifecycle",
        ],
    },
    Suite {
        name: "additions",
        runs: Runs::Task(additions::compile),
        sources: &["xtask/additions", "xtask/src/additions.rs"],
    },
    Suite {
        name: "demo",
        runs: Runs::Task(compile::check_demo),
        sources: &["agent/Cargo.toml", "Cargo.toml", "tests/Cargo.toml", "tests/src"],
    },
    Suite { name: "kernels", runs: Runs::Task(vm::oldest_and_newest), sources: &[] },
];

/// Which tests of a program are run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Selected {
    /// All, or those that the words for libtest name.
    All,
    /// All that are of no suite.
    Fast,
    /// Those of one suite: program, tests, further words.
    Only(&'static str, &'static [&'static str], &'static [&'static str]),
}

impl Selected {
    /// Whether any of a program's tests are meant.
    pub(super) fn has(self, program: &str) -> bool {
        !matches!(self, Self::Only(of, ..) if of != program)
    }

    /// What says that to libtest.
    pub(super) fn words(self, program: &str) -> Vec<&'static str> {
        match self {
            Self::All => Vec::new(),
            Self::Only(_, tests, more) => [tests, more].concat(),
            Self::Fast => {
                let of = |suite: &Suite| match suite.runs {
                    Runs::Tests(of, tests, _) if of == program => tests,
                    _ => &[],
                };
                SUITES.iter().flat_map(of).flat_map(|test| ["--skip", test]).collect()
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
        if self.sources.is_empty() {
            return Ok(());
        }
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
        Ok(self.sources.is_empty()
            || stamps().get(self.name) == Some(&stamp::of(self.sources, &[])?))
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

#[cfg(test)]
mod tests {
    use super::{Runs, SUITES, Selected, Suite, chosen};
    use crate::place;

    #[test]
    fn a_suites_tests_are_left_out_of_the_others_and_its_sources_exist() {
        for suite in SUITES {
            if let Runs::Tests(program, tests, _) = suite.runs {
                let fast = Selected::Fast.words(program);
                let is_left_out = |tests| fast.windows(2).any(|pair| pair == ["--skip", tests]);
                assert!(tests.iter().all(|tests| is_left_out(*tests)), "{}", suite.name);
            }
            for source in suite.sources {
                assert!(place::root().join(source).exists(), "{source}");
            }
        }
        assert!(Selected::Fast.words("xtask (lib)").is_empty());
    }

    #[test]
    fn each_suite_has_its_commits() {
        let commits: Vec<_> = (0..SUITES.len()).map(|digit| digit.to_string()).collect();
        for suite in SUITES {
            assert!(commits.iter().any(|commit| chosen(commit).name == suite.name));
        }
        assert!(Suite::named("attacks").is_ok() && Suite::named("attack").is_err());
    }

    #[test]
    fn a_suite_is_of_one_program() {
        let suite = Selected::Only("e2e", &["slurm::"], &["--test-threads=1"]);
        assert!(suite.has("e2e") && !suite.has("nccl (lib)") && Selected::Fast.has("e2e"));
        assert_eq!(suite.words("e2e"), ["slurm::", "--test-threads=1"]);
    }
}
