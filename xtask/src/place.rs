//! Where things are: the repository and the cache that all clones of it share. What is built from
//! sources has a hash of them in its name there.

use anyhow::{Context as _, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The repository's top folder.
pub fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// `${XDG_CACHE_HOME:-$HOME/.cache}/gpuwho/<name>`, made if it is not there.
pub fn cache(name: &str) -> Result<PathBuf> {
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
pub fn target(profile: &str) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => root().join(target).join(profile),
        None => root().join("target").join(profile),
    }
}

/// Where a hash begins.
pub const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a: the key only has to differ when a source changes, and be the same on every machine.
pub fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::{FNV_OFFSET, fnv1a};

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv1a(FNV_OFFSET, b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
