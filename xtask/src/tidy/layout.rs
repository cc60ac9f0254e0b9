//! Rules about which files there are.

use super::Finding;
use super::tree::Tree;
use std::collections::BTreeSet;

/// What the top folder may hold; everything else has its place below these.
pub(super) const TOP_LEVEL: &[&str] = &[
    ".cargo",
    ".ci",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "agent",
    "agent-common",
    "agent-ebpf",
    "clippy.toml",
    "dashboards",
    "deny.toml",
    "deploy",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "tests",
    "xtask",
];

/// The layout is fixed, so that everything is found where the last release had it.
pub(super) fn top_level(tree: &Tree) -> Vec<Finding> {
    let entries: BTreeSet<_> =
        tree.files().filter_map(|(path, _)| path.split('/').next()).collect();
    let strangers = entries.into_iter().filter(|entry| !TOP_LEVEL.contains(entry));
    strangers
        .map(|entry| Finding {
            file: entry.to_owned(),
            line: 0,
            rule: "the top level is fixed",
            remedy: "move it below one of the folders there are".to_owned(),
        })
        .collect()
}

/// A module is found by its name: `foo.rs` beside `foo/`.
pub(super) fn no_mod_rs(tree: &Tree) -> Vec<Finding> {
    tree.ending("/mod.rs")
        .map(|(path, _)| Finding {
            file: path.to_owned(),
            line: 0,
            rule: "no mod.rs",
            remedy: "name it after its folder and put it beside that".to_owned(),
        })
        .collect()
}

/// A probe is three files of one name: the records, the program, the reader. A reader that has
/// other sources of the same matter beside it is `probe.rs` of the crate NAME.
pub(super) fn probe_triples(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let programs = tree.ending(".rs").filter_map(|(path, _)| {
        let stem = path.strip_prefix("agent-ebpf/src/bin/")?.strip_suffix(".rs")?;
        // What a benchmark measures against is no probe of the agent.
        (stem != "per_call").then_some((path, stem))
    });
    for (path, stem) in programs {
        let has_crate = tree.text(&format!("agent/crates/{stem}/src/probe.rs")).is_some();
        let reader = (!has_crate).then(|| format!("agent/crates/bpf/src/{stem}.rs"));
        let others = [format!("agent-common/src/{stem}.rs")].into_iter().chain(reader);
        for other in others.filter(|other| tree.text(other).is_none()) {
            findings.push(Finding {
                file: path.to_owned(),
                line: 0,
                rule: "a probe is three files of one name",
                remedy: format!("{other} is missing"),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{no_mod_rs, probe_triples, top_level};

    #[test]
    fn a_stranger_at_the_top_is_found_once() {
        let tree = Tree::of([("agent/src/lib.rs", ""), ("scripts/a.sh", ""), ("scripts/b.sh", "")]);
        let found: Vec<_> = top_level(&tree).into_iter().map(|finding| finding.file).collect();
        assert_eq!(found, ["scripts"]);
    }

    #[test]
    fn a_mod_rs_is_found() {
        let tree = Tree::of([("agent/src/cli/mod.rs", ""), ("agent/src/cli.rs", "")]);
        assert_eq!(no_mod_rs(&tree).len(), 1);
    }

    #[test]
    fn a_probe_without_its_reader_is_found() {
        let whole = Tree::of([
            ("agent-ebpf/src/bin/faults.rs", ""),
            ("agent-common/src/faults.rs", ""),
            ("agent/crates/bpf/src/faults.rs", ""),
        ]);
        assert_eq!(probe_triples(&whole), []);
        let with_crate = Tree::of([
            ("agent-ebpf/src/bin/faults.rs", ""),
            ("agent-common/src/faults.rs", ""),
            ("agent/crates/faults/src/probe.rs", ""),
        ]);
        assert_eq!(probe_triples(&with_crate), []);
        let torn =
            Tree::of([("agent-ebpf/src/bin/faults.rs", ""), ("agent-common/src/faults.rs", "")]);
        let remedies: Vec<_> = probe_triples(&torn).into_iter().map(|found| found.remedy).collect();
        assert_eq!(remedies, ["agent/crates/bpf/src/faults.rs is missing"]);
    }
}
