//! `cargo xtask release`: what `cargo xtask dist` made goes to feeds for apt, dnf and Helm in a folder, and to
//! a registry, all of it signed. A file that is published stays as it is: hosts have its checksum.

mod feeds;
mod keys;
mod registry;
mod trial;

use anyhow::{Context as _, Result, ensure};
use keys::{Gpg, Surroundings};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::setup::{self, Want};
use xtask::{place, shell};

/// What `cargo xtask release` can be asked.
#[derive(clap::Args)]
#[group(skip)]
#[command(group(clap::ArgGroup::new("where").required(true).multiple(true)))]
pub(crate) struct Request {
    /// What `cargo xtask dist` made; default: target/dist/VERSION
    #[arg(long, value_name = "FOLDER")]
    dist: Option<PathBuf>,
    /// Add packages and chart to the feeds in this folder, and sign feeds and SHA256SUMS with the OpenPGP key in
    /// `GPG_PRIVATE_KEY`
    #[arg(long, value_name = "FOLDER", group = "where")]
    to: Option<PathBuf>,
    /// Push image and chart to this registry, such as ghcr.io/NAME, and sign them with the key in
    /// `COSIGN_PRIVATE_KEY` and `COSIGN_PASSWORD`
    #[arg(long, value_name = "REGISTRY", group = "where")]
    registry: Option<String>,
    /// Try it all on this machine: real registry, cosign, apt, dnf and Helm, with keys of the moment
    #[arg(long = "try", group = "where", conflicts_with_all = ["to", "registry"])]
    trial: bool,
}

/// `cargo xtask release`.
pub(crate) fn release(request: &Request) -> Result<()> {
    setup::ensure(&["release"], Want::Must)?;
    let version = env!("CARGO_PKG_VERSION");
    let dist = request.dist.clone().unwrap_or_else(|| place::target("dist").join(version));
    let files = Files::of(&dist)?;
    if request.trial {
        return trial::trial(&files);
    }
    let surroundings = Surroundings::default();
    // Both, before anything is published.
    if request.to.is_some() {
        keys::require_gpg(&surroundings)?;
    }
    if request.registry.is_some() {
        keys::require_cosign(&surroundings)?;
    }
    if let Some(folder) = &request.to {
        publish(&files, folder, &surroundings)?;
    }
    if let Some(registry) = &request.registry {
        registry::push(&files, registry, &surroundings)?;
    }
    Ok(())
}

/// The feeds, and the signature of the checksums beside them.
fn publish(files: &Files, folder: &Path, surroundings: &Surroundings) -> Result<()> {
    let gpg = Gpg::new(surroundings)?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    // Other programs are started in other folders.
    let folder = folder.canonicalize().with_context(|| format!("no {}", folder.display()))?;
    for place in [&folder, &files.folder] {
        gpg.export(&place.join(keys::PUBLIC))?;
    }
    gpg.detached(&files.folder.join(SUMS), &files.folder.join("SHA256SUMS.asc"))?;
    feeds::apt(files, &folder.join("apt"), &gpg)?;
    feeds::rpm(files, &folder.join("rpm"), &gpg)?;
    feeds::charts(files, &folder.join("charts"))
}

/// The checksums of all files of a release.
const SUMS: &str = "SHA256SUMS";

/// The files of a release that feeds and registries get.
#[derive(Clone)]
struct Files {
    folder: PathBuf,
    debs: Vec<PathBuf>,
    rpms: Vec<PathBuf>,
    chart: PathBuf,
    image: PathBuf,
}

impl Files {
    /// Those in the folder, which must be as they were made.
    fn of(folder: &Path) -> Result<Self> {
        // Other programs are started in other folders.
        let folder = folder
            .canonicalize()
            .with_context(|| format!("no {}: run `cargo xtask dist`", folder.display()))?;
        let check = ["--check", "--strict", "--quiet", SUMS];
        shell::run(shell::program("sha256sum", check).current_dir(&folder))?;
        let sums = fs::read_to_string(folder.join(SUMS))
            .with_context(|| format!("reading {SUMS} in {}", folder.display()))?;
        let named = |end: &str| -> Vec<PathBuf> {
            let names = sums.lines().filter_map(|line| line.split_once("  "));
            names.filter(|(_, name)| name.ends_with(end)).map(|(_, n)| folder.join(n)).collect()
        };
        let (debs, rpms) = (named(".deb"), named(".rpm"));
        ensure!(
            debs.len() == 2 && rpms.len() == 2,
            "{} has no packages for both processors",
            folder.display()
        );
        let version = env!("CARGO_PKG_VERSION");
        let one = |name: String| {
            let found = named(&name).pop();
            found.with_context(|| format!("{} has no {name}", folder.display()))
        };
        let (chart, image) =
            (one(format!("gpuwho-{version}.tgz"))?, one(format!("gpuwho-{version}-oci.tar"))?);
        Ok(Self { folder: folder.clone(), debs, rpms, chart, image })
    }
}

#[cfg(test)]
mod tests {
    use super::{Files, Request, SUMS};
    use clap::Args as _;
    use std::fs;
    use xtask::archive::checksum;

    #[test]
    fn it_must_be_said_where_to() {
        let parse = |args: &[&str]| {
            let command = Request::augment_args(clap::Command::new("release"));
            command.try_get_matches_from([&["release", "--dist", "d"], args].concat()).is_ok()
        };
        assert!(!parse(&[]) && !parse(&["--try", "--to", "f"]));
        assert!(parse(&["--to", "f", "--registry", "r"]) && parse(&["--try"]));
    }

    #[test]
    fn files_that_are_not_those_that_were_made_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let mut names = vec![format!("gpuwho-{version}.tgz"), format!("gpuwho-{version}-oci.tar")];
        for processor in ["a", "b"] {
            names.extend(["deb", "rpm"].map(|end| format!("gpuwho_{processor}.{end}")));
        }
        let line = |name: &String| {
            let path = folder.path().join(name);
            fs::write(&path, name).unwrap();
            format!("{}  {name}\n", checksum(&path).unwrap())
        };
        let sums: Vec<_> = names.iter().map(line).collect();
        fs::write(folder.path().join(SUMS), sums.concat()).unwrap();
        let files = Files::of(folder.path()).unwrap();
        assert_eq!((files.debs.len(), files.rpms.len()), (2, 2));
        assert!(files.image.ends_with(format!("gpuwho-{version}-oci.tar")));
        fs::write(&files.chart, "another").unwrap();
        assert!(Files::of(folder.path()).is_err());
        fs::remove_file(&files.chart).unwrap();
        assert!(Files::of(folder.path()).is_err());
    }
}
