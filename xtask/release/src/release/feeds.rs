//! Feeds in a folder that any web server can serve: packages of earlier releases stay in them, and the indices
//! are made anew by each family's own tool.

use super::Files;
use super::keys::Gpg;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::Path;
use xtask::archive::checksum;
use xtask::setup::dist as tools;
use xtask::shell;

/// As Debian calls the processors.
const DEBIAN: [&str; 2] = ["amd64", "arm64"];

/// `pool/*.deb` and `dists/stable`, signed inside (`InRelease`) and beside (`Release.gpg`).
pub(super) fn apt(files: &Files, folder: &Path, gpg: &Gpg) -> Result<()> {
    for deb in &files.debs {
        add(deb, &folder.join("pool"))?;
    }
    for processor in DEBIAN {
        let index = folder.join("dists/stable/main").join(format!("binary-{processor}"));
        make_folder(&index)?;
        let packages = ["--arch", processor, "packages", "pool"];
        let text = shell::capture(shell::program("apt-ftparchive", packages).current_dir(folder))?;
        write(&index.join("Packages"), &text)?;
        let compress = ["--no-name", "--best", "--keep", "--force"];
        shell::run(shell::program("gzip", compress).arg(index.join("Packages")))?;
    }
    let dist = folder.join("dists/stable");
    for old in ["Release", "Release.gpg", "InRelease"] {
        remove(&dist.join(old))?;
    }
    let mut command = shell::program("apt-ftparchive", [] as [&str; 0]);
    for setting in [
        "Origin=gpuwho",
        "Label=gpuwho",
        "Suite=stable",
        "Codename=stable",
        "Components=main",
        &format!("Architectures={}", DEBIAN.join(" ")),
    ] {
        command.arg("-o").arg(format!("APT::FTPArchive::Release::{setting}"));
    }
    let text = shell::capture(command.args(["release", "dists/stable"]).current_dir(folder))?;
    let release = dist.join("Release");
    write(&release, &text)?;
    gpg.detached(&release, &dist.join("Release.gpg"))?;
    gpg.around(&release, &dist.join("InRelease"))
}

/// `PROCESSOR/*.rpm`, each of them signed, with a signed `repodata`.
pub(super) fn rpm(files: &Files, folder: &Path, gpg: &Gpg) -> Result<()> {
    for rpm in &files.rpms {
        let processor = rpm.file_stem().and_then(|stem| Path::new(stem).extension());
        let folder = folder.join(processor.context("a package without a processor")?);
        make_folder(&folder)?;
        add_signed(rpm, &folder, gpg)?;
        rpm_index(&folder, gpg)?;
    }
    Ok(())
}

/// The index of a folder of packages.
pub(super) fn rpm_index(folder: &Path, gpg: &Gpg) -> Result<()> {
    let options = ["--quiet", "--no-database", "--general-compress-type=gz"];
    shell::run(shell::program("createrepo_c", options).arg(folder))?;
    let top = folder.join("repodata/repomd.xml");
    gpg.detached(&top, &top.with_extension("xml.asc"))
}

/// Signs a copy of the package, unless the package is there.
fn add_signed(rpm: &Path, folder: &Path, gpg: &Gpg) -> Result<()> {
    let name = rpm.file_name().context("a package without a name")?;
    let published = folder.join(name);
    if published.exists() {
        // A signature changes the bytes, and not this checksum.
        ensure!(header(&published)? == header(rpm)?, taken(&published));
        return Ok(());
    }
    // Moved there when it is signed, so that no other is ever published.
    let copy = gpg.home().join(name);
    fs::copy(rpm, &copy).with_context(|| format!("copying {}", rpm.display()))?;
    let program = shell::on_path("gpg").context("no gpg")?;
    let mut sign = shell::program("rpmsign", ["--addsign"]);
    sign.args(["--define", &format!("_gpg_name {}", gpg.fingerprint())]);
    sign.args(["--define", &format!("__gpg {}", program.display())]);
    shell::run(sign.arg(&copy).env("GNUPGHOME", gpg.home()))?;
    add(&copy, folder)
}

/// The checksum of all that a package's signature is of.
fn header(rpm: &Path) -> Result<String> {
    let query = ["--query", "--package", "--nosignature", "--queryformat", "%{SHA256HEADER}"];
    let text = shell::capture(shell::program("rpm", query).arg(rpm))?;
    ensure!(text.len() == 64, "{} has no checksum: {text}", rpm.display());
    Ok(text)
}

/// `*.tgz` and `index.yaml`, whose addresses are relative to its own.
pub(super) fn charts(files: &Files, folder: &Path) -> Result<()> {
    add(&files.chart, folder)?;
    let helm = tools::build_go_program(tools::HELM)?;
    shell::run(shell::program(helm, ["repo", "index"]).arg(folder))
}

/// Copies a file into a folder of published files.
fn add(file: &Path, folder: &Path) -> Result<()> {
    make_folder(folder)?;
    let to = folder.join(file.file_name().context("a file without a name")?);
    if to.exists() {
        ensure!(checksum(file)? == checksum(&to)?, taken(&to));
        return Ok(());
    }
    let unfinished = to.with_extension("unfinished");
    fs::copy(file, &unfinished).with_context(|| format!("copying to {}", unfinished.display()))?;
    fs::rename(&unfinished, &to).with_context(|| format!("moving to {}", to.display()))
}

fn taken(path: &Path) -> String {
    format!("{} is published and is another: raise the version", path.display())
}

fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            bail!("removing {}: {error}", path.display())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::add;
    use std::fs;

    #[test]
    fn what_is_published_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (file, feed) = (folder.path().join("a.deb"), folder.path().join("pool"));
        fs::write(&file, "one").unwrap();
        add(&file, &feed).unwrap();
        add(&file, &feed).unwrap();
        fs::write(&file, "other").unwrap();
        let error = add(&file, &feed).unwrap_err().to_string();
        assert!(error.ends_with("a.deb is published and is another: raise the version"), "{error}");
        assert_eq!(fs::read_to_string(feed.join("a.deb")).unwrap(), "one");
        assert_eq!(fs::read_dir(&feed).unwrap().count(), 1);
    }
}
