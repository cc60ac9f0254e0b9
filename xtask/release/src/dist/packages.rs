//! Packages for Debian's and Red Hat's families, written by nfpm from one description.

use super::Release;
use super::binary::{GLIBC, Processor};
use super::contents::{FILES, File, Kind};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use xtask::setup::dist as tools;
use xtask::{place, shell};

/// A kind of package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Deb,
    Rpm,
}

/// The package's own revision: it changes when the package does and the program does not.
const REVISION: &str = "1";

/// Folders that are the package's own, and go with it.
const FOLDERS: [&str; 7] = [
    "/etc/gpuwho",
    "/usr/libexec/gpuwho",
    "/usr/share/doc/gpuwho",
    "/usr/share/doc/gpuwho/docs",
    "/usr/share/doc/gpuwho/docs/metrics",
    "/usr/share/gpuwho",
    "/usr/share/gpuwho/dashboards",
];

impl Format {
    fn extension(self) -> &'static str {
        match self {
            Self::Deb => "deb",
            Self::Rpm => "rpm",
        }
    }

    /// As the family's own tools name packages.
    fn file_name(self, version: &str, processor: &Processor) -> String {
        match self {
            Self::Deb => format!("gpuwho_{version}-{REVISION}_{}.deb", processor.debian),
            Self::Rpm => format!("gpuwho-{version}-{REVISION}.{}.rpm", processor.name),
        }
    }

    /// What its glibc is called.
    fn depends(self) -> String {
        let (major, minor) = GLIBC;
        match self {
            Self::Deb => format!("libc6 (>= {major}.{minor})"),
            Self::Rpm => format!("glibc >= {major}.{minor}"),
        }
    }

    /// The family's own scripts: nfpm's name of each, and the file.
    fn scripts(self) -> Value {
        let path = |name: &str| {
            place::root().join("deploy/packages").join(format!("{}-{name}.sh", self.extension()))
        };
        json!({
            "postinstall": path("postinst"),
            "preremove": path("prerm"),
            "postremove": path("postrm"),
        })
    }
}

/// Writes a package for a processor; `made` is the folder of what was made for it.
pub(super) fn write(
    format: Format,
    release: &Release,
    processor: &Processor,
    made: &Path,
) -> Result<PathBuf> {
    let config = made.join(format!("nfpm-{}.json", format.extension()));
    let text = serde_json::to_string_pretty(&description(format, release, processor, made))?;
    fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
    let package = release.out.join(format.file_name(&release.version, processor));
    let nfpm = tools::build_go_program(tools::NFPM)?;
    let mut command = shell::program(nfpm, ["package", "--packager", format.extension()]);
    command.arg("--config").arg(&config).arg("--target").arg(&package);
    shell::run(command.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    Ok(package)
}

/// What nfpm reads.
fn description(format: Format, release: &Release, processor: &Processor, made: &Path) -> Value {
    let folder =
        |path: &&str| json!({ "dst": path, "type": "dir", "file_info": info(0o755, release) });
    let files = FILES.iter().map(|file| entry(file, release, made));
    let contents: Vec<_> = files.chain(FOLDERS.iter().map(folder)).collect();
    json!({
        "name": "gpuwho",
        "arch": processor.debian,
        "platform": "linux",
        "version": release.version,
        "version_schema": "none",
        "release": REVISION,
        "section": "admin",
        "priority": "optional",
        "maintainer": "The gpuwho authors <gpuwho@localhost>",
        "description": "Whose work is on every accelerator of a host\n\
            An agent and a command: processes, containers, pods, Slurm jobs and users on each\n\
            accelerator, what they cost, and whether the hardware is healthy, by OpenTelemetry.",
        "license": "MIT OR Apache-2.0",
        "mtime": release.time(),
        "depends": [format.depends()],
        "contents": contents,
        "scripts": format.scripts(),
        "deb": { "compression": "gzip" },
        // The one that RHEL 8's reads for certain; and not the name of this machine.
        "rpm": { "compression": "gzip", "buildhost": "localhost" },
    })
}

fn entry(file: &File, release: &Release, made: &Path) -> Value {
    let kind = if file.kind == Kind::Configuration { "config|noreplace" } else { "file" };
    json!({
        "src": file.source(made),
        "dst": file.path,
        "type": kind,
        "file_info": info(file.mode, release),
    })
}

fn info(mode: u32, release: &Release) -> Value {
    json!({ "mode": mode, "owner": "root", "group": "root", "mtime": release.time() })
}

/// What is in a package: mode, owner and path of each entry.
pub(super) fn list(format: Format, package: &Path) -> Result<Vec<String>> {
    let text = match format {
        Format::Deb => shell::capture(shell::program("dpkg-deb", ["--contents"]).arg(package))?,
        Format::Rpm => {
            let fields =
                "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} 0 - - %{FILENAMES}\n]";
            let query = ["--query", "--package", "--nosignature", "--queryformat", fields];
            shell::capture(shell::program("rpm", query).arg(package))?
        }
    };
    Ok(super::golden::entries(&text))
}

#[cfg(test)]
mod tests {
    use super::super::Release;
    use super::super::binary::PROCESSORS;
    use super::super::contents::FILES;
    use super::{FOLDERS, Format, description};
    use std::path::Path;

    fn release() -> Release {
        Release { version: "1.2.3".to_owned(), epoch: 1_700_000_000, out: "/out".into() }
    }

    #[test]
    fn a_package_has_every_file_as_roots_and_keeps_the_admins_changes() {
        let described = description(Format::Deb, &release(), &PROCESSORS[0], Path::new("/made"));
        let contents = described["contents"].as_array().unwrap();
        assert_eq!(contents.len(), FILES.len() + FOLDERS.len());
        for (entry, file) in contents.iter().zip(FILES) {
            assert_eq!(entry["dst"], file.path);
            assert_eq!(entry["file_info"]["owner"], "root");
            assert_eq!(entry["type"] == "config|noreplace", file.path.starts_with("/etc/"));
        }
        assert_eq!(described["mtime"], "2023-11-14T22:13:20Z");
    }

    #[test]
    fn every_script_exists() {
        for format in [Format::Deb, Format::Rpm] {
            for path in format.scripts().as_object().unwrap().values() {
                assert!(Path::new(path.as_str().unwrap()).is_file(), "{path}");
            }
        }
    }

    #[test]
    fn packages_are_named_as_their_families_name_them() {
        let names = |processor| [Format::Deb, Format::Rpm].map(|f| f.file_name("1.2.3", processor));
        assert_eq!(
            PROCESSORS.iter().flat_map(names).collect::<Vec<_>>(),
            [
                "gpuwho_1.2.3-1_amd64.deb",
                "gpuwho-1.2.3-1.x86_64.rpm",
                "gpuwho_1.2.3-1_arm64.deb",
                "gpuwho-1.2.3-1.aarch64.rpm"
            ]
        );
    }
}
