//! The documented ways to run the image without Kubernetes, with the real Podman: unpacks Debian's, and runs
//! the tests in namespaces of their own for mounts and network. Not a part of CI.

use crate::dist;
use crate::kubernetes::{PARTS, e2e, link};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use xtask::compile::{self, Profile};
use xtask::setup::{self, Want};
use xtask::{collector, place, unpacked};

/// The variable that tells the tests where the programs are.
const VARIABLE: &str = "GPUWHO_TEST_PODMAN";
/// Debian's release: its libraries must be this machine's.
const SUITE: &str = "bookworm";
/// Debian's packages, as their files are named here: package, path in it, name for the tests.
const PACKAGES: &[[&str; 3]] = &[
    ["podman", "usr/bin/podman", "podman"],
    ["conmon", "usr/bin/conmon", "conmon"],
    ["golang-github-containers-common", "usr/share/containers/seccomp.json", "seccomp.json"],
    ["libsubid4", "usr/lib/x86_64-linux-gnu/libsubid.so.4", "lib/libsubid.so.4"],
    ["libgpgme11", "usr/lib/x86_64-linux-gnu/libgpgme.so.11", "lib/libgpgme.so.11"],
    // Compose makes a network that nothing uses.
    ["containernetworking-plugins", "usr/lib/cni/bridge", "cni/bridge"],
    ["containernetworking-plugins", "usr/lib/cni/firewall", "cni/firewall"],
    ["containernetworking-plugins", "usr/lib/cni/portmap", "cni/portmap"],
    ["containernetworking-plugins", "usr/lib/cni/tuning", "cni/tuning"],
];
/// Modules of Python that `podman-compose` reads.
const MODULES: &[[&str; 2]] =
    &[["python3-dotenv", "dotenv/__init__.py"], ["python3-yaml", "yaml/__init__.py"]];

/// `cargo xtask podman`.
pub(crate) fn podman() -> Result<()> {
    compile::setup_toolchain()?;
    setup::ensure(&["test", "containerd", "collector"], Want::Must)?;
    let collector = collector::for_tests()?;
    let folder = place::target("podman");
    for name in ["lib", "cni"] {
        fs::create_dir_all(folder.join(name)).with_context(|| format!("making a folder {name}"))?;
    }
    for [package, path, name] in PACKAGES {
        link(&unpacked::program(package, SUITE, path)?, &folder.join(name))?;
    }
    link(&setup::compose::program()?, &folder.join("podman_compose.py"))?;
    let mut modules = Vec::new();
    for [package, path] in MODULES {
        let top = Path::new("usr/lib/python3/dist-packages");
        let found = unpacked::program(package, SUITE, &top.join(path).display().to_string())?;
        let above = found.ancestors().find(|above| above.ends_with(top));
        modules.push(above.context("a module outside Python's folder")?.to_owned());
    }
    compile::packages(Profile::Debug, PARTS)?;
    dist::image_of(&compile::agent(Profile::Debug), &folder.join("gpuwho.tar"))?;
    let modules = std::env::join_paths(modules).context("joining Python's folders")?;
    let mut command = e2e("docker::")?;
    command.env(VARIABLE, &folder).env(collector::VARIABLE, collector).env("PYTHONPATH", modules);
    xtask::shell::run(&mut command)
}
