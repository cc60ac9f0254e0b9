//! A folder that proves the agent on any machine with a GPU: no network, no toolchain, nothing to
//! install. Copy it there and run `gpu-check` in it.

use crate::compile::{self, Profile};
use crate::{place, shell};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// What it is made of.
const PROGRAMS: [&str; 3] = ["gpuwho", "gpu-check", "gpu-load"];
/// The folder must fit through narrow ways onto machines without a network.
const MAX_BYTES: u64 = 60 << 20;

/// What `cargo xtask gpu-check` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Where to put the folder; default: target/gpu-check
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Only make the folder, even on a machine with a GPU
    #[arg(long)]
    no_run: bool,
    /// Handed on to gpu-check
    #[arg(last = true)]
    args: Vec<String>,
}

/// `cargo xtask gpu-check`: makes the folder and, on a machine with a GPU, runs it.
pub(crate) fn gpu_check(request: &Request) -> Result<()> {
    compile::setup_toolchain()?;
    compile::packages(Profile::Release, &["gpuwho", "gpuwho-gpu-check"])?;
    let folder = request.out.clone().unwrap_or_else(|| place::target("gpu-check"));
    let bytes = assemble(&place::target(Profile::Release.folder()), &folder)?;
    println!("{}: {:.1} MB; run ./gpu-check in it", folder.display(), bytes as f64 / 1e6);
    if request.no_run {
        return Ok(());
    }
    shell::run(&mut shell::program(folder.join("gpu-check"), &request.args))
}

/// Copies the programs and gives the folder's size.
fn assemble(built: &Path, folder: &Path) -> Result<u64> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut bytes = 0;
    for name in PROGRAMS {
        let (from, to) = (built.join(name), folder.join(name));
        bytes += fs::copy(&from, &to)
            .with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    }
    if bytes > MAX_BYTES {
        bail!("{} has {bytes} bytes, more than {MAX_BYTES}", folder.display());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::{PROGRAMS, assemble};
    use std::fs;

    #[test]
    fn the_folder_has_every_program_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let (built, folder) = (root.path().join("built"), root.path().join("folder"));
        fs::create_dir(&built).unwrap();
        let missing = assemble(&built, &folder).unwrap_err();
        assert!(format!("{missing:#}").contains("built/gpuwho"), "{missing:#}");
        for name in PROGRAMS.iter().chain(&["something-else"]) {
            fs::write(built.join(name), "four").unwrap();
        }
        assert_eq!(assemble(&built, &folder).unwrap(), 12);
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["gpu-check", "gpu-load", "gpuwho"]);
    }
}
