//! Finds what was built beside the running program: the agent, the worker, the fake driver.

use std::env;
use std::path::{Path, PathBuf};

/// Something that should have been built is not there.
#[derive(Debug, thiserror::Error)]
#[error("no {name} in {folder}: build it with `{command}`")]
pub struct NotBuilt {
    name: String,
    folder: PathBuf,
    command: &'static str,
}

/// The agent: `GPUWHO_BIN`, else the one built beside this program.
pub fn gpuwho() -> Result<PathBuf, NotBuilt> {
    if let Some(path) = env::var_os("GPUWHO_BIN") {
        return Ok(path.into());
    }
    built("gpuwho", "cargo build -p gpuwho")
}

/// The worker.
pub fn worker() -> Result<PathBuf, NotBuilt> {
    built("worker", "cargo build -p gpuwho-tests --bins")
}

/// The fake inference engine.
pub fn engine() -> Result<PathBuf, NotBuilt> {
    built("engine", "cargo build -p gpuwho-tests --bins")
}

/// The tenant that attacks the agent.
pub fn attacker() -> Result<PathBuf, NotBuilt> {
    built("nccl-attacker", "cargo build -p gpuwho-tests --bins")
}

/// What gives other programs mounts of their own.
pub fn enter() -> Result<PathBuf, NotBuilt> {
    built("enter", "cargo build -p gpuwho-tests --bins")
}

/// The fake driver library.
pub fn fake_nvml() -> Result<PathBuf, NotBuilt> {
    built("libnvidia_ml.so", "cargo build -p gpuwho-fake-nvml")
}

/// The fake of Gaudi's library.
pub fn fake_hlml() -> Result<PathBuf, NotBuilt> {
    built("libhlml.so", "cargo build -p gpuwho-fake-hlml")
}

/// The fake of AMD's library.
pub fn fake_amd_smi() -> Result<PathBuf, NotBuilt> {
    built("libfake_amd_smi.so", "cargo build -p gpuwho-fake-amd-smi")
}

/// The fake collective library.
pub fn fake_nccl() -> Result<PathBuf, NotBuilt> {
    built("libnccl.so", "cargo build -p gpuwho-fake-nccl")
}

/// A process that calls it.
pub fn rank() -> Result<PathBuf, NotBuilt> {
    built("nccl-rank", "cargo build -p gpuwho-fake-nccl")
}

/// A shell in a folder whose name speaks of NCCL: the agent reads the Inspector's files of no host without it.
pub fn shell_with_nccl(folder: &Path) -> std::io::Result<PathBuf> {
    let path = folder.join("nccl-shell");
    std::fs::copy("/bin/sh", &path)?;
    Ok(path)
}

fn built(name: &str, command: &'static str) -> Result<PathBuf, NotBuilt> {
    let folder = profile_folder();
    let path = folder.join(name);
    if path.is_file() { Ok(path) } else { Err(NotBuilt { name: name.to_owned(), folder, command }) }
}

/// `target/<profile>`: test executables are one deeper, in `deps`.
fn profile_folder() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("."));
    if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder }.to_owned()
}
