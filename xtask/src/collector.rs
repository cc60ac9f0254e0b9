//! Builds the real OpenTelemetry Collector of `tests/collector` once for each state of its sources.

use crate::setup::{self, Want};
use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that tells the tests where the Collector is.
pub(crate) const VARIABLE: &str = "GPUWHO_COLLECTOR";

/// What the binary is made of.
const SOURCES: &[&str] = &["go.mod", "go.sum", "main.go"];

/// `cargo xtask collector`.
pub(crate) fn print_path() -> Result<()> {
    setup::ensure(&["collector"], Want::Must)?;
    println!("{}", build()?.display());
    Ok(())
}

/// The Collector for a test run, or why there is none.
pub(crate) fn for_tests() -> Result<PathBuf> {
    setup::ensure(&["collector"], Want::Must)?;
    build()
}

fn build() -> Result<PathBuf> {
    let source = place::root().join("tests/collector");
    let binary = place::cache("collector")?.join(format!("collector-{:016x}", key(&source)?));
    if binary.is_file() {
        return Ok(binary);
    }
    let go = setup::go().context("no suitable Go")?;
    eprintln!("building the OpenTelemetry Collector: some minutes the first time");
    // Built beside the final name and moved, so that an interrupted build is never used.
    let unfinished = binary.with_extension("unfinished");
    let mut command = shell::program(go, ["build", "-trimpath", "-ldflags=-s -w", "-o"]);
    command.arg(&unfinished).arg(".").current_dir(&source);
    // Static, and with exactly the Go that was chosen.
    shell::run(command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local"))?;
    fs::rename(&unfinished, &binary).with_context(|| format!("moving to {}", binary.display()))?;
    Ok(binary)
}

fn key(source: &Path) -> Result<u64> {
    let mut hash = place::FNV_OFFSET;
    for name in SOURCES {
        let path = source.join(name);
        let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        hash = place::fnv1a(hash, name.as_bytes());
        hash = place::fnv1a(hash, &bytes);
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::key;
    use crate::place;

    #[test]
    fn another_component_list_is_another_collector() {
        let source = place::root().join("tests/collector");
        let copy = tempfile::tempdir().unwrap();
        for name in super::SOURCES {
            std::fs::copy(source.join(name), copy.path().join(name)).unwrap();
        }
        assert_eq!(key(&source).unwrap(), key(copy.path()).unwrap());
        std::fs::write(copy.path().join("main.go"), "package main\n").unwrap();
        assert_ne!(key(&source).unwrap(), key(copy.path()).unwrap());
    }
}
