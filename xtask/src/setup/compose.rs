//! Podman's Compose from the Python package index: Debian 12's has neither `pid` nor `network_mode: host`.

use super::wheel::Wheel;
use anyhow::Result;
use std::path::PathBuf;

const WHEEL: Wheel = Wheel {
    cache: "podman-compose",
    package: "podman-compose",
    version: "1.6.0",
    checksum: "98e48af25d44c10ecef948163bfcca002e32aa8bbb7e66593fbd4faff7270c30",
    inside: "podman_compose.py",
};

/// The program, fetched once.
pub fn program() -> Result<PathBuf> {
    let program = WHEEL.path()?;
    if !program.is_file() {
        WHEEL.install()?;
    }
    Ok(program)
}
