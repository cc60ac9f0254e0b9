//! The real NCCL, for a test that needs no device: from NVIDIA's wheel, by version and checksum.

use super::State;
use crate::{place, shell};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// The package, its version, and the checksum of its wheel for x86-64.
const PACKAGE: &str = "nvidia-nccl-cu12";
const VERSION: &str = "2.27.5";
const CHECKSUM: &str = "ad730cf15cb5d25fe849c6e6ca9eb5b76db16a80f13f425ac68d8e2e55624457";
/// The library inside the wheel.
const INSIDE: &str = "nvidia/nccl/lib/libnccl.so.2";

pub(super) fn probe() -> State {
    match library() {
        Ok(path) if path.is_file() => State::Ready(format!("NCCL {VERSION} ({})", path.display())),
        _ => State::Missing(format!("no NCCL {VERSION} in the cache")),
    }
}

/// Where the library is, once it was fetched.
pub(super) fn library() -> Result<PathBuf> {
    Ok(place::cache("nccl")?.join(VERSION).join("libnccl.so.2"))
}

/// 320 MB, once; nothing of the package is run.
pub(super) fn install() -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the wheel is for x86-64");
    }
    let python = shell::on_path("python3").context("no python3 to fetch the wheel with")?;
    let folder = place::cache("nccl")?.join(format!("fetching-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let done = fetch(&python, &folder);
    // Left behind, it is a file in the cache: not worth an error.
    let _ = fs::remove_dir_all(&folder);
    done
}

fn fetch(python: &Path, folder: &Path) -> Result<()> {
    let wanted = folder.join("requirements.txt");
    fs::write(&wanted, format!("{PACKAGE}=={VERSION} --hash=sha256:{CHECKSUM}\n"))
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
    let library = library()?;
    let parent = library.parent().context("the cache has no top")?;
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    fs::rename(folder.join(INSIDE), &library)
        .with_context(|| format!("moving {INSIDE} to {}", library.display()))
}
