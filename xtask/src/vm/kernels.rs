//! Debian kernels, unpacked into the cache without installing them.

use super::initramfs;
use super::machine::{Machine, NEWEST};
use crate::apt::{Apt, Archive};
use crate::place;
use anyhow::{Context as _, Result};
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
const FLAVOUR: &str = "-cloud-";

/// A kernel to boot.
#[derive(Debug)]
pub(super) struct Kernel {
    /// As `uname -r` says it.
    pub(super) version: String,
    /// The bootable image.
    pub(super) image: PathBuf,
}

/// What can be had for a machine; the lists are fetched when the first kernel is asked for.
pub(super) struct Catalog {
    machine: &'static Machine,
    packages: Option<Vec<String>>,
}

impl Catalog {
    /// Of a machine's processor.
    pub(super) fn of(machine: &'static Machine) -> Self {
        Self { machine, packages: None }
    }

    /// The newest kernel whose version begins so. Without the network, one from the cache.
    pub(super) fn fetch(&mut self, prefix: &str) -> Result<Kernel> {
        self.online(prefix).or_else(|error| cached(self.machine, prefix)?.ok_or(error))
    }

    fn online(&mut self, prefix: &str) -> Result<Kernel> {
        let package = newest(self.packages()?, prefix).context("no such package")?.to_owned();
        self.unpack(&package)
    }

    /// Busybox for the machine, which needs no library.
    pub(super) fn busybox(&mut self) -> Result<PathBuf> {
        if self.machine.is_here() {
            return initramfs::busybox();
        }
        let kept = place::cache("kernels")?.join(format!("busybox-{}", self.machine.name));
        if !kept.is_file() {
            self.packages()?;
            self.take("busybox-static", &kept, |work| Some(work.join("bin/busybox")))?;
        }
        Ok(kept)
    }

    fn packages(&mut self) -> Result<&[String]> {
        if self.packages.is_none() {
            let apt = self.apt()?;
            apt.fetch(SUITES)?;
            let pattern = format!("^linux-(image|binary)-[0-9].*{}$", flavour(self.machine));
            self.packages = Some(apt.search(&pattern)?);
        }
        Ok(self.packages.as_deref().unwrap_or_default())
    }

    fn apt(&self) -> Result<Apt> {
        let state = place::cache("kernels")?.join(format!("apt-{}", self.machine.name));
        Ok(Apt::of(&state, self.machine.name))
    }

    /// Downloads and unpacks a kernel's package, unless it has been before.
    fn unpack(&self, package: &str) -> Result<Kernel> {
        let version = version_of(package).context("not a kernel package")?.to_owned();
        let folder = place::cache("kernels")?.join(&version);
        let image = folder.join("vmlinuz");
        if !image.is_file() {
            fs::create_dir_all(&folder).context("making the kernel's folder")?;
            self.take(package, &image, |work| find_image(work, &version))?;
        }
        Ok(Kernel { version, image })
    }

    /// Downloads a package and keeps one file of it.
    fn take(
        &self,
        package: &str,
        keep: &Path,
        find: impl FnOnce(&Path) -> Option<PathBuf>,
    ) -> Result<()> {
        let work = place::cache("kernels")?.join(format!("unpack-{}", std::process::id()));
        fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
        let result = self.apt()?.unpack(package, &work).and_then(|()| {
            let from = find(&work).with_context(|| format!("{package} lacks what it is for"))?;
            fs::rename(from, keep).with_context(|| format!("making {}", keep.display()))
        });
        fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
        result
    }
}

fn flavour(machine: &Machine) -> String {
    format!("{FLAVOUR}{}", machine.name)
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
    let is_one_kernel = version.contains(FLAVOUR) && numbers(version).len() >= 3;
    (is_one_kernel && version.starts_with(|c: char| c.is_ascii_digit())).then_some(version)
}

fn matches(version: &str, prefix: &str) -> bool {
    let rest = version.strip_prefix(prefix);
    prefix == NEWEST || rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The numbers of a version in order, for comparing.
fn numbers(version: &str) -> Vec<u64> {
    let version = version.split(FLAVOUR).next().unwrap_or_default();
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
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
fn cached(machine: &Machine, prefix: &str) -> Result<Option<Kernel>> {
    let flavour = flavour(machine);
    let kernels = place::cache("kernels")?;
    let entries =
        fs::read_dir(&kernels).with_context(|| format!("reading {}", kernels.display()))?;
    let versions = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let unpacked = versions.filter(|version| kernels.join(version).join("vmlinuz").is_file());
    let fit = unpacked.filter(|version| version.ends_with(&flavour) && matches(version, prefix));
    let newest = fit.max_by_key(|version| numbers(version));
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
