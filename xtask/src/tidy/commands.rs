//! Rules about the commands of documents: `cargo xtask` takes each of its own; of each other program in a
//! block of shell it is known who runs it. `gpuwho`'s are parsed by a test of the agent (`cli/pages/document_tests.rs`).

use super::Finding;
use super::documents::code;
use super::tree::Tree;

/// The programs in blocks of shell: what runs these commands, or why nothing does.
const PROGRAMS: &[(&str, &str)] = &[
    ("apt", "`cargo xtask systemd` and `release --try`"),
    ("cargo", "parsed below"),
    ("ctr", "`cargo xtask kubernetes`"),
    ("dnf", "`cargo xtask release --try`"),
    ("docker", "the same options by `cargo xtask podman`; no Docker in the CI"),
    ("gpuwho", "parsed by `cli/pages/document_tests.rs`; the README's run in `harness::readme`"),
    ("helm", "`cargo xtask kubernetes`"),
    ("otelcol-contrib", "`cargo xtask collector --check`"),
    ("sed", "`dashboards.md`'s by the test of alerts"),
    ("skopeo", "`cargo xtask release --try`"),
    ("systemctl", "`cargo xtask systemd`"),
    ("target/release/gpuwho", "what the tests run, built otherwise: a release takes minutes"),
];

/// Every `cargo xtask …` in a document is one that `cargo xtask` takes.
pub(super) fn tasks(tree: &Tree, parse: &dyn Fn(&[&str]) -> Result<(), String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md").filter(|(path, _)| *path != "CHANGELOG.md") {
        for (line, command) in code(text) {
            let Some(rest) = command.trim().trim_start_matches("$ ").strip_prefix("cargo xtask ")
            else {
                continue;
            };
            // A synopsis has what may be left out between brackets.
            let rest = rest.split(['#', '&', '|', '<', '…']).next().unwrap_or_default();
            let rest = rest.replace(['[', ']'], "");
            let words: Vec<_> = rest.split_whitespace().collect();
            if let Err(remedy) = parse(&words) {
                let rule = "documents name only commands that exist";
                findings.push(Finding { file: path.to_owned(), line, rule, remedy });
            }
        }
    }
    findings
}

/// Each program in a block of shell is one that something runs, or that is known not to be run.
pub(super) fn programs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md") {
        let (mut in_shell, mut goes_on) = (false, false);
        for (line, content) in (1..).zip(text.lines().map(str::trim)) {
            if content.starts_with("```") {
                (in_shell, goes_on) = (content == "```sh", false);
                continue;
            }
            let is_first = !std::mem::replace(&mut goes_on, content.ends_with('\\'));
            let commands = content.split("&&").map(|one| one.trim().trim_start_matches("sudo "));
            for command in commands.filter(|_| in_shell && is_first) {
                let program = command.split_whitespace().next().unwrap_or("#");
                if !program.starts_with('#') && PROGRAMS.iter().all(|(known, _)| *known != program)
                {
                    findings.push(Finding {
                        file: path.to_owned(),
                        line,
                        rule: "commands of documents are run by a test, or known not to be",
                        remedy: format!("add {program} to {}", file!()),
                    });
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{programs, tasks};

    #[test]
    fn a_task_that_does_not_exist_is_found_in_text_and_in_blocks() {
        let readme = "Run `cargo xtask test [-p PROGRAM]` or `cargo xtask tset`.\n\n\
                      ```sh\n$ cargo xtask rnu\n```\n";
        let tree = Tree::of([("README.md", readme)]);
        let known = |words: &[&str]| (words[0] == "test").then_some(()).ok_or(words[0].to_owned());
        let found: Vec<_> = tasks(&tree, &known).into_iter().map(|f| (f.line, f.remedy)).collect();
        assert_eq!(found, [(1, "tset".to_owned()), (4, "rnu".to_owned())]);
    }

    #[test]
    fn a_program_that_nothing_runs_is_found_in_blocks_of_shell() {
        let page =
            "`make install`\n\n```sh\nsudo apt install \\\n  make\n# make\nhelm x && make y\n```\n";
        let found = programs(&Tree::of([("a.md", page)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [7]);
    }
}
