//! The real NCCL, for a test that needs no device: from NVIDIA's wheel, 320 MB, once.

use super::State;
use super::wheel::Wheel;
use anyhow::Result;
use std::path::PathBuf;

const WHEEL: Wheel = Wheel {
    cache: "nccl",
    package: "nvidia-nccl-cu12",
    version: "2.27.5",
    checksum: "ad730cf15cb5d25fe849c6e6ca9eb5b76db16a80f13f425ac68d8e2e55624457",
    inside: "nvidia/nccl/lib/libnccl.so.2",
};

pub(super) fn probe() -> State {
    let version = WHEEL.version;
    match library() {
        Ok(path) if path.is_file() => State::Ready(format!("NCCL {version} ({})", path.display())),
        _ => State::Missing(format!("no NCCL {version} in the cache")),
    }
}

/// Where the library is, once it was fetched.
pub(super) fn library() -> Result<PathBuf> {
    WHEEL.path()
}

pub(super) fn install() -> Result<()> {
    WHEEL.install()
}
