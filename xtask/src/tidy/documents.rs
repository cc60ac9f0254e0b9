//! Rules about documents: the sources and the files that they name exist, and no table of figures is written by hand.

use super::Finding;
use super::tree::Tree;
use std::collections::BTreeSet;

/// The documents that say where things are.
const MAPS: [&str; 2] = ["agent/docs/architecture.md", "agent/docs/glossary.md"];
/// The folders below which their paths begin.
const SOURCES: [&str; 2] = ["agent/crates/", "agent/src/"];
/// What must be there.
pub(super) const PLACES: &[&str] = &[MAPS[0], MAPS[1], SOURCES[0], SOURCES[1], MEASURED];

/// Every source that a map of the code names exists, below one of these folders or the top folder.
pub(super) fn source_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md").filter(|(path, _)| MAPS.contains(path)) {
        let named = code(text).into_iter().filter(|(_, span)| is_source(span));
        for (line, span) in named {
            let mut places = SOURCES.iter().chain(&[""]);
            if places.all(|folder| tree.text(&format!("{folder}{span}")).is_none()) {
                findings.push(Finding {
                    file: path.to_owned(),
                    line,
                    rule: "maps of the code name only sources that exist",
                    remedy: format!("there is no {span} below {}", SOURCES.join(" or ")),
                });
            }
        }
    }
    findings
}

/// The document of which each table is written by a run, between two marks.
const MEASURED: &str = "agent/docs/benchmarks.md";

/// No table of figures is written by hand.
pub(super) fn measured_tables(tree: &Tree) -> Vec<Finding> {
    let mut is_written = false;
    let mut findings = Vec::new();
    for (line, content) in (1..).zip(tree.text(MEASURED).unwrap_or_default().lines()) {
        match content {
            "<!-- end -->" => is_written = false,
            mark if mark.starts_with("<!-- measured by ") => is_written = true,
            row if row.starts_with('|') && !is_written => findings.push(Finding {
                file: MEASURED.to_owned(),
                line,
                rule: "a table of figures is written by a run",
                remedy: "put it between marks and let `cargo xtask bench --page` write it"
                    .to_owned(),
            }),
            _ => {}
        }
    }
    findings
}

/// A path, not a pattern like `collect/src/<source>.rs`.
fn is_source(span: &str) -> bool {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-/.".contains(c);
    span.strip_suffix(".rs").is_some_and(|stem| stem.chars().all(is_path))
}

/// Every link of a document to a file of the repository, and to a heading in it, leads there.
pub(super) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md").filter(|(path, _)| *path != "CHANGELOG.md") {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, content) in (1..).zip(text.lines()) {
            let targets = content.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            for target in targets.filter(|target| !target.contains("://")) {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let file = if file.is_empty() { path.to_owned() } else { joined(folder, file) };
                let is_folder =
                    || tree.files().any(|(path, _)| path.starts_with(&format!("{file}/")));
                let remedy = match tree.text(&file) {
                    None if is_folder() => continue,
                    None => format!("there is no {file}"),
                    Some(text) if anchor.is_empty() || anchors(text).contains(anchor) => continue,
                    Some(_) => format!("{file} has no #{anchor}"),
                };
                let rule = "links of documents lead somewhere";
                findings.push(Finding { file: path.to_owned(), line, rule, remedy });
            }
        }
    }
    findings
}

/// Phrases of documents and boards that made an engineer read twice, and what they say now.
const RETIRED_PHRASES: &[(&str, &str)] = &[
    ("on the mean", "average"),
    (" granted", "allocated"),
    ("unwell", "unhealthy"),
    ("not well", "unhealthy, or faults"),
    ("worn out", "no spare rows left"),
    ("held down", "throttled"),
    ("gone from its driver", "lost"),
    ("One in twenty", "p95"),
    ("published nowhere", "none published yet"),
    ("whose an exporter", "the owner reported"),
    ("sets of states have", "state sets export"),
];

