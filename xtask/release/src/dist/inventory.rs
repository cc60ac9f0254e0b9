//! What is linked into the program: its list of dependencies as CycloneDX, and their licences.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use xtask::setup::dist as tools;
use xtask::shell;

/// How the files begin in which crates have their licences.
const LICENCE_FILES: [&str; 5] = ["licen", "copying", "copyright", "notice", "unlicense"];

/// Writes the list that is embedded in a program.
pub(super) fn write_bill_of_materials(program: &Path, to: &Path) -> Result<()> {
    let mut command = shell::program("auditable2cdx", [program]);
    let text = shell::capture(command.env("PATH", tools::search_path()?))?;
    let listed: Value = serde_json::from_str(&text).context("reading the dependency list")?;
    let names: Vec<_> = listed["components"].as_array().into_iter().flatten().collect();
    let has = |name: &&str| names.iter().any(|component| component["name"] == **name);
    ensure!(
        listed["bomFormat"] == "CycloneDX" && ["aya", "nvml-wrapper", "tokio"].iter().all(has),
        "{} embeds no list of its dependencies",
        program.display()
    );
    fs::write(to, text).with_context(|| format!("writing {}", to.display()))
}

/// A crate that is linked in.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    name: String,
    version: String,
    licence: String,
    /// Texts of its licence files.
    texts: Vec<String>,
}

/// The licences of all that is linked into the program.
pub(super) fn licences(triple: &str) -> Result<String> {
    let options = ["metadata", "--format-version=1", "--offline", "--filter-platform", triple];
    let metadata = shell::capture(&mut shell::cargo(options))?;
    let metadata: Value = serde_json::from_str(&metadata).context("reading cargo's metadata")?;
    Ok(render(&linked(&metadata, "gpuwho")?))
}

/// The crates that a package is linked with, its own workspace's left out.
fn linked(metadata: &Value, root: &str) -> Result<Vec<Linked>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let id = |package: &Value| package["id"].as_str().unwrap_or_default().to_owned();
    let start = packages.iter().find(|package| package["name"] == root);
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (id(&node), node)).collect();
    let mut waiting = vec![id(start.with_context(|| format!("no package {root}"))?)];
    let mut found = BTreeSet::new();
    while let Some(next) = waiting.pop() {
        let Some(node) = nodes.get(&next).filter(|_| found.insert(next.clone())) else { continue };
        // Dependencies of build scripts and tests have another kind.
        let is_linked =
            |edge: &Value| list(&edge["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let edges = list(&node["deps"]).into_iter().filter(is_linked);
        waiting.extend(edges.filter_map(|edge| Some(edge["pkg"].as_str()?.to_owned())));
    }
    let ours = |package: &&Value| package["source"].is_null();
    let packages = packages.iter().filter(|package| found.contains(&id(package)));
    let mut linked: Vec<_> =
        packages.filter(|package| !ours(package)).map(describe).collect::<Result<_>>()?;
    linked.sort();
    Ok(linked)
}

fn describe(package: &Value) -> Result<Linked> {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let manifest = text("manifest_path");
    let folder = Path::new(&manifest).parent().context("a manifest without a folder")?;
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("reading {}", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && is_licence(path))
        .collect();
    files.sort();
    let read = |path: &std::path::PathBuf| {
        fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    let texts = files.iter().map(read).collect::<Result<_>>()?;
    Ok(Linked { name: text("name"), version: text("version"), licence: text("license"), texts })
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    LICENCE_FILES.iter().any(|start| name.starts_with(start))
}

/// The list, then each text once, below the crates that it is of.
fn render(linked: &[Linked]) -> String {
    let mut page = "gpuwho is linked with these libraries, and with Rust's standard library \
                    (MIT OR Apache-2.0).\n\n"
        .to_owned();
    let mut texts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for Linked { name, version, licence, texts: own } in linked {
        // Writing to a string does not fail.
        let _ = writeln!(page, "{name} {version}: {licence}");
        for text in own {
            texts.entry(text.trim()).or_default().push(format!("{name} {version}"));
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(_, one), (_, other)| one.cmp(other));
    for (text, names) in texts {
        let _ = write!(page, "\n----\n{}\n\n{text}\n", names.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::{Linked, linked, render};
    use serde_json::json;

    #[test]
    fn only_what_is_linked_is_listed_with_its_licence_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["aya", "dev", "deep"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("LICENSE-MIT"), "Permission").unwrap();
            std::fs::write(folder.path().join(name).join("lib.rs"), "").unwrap();
        }
        let package = |name: &str, source: Option<&str>| {
            let manifest = folder.path().join(name).join("Cargo.toml");
            json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT",
                    "source": source, "manifest_path": manifest })
        };
        let edge =
            |to: &str, kind: Option<&str>| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("gpuwho", None), package("aya", Some("registry")),
                         package("dev", Some("registry")), package("deep", Some("registry"))],
            "resolve": { "nodes": [
                { "id": "gpuwho", "deps": [edge("aya", None), edge("dev", Some("dev"))] },
                { "id": "aya", "deps": [edge("deep", None)] },
                { "id": "deep", "deps": [edge("aya", None)] },
                { "id": "dev", "deps": [] },
            ]},
        });
        let found = linked(&metadata, "gpuwho").unwrap();
        let names: Vec<_> = found.iter().map(|linked| linked.name.as_str()).collect();
        assert_eq!(names, ["aya", "deep"]);
        assert_eq!(found[0].texts, ["Permission"]);
    }

    #[test]
    fn a_text_that_crates_share_is_there_once() {
        let of = |name: &str| Linked {
            name: name.to_owned(),
            version: "1".to_owned(),
            licence: "MIT".to_owned(),
            texts: vec!["Permission\n".to_owned()],
        };
        let page = render(&[of("a"), of("b")]);
        assert!(page.contains("a 1: MIT\nb 1: MIT\n\n----\na 1, b 1\n\nPermission\n"), "{page}");
        assert_eq!(page.matches("Permission").count(), 1);
    }
}
