//! Rule about the direction inside a crate: one line of its `lib.rs` lists its rooms from below, and a
//! room imports none that comes after it.

use super::Finding;
use super::crates::FOLDER;
use super::tree::{Token, Tree, is_test_file};

/// How the list begins in the documentation of a `lib.rs`; it ends with a full stop.
const BEGINS: &str = "Rooms, from below: ";

/// Every module of a crate is in its list, and imports only from what the list has before it. Rooms
/// between parentheses are one idea in several files: those may import each other.
pub(super) fn order(tree: &Tree) -> Vec<Finding> {
    let libraries = tree.ending("/src/lib.rs").filter(|(path, _)| path.starts_with(FOLDER));
    libraries.flat_map(|(path, text)| of_library(tree, path, text)).collect()
}

fn of_library(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let rooms = listed(text);
    let floor = |room: &str| rooms.iter().find(|(name, _)| name == room).map(|(_, floor)| *floor);
    let mut findings = Vec::new();
    let mut find = |file: &str, line, remedy| {
        let rule = "a room knows only those before it in its crate's list";
        findings.push(Finding { file: file.to_owned(), line, rule, remedy });
    };
    for (line, room) in declared(text) {
        if floor(&room).is_none() {
            find(path, line, format!("name `{room}` after \"{BEGINS}\" in the documentation"));
        }
    }
    let folder = path.trim_end_matches("lib.rs");
    let is_of_tests = |file: &str| is_test_file(file) || file.contains("/fixture");
    for (file, _) in tree.ending(".rs").filter(|(file, _)| !is_of_tests(file)) {
        let Some(inside) = file.strip_prefix(folder) else { continue };
        let Some(own) = inside.split(['/', '.']).next().filter(|own| floor(own).is_some()) else {
            continue;
        };
        let source = tree.source(file);
        let shipped: Vec<_> = source.shipped().collect();
        for (line, other) in imports(&shipped, inside.matches('/').count() + 1) {
            if other != own && floor(other) > floor(own) {
                find(file, line, format!("{own} is below {other}: move what both need down"));
            }
        }
    }
    findings
}

/// The rooms in a crate's list, each with its floor.
fn listed(text: &str) -> Vec<(String, usize)> {
    let docs: Vec<_> = text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let docs = docs.join("");
    let list = docs.split_once(BEGINS).map_or("", |(_, rest)| rest);
    let (mut floor, mut is_open, mut rooms) = (0, false, Vec::new());
    for word in list.split_once('.').map_or("", |(list, _)| list).split(',') {
        floor += usize::from(!is_open);
        is_open = (is_open || word.contains('(')) && !word.contains(')');
        rooms.push((word.trim().trim_matches(['(', ')', '`']).to_owned(), floor));
    }
    rooms
}

/// The modules that a `lib.rs` declares outside of tests, with their lines.
fn declared(text: &str) -> Vec<(usize, String)> {
    let mut is_test = false;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let name = line.trim_start_matches("pub ").strip_prefix("mod ");
        if let Some(name) = name.and_then(|rest| rest.strip_suffix(';'))
            && !is_test
        {
            found.push((at + 1, name.to_owned()));
        }
        is_test = line.starts_with("#[cfg(") && line.contains("test");
    }
    found
}

/// What follows `crate::`, or as many `super::` as the file is deep, with its line.
fn imports<'a>(tokens: &[&'a Token], depth: usize) -> Vec<(usize, &'a str)> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let is_path = |at: usize| text(at) == ":" && text(at + 1) == ":";
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let supers = (0..depth).all(|up| text(at + 3 * up) == "super" && is_path(at + 3 * up + 1));
        let continues = at > 1 && is_path(at - 2);
        let after = match text(at) {
            "crate" if is_path(at + 1) => at + 3,
            "super" if supers && !continues => at + 3 * depth,
            _ => continue,
        };
        found.extend(names_at(tokens, after));
    }
    found
}

/// The first names of a path, or of each path of a list.
fn names_at<'a>(tokens: &[&'a Token], at: usize) -> Vec<(usize, &'a str)> {
    let name = |token: &&'a Token| (token.line, token.text.as_str());
    if tokens.get(at).is_none_or(|token| token.text != "{") {
        return tokens.get(at).map(name).into_iter().collect();
    }
    let (mut depth, mut begins, mut found) = (0_usize, true, Vec::new());
    for token in &tokens[at..] {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," if depth == 1 => begins = true,
            _ if depth == 1 && begins => {
                found.push(name(token));
                begins = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::order;

    const LIB: &str = "//! Owns much.\n//! Rooms, from below: `a`, (`b`,\n//! `c`), `d`. More.\n\n\
        mod a;\npub mod b;\nmod c;\nmod d;\n#[cfg(test)]\nmod tests;\n";

    fn found(file: &str, text: &str) -> Vec<(usize, String)> {
        let folder = "agent/crates/sys/src/";
        let (lib, file) = (format!("{folder}lib.rs"), format!("{folder}{file}"));
        let found = order(&Tree::of([(lib.as_str(), LIB), (file.as_str(), text)])).into_iter();
        found.map(|finding| (finding.line, finding.remedy)).collect()
    }

    #[test]
    fn an_import_that_runs_up_is_found_however_it_is_written() {
        for (file, text) in [
            ("a.rs", "use crate::b::X;"),
            ("a/deep.rs", "use crate::{Z, b::{X, a}, other};"),
            ("a/deep.rs", "use super::super::b::X;"),
            ("a.rs", "fn f() { super::d::call(); }"),
            ("b.rs", "use crate::d;"),
        ] {
            assert_eq!(found(file, text).len(), 1, "{text}");
        }
    }

    #[test]
    fn what_points_down_and_what_tests_import_is_fine() {
        for (file, text) in [
            ("d.rs", "use crate::{a, b::X};\nuse super::c::Y;"),
            ("b.rs", "use crate::c::X;"),
            ("a/deep.rs", "use super::d::X;\nuse super::super::Y;"),
            ("a.rs", "#[cfg(test)]\nmod tests { use crate::d::X; }"),
            ("a/tests.rs", "use crate::d::X;"),
            ("a.rs", "use gpuwho_model::d::X;"),
        ] {
            assert_eq!(found(file, text), [], "{text}");
        }
    }

    #[test]
    fn a_room_that_is_not_in_the_list_is_found() {
        let tree = Tree::of([(
            "agent/crates/sys/src/lib.rs",
            "//! Rooms, from below: `a`.\n\nmod a;\nmod b;\n",
        )]);
        let found = order(&tree);
        assert_eq!((found.len(), found[0].line), (1, 4));
        assert!(found[0].remedy.contains("`b`"), "{}", found[0].remedy);
    }
}
