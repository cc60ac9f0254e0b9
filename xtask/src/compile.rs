//! Builds the agent; its build script builds the BPF programs where the toolchain for them is.

use crate::setup::{self, Want};
use crate::{place, shell};
use anyhow::Result;
use std::path::PathBuf;

/// What `cargo xtask build` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Build as it is shipped: optimised and stripped
    #[arg(long)]
    release: bool,
}

/// A build profile of cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quick to build; what the tests use.
    Debug,
    /// Optimised; what is shipped and measured.
    Release,
}

impl Profile {
    /// The folder below `target`.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// `cargo xtask build`.
pub(crate) fn build(request: &Request) -> Result<()> {
    let profile = if request.release { Profile::Release } else { Profile::Debug };
    setup_toolchain()?;
    packages(profile, &["gpuwho"])?;
    println!("{}", agent(profile).display());
    Ok(())
}

/// Sets up what building needs. A machine that cannot have the BPF toolchain still gets an agent.
pub(crate) fn setup_toolchain() -> Result<()> {
    setup::ensure(&["build"], Want::Must)?;
    if !setup::ensure(&["bpf"], Want::Optional)? {
        eprintln!(
            "warning: building without the BPF programs: this agent polls /proc and misses \
             processes that live shorter than its interval"
        );
    }
    Ok(())
}

/// Builds packages of the workspace.
pub(crate) fn packages(profile: Profile, names: &[&str]) -> Result<()> {
    let mut command = shell::cargo(["build"]);
    if profile == Profile::Release {
        command.arg("--release");
    }
    for name in names {
        command.args(["--package", name]);
    }
    shell::run(&mut command)
}

/// The built agent.
pub(crate) fn agent(profile: Profile) -> PathBuf {
    place::target(profile.folder()).join("gpuwho")
}
