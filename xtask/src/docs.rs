//! The documents made from the program: `agent/METRICS.md` and its pages from the metric catalogue, and the sample
//! configuration from the sections of every component. The alerts, from their table; and the page of the
//! chart's values, from their schema.

use crate::chart::values;
use crate::{alerts, compile, place, shell};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::Path;

/// What `cargo xtask docs` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only say whether the documents are up to date
    #[arg(long)]
    check: bool,
}

/// `cargo xtask docs`.
pub(crate) fn docs(request: &Request) -> Result<()> {
    let agent = compile::debug_agent()?;
    if request.check { check(&agent) } else { write(&agent) }
}

/// What begins each file in the text of `gpuwho metrics --markdown`; its path and [`MARK_END`] follow.
const MARK: &str = "<!-- file: ";
const MARK_END: &str = " -->\n";

/// Every document with its text of now.
fn all(agent: &Path) -> Result<Vec<(String, String)>> {
    let mut all = alerts::files()?.map(|(name, text)| (name.to_owned(), text)).to_vec();
    all.push((values::README.to_owned(), values::readme()?));
    all.push(("deploy/gpuwho.toml".to_owned(), text(agent, &["config", "sample"])?));
    let metrics = text(agent, &["metrics", "--markdown"])?;
    for file in metrics.split(MARK).skip(1) {
        let (name, text) = file.split_once(MARK_END).context("a page of metrics has no name")?;
        all.push((name.to_owned(), text.to_owned()));
    }
    Ok(all)
}

/// Fails when a document is not what would be written now.
pub(crate) fn check(agent: &Path) -> Result<()> {
    for (name, text) in all(agent)? {
        let path = place::root().join(&name);
        let written =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        if let Some(line) = first_difference(&written, &text) {
            bail!("{name}:{line} is not what would be written: run `cargo xtask docs`");
        }
    }
    Ok(())
}

fn write(agent: &Path) -> Result<()> {
    for (name, text) in all(agent)? {
        let path = place::root().join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

fn text(agent: &Path, args: &[&str]) -> Result<String> {
    let text = shell::capture(&mut shell::program(agent, args))?;
    if text.trim().is_empty() {
        bail!("`gpuwho {}` wrote nothing", args.join(" "));
    }
    Ok(text)
}

/// The first line in which two texts differ, counted from 1.
fn first_difference(old: &str, new: &str) -> Option<usize> {
    if old == new {
        return None;
    }
    let same = old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    Some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn equal_documents_have_no_difference() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
    }

    #[test]
    fn a_stale_document_is_named_by_its_first_wrong_line() {
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), Some(2));
    }

    #[test]
    fn a_document_that_stops_early_is_stale() {
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
    }
}
