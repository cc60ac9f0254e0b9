//! Packages that are not the release's: of an earlier one, and what stands for a distribution.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use xtask::setup::dist as tools;
use xtask::shell;

/// A release that was published before.
pub(super) const EARLIER: &str = "0.0.1";

/// Puts packages and chart of the earlier release into the feeds' folder.
pub(super) fn earlier(feed: &Path, work: &Path) -> Result<()> {
    let about = json!({ "name": "gpuwho", "arch": "amd64", "version": EARLIER });
    package(&about, &feed.join(format!("apt/pool/gpuwho_{EARLIER}-1_amd64.deb")), work)?;
    package(&about, &feed.join(format!("rpm/x86_64/gpuwho-{EARLIER}-1.x86_64.rpm")), work)?;
    let helm = tools::build_go_program(tools::HELM)?;
    let mut chart = shell::program(helm, ["package", "deploy/helm/gpuwho", "--version", EARLIER]);
    shell::run(chart.arg("--destination").arg(feed.join("charts")))
}

/// A feed without signatures that has what our package needs, in the folder.
pub(super) fn base(folder: &Path, work: &Path) -> Result<()> {
    let provides = ["glibc = 2.28", "/bin/sh"];
    let about = json!({ "name": "base", "arch": "all", "version": "1", "provides": provides });
    package(&about, &folder.join("base.rpm"), work)?;
    shell::run(shell::program("createrepo_c", ["--quiet"]).arg(folder))
}

/// A package without files, of the kind that its name ends with.
fn package(about: &Value, to: &Path, work: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("no folder")?).context("making a feed's folder")?;
    let mut about = about.clone();
    for (key, value) in [("platform", "linux"), ("release", "1"), ("maintainer", "trial")] {
        about[key] = value.into();
    }
    let config = work.join("package.json");
    fs::write(&config, about.to_string()).context("writing a package's description")?;
    let nfpm = tools::build_go_program(tools::NFPM)?;
    let mut command = shell::program(nfpm, ["package", "--config"]);
    shell::run(command.arg(&config).arg("--target").arg(to))
}
