//! Builds the agent; its build script builds the BPF programs where the toolchain for them is.

use crate::setup::{self, Want};
use crate::{place, shell};
use anyhow::{Context as _, Result};
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

/// Builds the unit tests of a package's library; gives the program that they are in.
pub(crate) fn unit_tests(package: &str) -> Result<PathBuf> {
    let args = ["test", "--package", package, "--lib", "--no-run", "--message-format=json"];
    let told = shell::capture(&mut shell::cargo(args))?;
    executable(&told).with_context(|| format!("cargo names no test program of {package}"))
}

/// The last program in cargo's messages.
pub(crate) fn executable(messages: &str) -> Option<PathBuf> {
    let (_, path) = messages.rsplit_once(r#""executable":""#)?;
    path.split_once('"').map(|(path, _)| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::executable;
    use std::path::PathBuf;

    #[test]
    fn the_test_program_is_the_one_that_cargo_names() {
        let told = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                    {\"executable\":\"/target/debug/deps/gpuwho-1\",\"fresh\":true}\n\
                    {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(told), Some(PathBuf::from("/target/debug/deps/gpuwho-1")));
        assert_eq!(executable("{\"executable\":null}"), None);
    }
}
