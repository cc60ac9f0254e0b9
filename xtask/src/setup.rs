//! `cargo xtask setup`: finds out what is missing on this machine and installs only that.
//!
//! Each part probes cheaply (a few files, one `rustc -vV`), so every task sets up the parts it
//! needs by itself. What cannot be installed here is refused with the commands that would do it.

mod arm64;
mod bpf;
pub mod compose;
mod deny;
pub mod dist;
mod go;
mod nccl;
mod packages;
mod wheel;

use crate::shell;
use anyhow::{Context as _, Result, bail};
use packages::Tool;
use std::path::PathBuf;

/// What `cargo xtask setup` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only say what is missing; exit code 1 if anything is
    #[arg(long)]
    check: bool,
    /// Only these parts (default: all)
    #[arg(value_name = "PART", value_parser = part_names())]
    parts: Vec<String>,
}

/// Whether a task can go on without a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// No: fail with the remedy.
    Must,
    /// Yes: print the remedy and go on.
    Optional,
}

/// What a probe found.
enum State {
    /// All there; the text says which.
    Ready(String),
    /// Something is missing; the text says what.
    Missing(String),
}

/// One thing to set up.
struct Part {
    name: &'static str,
    purpose: &'static str,
    probe: fn() -> State,
    install: fn() -> Result<()>,
}

/// Every part, in the order they are set up.
const PARTS: &[Part] = &[
    Part {
        name: "build",
        purpose: "compile the agent",
        probe: || packages::probe(BUILD),
        install: || packages::install_for(BUILD),
    },
    Part {
        name: "bpf",
        purpose: "compile the BPF programs",
        probe: bpf::probe,
        install: bpf::install,
    },
    Part {
        name: "test",
        purpose: "run the tests",
        probe: || packages::probe(TEST),
        install: || packages::install_for(TEST),
    },
    Part {
        name: "slurm",
        purpose: "run a real Slurm in tests",
        probe: || packages::probe(SLURM),
        install: || packages::install_for(SLURM),
    },
    Part {
        name: "containerd",
        purpose: "run real pods in the tests",
        probe: || packages::probe(CONTAINERD),
        install: || packages::install_for(CONTAINERD),
    },
    Part {
        name: "systemd",
        purpose: "judge the unit file in tests",
        probe: || packages::probe(SYSTEMD),
        install: || packages::install_for(SYSTEMD),
    },
    Part {
        name: "deny",
        purpose: "check the dependencies' licences, sources and advisories",
        probe: deny::probe,
        install: deny::install,
    },
    Part {
        name: "collector",
        purpose: "compile the OpenTelemetry Collector that tests send to",
        probe: go::probe,
        install: go::install,
    },
    Part {
        name: "dist",
        purpose: "make release files",
        probe: dist::probe,
        install: dist::install,
    },
    Part {
        name: "release",
        purpose: "make feeds of release files",
        probe: || packages::probe(dist::FEED_TOOLS),
        install: || packages::install_for(dist::FEED_TOOLS),
    },
    Part {
        name: "nccl",
        purpose: "test with the real NCCL",
        probe: nccl::probe,
        install: nccl::install,
    },
    Part {
        name: "vm",
        purpose: "boot other kernels",
        probe: || packages::probe(VM),
        install: || packages::install_for(VM),
    },
    Part {
        name: "guest",
        purpose: "make hosts with systemd",
        probe: || packages::probe(GUEST),
        install: || packages::install_for(GUEST),
    },
    Part {
        name: "arm64",
        purpose: "boot kernels for arm64",
        probe: arm64::probe,
        install: arm64::install,
    },
];

/// A linker, and a C compiler for the cryptography of TLS.
const BUILD: &[Tool] =
    &[Tool { program: "cc", package: "gcc" }, Tool { program: "ld", package: "binutils" }];

/// The end-to-end tests make namespaces and look at sockets.
const TEST: &[Tool] = &[
    Tool { program: "ip", package: "iproute2" },
    Tool { program: "unshare", package: "util-linux" },
    // Gives the agent a wall clock that a test steps.
    Tool { program: "faketime", package: "faketime" },
];

/// Controller, node and clients. Tests start their own; the packages' services stay off.
const SLURM: &[Tool] = &[
    Tool { program: "slurmctld", package: "slurmctld" },
    Tool { program: "slurmd", package: "slurmd" },
    Tool { program: "sbatch", package: "slurm-client" },
];

/// A container runtime, and the one program in its images, which must need no library.
const CONTAINERD: &[Tool] = &[
    Tool { program: "containerd", package: "containerd" },
    Tool { program: "containerd-shim-runc-v2", package: "containerd" },
    Tool { program: "ctr", package: "containerd" },
    Tool { program: "runc", package: "runc" },
    Tool { program: "busybox", package: "busybox-static" },
];

