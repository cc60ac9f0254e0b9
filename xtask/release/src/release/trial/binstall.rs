//! The program by `cargo binstall`, which takes HTTPS alone.

use super::super::Files;
use super::{said, servers};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::archive::checksum;
use xtask::setup::dist as tools;
use xtask::{place, shell};

/// Installs for each processor by what agent/Cargo.toml says, from a server that stands for the repository's.
pub(super) fn binstall(files: &Files, work: &Path) -> Result<()> {
    let site = work.join("site");
    let releases = site.join(format!("releases/download/v{}", env!("CARGO_PKG_VERSION")));
    fs::create_dir_all(&releases).context("making a folder")?;
    shell::run(shell::program("cp", ["-a"]).arg(files.folder.join(".")).arg(&releases))?;
    let (server, certificate) = servers::tls(&site, work)?;
    let manifest = manifest(&format!("https://{}", server.address), work)?;
    for processor in ["x86_64", "aarch64"] {
        said(&format!("cargo binstall for {processor}"));
        let root = work.join("binstall").join(processor);
        let target = format!("{processor}-unknown-linux-gnu");
        let options = ["--no-confirm", "--disable-telemetry", "--targets", &target, "gpuwho"];
        let mut command = shell::program(tools::binstall()?, options);
        command.arg("--manifest-path").arg(&manifest).arg("--root").arg(&root);
        command.arg("--root-certificates").arg(&certificate).env("CARGO_HOME", &root);
        shell::run(&mut command)?;
        let base = format!("gpuwho-{}-linux-{processor}/gpuwho", env!("CARGO_PKG_VERSION"));
        let wanted = checksum(&work.join(base))?;
        ensure!(checksum(&root.join("bin/gpuwho"))? == wanted, "another program for {processor}");
    }
    Ok(())
}

/// The agent's package with this repository, and without what only its sources need.
fn manifest(repository: &str, work: &Path) -> Result<PathBuf> {
    let path = place::root().join("agent/Cargo.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let agent: toml::Table = text.parse().context("reading agent/Cargo.toml")?;
    let metadata = agent.get("package").and_then(|package| package.get("metadata"));
    let metadata = metadata.context("agent/Cargo.toml has no metadata")?.clone();
    let package: [(&str, toml::Value); 4] = [
        ("name", "gpuwho".into()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("repository", repository.into()),
        ("metadata", metadata),
    ];
    let package: toml::Table =
        package.map(|(key, value)| (key.to_owned(), value)).into_iter().collect();
    // A workspace of its own, or cargo takes it for a part of the one above.
    let manifest = format!(
        "[workspace]\n{}",
        toml::Table::from_iter([("package".to_owned(), package.into())])
    );
    let folder = work.join("package");
    fs::create_dir_all(folder.join("src")).context("making a folder")?;
    fs::write(folder.join("src/main.rs"), "").context("writing a program")?;
    let path = folder.join("Cargo.toml");
    fs::write(&path, manifest).context("writing a manifest")?;
    Ok(path)
}
