//! Whom `nccl.ras = "auto"` asks: versions of NCCL that are known to survive the question, while
//! their communicators are quiet. Whatever is not known to be safe is not asked.
//!
//! The question has ended jobs. NCCL's status thread reads the communicators of its process while
//! other threads make them: below 2.27.3 it crashes on one that is being made (NVIDIA/nccl #1669,
//! #1718), below 2.29.2 where ranks are missing (#1762), and 2.29.7 is reported to crash while
//! communicators are made (#2346, open; the loop that it names, `rasCollCommsInit` in
//! `src/ras/collectives.cc`, is the same in the newest source of 2026-06). #1996 and #2406 are a
//! use after free among the status threads themselves.

use crate::probe::phase::{LibraryState, Phase};
use gpuwho_model::ids::ProcKey;
use std::collections::HashSet;
use std::time::Duration;

/// How long no communicator of a process may have been made or ended before it is asked. As long as
/// NCCL takes to give up a process.
pub(super) const QUIET: Duration = Duration::from_mins(1);

/// `major.minor.patch`.
type Version = [u32; 3];

/// Versions that survive the question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cleared {
    pub from: Version,
    pub below: Version,
    pub at: Clearance,
    /// The upstream fix: repository, number and release.
    pub fix: &'static str,
}

/// In which phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "no version is cleared yet"))]
pub(super) enum Clearance {
    /// Ranks on other nodes, which the probes here do not see, may make communicators, or be
    /// missing: the fix covers both.
    Quiet,
    /// Every rank of every communicator is on this node, and is there.
    QuietAndWhole,
}

/// No version is cleared: #2346 is open.
pub(super) const CLEARED: &[Cleared] = &[];

/// The processes among `loaded` that may be asked now. One question goes to every process of the
/// job, and the processes of a user share the port: so none of a user's is asked unless all may be,
/// and none of an unknown user's.
pub(super) fn askable(
    loaded: Vec<ProcKey>,
    states: &[LibraryState],
    table: &[Cleared],
    user: impl Fn(ProcKey) -> Option<u32>,
) -> Vec<ProcKey> {
    let state = |process: &ProcKey| states.iter().find(|one| one.process == *process);
    let survives = |process: &ProcKey| state(process).is_some_and(|one| survives(one, table));
    let (mut may, not): (Vec<_>, Vec<_>) = loaded.into_iter().partition(survives);
    let others: HashSet<u32> = not.into_iter().filter_map(&user).collect();
    may.retain(|process| user(*process).is_some_and(|uid| !others.contains(&uid)));
    may
}

/// Whether every library that the process maps survives the question in its phase.
fn survives(state: &LibraryState, table: &[Cleared]) -> bool {
    let Some(phase) = state.phase.filter(|phase| phase.quiet >= QUIET) else { return false };
    let is_cleared = |version: &Version| {
        table.iter().any(|row| {
            (row.from..row.below).contains(version) && allows(row.at, phase) && !row.fix.is_empty()
        })
    };
    let versions = || state.versions.iter().map(|version| parsed(version));
    !state.versions.is_empty() && versions().all(|version| version.as_ref().is_some_and(is_cleared))
}

fn allows(at: Clearance, phase: Phase) -> bool {
    match at {
        Clearance::Quiet => true,
        Clearance::QuietAndWhole => phase.is_whole,
    }
}

