//! The files that an installation has, whatever it came as: packages, tarballs and the image are all
//! made from this list.

use std::path::{Path, PathBuf};
use xtask::place;

/// One file.
pub(super) struct File {
    origin: Origin,
    /// Where packages put it.
    pub(super) path: &'static str,
    pub(super) mode: u32,
    pub(super) kind: Kind,
}

/// Where a file comes from.
enum Origin {
    /// This path below the repository's top folder.
    Repository(&'static str),
    /// This name below the folder of what `dist` made for a processor.
    Made(&'static str),
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What the image has as well.
    Everywhere,
    /// What a host needs.
    Host,
    /// What the host's admin changes; packages keep the changes.
    Configuration,
}

/// The program, as `dist` calls it.
pub(super) const PROGRAM: &str = "gpuwho";
/// The licences of all that is linked into the program.
pub(super) const LICENCES: &str = "THIRD-PARTY.txt";

use Kind::{Configuration, Everywhere, Host};
use Origin::{Made, Repository};

/// A page beside METRICS.md, so that its links lead there.
macro_rules! page {
    ($name:literal) => {
        file(
            Repository(concat!("agent/docs/", $name)),
            concat!("/usr/share/doc/gpuwho/docs/", $name),
            0o644,
            Host,
        )
    };
}

/// Every file.
pub(super) const FILES: &[File] = &[
    file(Made(PROGRAM), "/usr/bin/gpuwho", 0o755, Everywhere),
    file(Repository("deploy/gpuwho.toml"), "/etc/gpuwho/gpuwho.toml", 0o644, Configuration),
    file(
        Repository("deploy/systemd/gpuwho.service"),
        "/usr/lib/systemd/system/gpuwho.service",
        0o644,
        Host,
    ),
    file(
        Repository("deploy/slurm/gpuwho-prolog.sh"),
        "/usr/libexec/gpuwho/gpuwho-prolog.sh",
        0o755,
        Host,
    ),
    file(
        Repository("deploy/slurm/gpuwho-epilog.sh"),
        "/usr/libexec/gpuwho/gpuwho-epilog.sh",
        0o755,
        Host,
    ),
    file(
        Repository("deploy/slurm/gpuwho-health.sh"),
        "/usr/libexec/gpuwho/gpuwho-health.sh",
        0o755,
        Host,
    ),
    file(
        Repository("deploy/slurm/gpuwho-receipt.sh"),
        "/usr/libexec/gpuwho/gpuwho-receipt.sh",
        0o755,
        Host,
    ),
    file(Repository("deploy/slurm/README.md"), "/usr/share/doc/gpuwho/slurm.md", 0o644, Host),
    file(Repository("agent/METRICS.md"), "/usr/share/doc/gpuwho/METRICS.md", 0o644, Host),
    page!("metrics/agent.md"),
    page!("metrics/attributes.md"),
    page!("metrics/counters.md"),
    page!("metrics/devices.md"),
    page!("metrics/engines.md"),
    page!("metrics/events.md"),
    page!("metrics/links.md"),
    page!("metrics/names.md"),
    page!("metrics/nccl.md"),
    page!("metrics/owners.md"),
    page!("metrics/series.md"),
    page!("metrics/vendor-amd.md"),
    page!("metrics/vendor-gaudi.md"),
    page!("metrics/vendor-intel.md"),
    page!("metrics/vendor-neuron.md"),
    page!("metrics/vendor-nvidia.md"),
    page!("metrics/vendor-tenstorrent.md"),
    page!("metrics/vendor-tpu.md"),
    page!("metrics/vendors.md"),
    page!("runbook.md"),
    page!("troubleshooting.md"),
    file(Repository("CHANGELOG.md"), "/usr/share/doc/gpuwho/CHANGELOG.md", 0o644, Host),
    file(
        Repository("dashboards/overview.json"),
        "/usr/share/gpuwho/dashboards/overview.json",
        0o644,
        Host,
    ),
    file(
        Repository("dashboards/grafana-alerts.json"),
        "/usr/share/gpuwho/dashboards/grafana-alerts.json",
        0o644,
        Host,
    ),
    file(
        Repository("dashboards/alerts.yaml"),
        "/usr/share/gpuwho/dashboards/alerts.yaml",
        0o644,
        Host,
    ),
    file(
        Repository("deploy/packages/copyright"),
        "/usr/share/doc/gpuwho/copyright",
        0o644,
        Everywhere,
    ),
    file(Repository("LICENSE-APACHE"), "/usr/share/doc/gpuwho/LICENSE-APACHE", 0o644, Everywhere),
    file(Repository("LICENSE-MIT"), "/usr/share/doc/gpuwho/LICENSE-MIT", 0o644, Everywhere),
    file(Made(LICENCES), "/usr/share/doc/gpuwho/THIRD-PARTY.txt", 0o644, Everywhere),
];

const fn file(origin: Origin, path: &'static str, mode: u32, kind: Kind) -> File {
    File { origin, path, mode, kind }
}

impl File {
    /// What is copied; `made` is the folder of what `dist` made for a processor.
    pub(super) fn source(&self, made: &Path) -> PathBuf {
        match self.origin {
            Repository(path) => place::root().join(path),
            Made(name) => made.join(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FILES, Kind, Origin};
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn every_page_of_metrics_is_shipped() {
        let folder = xtask::place::root().join("agent/docs/metrics");
        let pages = std::fs::read_dir(folder).unwrap().count();
        let shipped = FILES.iter().filter(|file| file.path.contains("/docs/metrics/")).count();
        assert_eq!(shipped, pages);
    }

    #[test]
    fn every_file_of_the_repository_exists() {
        for file in FILES.iter().filter(|file| matches!(file.origin, Origin::Repository(_))) {
            let source = file.source(Path::new("/nonexistent"));
            assert!(source.is_file(), "{}", source.display());
        }
    }

    #[test]
    fn no_two_files_have_a_path_or_a_name_in_common() {
        let paths: BTreeSet<_> = FILES.iter().map(|file| file.path).collect();
        assert_eq!(paths.len(), FILES.len());
        // Tarballs have them all in one folder.
        let names: BTreeSet<_> =
            FILES.iter().map(|file| Path::new(file.path).file_name()).collect();
        assert_eq!(names.len(), FILES.len());
    }

    #[test]
    fn configuration_is_below_etc_and_nothing_else_is() {
        for file in FILES {
            let is_below = file.path.starts_with("/etc/gpuwho/");
            assert_eq!(file.kind == Kind::Configuration, is_below, "{}", file.path);
        }
    }
}