/// It reads unit files where no systemd runs.
const SYSTEMD: &[Tool] = &[Tool { program: "systemd-analyze", package: "systemd" }];

/// What makes a whole Debian and a disk of it.
const GUEST: &[Tool] = &[
    Tool { program: "mmdebstrap", package: "mmdebstrap" },
    Tool { program: "mke2fs", package: "e2fsprogs" },
];

/// An emulator of this machine's processor, and what the guest's first file system is made of.
const VM: &[Tool] = &[
    #[cfg(not(target_arch = "aarch64"))]
    Tool { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    #[cfg(target_arch = "aarch64")]
    Tool { program: "qemu-system-aarch64", package: "qemu-system-arm" },
    Tool { program: "busybox", package: "busybox-static" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "dpkg-deb", package: "dpkg" },
    Tool { program: "strip", package: "binutils" },
];

fn part_names() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

/// `cargo xtask setup`.
pub(crate) fn setup(request: &Request) -> Result<()> {
    let asked = |part: &&Part| {
        request.parts.is_empty() || request.parts.iter().any(|name| name == part.name)
    };
    let mut failed = Vec::new();
    for part in PARTS.iter().filter(asked) {
        let result = if request.check { part.check() } else { part.set_up() };
        match result {
            Ok(found) => println!("{:<10} ready: {found}", part.name),
            Err(error) => {
                println!("{:<10} missing: to {}, {error:#}", part.name, part.purpose);
                failed.push(part.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("not set up: {}", failed.join(", "));
    }
    Ok(())
}

/// Sets up the named parts; silent about those that are there. `false` when an optional one could
/// not be had.
pub fn ensure(names: &[&str], want: Want) -> Result<bool> {
    let mut all = true;
    for name in names {
        let part = PARTS.iter().find(|part| part.name == *name);
        let part = part.with_context(|| format!("no part {name} to set up"))?;
        match (part.set_up(), want) {
            (Ok(_), _) => {}
            (Err(error), Want::Must) => {
                return Err(error.context(format!("setting up what is needed to {}", part.purpose)));
            }
            (Err(error), Want::Optional) => {
                eprintln!("warning: cannot {} here: {error:#}", part.purpose);
                all = false;
            }
        }
    }
    Ok(all)
}

impl Part {
    fn check(&self) -> Result<String> {
        match (self.probe)() {
            State::Ready(found) => Ok(found),
            State::Missing(what) => bail!("{what}; install with `cargo xtask setup {}`", self.name),
        }
    }

    fn set_up(&self) -> Result<String> {
        let what = match (self.probe)() {
            State::Ready(found) => return Ok(found),
            State::Missing(what) => what,
        };
        eprintln!("setup: to {}: {what}", self.purpose);
        (self.install)()?;
        match (self.probe)() {
            State::Ready(found) => Ok(found),
            State::Missing(what) => bail!("installed, but still {what}"),
        }
    }
}

/// The Go that can build the Collector, if `setup collector` has found or fetched one.
pub fn go() -> Option<PathBuf> {
    go::suitable().map(|(program, _)| program)
}

/// The real NCCL, if `setup nccl` has fetched it.
pub(crate) fn nccl() -> Option<PathBuf> {
    nccl::library().ok().filter(|path| path.is_file())
}

/// The cargo-deny that `setup deny` has built.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    deny::program()
}

/// Whether this process may write system folders.
fn is_root() -> bool {
    shell::capture(&mut shell::program("id", ["-u"])).is_ok_and(|id| id.trim() == "0")
}

#[cfg(test)]
mod tests {
    use super::{Part, State};
    use anyhow::bail;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_part_that_is_there_is_not_installed_again() {
        let part = Part {
            name: "x",
            purpose: "test",
            probe: || State::Ready("x 1.0".to_owned()),
            install: || bail!("installed although it was there"),
        };
        assert_eq!(part.set_up().unwrap(), "x 1.0");
    }

    #[test]
    fn an_install_that_changes_nothing_is_an_error() {
        let part = Part {
            name: "x",
            purpose: "test",
            probe: || State::Missing("no x".to_owned()),
            install: || Ok(()),
        };
        assert_eq!(part.set_up().unwrap_err().to_string(), "installed, but still no x");
    }

    #[test]
    fn a_check_installs_nothing_and_names_the_remedy() {
        static INSTALLS: AtomicUsize = AtomicUsize::new(0);
        let part = Part {
            name: "x",
            purpose: "test",
            probe: || State::Missing("no x".to_owned()),
            install: || {
                INSTALLS.fetch_add(1, Ordering::Relaxed);
                Ok(())
            },
        };
        let error = part.check().unwrap_err().to_string();
        assert_eq!(error, "no x; install with `cargo xtask setup x`");
        assert_eq!(INSTALLS.load(Ordering::Relaxed), 0);
    }
}