/// Parses exactly three numbers: a pre-release or a vendor's own number is an unknown version.
fn parsed(version: &str) -> Option<Version> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::Arc;

    const TABLE: &[Cleared] = &[
        Cleared { from: [2, 40, 0], below: [2, 41, 0], at: Clearance::Quiet, fix: "a test's" },
        Cleared {
            from: [2, 39, 2],
            below: [2, 40, 0],
            at: Clearance::QuietAndWhole,
            fix: "a test's",
        },
    ];

    fn process(pid: u32) -> ProcKey {
        ProcKey { pid, start_ticks: 1 }
    }

    fn state(pid: u32, versions: &[&str], quiet: u64, is_whole: bool) -> LibraryState {
        let versions = versions.iter().map(|version| Arc::from(*version)).collect();
        let phase = Some(Phase { quiet: Duration::from_secs(quiet), is_whole });
        LibraryState { process: process(pid), versions, phase }
    }

    fn asked(states: &[LibraryState], table: &[Cleared]) -> Vec<u32> {
        let loaded = states.iter().map(|one| one.process).collect();
        // Two processes a user.
        let user = |process: ProcKey| (process.pid < 100).then_some(process.pid / 10);
        askable(loaded, states, table, user).into_iter().map(|one| one.pid).collect()
    }

    #[test]
    fn a_cleared_version_is_asked_once_its_communicators_have_been_quiet() {
        assert_eq!(asked(&[state(1, &["2.40.3"], 59, false)], TABLE), [0; 0]);
        assert_eq!(asked(&[state(1, &["2.40.3"], 60, false)], TABLE), [1]);
        let unprobed = LibraryState { phase: None, ..state(1, &["2.40.3"], 60, true) };
        assert_eq!(asked(&[unprobed], TABLE), [0; 0], "nobody sees whether it is quiet");
    }

    #[test]
    fn an_unknown_or_uncleared_version_is_never_asked() {
        for version in ["2.39.1", "2.41.0", "2.40", "2.40.3.1", "2.40.3rc1", "", "rccl"] {
            assert_eq!(asked(&[state(1, &[version], 600, true)], TABLE), [0; 0], "{version}");
        }
        assert_eq!(asked(&[state(1, &[], 600, true)], TABLE), [0; 0]);
        assert_eq!(asked(&[state(1, &["2.40.3", "2.26.2"], 600, true)], TABLE), [0; 0], "either");
        let every = ["2.24.3", "2.26.2", "2.27.3", "2.29.2", "2.29.7", "2.30.4", "2.32.3"];
        for version in every {
            assert_eq!(asked(&[state(1, &[version], 600, true)], CLEARED), [0; 0], "{version}");
        }
    }

    #[test]
    fn a_fix_for_whole_jobs_does_not_clear_a_job_with_ranks_elsewhere() {
        assert_eq!(asked(&[state(1, &["2.39.2"], 600, true)], TABLE), [1]);
        assert_eq!(asked(&[state(1, &["2.39.2"], 600, false)], TABLE), [0; 0]);
    }

    #[test]
    fn one_busy_process_of_a_user_keeps_all_of_that_user_from_being_asked() {
        let all = [
            state(1, &["2.40.3"], 600, true),
            state(2, &["2.40.3"], 5, true),
            state(11, &["2.40.3"], 600, true),
            state(100, &["2.40.3"], 600, true),
        ];
        assert_eq!(asked(&all, TABLE), [11], "nor is one of an unknown user");
    }

    /// What connects to a tenant's process is on the page of questions, and what is there exists.
    #[test]
    fn asks_name_what_is_asked() {
        let page = include_str!("../../../../docs/asks.md");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let named: Vec<&str> = page.split('`').filter(|word| word.contains("/src/")).collect();
        for name in &named {
            let place = source.join(name);
            assert!(place.exists() || place.with_extension("rs").exists(), "{name}");
        }
        let readers = ["bpf", "collect", "devices", "engines", "nccl"];
        let mut folders: Vec<_> = readers.iter().map(|name| source.join(name)).collect();
        let mut connecting = 0;
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir().unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let code = text.split("#[cfg(test)]").next().unwrap();
                    let is_test = path.ends_with("tests.rs");
                    if !is_test
                        && ["TcpStream::connect", "UnixStream::connect"]
                            .iter()
                            .any(|by| code.contains(by))
                    {
                        let name = path.strip_prefix(&source).unwrap();
                        assert!(named.iter().any(|one| name.starts_with(one)), "{name:?}");
                        connecting += 1;
                    }
                }
            }
        }
        assert_eq!(connecting, 3, "engines, libtpu, NCCL");
        assert!(
            page.contains("`CLEARED`")
                && page.contains(&format!("{} seconds (`QUIET`)", QUIET.as_secs()))
        );
        assert_eq!(page.contains("**has no row**"), CLEARED.is_empty());
    }
}
