//! The Debian packages that the image is made of: those that `xtask/release/image-packages.txt` names by version and
//! checksum, so that every release says which it has. `cargo xtask dist --renew-base` names the newest.

use super::binary::{PROCESSORS, Processor};
use anyhow::{Context as _, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use xtask::apt::{Apt, Archive};
use xtask::archive::{Stage, checksum};
use xtask::place;

/// The release of Debian that the packages are of, and its security updates.
pub(super) const SUITE: &str = "trixie";
const SUITES: &[(Archive, &str)] =
    &[(Archive::Main, SUITE), (Archive::Security, "trixie-security")];
/// The packages that the image is made of.
pub(super) const PACKAGES: [&str; 4] = ["libc6", "libgcc-s1", "libstdc++6", "ca-certificates"];
/// The oldest release that the program is started on, and the packages for that.
const OLDEST_SUITE: &str = "bullseye";
const LIBRARY_PACKAGES: [&str; 3] = ["libc6", "libgcc-s1", "libstdc++6"];

/// One line a package: processor, package, version, SHA-256.
const LIST: &str = "xtask/release/image-packages.txt";
const TEXT: &str = include_str!("../../image-packages.txt");
const RENEW: &str = "`cargo xtask dist --renew-base`";

/// The image's packages for a processor, unpacked in the cache.
pub(super) fn pinned(processor: &Processor) -> Result<PathBuf> {
    let lines: Vec<_> = lines(TEXT).filter(|line| line[0] == processor.debian).collect();
    let key = lines
        .iter()
        .flatten()
        .fold(place::FNV_OFFSET, |hash, word| place::fnv1a(hash, word.as_bytes()));
    unpacked(processor, &format!("{SUITE}-{}-{key:016x}", processor.debian), SUITES, |apt, to| {
        for [_, package, version, wanted] in &lines {
            apt.unpack(&format!("{package}={version}"), to)
                .with_context(|| format!("the archive may have a newer one: {RENEW}"))?;
            let found = checksum(&deb(to, package)?)?;
            ensure!(found == *wanted, "{package} {version} is another than in {LIST}: {found}");
        }
        Ok(())
    })
}

/// The oldest C library that can be had, glibc 2.31: to start the program, not to publish.
pub(super) fn oldest(processor: &Processor) -> Result<PathBuf> {
    let name = format!("{OLDEST_SUITE}-libraries-{}", processor.debian);
    unpacked(processor, &name, &[(Archive::Main, OLDEST_SUITE)], |apt, to| {
        // Not the version that this machine has installed.
        LIBRARY_PACKAGES
            .iter()
            .try_for_each(|package| apt.unpack(&format!("{package}/{OLDEST_SUITE}"), to))
    })
}

/// Names the newest packages in the list.
pub(super) fn renew() -> Result<()> {
    let mut text =
        format!("# The packages of the image's base, of Debian {SUITE}, written by {RENEW}.\n");
    for processor in PROCESSORS {
        let name = format!("apt-{SUITE}-{}", processor.debian);
        let apt = Apt::of(&place::cache("image")?.join(name), processor.debian);
        apt.fetch(SUITES)?;
        for package in PACKAGES {
            let [version, sum] = apt.newest(package)?;
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} {package} {version} {sum}", processor.debian);
        }
    }
    let path = place::root().join(LIST);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

/// What a folder of the cache has once it was filled.
fn unpacked(
    processor: &Processor,
    name: &str,
    suites: &[(Archive, &str)],
    fill: impl Fn(&Apt, &Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = place::cache("image")?;
    let kept = cache.join(name);
    if kept.is_dir() {
        return Ok(kept);
    }
    let apt = Apt::of(&cache.join(format!("apt-{name}")), processor.debian);
    apt.fetch(suites)?;
    // Unpacked beside the final name and moved, so that an interrupted one is never used.
    let unfinished = Stage::new(&cache.join(format!("unpack-{name}")))?;
    fill(&apt, unfinished.folder())?;
    fs::rename(unfinished.folder(), &kept)
        .with_context(|| format!("moving to {}", kept.display()))?;
    Ok(kept)
}

/// A package's file in a folder that it was unpacked into.
pub(super) fn deb(folder: &Path, package: &str) -> Result<PathBuf> {
    let start = format!("{package}_");
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let found = paths.find(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start))
    });
    found.with_context(|| format!("no package {package} in {}", folder.display()))
}

fn lines(text: &str) -> impl Iterator<Item = [&str; 4]> {
    let words = text.lines().filter(|line| !line.starts_with('#')).map(str::split_whitespace);
    words.filter_map(|words| words.collect::<Vec<_>>().try_into().ok())
}

#[cfg(test)]
mod tests {
    use super::{PACKAGES, TEXT, lines};
    use crate::dist::binary::PROCESSORS;

    #[test]
    fn every_package_has_its_version_and_checksum_for_every_processor() {
        let wanted = PROCESSORS.iter().flat_map(|of| PACKAGES.map(|package| [of.debian, package]));
        let listed = lines(TEXT).map(|[processor, package, ..]| [processor, package]);
        assert_eq!(listed.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        for [_, package, version, sum] in lines(TEXT) {
            let is_sum = sum.len() == 64 && sum.chars().all(|digit| digit.is_ascii_hexdigit());
            assert!(is_sum && version.starts_with(char::is_numeric), "{package} {version} {sum}");
        }
    }
}
