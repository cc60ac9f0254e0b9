//! Rule about the direction between the agent's crates: what is below knows nothing of what is above.

use super::Finding;
use super::tree::Tree;
use toml::{Table, Value};

/// The folder with a folder for each crate.
pub(super) const FOLDER: &str = "agent/crates/";
/// The records that the kernel side shares: below all.
const RECORDS: &str = "gpuwho-common";
/// What every source and sink may use.
const LOW: &[&str] = &["sys", "model", "owners", "pipeline", "collect"];

/// Each crate, with the crates that it may depend on. The binary, `agent`, may depend on all.
const CRATES: &[(&str, &[&str])] = &[
    ("sys", &[]),
    ("model", &["sys"]),
    ("kubernetes", &[]),
    ("owners", &["sys", "model", "kubernetes"]),
    ("pipeline", &["sys", "model", "owners"]),
    ("collect", &["sys", "model", "owners", "pipeline"]),
    ("devices", LOW),
    ("bpf", LOW),
    ("engines", LOW),
    ("export", LOW),
    ("nccl", &["sys", "model", "owners", "pipeline", "collect", "bpf"]),
];

/// Tests and build scripts keep to the direction too.
const KINDS: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

/// Every crate is in the table, and depends only on what the table allows.
pub(super) fn direction(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending("/Cargo.toml") {
        let Some(name) =
            path.strip_prefix(FOLDER).and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let mut find = |line, remedy| findings.push(finding(path, line, remedy));
        let Some((_, allowed)) = CRATES.iter().find(|(known, _)| *known == name) else {
            find(0, format!("say in {} what {name} may depend on", file!()));
            continue;
        };
        let Ok(manifest) = text.parse() else {
            find(0, "it is not TOML".to_owned());
            continue;
        };
        for (key, package) in ours(&manifest) {
            if !package.strip_prefix("gpuwho-").is_some_and(|other| allowed.contains(&other)) {
                find(line_of(text, &key), format!("{name} may not depend on {package}"));
            }
        }
    }
    let is_missing = |name: &&str| tree.text(&format!("{FOLDER}{name}/Cargo.toml")).is_none();
    let missing = CRATES.iter().map(|(name, _)| *name).filter(is_missing);
    findings.extend(missing.map(|name| finding(FOLDER, 0, format!("there is no crate {name}"))));
    findings
}

fn finding(path: &str, line: usize, remedy: String) -> Finding {
    Finding { file: path.to_owned(), line, rule: "dependencies between crates point down", remedy }
}

/// The dependencies on packages of this workspace, those of single targets among them: key and package.
fn ours(manifest: &Table) -> Vec<(String, String)> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(|all| all.values().filter_map(Value::as_table));
    let tables = std::iter::once(manifest).chain(targets);
    let kinds =
        tables.flat_map(|table| KINDS.iter().filter_map(|kind| table.get(*kind)?.as_table()));
    let packages = kinds.flatten().map(|(key, value)| {
        let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
        (key.clone(), package.to_owned())
    });
    packages.filter(|(_, package)| package.starts_with("gpuwho") && package != RECORDS).collect()
}

/// Where a dependency is written; 0 where that is not at the start of a line.
fn line_of(text: &str, key: &str) -> usize {
    let is_key = |line: &str| {
        let rest = line.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    text.lines().position(is_key).map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::direction;

    fn found(path: &str, manifest: &str) -> Vec<(usize, String)> {
        let found = direction(&Tree::of([(path, manifest)]));
        let here = found.into_iter().filter(|finding| finding.file == path);
        here.map(|finding| (finding.line, finding.remedy)).collect()
    }

    #[test]
    fn a_dependency_that_points_up_is_found_in_tests_and_under_another_name_too() {
        let path = "agent/crates/pipeline/Cargo.toml";
        let down = "[dependencies]\ngpuwho-common = { workspace = true }\ngpuwho-owners.workspace = true\n\
                    serde.workspace = true\n";
        assert_eq!(found(path, down), []);
        let up = "[dependencies]\ngpuwho-export.workspace = true\n\n[dev-dependencies]\n\
                  gpuwho-collect = { workspace = true }\nsinks = { package = \"gpuwho-export\" }\n\
                  [target.'cfg(unix)'.dependencies]\ngpuwho.workspace = true\n";
        let not = |line, other| (line, format!("pipeline may not depend on {other}"));
        let expected = [
            not(2, "gpuwho-export"),
            not(5, "gpuwho-collect"),
            not(6, "gpuwho-export"),
            not(8, "gpuwho"),
        ];
        assert_eq!(found(path, up), expected);
    }

    #[test]
    fn crates_beside_each_other_do_not_know_each_other() {
        let engines = "[dependencies]\ngpuwho-bpf.workspace = true\n";
        let expected = [(2, "engines may not depend on gpuwho-bpf".to_owned())];
        assert_eq!(found("agent/crates/engines/Cargo.toml", engines), expected);
        assert_eq!(found("agent/crates/nccl/Cargo.toml", engines), []);
    }

    #[test]
    fn a_crate_that_is_not_in_the_table_and_a_row_without_a_crate_are_found() {
        assert_eq!(found("agent/crates/new/Cargo.toml", "[dependencies]\n").len(), 1);
        let remedies: Vec<_> =
            direction(&Tree::of([("agent/crates/sys/Cargo.toml", "")])).into_iter().collect();
        assert_eq!(remedies.len(), super::CRATES.len() - 1);
    }
}
