//! Rule about the rules: a place that one of them names is there. A rule about a folder that has moved
//! checks nothing.

use super::Finding;
use super::tree::Tree;
use super::{documents, layout, names, pages, rust, threats};

/// Every file and folder that the other rules name has a file.
pub(super) fn listed(tree: &Tree) -> Vec<Finding> {
    let lists =
        [documents::PLACES, layout::TOP_LEVEL, names::PLACES, pages::PLACES, threats::PLACES];
    let places = lists.into_iter().flatten().copied().chain(rust::places());
    let is_there = |place: &str| {
        let is_at = |path: &str| {
            path.strip_prefix(place).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || place.ends_with(['/', '-'])
            })
        };
        tree.files().any(|(path, _)| is_at(path))
    };
    let missing = places.filter(|place| !is_there(place));
    missing
        .map(|place| Finding {
            file: place.to_owned(),
            line: 0,
            rule: "a place that a rule names is there",
            remedy: "say in xtask/src/tidy where that is now".to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::listed;

    #[test]
    fn a_place_that_has_moved_is_found_and_one_with_a_file_is_not() {
        let tree = Tree::of([
            ("agent/crates/model/src/catalog.rs", ""),
            ("agent/crates/model/src/catalogue/device.rs", ""),
            ("agent/docs/from-there.md", ""),
        ]);
        let found: Vec<_> = listed(&tree).into_iter().map(|finding| finding.file).collect();
        let is_found = |place: &str| found.iter().any(|found| found == place);
        assert!(is_found("agent/crates/model/src/catalog/"), "{found:?}");
        for there in ["agent", "agent/crates/model/src/catalog.rs", "agent/docs/from-"] {
            assert!(!is_found(there), "{there}");
        }
    }
}
