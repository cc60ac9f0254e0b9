//! Programs of Debian packages that tests need and nobody wants installed: unpacked into the cache.
//! No service starts, and the machine's package state stays as it is.

use crate::apt::{Apt, Archive};
use crate::place;
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::PathBuf;

/// A program of a package of a Debian release, at its path below the root.
pub fn program(package: &str, suite: &str, path: &str) -> Result<PathBuf> {
    let cache = place::cache(package)?;
    let kept = cache.join(suite);
    if !kept.join(path).is_file() {
        let apt = Apt::at(&cache.join("apt"));
        apt.fetch(&[(Archive::Main, suite)])?;
        // Unpacked beside the final name and moved, so that an interrupted one is never used.
        let work = cache.join(format!("unpack-{}", std::process::id()));
        fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
        let moved = apt.unpack(package, &work).and_then(|()| {
            ensure!(work.join(path).is_file(), "{package} of {suite} has no {path}");
            // What is there lacks the program: an older release's, or taken apart.
            if kept.exists() {
                fs::remove_dir_all(&kept)
                    .with_context(|| format!("removing {}", kept.display()))?;
            }
            fs::rename(&work, &kept).with_context(|| format!("moving to {}", kept.display()))
        });
        if moved.is_err() && work.exists() {
            fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
        }
        moved?;
    }
    Ok(kept.join(path))
}
