//! Rules about documents: the commands and the sources that they name exist.

use super::Finding;
use super::tree::Tree;
use crate::shell;
use anyhow::{Result, bail};
use std::path::Path;

/// Every `cargo xtask <task>` in a document is a task.
pub(super) fn xtask_commands(tree: &Tree, tasks: &[String]) -> Vec<Finding> {
    commands(tree, "cargo xtask ", tasks)
}

/// Every `gpuwho <command>` in a document is a command of the agent.
pub(super) fn agent_commands(tree: &Tree, known: &[String]) -> Vec<Finding> {
    commands(tree, "gpuwho ", known)
}

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

/// What `gpuwho --help` lists.
pub(super) fn agent_command_names(agent: &Path) -> Result<Vec<String>> {
    let names = listed(&shell::capture(&mut shell::program(agent, ["--help"]))?);
    if names.is_empty() {
        bail!("`gpuwho --help` lists no commands");
    }
    Ok(names)
}

/// The first words below `Commands:`.
fn listed(help: &str) -> Vec<String> {
    let below = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    below
        .take_while(|line| !line.is_empty())
        // Deeper lines go on with the description above them.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

fn commands(tree: &Tree, prefix: &'static str, known: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (line, command) in code(text) {
            let Some(word) = subcommand(command, prefix) else { continue };
            if !known.iter().any(|name| name == word) {
                findings.push(Finding {
                    file: path.to_owned(),
                    line,
                    rule: "documents name only commands that exist",
                    remedy: format!("there is no `{prefix}{word}`"),
                });
            }
        }
    }
    findings
}

/// The word behind the prefix, if the line of code begins with that and the word is a subcommand.
fn subcommand<'a>(code: &'a str, prefix: &str) -> Option<&'a str> {
    let code = code.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
    let word = code.strip_prefix(prefix)?.split_whitespace().next()?;
    let is_word = word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    is_word.then_some(word)
}

/// Line number and text of what stands between backticks or in a fenced block.
fn code(text: &str) -> Vec<(usize, &str)> {
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
    use super::{MEASURED, agent_commands, listed, measured_tables, source_paths, xtask_commands};

    #[test]
    fn a_task_that_does_not_exist_is_found_in_text_and_in_blocks() {
        let readme =
            "Run `cargo xtask test` or `cargo xtask tset`.\n\n```sh\n$ cargo xtask rnu\n```\n";
        let found = xtask_commands(&Tree::of([("README.md", readme)]), &["test".to_owned()]);
        let found: Vec<_> = found.iter().map(|f| (f.line, f.remedy.as_str())).collect();
        assert_eq!(
            found,
            [(1, "there is no `cargo xtask tset`"), (4, "there is no `cargo xtask rnu`")]
        );
    }

    #[test]
    fn options_and_prose_are_not_commands() {
        let readme = "gpuwho tells it. `gpuwho --json`, `sudo gpuwho doctor`.\n";
        let known = ["doctor".to_owned()];
        assert_eq!(agent_commands(&Tree::of([("README.md", readme)]), &known), []);
    }

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
    fn commands_are_read_from_the_help() {
        let help = "Tells it\n\nUsage: gpuwho [COMMAND]\n\nCommands:\n  agent   Run it\n          \
                    more about it\n  doctor  Say why\n\nOptions:\n  -h, --help\n";
        assert_eq!(listed(help), ["agent", "doctor"]);
    }
}
