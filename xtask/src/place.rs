//! Where things are: the repository and the cache that all clones of it share.

use anyhow::{Context as _, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The repository's top folder.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// `${XDG_CACHE_HOME:-$HOME/.cache}/gpuwho/<name>`, made if it is not there.
pub(crate) fn cache(name: &str) -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => {
            PathBuf::from(env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
                .join(".cache")
        }
    };
    let path = base.join("gpuwho").join(name);
    fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
    Ok(path)
}

/// Cargo's output folder for a profile.
pub(crate) fn target(profile: &str) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target).join(profile),
        None => root().join("target").join(profile),
    }
}
