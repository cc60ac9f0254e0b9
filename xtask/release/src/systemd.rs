//! `cargo xtask systemd`: the release's Debian package on a host whose first process is systemd: installed,
//! started, rebooted, upgraded, without each capability in turn, removed, purged; then the RPM by `rpm` itself.
//!
//! The host is a virtual machine of Debian's packages (mmdebstrap), with Debian's kernel, under QEMU. It
//! has no network, and the fake driver library in place of a driver. Slow: not part of `cargo xtask ci`.

mod checks;
mod disk;
mod guest;

use crate::dist;
use anyhow::{Context as _, Result, bail, ensure};
pub(crate) use disk::archive;
use disk::{Extra, Suite};
use guest::Guest;
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtask::setup::{self, Want, dist as tools};
use xtask::{place, shell};

/// Of all checks of one guest, emulated on a busy machine.
const LIMIT: Duration = Duration::from_mins(40);

/// What `cargo xtask systemd` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only this release of Debian; may be repeated
    #[arg(long = "suite", value_name = "NAME", value_parser = disk::names())]
    suites: Vec<String>,
    /// The package, for example of `cargo xtask dist`; default: made of this tree, without
    /// whole-program optimisation
    #[arg(long, value_name = "FILE")]
    deb: Option<PathBuf>,
    /// Use /dev/kvm; some machines' cannot run an unmodified kernel
    #[arg(long)]
    kvm: bool,
}

/// `cargo xtask systemd`.
pub(crate) fn systemd(request: &Request) -> Result<()> {
    ensure!(ARCH == "x86_64", "the guests are x86-64, and so must this machine be");
    setup::ensure(&["vm", "guest", "dist"], Want::Must)?;
    let work = Work::new()?;
    let deb = match &request.deb {
        Some(deb) => deb.canonicalize().with_context(|| format!("no package {}", deb.display()))?,
        None => dist::deb(&work.0.join("deb"))?,
    };
    let extra = extra(&deb, &work.0)?;
    let is_due = |suite: &&Suite| {
        request.suites.is_empty() || request.suites.iter().any(|name| name == suite.name)
    };
    let mut failed = Vec::new();
    for suite in disk::SUITES.iter().filter(is_due) {
        println!("-- Debian {} ({})", suite.release, suite.name);
        match check(suite, &extra, &work.0, request.kvm) {
            Ok(()) => println!("passed on {}", suite.name),
            Err(error) => {
                println!("FAILED: {error:#}");
                failed.push(suite.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("failed on {}", failed.join(", "));
    }
    Ok(())
}

/// All checks of one release; shows the guest's logs where one fails.
fn check(suite: &Suite, extra: &Extra, work: &Path, kvm: bool) -> Result<()> {
    let host = disk::make(suite, extra, work)?;
    let mut guest = Guest::start(&host, kvm, LIMIT)?;
    checks::all(&mut guest)
        .inspect_err(|_| println!("{}\n{}", checks::log(&mut guest), guest.console()))
}

/// A folder for disks and sockets until this is dropped.
struct Work(PathBuf);

impl Work {
    fn new() -> Result<Self> {
        let path = place::cache("systemd")?.join(format!("work-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Left behind it is space in the cache only.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the guest has beside Debian: two versions of each package, and the fake driver.
fn extra(deb: &Path, work: &Path) -> Result<Extra> {
    let newer = work.join("newer.deb");
    newer_version(deb, &newer, &work.join("newer"))?;
    let [rpm, newer_rpm] = dist::rpms(deb, work)?;
    Ok(Extra {
        files: vec![
            (deb.to_owned(), "opt/check/gpuwho.deb"),
            (newer, "opt/check/newer.deb"),
            (rpm, "opt/check/gpuwho.rpm"),
            (newer_rpm, "opt/check/newer.rpm"),
            (fake_nvml()?, "opt/check/libnvidia-ml.so.1"),
            (
                place::root().join("tests/fakes/nvml/scenarios/h100x8.toml"),
                "opt/check/scenario.toml",
            ),
        ],
    })
}

/// The same package with a higher version, and another sample configuration.
fn newer_version(deb: &Path, newer: &Path, folder: &Path) -> Result<()> {
    shell::run(shell::program("dpkg-deb", ["-R"]).arg(deb).arg(folder))?;
    let edit = |file: &str, change: &dyn Fn(&str) -> String| {
        let path = folder.join(file);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        fs::write(&path, change(&text)).with_context(|| format!("writing {}", path.display()))
    };
    edit("DEBIAN/control", &|text| {
        let lines = text.lines().map(|line| match line.strip_prefix("Version: ") {
            Some(version) => format!("Version: {version}+newer\n"),
            None => format!("{line}\n"),
        });
        lines.collect()
    })?;
    edit("etc/gpuwho/gpuwho.toml", &|text| format!("{text}\n# A line of the newer version.\n"))?;
    shell::run(shell::program("dpkg-deb", ["--root-owner-group", "-b"]).arg(folder).arg(newer))
}

/// The fake driver library, for the C library of the oldest guest.
fn fake_nvml() -> Result<PathBuf> {
    let triple = "x86_64-unknown-linux-gnu";
    let mut command = shell::program("cargo", ["zigbuild", "--locked", "--lib"]);
    command.args(["--package", "gpuwho-fake-nvml", "--target", &format!("{triple}.2.28")]);
    command.env("PATH", tools::search_path()?).env("CARGO_ZIGBUILD_ZIG_PATH", tools::zig()?);
    command.env("CARGO_ZIGBUILD_CACHE_DIR", place::target("dist/zig"));
    command.env("ZIG_GLOBAL_CACHE_DIR", place::target("dist/zig-global"));
    shell::run(&mut command)?;
    Ok(place::target(triple).join("debug/libnvidia_ml.so"))
}
