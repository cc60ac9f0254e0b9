//! Builds for another processor than this machine's, with Debian's cross compiler and Rust's own
//! library for that processor (`cargo xtask setup arm64` gets both).

use crate::compile::{self, TestProgram};
use crate::{place, shell};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A processor to build for.
#[derive(Debug)]
pub(crate) struct Cross {
    /// As Rust calls it.
    pub(crate) triple: &'static str,
    /// What the names of its compiler and tools begin with.
    tools: &'static str,
    /// Its C library.
    root: &'static str,
}

/// arm64, from a machine that is something else.
pub(crate) const ARM64: Cross = Cross {
    triple: "aarch64-unknown-linux-gnu",
    tools: "aarch64-linux-gnu",
    root: "/usr/aarch64-linux-gnu",
};

impl Cross {
    /// Builds packages of the workspace and their tests; gives the test programs.
    pub(crate) fn test_programs(&self, packages: &[&str]) -> Result<Vec<TestProgram>> {
        compile::test_programs(&mut self.cargo("build"), packages)
    }

    /// Where cargo puts what it built.
    pub(crate) fn target(&self) -> PathBuf {
        place::target(self.triple).join("debug")
    }

    /// A program of its binutils.
    pub(crate) fn tool(&self, name: &str) -> String {
        format!("{}-{name}", self.tools)
    }

    /// The shared libraries of its C library.
    pub(crate) fn libraries(&self) -> PathBuf {
        Path::new(self.root).join("lib")
    }

    fn cargo(&self, task: &str) -> Command {
        let mut command = shell::cargo([task, "--target", self.triple]);
        let name = self.triple.to_uppercase().replace('-', "_");
        command.env(format!("CARGO_TARGET_{name}_LINKER"), self.tool("gcc"));
        // Nobody looks at it with a debugger, and all dependencies are built once more for it.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }
}
