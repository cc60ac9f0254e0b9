//! A Go that can build the OpenTelemetry Collector.
//!
//! Distributions carry older ones, but any Go can fetch a newer toolchain as the checksummed
//! module `golang.org/toolchain`; that is how `GOTOOLCHAIN=auto` works too, which Go has only since
//! 1.21 and which some systems switch off.

use super::{State, packages};
use crate::{place, shell};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// Oldest Go that the Collector's modules accept (their `go` line).
const OLDEST: (u32, u32) = (1, 26);

/// Fetched where the system's Go is older.
const FETCHED: &str = "1.26.8";

pub(super) fn probe() -> State {
    match suitable() {
        Some((program, (major, minor))) => {
            State::Ready(format!("Go {major}.{minor} ({})", program.display()))
        }
        None => State::Missing(format!("no Go >= {}.{}", OLDEST.0, OLDEST.1)),
    }
}

/// The first Go that is new enough: the system's, else the fetched one.
pub(super) fn suitable() -> Option<(PathBuf, (u32, u32))> {
    let fetched = fetched_go().ok().filter(|program| program.is_file());
    [shell::on_path("go"), fetched].into_iter().flatten().find_map(|program| {
        let version = version_of(&program)?;
        (version >= OLDEST).then_some((program, version))
    })
}

pub(super) fn install() -> Result<()> {
    if shell::on_path("go").is_none() {
        packages::install(&["golang-go".to_owned()])?;
    }
    let system = shell::on_path("go").context("no go after installing it")?;
    let module = format!("golang.org/toolchain@v0.0.1-go{FETCHED}.linux-{}", machine()?);
    eprintln!("+ {} mod download {module}", system.display());
    let mut download = shell::program(system, ["mod", "download", "-json", &module]);
    // Outside the repository, where there is no Go module to be confused by.
    let answer = shell::capture(download.current_dir("/"))?;
    let folder = json_string(&answer, "Dir").context("go mod download named no folder")?;
    make_executable(Path::new(&folder))?;
    let link = place::cache("go")?.join("current");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link).with_context(|| format!("removing {}", link.display()))?;
    }
    symlink(&folder, &link).with_context(|| format!("linking {}", link.display()))
}

fn fetched_go() -> Result<PathBuf> {
    Ok(place::cache("go")?.join("current/bin/go"))
}

fn version_of(program: &Path) -> Option<(u32, u32)> {
    // Without GOTOOLCHAIN=local, a newer Go might be fetched only to answer.
    let mut command = shell::program(program, ["version"]);
    parse_version(&shell::capture(command.env("GOTOOLCHAIN", "local").current_dir("/")).ok()?)
}

/// The version in `go version go1.26.8 linux/amd64`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    let minor: String = word.chars().take_while(char::is_ascii_digit).collect();
    Some((1, minor.parse().ok()?))
}

/// Go's word for this machine's architecture.
fn machine() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no Go toolchain module is known for {other}"),
    }
}

/// The module cache drops the executable bits, which `go` itself would put back.
fn make_executable(toolchain: &Path) -> Result<()> {
    let mut folders = vec![toolchain.join("bin"), toolchain.join("pkg/tool")];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o555))
                    .with_context(|| format!("making {} executable", path.display()))?;
            }
        }
    }
    Ok(())
}

/// A string field of Go's one-field-a-line JSON.
fn json_string(text: &str, field: &str) -> Option<String> {
    let key = format!("\"{field}\": \"");
    let value = text.lines().find_map(|line| line.trim().strip_prefix(&key))?;
    Some(value.trim_end_matches(',').trim_end_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::{OLDEST, json_string, parse_version};

    #[test]
    fn go_versions_compare_by_number() {
        assert_eq!(parse_version("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(parse_version("go version go1.26rc1 linux/amd64"), Some((1, 26)));
        assert!(parse_version("go version go1.9 linux/amd64").unwrap() < OLDEST);
        assert_eq!(parse_version("no go"), None);
    }

    #[test]
    fn the_folder_is_read_from_what_go_answers() {
        let answer = "{\n\t\"Version\": \"v0.0.1\",\n\t\"Dir\": \"/m/toolchain@v0.0.1\",\n\t\"Sum\": \"h1:x\"\n}";
        assert_eq!(json_string(answer, "Dir").as_deref(), Some("/m/toolchain@v0.0.1"));
        assert_eq!(json_string(answer, "Error"), None);
    }
}
