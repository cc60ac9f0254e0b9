//! What release files are made and published with: a linker for old C libraries, the writers of the dependency
//! list, the Go programs of `tests/packaging` (the writer of packages, and Helm) and `tests/release` (cosign), and
//! what makes feeds.

use super::packages::Tool;
use super::wheel::Wheel;
use super::{State, go, packages};
use crate::{place, shell};
use anyhow::{Context as _, Result};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Its linker takes the oldest version of glibc that a program must run with.
const ZIG: Wheel = Wheel {
    cache: "ziglang",
    package: "ziglang",
    version: "0.17.1",
    checksum: "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    inside: "ziglang",
};

/// Makes cargo use that linker.
const ZIGBUILD: Wheel = Wheel {
    cache: "cargo-zigbuild",
    package: "cargo-zigbuild",
    version: "0.24.0",
    checksum: "484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957",
    inside: "cargo_zigbuild-0.24.0.data/scripts/cargo-zigbuild",
};

/// Embeds the list of dependencies in a program, and reads it as CycloneDX.
const CRATES: [(&str, &str); 2] = [("cargo-auditable", "0.7.7"), ("auditable2cdx", "0.1.0")];

/// Installs a program from a release's tarball: tries what agent/Cargo.toml says of them.
const BINSTALL: (&str, &str) = ("cargo-binstall", "1.18.0");

/// Reads what the writer of packages wrote, and starts the other processor's program.
const TOOLS: &[Tool] = &[
    Tool { program: "rpm", package: "rpm" },
    Tool { program: "dpkg-deb", package: "dpkg" },
    #[cfg(not(target_arch = "aarch64"))]
    Tool { program: "qemu-aarch64", package: "qemu-user" },
    #[cfg(target_arch = "aarch64")]
    Tool { program: "qemu-x86_64", package: "qemu-user" },
];

/// Writes feeds, and signs and copies what is in them.
pub(super) const FEED_TOOLS: &[Tool] = &[
    Tool { program: "apt-ftparchive", package: "apt-utils" },
    Tool { program: "createrepo_c", package: "createrepo-c" },
    Tool { program: "gpg", package: "gnupg" },
    Tool { program: "rpmsign", package: "rpm" },
    Tool { program: "skopeo", package: "skopeo" },
    // The web servers of `cargo xtask release --try`.
    Tool { program: "openssl", package: "openssl" },
    Tool { program: "python3", package: "python3" },
];

/// A program of one of the folders with a `go.mod`.
pub struct GoProgram {
    folder: &'static str,
    package: &'static str,
    /// Build tags.
    tags: &'static str,
}

/// Makes packages.
pub const NFPM: &GoProgram = &GoProgram {
    folder: "tests/packaging",
    package: "github.com/goreleaser/nfpm/v2/cmd/nfpm",
    tags: "",
};
/// Packs, checks and publishes charts.
pub const HELM: &GoProgram =
    &GoProgram { folder: "tests/packaging", package: "helm.sh/helm/v3/cmd/helm", tags: "" };
/// Apart from the others: it has many dependencies in common with them, and in other versions.
pub const COSIGN: &GoProgram = &GoProgram {
    folder: "tests/release",
    package: "github.com/sigstore/cosign/v3/cmd/cosign",
    tags: "",
};
/// Version 3, which takes OTLP. It is to scrape nothing: what finds targets in clouds is left out.
pub(crate) const PROMETHEUS: &GoProgram = &GoProgram {
    folder: "tests/prometheus",
    package: "github.com/prometheus/prometheus/cmd/prometheus",
    tags: "remove_all_sd",
};

pub(super) fn probe() -> State {
    if let State::Missing(what) = packages::probe(TOOLS) {
        return State::Missing(what);
    }
    match missing() {
        Ok(None) => {
            State::Ready(format!("zig {}, cargo-zigbuild {}", ZIG.version, ZIGBUILD.version))
        }
        Ok(Some(what)) => State::Missing(format!("no {what}")),
        Err(error) => State::Missing(format!("{error:#}")),
    }
}

