//! The repository's files in memory, and Rust sources as tokens with their lines.

use crate::shell;
use anyhow::{Context as _, Result};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

/// Path from the top folder, and text; files that are not text are there with an empty one.
#[derive(Default)]
pub(super) struct Tree {
    files: BTreeMap<String, File>,
    /// What a file has that is not there.
    nothing: Source,
}

/// A file, read as Rust when the first rule asks for that.
#[derive(Default)]
struct File {
    text: String,
    source: OnceCell<Source>,
}

impl File {
    fn of(text: String) -> Self {
        Self { text, source: OnceCell::new() }
    }
}

impl Tree {
    /// All files that are tracked, or would be after `git add`.
    pub(super) fn of_repository(root: &Path) -> Result<Self> {
        let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let names = shell::capture(shell::program("git", args).current_dir(root))?;
        let mut files = BTreeMap::new();
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            let path = root.join(name);
            // Deleted, but not yet so in git's index.
            if !path.is_file() {
                continue;
            }
            let bytes = fs::read(&path).with_context(|| format!("reading {name}"))?;
            files.insert(name.to_owned(), File::of(String::from_utf8(bytes).unwrap_or_default()));
        }
        Ok(Self { files, ..Self::default() })
    }

    /// A tree made up by a test.
    #[cfg(test)]
    pub(super) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let owned = files.map(|(path, text)| (path.to_owned(), File::of(text.to_owned())));
        Self { files: owned.into_iter().collect(), ..Self::default() }
    }

    /// Path and text of every file.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, file)| (path.as_str(), file.text.as_str()))
    }

    /// Path and text of the files whose name ends so.
    pub(super) fn ending(&self, suffix: &'static str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(suffix))
    }

    /// The text of a file.
    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(|file| file.text.as_str())
    }

    /// A file as Rust.
    pub(super) fn source(&self, path: &str) -> &Source {
        let parsed = |file: &File| Source::parse(&file.text);
        self.files.get(path).map_or(&self.nothing, |file| file.source.get_or_init(|| parsed(file)))
    }
}

/// Whether a file holds only tests: a `#[cfg(test)]` module in a file of its own is named so.
pub(super) fn is_test_file(path: &str) -> bool {
    let file = ["/tests.rs", "_tests.rs"].iter().any(|end| path.ends_with(end));
    file || ["/tests/", "_tests/"].iter().any(|folder| path.contains(folder))
}

/// A Rust source without comments, documentation and, on demand, its tests.
#[derive(Default)]
pub(super) struct Source {
    tokens: Vec<Token>,
    /// Lines of the modules marked `#[cfg(test)]`.
    tests: Vec<RangeInclusive<usize>>,
}

/// One token: an identifier, a punctuation character, a literal, or a bracket.
#[derive(Debug)]
pub(super) struct Token {
    /// As written; for a string literal, with its quotes.
    pub(super) text: String,
    /// Counted from 1.
    pub(super) line: usize,
}

impl Source {
    /// Reads a source; one that is not Rust has no tokens, and does not compile either.
    fn parse(text: &str) -> Self {
        let mut source = Self::default();
        if let Ok(stream) = text.parse() {
            source.walk(stream);
        }
        source
    }

    /// All tokens outside the test modules.
    pub(super) fn shipped(&self) -> impl Iterator<Item = &Token> {
        self.tokens.iter().filter(|token| !self.is_test(token.line))
    }

    /// All tokens.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// How many lines the test modules have.
    pub(super) fn test_lines(&self) -> usize {
        self.tests.iter().map(|lines| lines.end() - lines.start() + 1).sum()
    }

    fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }

    fn walk(&mut self, stream: TokenStream) {
        let trees: Vec<_> = stream.into_iter().collect();
        let mut in_test_item = None;
        for (at, tree) in trees.iter().enumerate() {
            let line = tree.span().start().line;
            match tree {
                TokenTree::Group(group) => {
                    let is_attribute = at > 0 && is_hash(&trees, at - 1);
                    if is_attribute && is_doc(group) {
                        continue;
                    }
                    if is_attribute && text_of(group) == "cfg(test)" {
                        in_test_item = Some(line);
                    } else if group.delimiter() == Delimiter::Brace
                        && let Some(begin) = in_test_item.take()
                    {
                        self.tests.push(begin..=group.span_close().end().line);
                    }
                    self.walk_group(group);
                }
                other => {
                    let text = other.to_string();
                    // `#[cfg(test)] mod tests;` and `use` have no braces of their own.
                    if text == ";" {
                        in_test_item = None;
                    }
                    self.tokens.push(Token { text, line });
                }
            }
        }
    }

    fn walk_group(&mut self, group: &Group) {
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        let line = group.span_open().start().line;
        self.tokens.push(Token { text: open.to_owned(), line });
        self.walk(group.stream());
        let line = group.span_close().end().line;
        self.tokens.push(Token { text: close.to_owned(), line });
    }
}

impl Token {
    /// The text of a string literal without escapes.
    pub(super) fn string(&self) -> Option<&str> {
        self.text.strip_prefix('"')?.strip_suffix('"')
    }
}

/// `#[…]` or `#![…]`.
fn is_hash(trees: &[TokenTree], at: usize) -> bool {
    let is = |at: usize, wanted: char| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted);
    is(at, '#') || (at > 0 && is(at, '!') && is(at - 1, '#'))
}

/// Documentation, which is an attribute to the tokenizer.
fn is_doc(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
}

fn text_of(group: &Group) -> String {
    group.stream().to_string().replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::Source;

    const SOURCE: &str = "\
//! Says \"unsafe\".
/// unsafe
fn shipped() { call(\"text\"); }

#[cfg(test)]
mod tests {
    fn tested() {}
}
fn after() {}
";

    fn words(source: &Source) -> Vec<&str> {
        source.shipped().map(|token| token.text.as_str()).collect()
    }

    #[test]
    fn comments_and_documentation_are_not_tokens() {
        let source = Source::parse(SOURCE);
        assert!(!source.tokens().iter().any(|token| token.text.contains("unsafe")));
    }

    #[test]
    fn what_follows_the_tests_is_shipped_and_the_tests_are_not() {
        let source = Source::parse(SOURCE);
        assert!(words(&source).contains(&"after"), "{:?}", words(&source));
        assert!(!words(&source).contains(&"tested"), "{:?}", words(&source));
        assert_eq!(source.test_lines(), 4);
    }

    #[test]
    fn strings_have_their_line() {
        let source = Source::parse(SOURCE);
        let found = source.shipped().find_map(|token| Some((token.string()?, token.line)));
        assert_eq!(found, Some(("text", 3)));
    }
}
