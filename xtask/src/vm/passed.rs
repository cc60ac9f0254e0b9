//! When every kernel of the matrix last passed, and with which sources: a committed file. As long as
//! nothing that reaches the kernel has changed since, the oldest and the newest kernel are enough
//! for a week.

use crate::{place, stamp};
use anyhow::{Context as _, Result};
use std::fs;
use std::time::{Duration, SystemTime};

/// The file.
const FILE: &str = "xtask/vm-passed.txt";

/// All that ends up in a guest's kernel or puts it there, and the tests of it.
const SOURCES: &[&str] = &[
    "agent-common",
    "agent-ebpf",
    "agent/crates/bpf",
    "agent/crates/nccl/src/probe",
    "agent/crates/nccl/src/probe.rs",
    "agent/crates/sys",
    "rust-toolchain.toml",
    "tests/fakes/nccl",
    "xtask/src/cross.rs",
    "xtask/src/setup/bpf.rs",
    "xtask/src/stamp.rs",
    "xtask/src/vm",
    "xtask/src/vm.rs",
];

/// Packages in Cargo.lock whose versions count as well: they compile, load and drive the programs.
const PACKAGES: &str = "aya";

/// After so long every kernel is booted again, since Debian's kernels change too.
const WEEK: Duration = Duration::from_hours(7 * 24);

/// The last pass of every kernel.
#[derive(Debug, PartialEq, Eq)]
struct Pass {
    at: SystemTime,
    sources: String,
}

/// Why the whole matrix is due; `None` where the oldest and the newest kernel are enough.
pub(super) fn why_all() -> Option<String> {
    let reported = || -> Result<Option<String>> {
        let text = fs::read_to_string(place::root().join(FILE)).unwrap_or_default();
        Ok(due(Pass::read(&text).as_ref(), &sources()?, SystemTime::now()))
    };
    // Without git nobody knows what has changed.
    reported().unwrap_or_else(|error| Some(format!("{error:#}")))
}

/// Notes that every kernel has passed with today's sources.
pub(super) fn note(kernels: &[&str]) -> Result<()> {
    let pass = Pass { at: SystemTime::now(), sources: sources()? };
    let path = place::root().join(FILE);
    fs::write(&path, pass.text(kernels)).with_context(|| format!("writing {}", path.display()))?;
    println!("{FILE} says that every kernel passed: commit it");
    Ok(())
}

fn due(last: Option<&Pass>, sources: &str, now: SystemTime) -> Option<String> {
    let Some(last) = last else { return Some(format!("{FILE} names no pass")) };
    let age = now.duration_since(last.at).unwrap_or(Duration::MAX);
    if last.sources != sources {
        Some("what reaches the kernel has changed since every kernel passed".to_owned())
    } else if age > WEEK {
        Some("every kernel passed more than a week ago".to_owned())
    } else {
        None
    }
}

/// A hash over the sources as they are in the working tree, and what compiles them.
fn sources() -> Result<String> {
    let lock =
        fs::read_to_string(place::root().join("Cargo.lock")).context("reading Cargo.lock")?;
    stamp::of(SOURCES, &versions(&lock))
}

/// Name and version of each package that counts, in Cargo.lock's order.
fn versions(lock: &str) -> Vec<String> {
    let mut lines = lock.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("name = \"").filter(|name| name.starts_with(PACKAGES))
        {
            found.push(format!("{name} {}", lines.next().unwrap_or_default()));
        }
    }
    found
}

impl Pass {
    fn read(text: &str) -> Option<Self> {
        let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let at = humantime::parse_rfc3339(of("passed ")?.trim()).ok()?;
        Some(Self { at, sources: of("sources ")?.trim().to_owned() })
    }

    fn text(&self, kernels: &[&str]) -> String {
        format!(
            "Every kernel of `cargo xtask vm --full` passed; written by it.\n\
             passed {}\nsources {}\nkernels {}\n",
            humantime::format_rfc3339_seconds(self.at),
            self.sources,
            kernels.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass() -> Pass {
        let at = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 20_000);
        Pass { at, sources: "abc".to_owned() }
    }

    #[test]
    fn a_pass_is_read_as_it_was_written() {
        assert_eq!(Pass::read(&pass().text(&["5.10", "6.1"])), Some(pass()));
        assert_eq!(Pass::read("passed yesterday\nsources abc\n"), None);
        assert_eq!(Pass::read(""), None);
    }

    #[test]
    fn all_kernels_are_due_without_a_pass_after_a_change_and_after_a_week() {
        let (pass, soon) = (pass(), Duration::from_hours(1));
        assert_eq!(due(Some(&pass), "abc", pass.at + soon), None);
        assert!(due(None, "abc", pass.at + soon).is_some());
        assert!(due(Some(&pass), "abd", pass.at + soon).is_some());
        assert!(due(Some(&pass), "abc", pass.at + WEEK + soon).is_some());
        // A date in the future is nobody's pass.
        assert!(due(Some(&pass), "abc", pass.at - soon).is_some());
    }

    #[test]
    fn a_new_version_of_what_loads_the_programs_counts() {
        let lock = "[[package]]\nname = \"aya\"\nversion = \"0.14.0\"\n\n\
                    [[package]]\nname = \"bytes\"\nversion = \"1.10.0\"\n";
        assert_eq!(versions(lock), ["aya\" version = \"0.14.0\""]);
    }

    #[test]
    fn the_sources_named_here_exist() {
        for source in SOURCES {
            assert!(place::root().join(source).exists(), "{source}");
        }
    }
}
