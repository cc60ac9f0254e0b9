//! Rule about growth: a crate has no more product lines than its budget. Whoever raises one says so in
//! the same change.

use super::Finding;
use super::tree::{Tree, is_test_file};

/// Folders with their budget in lines of Rust, tests not counted; a folder's row is the longest that fits.
const BUDGETS: &[(&str, usize)] = &[
    ("agent/src/", 9_750),
    ("agent/crates/sys/", 2_750),
    ("agent/crates/model/", 9_300),
    ("agent/crates/kubernetes/", 750),
    ("agent/crates/owners/", 17_000),
    ("agent/crates/pipeline/", 11_650),
    ("agent/crates/collect/", 4_000),
    ("agent/crates/devices/", 14_750),
    ("agent/crates/bpf/", 2_925),
    ("agent/crates/nccl/", 12_800),
    ("agent/crates/engines/", 5_475),
    ("agent/crates/export/", 11_000),
    ("agent-common/", 1_400),
    ("agent-ebpf/", 2_400),
    ("xtask/src/", 7_650),
    ("xtask/release/", 3_750),
];

/// What a folder has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Size {
    files: usize,
    lines: usize,
}

/// Every folder is within its budget.
pub(super) fn budgets(tree: &Tree) -> Vec<Finding> {
    let over = sizes(tree).filter(|(_, budget, size)| size.lines > *budget);
    over.map(|(folder, budget, size)| Finding {
        file: folder.to_owned(),
        line: 0,
        rule: "a crate has a budget of lines",
        remedy: format!("{} lines, {budget} allowed: cut, or raise it in {}", size.lines, file!()),
    })
    .collect()
}

/// Files, lines and budget of each folder, as a table.
pub(super) fn table(tree: &Tree) -> String {
    let rows = sizes(tree).map(|(folder, budget, Size { files, lines })| {
        format!("{folder:<24}{files:>6} files{lines:>8} lines of {budget}")
    });
    rows.collect::<Vec<_>>().join("\n")
}

fn sizes(tree: &Tree) -> impl Iterator<Item = (&'static str, usize, Size)> {
    BUDGETS.iter().map(|(folder, budget)| {
        let sources = tree.ending(".rs").filter(|(path, _)| path.starts_with(folder));
        let product = sources.filter(|(path, _)| !is_test_file(path));
        let size = product.fold(Size::default(), |size, (path, text)| {
            let tests = tree.source(path).test_lines();
            let lines = text.lines().count().saturating_sub(tests);
            Size { files: size.files + 1, lines: size.lines + lines }
        });
        (*folder, *budget, size)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::{budgets, table};

    #[test]
    fn a_crate_over_its_budget_is_found_and_tests_do_not_count() {
        let long = "//\n".repeat(2_926);
        let tested = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let of = |path, text: &str| Tree::of([(path, text)]);
        assert_eq!(budgets(&of("agent/crates/bpf/src/lib.rs", &long)).len(), 1);
        assert_eq!(budgets(&of("agent/crates/bpf/src/lib.rs", &tested)), []);
        assert_eq!(budgets(&of("agent/crates/bpf/src/live_tests.rs", &long)), []);
        let shown = table(&of("agent/crates/bpf/src/lib.rs", &tested));
        assert!(
            shown.contains("agent/crates/bpf/            1 files       1 lines of 2925"),
            "{shown}"
        );
    }
}
