//! Other exporters, installed from package registries into the cache, to be measured beside the agent.

use crate::{place, shell};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// An exporter, as `tests/src/bench/peers.rs` reads it.
#[derive(Serialize)]
struct Peer {
    name: String,
    program: PathBuf,
    arguments: Vec<&'static str>,
    environment: Vec<(&'static str, &'static str)>,
    device: Option<&'static str>,
    owner: &'static str,
    missing: Option<String>,
}

/// Where one comes from.
enum From {
    PyPI,
    Go(&'static str),
    Crates,
}

/// One to install: its package, version, where it is from, and its arguments.
struct Package {
    name: &'static str,
    version: &'static str,
    from: From,
    arguments: &'static [&'static str],
    /// What its page has of each device, if it reads any.
    device: Option<&'static str>,
    /// Whose it says that a process is.
    owner: &'static str,
    /// Said beside its name.
    remark: &'static str,
}

const ALL_SMI: &str = "0.22.0";

const PACKAGES: &[Package] = &[
    Package {
        name: "nvitop-exporter",
        version: "1.7.2",
        from: From::PyPI,
        arguments: &["--bind-address", "127.0.0.1", "--port", "PORT", "--interval", "10"],
        device: Some("GPU-"),
        owner: "user",
        remark: "",
    },
    Package {
        name: "all-smi",
        version: ALL_SMI,
        from: From::Crates,
        arguments: &["api", "--interval", "10", "--port", "PORT"],
        device: Some("GPU-"),
        owner: "",
        remark: "",
    },
    // Of every process of the host, with a device or without.
    Package {
        name: "all-smi",
        version: ALL_SMI,
        from: From::Crates,
        arguments: &["api", "--processes", "--interval", "10", "--port", "PORT"],
        device: Some("GPU-"),
        owner: "user",
        remark: ", processes",
    },
    Package {
        name: "node_exporter",
        version: "1.9.1",
        from: From::Go("github.com/prometheus/node_exporter"),
        arguments: &["--web.listen-address=ADDRESS"],
        device: None,
        owner: "",
        remark: " (no GPU)",
    },
];

/// Installs those that are not there yet; returns the list of all. One that cannot be installed is in it with
/// the reason, which the page then has.
pub(crate) fn install() -> Result<PathBuf> {
    let folder = place::cache("peers")?;
    let peers: Vec<Peer> = PACKAGES.iter().map(|package| package.peer(&folder)).collect();
    let list = folder.join("peers.json");
    let text = serde_json::to_vec_pretty(&peers)?;
    fs::write(&list, text).with_context(|| format!("writing {}", list.display()))?;
    Ok(list)
}

impl Package {
    fn peer(&self, folder: &Path) -> Peer {
        let Self { name, version, remark, .. } = self;
        let folder = folder.join(format!("{name}-{version}"));
        let program = folder.join("bin").join(name);
        let installed = self.install(&folder, &program);
        Peer {
            name: format!("{name} {version}{remark}"),
            program,
            arguments: self.arguments.to_vec(),
            // Of programs in Python: what the agent's own process does not write either.
            environment: vec![("PYTHONDONTWRITEBYTECODE", "1")],
            device: self.device,
            owner: self.owner,
            missing: installed.err().map(|error| format!("{error:#}")),
        }
    }

    fn install(&self, folder: &Path, program: &Path) -> Result<()> {
        let Self { name, version, .. } = self;
        if !program.is_file() {
            match self.from {
                From::PyPI => install_python(folder, &format!("{name}=={version}"))?,
                From::Go(module) => {
                    let module = format!("{module}@v{version}");
                    let mut go = shell::program("go", ["install", &module]);
                    shell::run(go.env("GOBIN", folder.join("bin")))?;
                }
                From::Crates => {
                    install_libdrm()?;
                    let mut install = shell::program("cargo", ["install", "--locked", name]);
                    install.args(["--version", version, "--root"]).arg(folder);
                    install.env("PROTOC", protoc()?);
                    shell::run(install.current_dir(place::cache("peers")?))?;
                }
            }
        }
        Ok(())
    }
}

/// Installs a package from PyPI in a folder of its own.
fn install_python(folder: &Path, package: &str) -> Result<()> {
    shell::run(shell::program("python3", ["-m", "venv"]).arg(folder))?;
    shell::run(&mut shell::program(folder.join("bin/pip"), ["install", "--quiet", package]))
}

/// The library of AMD's devices that all-smi is linked with.
fn install_libdrm() -> Result<()> {
    if Path::new("/usr/include/libdrm/drm.h").is_file() {
        return Ok(());
    }
    let install = ["install", "-y", "--no-install-recommends", "libdrm-dev"];
    shell::run(&mut shell::program("apt-get", install))
}

/// Protobuf's compiler, which all-smi is built with.
fn protoc() -> Result<PathBuf> {
    let folder = place::cache("peers")?.join("grpcio-tools-1.76.0");
    let program = folder.join("bin/protoc");
    if !program.is_file() {
        install_python(&folder, "grpcio-tools==1.76.0")?;
        let python = folder.join("bin/python");
        let script = format!("#!/bin/sh\nexec {} -m grpc_tools.protoc \"$@\"\n", python.display());
        fs::write(&program, script).with_context(|| format!("writing {}", program.display()))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    }
    Ok(program)
}
