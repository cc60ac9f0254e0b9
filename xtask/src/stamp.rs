//! A hash of sources: what a committed file says to have passed is that.

use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::io::Write as _;
use std::process::Stdio;

/// A hash over files and folders as they are in the working tree, and over further lines.
pub(crate) fn of(sources: &[&str], more: &[String]) -> Result<String> {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard", "--"];
    let listed = shell::capture(shell::program("git", list).args(sources))?;
    let mut files: Vec<&str> =
        listed.lines().filter(|file| place::root().join(file).is_file()).collect();
    files.sort_unstable();
    files.dedup();
    let hashes = shell::capture(shell::program("git", ["hash-object", "--"]).args(&files))?;
    let mut all: Vec<String> =
        files.iter().zip(hashes.lines()).map(|(file, hash)| format!("{hash} {file}")).collect();
    all.extend_from_slice(more);
    hash(&all.join("\n"))
}

fn hash(text: &str) -> Result<String> {
    let mut command = shell::program("git", ["hash-object", "--stdin"]);
    let mut git = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting git hash-object")?;
    let mut input = git.stdin.take().context("git hash-object has no input")?;
    input.write_all(text.as_bytes()).context("writing to git hash-object")?;
    drop(input);
    let output = git.wait_with_output().context("waiting for git hash-object")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
