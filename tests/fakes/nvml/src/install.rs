//! Puts the fake library where an agent can load it. For a scenario that omits functions, their
//! names in the copy's symbol table are overwritten, so that `dlsym` fails as on an old driver.

use crate::scenario::{Scenario, ScenarioError};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why the library was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The built library is not where it should be.
    #[error(
        "cannot read the fake library {path} ({source}); build it with `cargo build -p gpuwho-fake-nvml`"
    )]
    Built {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The copy cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The copy.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The scenario omits a function that the fake does not have either.
    #[error("the scenario omits {name}, which the fake library does not have")]
    NoSuchFunction {
        /// The function.
        name: String,
    },
}

/// Copies the library at `built` to `folder/libnvidia-ml.so.1`, without the functions that the
/// scenario omits; gives the copy's path.
pub fn install(built: &Path, scenario: &Path, folder: &Path) -> Result<PathBuf, InstallError> {
    let scenario = Scenario::load(scenario)?;
    let mut image =
        fs::read(built).map_err(|source| InstallError::Built { path: built.to_owned(), source })?;
    for name in &scenario.omit {
        if !strike(&mut image, name) {
            return Err(InstallError::NoSuchFunction { name: name.clone() });
        }
    }
    let path = folder.join("libnvidia-ml.so.1");
    fs::write(&path, image).map_err(|source| InstallError::Write { path: path.clone(), source })?;
    Ok(path)
}

/// Overwrites the first letter of a name wherever it stands as a whole string of a string table.
/// Lookup compares names after hashing, so the symbol is no longer found.
fn strike(image: &mut [u8], name: &str) -> bool {
    let pattern: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
    let found: Vec<usize> = image
        .windows(pattern.len())
        .enumerate()
        .filter(|(_, window)| *window == pattern.as_slice())
        .map(|(at, _)| at + 1)
        .collect();
    for at in &found {
        if let Some(letter) = image.get_mut(*at) {
            *letter = b'-';
        }
    }
    !found.is_empty()
}
