//! cargo-deny, built once into the cache that all clones share: three minutes on two cores.

use super::State;
use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::path::PathBuf;

/// Its version.
const VERSION: &str = "0.20.2";

pub(super) fn probe() -> State {
    let wanted = format!("cargo-deny {VERSION}");
    let said = program().and_then(|path| shell::capture(&mut shell::program(path, ["--version"])));
    match said {
        Ok(said) if said.trim() == wanted => State::Ready(wanted),
        _ => State::Missing(format!("no {wanted}")),
    }
}

pub(super) fn install() -> Result<()> {
    let bin = place::cache("bin")?;
    let root = bin.parent().context("the cache has no parent folder")?;
    let arguments =
        ["install", "cargo-deny", "--version", VERSION, "--locked", "--force", "--root"];
    shell::run(shell::program("cargo", arguments).arg(root))
}

/// Where it is once it is installed.
pub(super) fn program() -> Result<PathBuf> {
    Ok(place::cache("bin")?.join("cargo-deny"))
}
