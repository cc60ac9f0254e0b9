//! `cargo xtask tidy`: the rules of the house that neither rustc nor clippy knows.
//!
//! Each rule is a function over the repository's files that names file, line, rule and remedy, and
//! has a unit test that shows it can fail.

mod alerts;
mod commands;
mod crates;
mod documents;
mod layout;
mod manifests;
mod names;
mod pages;
mod places;
mod rooms;
mod rust;
mod sizes;
mod threats;
mod tree;
mod words;

use crate::{place, test};
use anyhow::{Result, bail};
use std::fmt;
use tree::Tree;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    /// Counted from 1; 0 is the file as a whole.
    line: usize,
    rule: &'static str,
    remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, rule, remedy } = self;
        match line {
            0 => write!(f, "{file}: {rule}: {remedy}"),
            line => write!(f, "{file}:{line}: {rule}: {remedy}"),
        }
    }
}

/// Every rule that needs only the files.
const RULES: &[fn(&Tree) -> Vec<Finding>] = &[
    layout::top_level,
    layout::no_mod_rs,
    layout::probe_triples,
    rust::file_length,
    rust::unsafe_places,
    rust::unfinished,
    names::metric_declarations,
    names::name_literals,
    names::dashboards,
    manifests::no_kubernetes_client,
    manifests::reasons,
    crates::direction,
    rooms::order,
    sizes::budgets,
    words::retired,
    words::phrases,
    words::long_sentences,
    documents::source_paths,
    documents::measured_tables,
    documents::links,
    documents::phrases,
    commands::programs,
    pages::names,
    alerts::alerts,
    alerts::queries,
    threats::model,
    places::listed,
];

/// `cargo xtask tidy`.
pub(crate) fn tidy() -> Result<()> {
    let tree = Tree::of_repository(&place::root())?;
    let mut findings: Vec<_> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.extend(commands::tasks(&tree, &crate::is_task));
    findings.extend(test::due()?.into_iter().map(|suite| Finding {
        file: suite.name.to_owned(),
        line: 0,
        rule: "a slow suite has passed since what it tests has changed",
        remedy: "run `cargo xtask test --slow`, and commit the stamps".to_owned(),
    }));
    println!("{}", sizes::table(&tree));
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        count => bail!("{count} breaches of the repository's rules"),
    }
}
