//! Builds the BPF programs and embeds them, or says why the agent will do without.
//!
//! Output: `OUT_DIR/<probe>` for every probe, without DWARF, of which the linker has made the BTF that the kernel
//! reads; an empty file where there is no BPF toolchain. A missing toolchain never fails the build; a program
//! that does not compile always does.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// One program file and one BPF object a probe.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../agent-ebpf/src/bin");
/// What the benchmark of the collective calls measures against; no part of the agent.
const COMPARED: &str = "per_call";
/// A folder of prebuilt objects to embed instead (release builds, cross builds).
const PREBUILT: &str = "GPUWHO_BPF_OBJECT_DIR";
/// Set when this program runs itself again: Cargo's library takes its settings from the
/// environment, which a process can only give to another one safely.
const AGAIN: &str = "GPUWHO_BPF_BUILD";
/// The toolchain that `cargo xtask setup` links where the pinned one has no `rust-src`.
const LINKED_TOOLCHAIN: &str = "gpuwho-bpf";

fn main() -> ExitCode {
    for name in [PREBUILT, "PATH", "RUSTUP_TOOLCHAIN", "XDG_CACHE_HOME"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../../agent-common");
    println!("cargo:rerun-if-changed=../../../agent-ebpf");
    let done = match env::var(AGAIN) {
        Ok(toolchain) => compile(&toolchain),
        Err(_) => provide(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn provide() -> Result<(), String> {
    let out = out_dir()?;
    if let Some(folder) = env::var_os(PREBUILT) {
        return embed_prebuilt(Path::new(&folder), &out);
    }
    match toolchain() {
        Ok(found) => compile_again(&found),
        Err(missing) => {
            println!(
                "cargo:warning={missing}: built without BPF, the agent will scan /proc instead; \
                 remedy: cargo xtask setup"
            );
            let mut objects = probes()?.into_iter().chain([COMPARED.to_owned()]);
            objects.try_for_each(|object| write(&out.join(object), &[]))
        }
    }
}

fn embed_prebuilt(folder: &Path, out: &Path) -> Result<(), String> {
    for probe in probes()? {
        let from = folder.join(&probe);
        println!("cargo:rerun-if-changed={}", from.display());
        let object = fs::read(&from).map_err(|e| format!("{PREBUILT}: {}: {e}", from.display()))?;
        write(&out.join(probe), &object)?;
    }
    write(&out.join(COMPARED), &[])
}

/// The probes, by the stems of their program files.
fn probes() -> Result<Vec<String>, String> {
    let files = fs::read_dir(PROGRAMS).map_err(|e| format!("{PROGRAMS}: {e}"))?;
    let files = files.flatten().map(|file| file.path());
    let stems = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()));
    Ok(stems.filter(|stem| stem != COMPARED).collect())
}

struct BpfToolchain {
    /// A name that `rustup run` understands; ignored where there is no rustup.
    name: String,
    /// `PATH` with bpf-linker on it.
    path: OsString,
}

/// Finds a compiler with `rust-src` and the linker, or says what is missing.
fn toolchain() -> Result<BpfToolchain, String> {
    let path = path_with_linker().ok_or("no bpf-linker on PATH or in gpuwho's cache")?;
    let running = env::var("RUSTUP_TOOLCHAIN").unwrap_or_default();
    let name = [running.as_str(), LINKED_TOOLCHAIN]
        .into_iter()
        .find(|name| has_sources(name))
        .ok_or("no Rust toolchain with the rust-src component")?;
    Ok(BpfToolchain { name: name.to_owned(), path })
}

fn path_with_linker() -> Option<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .map(|cache| cache.join("gpuwho/bin"));
    let folders: Vec<PathBuf> = env::split_paths(&path).chain(cache).collect();
    folders.iter().any(|folder| folder.join("bpf-linker").is_file()).then_some(())?;
    env::join_paths(folders).ok()
}

fn has_sources(toolchain: &str) -> bool {
    sysroot(&mut rustc(toolchain))
        .is_some_and(|sysroot| sysroot.join("lib/rustlib/src/rust/library/core").is_dir())
}

fn rustc(toolchain: &str) -> Command {
    if toolchain.is_empty() {
        return Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    }
    let mut rustc = Command::new("rustup");
    rustc.args(["run", toolchain, "rustc"]);
    rustc
}

/// Where a compiler's files are.
fn sysroot(rustc: &mut Command) -> Option<PathBuf> {
    let answer = rustc.args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8_lossy(&answer.stdout);
    answer.status.success().then(|| PathBuf::from(sysroot.trim()))
}

fn compile_again(found: &BpfToolchain) -> Result<(), String> {
    let this = env::current_exe().map_err(|e| format!("own executable: {e}"))?;
    let answer = Command::new(this)
        .env(AGAIN, &found.name)
        .env("PATH", &found.path)
        // Stable compilers build core for a BPF target only with this.
        .env("RUSTC_BOOTSTRAP", "1")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("own executable: {e}"))?;
    if answer.status.success() {
        return Ok(());
    }
    // The compiler's messages, as Cargo warnings; of a build that succeeded nobody needs them.
    print!("{}", String::from_utf8_lossy(&answer.stdout));
    Err("the BPF programs do not compile".to_owned())
}

fn compile(toolchain: &str) -> Result<(), String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../agent-ebpf");
    let package = aya_build::Package { name: "gpuwho-ebpf", root_dir: root, ..Default::default() };
    aya_build::build_ebpf([package], aya_build::Toolchain::Custom(toolchain))
        .map_err(|e| format!("{e:#}"))?;
    let (out, sysroot) = (out_dir()?, sysroot(&mut rustc(toolchain)).unwrap_or_default());
    let host = env::var("HOST").unwrap_or_default();
    let strip = sysroot.join("lib/rustlib").join(host).join("bin/rust-objcopy");
    probes()?.iter().try_for_each(|probe| {
        let mut strip = Command::new(&strip);
        strip.env("LD_LIBRARY_PATH", sysroot.join("lib"));
        let done = strip.arg("--strip-debug").arg(out.join(probe)).status();
        let is_done = done.as_ref().is_ok_and(std::process::ExitStatus::success);
        is_done
            .then_some(())
            .ok_or_else(|| format!("{strip:?} strips no debug information: {done:?}"))
    })
}

fn out_dir() -> Result<PathBuf, String> {
    env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| "OUT_DIR is not set".to_owned())
}

fn write(path: &Path, object: &[u8]) -> Result<(), String> {
    fs::write(path, object).map_err(|e| format!("{}: {e}", path.display()))
}
