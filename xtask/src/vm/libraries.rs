//! Which crates' test programs a guest needs for the unit tests that the probes' table names: a filter that
//! matches no test would pass without a word.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;

/// A crate with tests that run in a guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// The package.
    pub(super) name: &'static str,
    /// Its folder with sources.
    folder: &'static str,
    /// Where its test program is in the guest: where cargo would have put it beside what was built.
    pub(super) place: &'static str,
}

/// All that have live tests of BPF programs.
pub(super) const LIBRARIES: &[Library] = &[
    Library {
        name: "gpuwho-bpf",
        folder: "agent/crates/bpf/src",
        place: "/target/deps/gpuwho-bpf",
    },
    Library {
        name: "gpuwho-nccl",
        folder: "agent/crates/nccl/src",
        place: "/target/deps/gpuwho-nccl",
    },
];

impl Library {
    /// Its test program, as cargo's messages call it.
    pub(super) fn program(&self) -> String {
        format!("{} (lib)", self.name.replace('-', "_"))
    }

    /// Of these beginnings of tests' names, its own.
    pub(super) fn own<'a>(&self, root: &Path, tests: &[&'a str]) -> Result<Vec<&'a str>> {
        let mut text = String::new();
        read_all(&root.join(self.folder), &mut text)?;
        let has = |test: &&&str| text.contains(&format!("fn {}", last(test)));
        Ok(tests.iter().filter(has).copied().collect())
    }
}

/// The first test that none of these libraries has.
pub(super) fn lost<'a>(root: &Path, tests: &[&'a str]) -> Result<Option<&'a str>> {
    let mut found = Vec::new();
    for library in LIBRARIES {
        found.extend(library.own(root, tests)?);
    }
    Ok(tests.iter().find(|test| !found.contains(test)).copied())
}

fn last(test: &str) -> &str {
    test.rsplit("::").next().unwrap_or(test)
}

fn read_all(folder: &Path, text: &mut String) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        if path.is_dir() {
            read_all(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let read = fs::read_to_string(&path);
            *text += &read.with_context(|| format!("reading {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{LIBRARIES, lost};
    use crate::place;
    use crate::vm::machine::MACHINES;

    #[test]
    fn a_test_belongs_to_the_library_that_has_it() {
        let tests = ["losses_have_a_reason", "probe::live_tests::split_shrink_and_destroy"];
        let [bpf, nccl] = LIBRARIES else { panic!("{LIBRARIES:?}") };
        assert_eq!(bpf.own(&place::root(), &tests).unwrap(), ["losses_have_a_reason"]);
        assert_eq!(nccl.own(&place::root(), &tests).unwrap(), [tests[1]]);
        assert_eq!(lost(&place::root(), &tests).unwrap(), None);
        assert_eq!(
            lost(&place::root(), &["no_such_test_is_here"]).unwrap(),
            Some("no_such_test_is_here")
        );
    }

    #[test]
    fn the_tests_of_the_machines_exist() {
        let tests: Vec<_> = MACHINES.iter().flat_map(|machine| machine.tests).copied().collect();
        assert_eq!(lost(&place::root(), &tests).unwrap(), None);
    }
}