/// No document, board or alert has an old phrase. Notes of decisions and the changelog keep their words.
pub(super) fn phrases(tree: &Tree) -> Vec<Finding> {
    let is_read = |path: &str| {
        let kept = ["CHANGELOG.md", "agent/docs/decisions/", "agent/docs/glossary.md"];
        let ends = [".md", ".toml", ".json"].iter().any(|end| path.ends_with(end));
        let place =
            ["README.md", ".github/", "agent/METRICS.md", "agent/docs/", "dashboards/", "deploy/"];
        ends && place.iter().any(|at| path.starts_with(at))
            && !kept.iter().any(|at| path.starts_with(at))
    };
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| is_read(path)) {
        for (line, content) in (1..).zip(text.lines()) {
            let found = RETIRED_PHRASES.iter().find(|(phrase, _)| content.contains(phrase));
            findings.extend(found.map(|(phrase, now)| Finding {
                file: path.to_owned(),
                line,
                rule: "documents are plain English",
                remedy: format!("`{phrase}` is now: {now}"),
            }));
        }
    }
    findings
}

/// A relative path below a folder.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a page's headings, as GitHub makes them, and those that it names.
fn anchors(text: &str) -> BTreeSet<String> {
    let slug = |heading: &str| {
        let text = heading.trim_matches(['#', ' ']).to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    let headings = text.lines().filter(|line| line.starts_with('#')).map(slug);
    let named = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.chain(named.map(str::to_owned)).collect()
}

/// Line number and text of what stands between backticks or in a fenced block.
pub(super) fn code(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if in_block {
            found.push((number, line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{MEASURED, links, measured_tables, phrases, source_paths};

    #[test]
    fn a_source_that_was_moved_is_found_in_the_maps_only() {
        let text = "`event.rs`, `xtask/src/main.rs`, `collect/<vendor>.rs`\n| `event/desk.rs` |\n";
        let found = source_paths(&Tree::of([
            ("agent/docs/glossary.md", text),
            ("agent/docs/ownership.md", text),
            ("agent/src/event.rs", ""),
            ("xtask/src/main.rs", ""),
        ]));
        let found: Vec<_> = found.iter().map(|f| (&*f.file, f.line, &*f.remedy)).collect();
        let remedy = "there is no event/desk.rs below agent/crates/ or agent/src/";
        assert_eq!(found, [("agent/docs/glossary.md", 2, remedy)]);
    }

    #[test]
    fn a_table_that_no_run_writes_is_found() {
        let text = "<!-- measured by cargo xtask bench --peers -->\n| a |\n<!-- end -->\n| b |\n";
        let found = measured_tables(&Tree::of([(MEASURED, text), ("README.md", text)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4]);
    }

    #[test]
    fn a_link_to_a_file_or_heading_that_is_not_there_is_found() {
        let page = "# A page\n\n[a](docs/b.md#of-it), [b](docs), [c](#a-page), [d](https://e.org/x)\n\
                    [e](docs/c.md), [f](docs/b.md#no), [g](#b), [h](docs/b.md#old)\n";
        let other = "## Of `it`\n\n<a id=\"old\"></a>[up](../page.md)\n";
        let found = links(&Tree::of([("page.md", page), ("docs/b.md", other)]));
        let found: Vec<_> = found.iter().map(|f| (f.line, f.remedy.as_str())).collect();
        let lacks = |what| (4, what);
        let expected = ["there is no docs/c.md", "docs/b.md has no #no", "page.md has no #b"];
        assert_eq!(found, expected.map(lacks));
    }

    #[test]
    fn an_old_phrase_is_found_but_not_in_notes_of_decisions() {
        let text = "A device is granted.\nIt is allocated.\n";
        let found = phrases(&Tree::of([
            ("agent/docs/a.md", text),
            ("agent/docs/decisions/1.md", text),
            ("tests/a.toml", text),
        ]));
        let found: Vec<_> = found.iter().map(|one| (&*one.file, one.line)).collect();
        assert_eq!(found, [("agent/docs/a.md", 1)]);
    }
}
