//! What builds for arm64 and emulates it: an emulator, and on other machines a compiler, a C
//! library and Rust's own library for it.

use super::{State, Tool, packages};
use crate::cross::ARM64;
use crate::shell;
use anyhow::{Context as _, Result};
use std::env;
use std::path::Path;

/// An arm64 machine is its own compiler.
const IS_OWN: bool = cfg!(target_arch = "aarch64");

/// The compiler's package only recommends that of the C library.
const TOOLS: &[Tool] = &[
    Tool { program: "qemu-system-aarch64", package: "qemu-system-arm" },
    Tool { program: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
    Tool { program: "/usr/aarch64-linux-gnu/lib/crt1.o", package: "libc6-dev-arm64-cross" },
];

fn tools() -> &'static [Tool] {
    if IS_OWN { TOOLS.get(..1).unwrap_or_default() } else { TOOLS }
}

pub(super) fn probe() -> State {
    match packages::probe(tools()) {
        State::Ready(found) if IS_OWN || has_library().unwrap_or(false) => State::Ready(found),
        State::Ready(_) => State::Missing(format!("no Rust library for {}", ARM64.triple)),
        missing @ State::Missing(_) => missing,
    }
}

pub(super) fn install() -> Result<()> {
    if matches!(packages::probe(tools()), State::Missing(_)) {
        packages::install_for(tools())?;
    }
    if IS_OWN || has_library()? {
        return Ok(());
    }
    let in_use = env::var("RUSTUP_TOOLCHAIN").context("no rustup runs this task")?;
    let add = ["target", "add", ARM64.triple, "--toolchain", &in_use];
    shell::run(&mut shell::program("rustup", add))
}

/// Whether the toolchain in use has Rust's own library for it.
fn has_library() -> Result<bool> {
    let sysroot = shell::capture(&mut shell::program("rustc", ["--print", "sysroot"]))?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(ARM64.triple).join("lib").is_dir())
}
