//! Rules about the text of Rust sources.

use super::Finding;
use super::tree::{Token, Tree, is_test_file};

/// Most lines a source may have without its tests.
const MAX_LINES: usize = 400;

/// Sources that may be longer, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[
    ("agent/crates/kubernetes/src/cri.rs", "generated"),
    ("agent/crates/model/src/attributes.rs", "a table of attributes: longer is not harder to read"),
    ("agent/crates/model/src/catalog/", "tables of metrics: longer is not harder to read"),
    ("tests/fakes/nccl/", "one function for each symbol of the library it stands for"),
    ("tests/fakes/hlml/", "one function for each symbol of the library it stands for"),
    ("tests/fakes/nvml/", "one function for each symbol of the library it stands for"),
];

/// Where `unsafe` may be written.
const UNSAFE_PLACES: &[&str] = &[
    "agent/crates/sys/",
    "agent-common/",
    "agent-ebpf/",
    "tests/fakes/",
    "tests/gpu-check/src/cuda.rs",
    "tests/src/sys.rs",
];

/// What must be there.
pub(super) fn places() -> impl Iterator<Item = &'static str> {
    LONG_FILES.iter().map(|(place, _)| *place).chain(UNSAFE_PLACES.iter().copied())
}

/// Readers open a file whole; beyond this length they stop doing so.
pub(super) fn file_length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let lines = text.lines().count();
        let is_long =
            lines > MAX_LINES && { lines - tree.source(path).test_lines().min(lines) > MAX_LINES };
        if is_long
            && !is_test_file(path)
            && !LONG_FILES.iter().any(|(place, _)| path.starts_with(place))
        {
            findings.push(Finding {
                file: path.to_owned(),
                line: 0,
                rule: "a source has at most 400 lines without its tests",
                remedy: "take one idea out into a file of its own".to_owned(),
            });
        }
    }
    findings
}

/// What must be audited is in few places.
pub(super) fn unsafe_places(tree: &Tree) -> Vec<Finding> {
    let elsewhere = |path: &str| !UNSAFE_PLACES.iter().any(|place| path.starts_with(place));
    let is_unsafe = |tokens: &[Token], at: usize| is(tokens, at, "unsafe");
    find(tree, elsewhere, is_unsafe, |path, line| Finding {
        file: path.to_owned(),
        line,
        rule: "unsafe is in the crate sys, agent-common, agent-ebpf and the fakes only",
        remedy: "call a safe function of agent/crates/sys, or add one there".to_owned(),
    })
}

/// Nothing that is not done, and no test that does not run.
pub(super) fn unfinished(tree: &Tree) -> Vec<Finding> {
    let is_unfinished = |tokens: &[Token], at: usize| {
        let is_macro = ["todo", "unimplemented"].iter().any(|name| is(tokens, at, name));
        let is_ignore = is(tokens, at, "ignore") && at > 1 && is(tokens, at - 1, "[");
        (is_macro && is(tokens, at + 1, "!")) || (is_ignore && is(tokens, at - 2, "#"))
    };
    find(
        tree,
        |_| true,
        is_unfinished,
        |path, line| Finding {
            file: path.to_owned(),
            line,
            rule: "no todo!, unimplemented! or #[ignore]",
            remedy: "finish it; a test that cannot run here prints `skipped: needs <what>`"
                .to_owned(),
        },
    )
}

/// Whether the token at a place reads so.
pub(super) fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// A finding for each token that the test picks, in the files that the filter picks.
fn find(
    tree: &Tree,
    in_file: impl Fn(&str) -> bool,
    picks: impl Fn(&[Token], usize) -> bool,
    finding: impl Fn(&str, usize) -> Finding,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, _) in tree.ending(".rs").filter(|(path, _)| in_file(path)) {
        let source = tree.source(path);
        let tokens = source.tokens();
        let picked = tokens.iter().enumerate().filter(|(at, _)| picks(tokens, *at));
        findings.extend(picked.map(|(_, token)| finding(path, token.line)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{file_length, unfinished, unsafe_places};

    #[test]
    fn a_long_source_is_found_unless_it_is_a_table() {
        let long = "// line\n".repeat(401);
        let tree =
            Tree::of([("agent/src/a.rs", &*long), ("agent/crates/model/src/catalog/b.rs", &*long)]);
        let found: Vec<_> = file_length(&tree).into_iter().map(|finding| finding.file).collect();
        assert_eq!(found, ["agent/src/a.rs"]);
    }

    #[test]
    fn the_tests_of_a_source_do_not_count() {
        let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"// line\n".repeat(400) + "}\n";
        assert_eq!(file_length(&Tree::of([("agent/src/a.rs", &tests)])), []);
    }

    #[test]
    fn unsafe_is_found_outside_its_places_and_in_tests_too() {
        let text = "// unsafe\nfn a() { unsafe { b() } }\n";
        let tree = Tree::of([("agent/src/a.rs", text), ("agent/crates/sys/src/a.rs", text)]);
        let found: Vec<_> =
            unsafe_places(&tree).into_iter().map(|found| (found.file, found.line)).collect();
        assert_eq!(found, [("agent/src/a.rs".to_owned(), 2)]);
    }

    #[test]
    fn unfinished_code_and_ignored_tests_are_found() {
        let text =
            "fn a() { todo!() }\nfn b() { unimplemented!() }\n#[ignore = \"slow\"]\nfn c() {}\n";
        let lines: Vec<_> =
            unfinished(&Tree::of([("a.rs", text)])).into_iter().map(|found| found.line).collect();
        assert_eq!(lines, [1, 2, 3]);
    }

    #[test]
    fn the_words_alone_are_not_unfinished_code() {
        assert_eq!(unfinished(&Tree::of([("a.rs", "fn todo() { ignore(\"todo!\") }")])), []);
    }
}
