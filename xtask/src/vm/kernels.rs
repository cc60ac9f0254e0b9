//! Debian kernels, unpacked into the cache without installing them.

use crate::apt::{Apt, Archive};
use crate::place;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Releases that still have kernels, and which of the two archives they are in.
const SUITES: &[(Archive, &str)] = &[
    (Archive::Main, "bullseye"),
    (Archive::Security, "bullseye-security"),
    (Archive::Main, "bookworm"),
    (Archive::Security, "bookworm-security"),
    (Archive::Main, "trixie-backports"),
];

/// Image packages: from 7.2 on, `linux-image-*` is empty and the kernel is in `linux-binary-*`.
/// The cloud flavour has all that BPF needs and a quarter of the size.
const PACKAGES: &[&str] = &["linux-binary-", "linux-image-"];
const FLAVOUR: &str = "-cloud-amd64";

/// The prefix that stands for the newest kernel of all.
const NEWEST: &str = "newest";

/// A kernel to boot.
#[derive(Debug)]
pub(super) struct Kernel {
    /// As `uname -r` says it.
    pub(super) version: String,
    /// The bootable image.
    pub(super) image: PathBuf,
}

/// What can be had; the lists are fetched when the first kernel is asked for.
#[derive(Default)]
pub(super) struct Catalog {
    packages: Option<Vec<String>>,
}

impl Catalog {
    /// The newest kernel whose version begins so. Without the network, one from the cache.
    pub(super) fn fetch(&mut self, prefix: &str) -> Result<Kernel> {
        let online = self.packages().and_then(|packages| {
            let package = newest(packages, prefix).context("no such package")?.to_owned();
            unpack(&package)
        });
        match online {
            Ok(kernel) => Ok(kernel),
            Err(error) => cached(prefix)?.ok_or(error),
        }
    }

    fn packages(&mut self) -> Result<&[String]> {
        if self.packages.is_none() {
            self.packages = Some(fetch_lists()?);
        }
        Ok(self.packages.as_deref().unwrap_or_default())
    }
}

/// Fetches the suites' package lists and answers the kernels in them.
fn fetch_lists() -> Result<Vec<String>> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("kernels are only looked up for x86-64");
    }
    let apt = Apt::fetch(&place::cache("kernels/apt")?, SUITES)?;
    apt.search("^linux-(image|binary)-[0-9].*-cloud-amd64$")
}

/// The newest package whose kernel's version begins so; 6.1 is not a beginning of 6.12.
fn newest<'a>(packages: &'a [String], prefix: &str) -> Option<&'a str> {
    let candidates = packages.iter().filter_map(|package| {
        let version = version_of(package)?;
        matches(version, prefix).then_some((numbers(version), package.as_str()))
    });
    // Of one version, `linux-image-*` sorts after `linux-binary-*`, but may be empty.
    candidates
        .max_by(|(one, a), (other, b)| one.cmp(other).then_with(|| b.cmp(a)))
        .map(|(_, package)| package)
}

/// `6.1.0-56-cloud-amd64` of `linux-image-6.1.0-56-cloud-amd64`; none for a metapackage.
fn version_of(package: &str) -> Option<&str> {
    let version = PACKAGES.iter().find_map(|kind| package.strip_prefix(kind))?;
    let is_one_kernel = numbers(version.strip_suffix(FLAVOUR)?).len() >= 3;
    (is_one_kernel && version.starts_with(|c: char| c.is_ascii_digit())).then_some(version)
}

fn matches(version: &str, prefix: &str) -> bool {
    let rest = version.strip_prefix(prefix);
    prefix == NEWEST || rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The numbers of a version in order, for comparing.
fn numbers(version: &str) -> Vec<u64> {
    let version = version.strip_suffix(FLAVOUR).unwrap_or(version);
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Downloads and unpacks a package, unless it has been before.
fn unpack(package: &str) -> Result<Kernel> {
    let kernels = place::cache("kernels")?;
    let version = version_of(package).context("not a kernel package")?.to_owned();
    let image = kernels.join(&version).join("vmlinuz");
    if image.is_file() {
        return Ok(Kernel { version, image });
    }
    let work = kernels.join(format!("unpack-{}", std::process::id()));
    fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
    let result = Apt::at(&kernels.join("apt")).unpack(package, &work).and_then(|()| {
        let from = find_image(&work, &version).context("the package has no kernel image")?;
        fs::create_dir_all(kernels.join(&version)).context("making the kernel's folder")?;
        fs::rename(from, &image).context("keeping the kernel image")
    });
    fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
    result.map(|()| Kernel { version, image })
}

/// Debian moved the image from `/boot` to the modules' folder with 7.2.
fn find_image(work: &Path, version: &str) -> Option<PathBuf> {
    let places = [
        format!("boot/vmlinuz-{version}"),
        format!("usr/lib/modules/{version}/vmlinuz"),
        format!("lib/modules/{version}/vmlinuz"),
    ];
    places.iter().map(|place| work.join(place)).find(|path| path.is_file())
}

/// The newest kernel in the cache whose version begins so.
fn cached(prefix: &str) -> Result<Option<Kernel>> {
    let kernels = place::cache("kernels")?;
    let entries =
        fs::read_dir(&kernels).with_context(|| format!("reading {}", kernels.display()))?;
    let versions = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let unpacked = versions.filter(|version| kernels.join(version).join("vmlinuz").is_file());
    let newest = unpacked.filter(|version| matches(version, prefix)).max_by_key(|v| numbers(v));
    Ok(newest.map(|version| Kernel { image: kernels.join(&version).join("vmlinuz"), version }))
}

#[cfg(test)]
mod tests {
    use super::{newest, version_of};

    fn packages() -> Vec<String> {
        [
            "linux-image-5.10.0-46-cloud-amd64",
            "linux-image-6.1-cloud-amd64",
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-7.2.12+deb13-cloud-amd64",
            "linux-binary-7.2.12+deb13-cloud-amd64",
            "linux-binary-unsigned-7.3.4+deb13-cloud-amd64",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    #[test]
    fn the_newest_of_a_series_is_taken_by_number() {
        assert_eq!(newest(&packages(), "6.1"), Some("linux-image-6.1.0-56-cloud-amd64"));
        assert_eq!(newest(&packages(), "6.12"), Some("linux-image-6.12.117+deb12-cloud-amd64"));
        assert_eq!(newest(&packages(), "4.19"), None);
    }

    #[test]
    fn the_newest_of_all_is_the_package_that_has_the_image() {
        assert_eq!(newest(&packages(), "newest"), Some("linux-binary-7.2.12+deb13-cloud-amd64"));
    }

    #[test]
    fn a_metapackage_is_no_kernel() {
        assert_eq!(version_of("linux-image-6.1-cloud-amd64"), None);
        assert_eq!(version_of("linux-image-cloud-amd64"), None);
    }
}
