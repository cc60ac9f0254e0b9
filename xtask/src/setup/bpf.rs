//! The BPF toolchain: the sources of Rust's core library and a `bpf-linker` of the same LLVM.
//!
//! Two ways to the sources (see `agent/docs/decisions/0001-bpf-toolchain.md`): rustup's `rust-src`
//! for the toolchain in use, else Debian's `rustc-web`, linked as the rustup toolchain
//! `gpuwho-bpf`. Both are stable compilers run with `RUSTC_BOOTSTRAP=1`.

use super::{State, packages};
use crate::{place, shell};
use anyhow::{Context as _, Result, bail};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The linker's version; 0.13 is the first that links against LLVM 22.
const LINKER_VERSION: &str = "0.13.0";

/// The rustup toolchain made of Debian's packages; `agent/crates/bpf/build.rs` knows the name.
const LINKED_TOOLCHAIN: &str = "gpuwho-bpf";

/// A compiler that can build for the BPF target.
#[derive(Debug, PartialEq, Eq)]
struct Compiler {
    /// The toolchain's name for rustup; none for the one in use.
    toolchain: Option<&'static str>,
    release: String,
    llvm: u32,
}

pub(super) fn probe() -> State {
    let Some(compiler) = compiler() else {
        return State::Missing("no sources of Rust's core library (rust-src)".to_owned());
    };
    let wanted = linker_stamp(compiler.llvm);
    match linker_in_cache() {
        Ok(there) if there == wanted => {
            State::Ready(format!("rustc {} with rust-src, {wanted}", compiler.release))
        }
        Ok(_) => State::Missing(format!("no {wanted}")),
        Err(error) => State::Missing(format!("no {wanted} ({error:#})")),
    }
}

pub(super) fn install() -> Result<()> {
    if compiler().is_none() {
        add_sources()?;
    }
    let compiler = compiler().context("no sources of Rust's core library after installing them")?;
    install_linker(&compiler)
}

/// The toolchain in use if it has the sources, else the linked one if it has.
fn compiler() -> Option<Compiler> {
    [None, Some(LINKED_TOOLCHAIN)].into_iter().find_map(compiler_with_sources)
}

fn compiler_with_sources(toolchain: Option<&'static str>) -> Option<Compiler> {
    let sysroot = shell::capture(rustc(toolchain).args(["--print", "sysroot"])).ok()?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if !library.join("core/src/lib.rs").is_file() {
        return None;
    }
    let (release, llvm) = versions(&shell::capture(rustc(toolchain).arg("-vV")).ok()?)?;
    Some(Compiler { toolchain, release, llvm })
}

fn rustc(toolchain: Option<&str>) -> Command {
    let mut command = shell::program("rustc", [] as [&str; 0]);
    if let Some(toolchain) = toolchain {
        command.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    command
}

/// The release and LLVM's major version in the output of `rustc -vV`.
fn versions(text: &str) -> Option<(String, u32)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let llvm = field("LLVM version: ")?.split('.').next()?.parse().ok()?;
    Some((field("release: ")?.to_owned(), llvm))
}

/// By rustup where its server answers, else from Debian.
fn add_sources() -> Result<()> {
    let in_use = env::var("RUSTUP_TOOLCHAIN").context("no rustup runs this task")?;
    let add = ["component", "add", "rust-src", "--toolchain", &in_use];
    match shell::run(&mut shell::program("rustup", add)) {
        Ok(()) => Ok(()),
        Err(error) => {
            eprintln!("setup: {error:#}; taking Debian's compiler and sources instead");
            link_debian_compiler()
        }
    }
}

fn link_debian_compiler() -> Result<()> {
    let names = ["rustc-web", "cargo-web", "rust-web-src"].map(str::to_owned);
    packages::install(&names)?;
    // Debian puts bin/rustc, bin/cargo and lib/rustlib with its sources below /usr.
    shell::run(&mut shell::program("rustup", ["toolchain", "link", LINKED_TOOLCHAIN, "/usr"]))
}

fn install_linker(compiler: &Compiler) -> Result<()> {
    let llvm = compiler.llvm;
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{llvm}"));
    if !prefix.join("bin/llvm-config").exists() || !prefix.join("lib/libPolly.a").exists() {
        packages::install(&llvm_packages(llvm))?;
    }
    if !prefix.join("bin/llvm-config").exists() {
        bail!("LLVM {llvm}, which rustc {} uses, is not in {}", compiler.release, prefix.display());
    }
    let bin = place::cache("bin")?;
    let root = bin.parent().context("the cache has no parent folder")?;
    let feature = format!("llvm-{llvm}");
    let mut command = shell::program(
        "cargo",
        ["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"],
    );
    command.args(["--no-default-features", "--features", &feature, "--root"]).arg(root);
    if let Some(toolchain) = compiler.toolchain {
        command.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    shell::run(command.env("LLVM_PREFIX", &prefix))?;
    let stamp = stamp_path()?;
    fs::write(&stamp, linker_stamp(llvm)).with_context(|| format!("writing {}", stamp.display()))
}

/// LLVM's libraries, and those that they are linked with.
fn llvm_packages(llvm: u32) -> Vec<String> {
    let versioned = [format!("llvm-{llvm}-dev"), format!("libpolly-{llvm}-dev")];
    let fixed = ["zlib1g-dev", "g++"].map(str::to_owned);
    versioned.into_iter().chain(fixed).collect()
}

/// The stamp of the linker in the cache; empty if there is none.
fn linker_in_cache() -> Result<String> {
    if !place::cache("bin")?.join("bpf-linker").is_file() {
        return Ok(String::new());
    }
    Ok(fs::read_to_string(stamp_path()?).unwrap_or_default())
}

fn stamp_path() -> Result<PathBuf> {
    Ok(place::cache("bin")?.join("bpf-linker.version"))
}

/// What the linker in the cache was built as; its own `--version` does not name the LLVM.
fn linker_stamp(llvm: u32) -> String {
    format!("bpf-linker {LINKER_VERSION} for LLVM {llvm}")
}

#[cfg(test)]
mod tests {
    use super::{linker_stamp, llvm_packages, versions};

    const RUSTC_1_95_0: &str = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\n\
        commit-hash: 59807616e\ncommit-date: 2026-04-14\nhost: x86_64-unknown-linux-gnu\n\
        release: 1.95.0\nLLVM version: 22.1.2\n";

    #[test]
    fn llvm_version_is_read_from_the_compiler() {
        assert_eq!(versions(RUSTC_1_95_0), Some(("1.95.0".to_owned(), 22)));
    }

    #[test]
    fn a_compiler_that_names_no_llvm_is_not_usable() {
        assert_eq!(versions("release: 1.95.0\n"), None);
    }

    #[test]
    fn a_linker_of_another_llvm_is_not_taken_for_the_right_one() {
        assert_ne!(linker_stamp(22), linker_stamp(23));
        assert!(llvm_packages(23).contains(&"llvm-23-dev".to_owned()));
    }
}