fn missing() -> Result<Option<String>> {
    for wheel in [&ZIG, &ZIGBUILD] {
        if !wheel.path()?.exists() {
            return Ok(Some(format!("{} {}", wheel.package, wheel.version)));
        }
    }
    for (name, version) in CRATES {
        if !crate_folder(name, version)?.join("bin").join(name).is_file() {
            return Ok(Some(format!("{name} {version}")));
        }
    }
    Ok(if go_program(NFPM)?.is_file() { None } else { Some("nfpm".to_owned()) })
}

pub(super) fn install() -> Result<()> {
    if matches!(packages::probe(TOOLS), State::Missing(_)) {
        packages::install_for(TOOLS)?;
    }
    for (wheel, program) in [(&ZIG, zig()?), (&ZIGBUILD, ZIGBUILD.path()?)] {
        if !wheel.path()?.exists() {
            wheel.install()?;
        }
        // Unpacking a wheel drops the executable bit.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("making {} executable", program.display()))?;
    }
    for tool in CRATES {
        install_crate(tool, &[])?;
    }
    build_go_program(NFPM).map(drop)
}

/// Builds a program of crates.io once, and gives its path.
fn install_crate((name, version): (&str, &str), options: &[&str]) -> Result<PathBuf> {
    let root = crate_folder(name, version)?;
    let program = root.join("bin").join(name);
    if !program.is_file() {
        let install = ["install", name, "--version", version, "--locked", "--force", "--root"];
        shell::run(shell::program("cargo", install).arg(root).args(options))?;
    }
    Ok(program)
}

/// The real cargo-binstall, without optimisation: that alone would take many minutes.
pub fn binstall() -> Result<PathBuf> {
    let features = ["--debug", "--no-default-features", "--features=rustls,fancy-no-backtrace"];
    install_crate(BINSTALL, &features)
}

fn crate_folder(name: &str, version: &str) -> Result<PathBuf> {
    Ok(place::cache(name)?.join(version))
}

/// The zig program.
pub fn zig() -> Result<PathBuf> {
    Ok(ZIG.path()?.join("zig"))
}

/// A search path that has cargo's subcommands first.
pub fn search_path() -> Result<OsString> {
    let mut folders = Vec::new();
    folders.extend(ZIGBUILD.path()?.parent().map(Path::to_owned));
    for (name, version) in CRATES {
        folders.push(crate_folder(name, version)?.join("bin"));
    }
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    env::join_paths(folders).context("joining the search path")
}

/// A Go program that was built before.
pub(crate) fn built_go_program(program: &GoProgram) -> Option<PathBuf> {
    go_program(program).ok().filter(|binary| binary.is_file())
}

/// Where a Go program is once it is built: another version is another file.
fn go_program(program: &GoProgram) -> Result<PathBuf> {
    let sums = place::root().join(program.folder).join("go.sum");
    let sums = fs::read(&sums).with_context(|| format!("reading {}", sums.display()))?;
    let name = program.package.rsplit('/').next().unwrap_or(program.package);
    let key = place::fnv1a(place::FNV_OFFSET, &sums);
    Ok(place::cache("packaging")?.join(format!("{name}-{key:016x}")))
}

/// Whether it has been built.
pub(crate) fn is_built(program: &GoProgram) -> Result<bool> {
    Ok(go_program(program)?.is_file())
}

/// Builds a Go program once, and gives its path.
pub fn build_go_program(program: &GoProgram) -> Result<PathBuf> {
    let binary = go_program(program)?;
    if binary.is_file() {
        return Ok(binary);
    }
    super::ensure(&["collector"], super::Want::Must)?;
    let (go, _) = go::suitable().context("no suitable Go")?;
    // Built beside the final name and moved, so that an interrupted build is never used.
    let unfinished = binary.with_extension("unfinished");
    let flags = ["build", "-trimpath", "-ldflags=-s -w", "-tags", program.tags, "-o"];
    let mut command = shell::program(go, flags);
    command.arg(&unfinished).arg(program.package);
    command.current_dir(place::root().join(program.folder));
    shell::run(command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local"))?;
    fs::rename(&unfinished, &binary).with_context(|| format!("moving to {}", binary.display()))?;
    Ok(binary)
}
