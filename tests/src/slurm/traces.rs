//! What a cluster leaves outside its cgroups: its folder, and processes that are told from others
//! by their mounts, which come from that folder.

use super::SlurmError;
use crate::stage::record::start_ticks;
use crate::until::until;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the folders' names begin.
pub(super) const PREFIX: &str = "gpuwho-slurm-";

/// The file that says whose a folder is.
const OWNER: &str = "owner";

/// Of each log, in an error.
const LAST_LINES: usize = 25;

/// Killed processes are gone within milliseconds; this is for a machine under load.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// Writes down that a folder is this process's.
pub(super) fn own(folder: &Path) -> Result<(), SlurmError> {
    let pid = std::process::id();
    let path = folder.join(OWNER);
    let owner = format!("{pid} {}", start_ticks(pid).unwrap_or_default());
    fs::write(&path, owner).map_err(SlurmError::os(&path))
}

/// Ends and removes what is left of clusters whose owner is gone.
pub(super) fn sweep() -> Result<usize, SlurmError> {
    let place = std::env::temp_dir();
    let entries = fs::read_dir(&place).map_err(SlurmError::os(&place))?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let left: Vec<_> = folders.filter(|folder| is_left(folder) == Some(true)).collect();
    for folder in &left {
        end_strays(folder);
        match fs::remove_dir_all(folder) {
            // Another sweep came first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(SlurmError::os(folder))?,
        }
    }
    Ok(left.len())
}

/// Kills every process that has mounts out of the folder, and waits until there is none.
pub(super) fn end_strays(folder: &Path) {
    until(GONE_WITHIN, || {
        let strays = strays(folder);
        for pid in &strays {
            // One that ended by itself in between is what was wanted.
            let _ended = kill_process(*pid, Signal::KILL);
        }
        strays.is_empty().then_some(())
    });
}

/// The ends of all logs in a folder.
pub(super) fn logs(folder: &Path) -> String {
    let mut all = String::new();
    let entries = fs::read_dir(folder).into_iter().flatten();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().rev().take(LAST_LINES).collect();
        let lines: Vec<_> = lines.into_iter().rev().collect();
        // Writing to a string cannot fail.
        let _ = writeln!(all, "{}:\n{}", path.display(), lines.join("\n"));
    }
    all
}

fn is_left(folder: &Path) -> Option<bool> {
    if !folder.file_name()?.to_str()?.starts_with(PREFIX) {
        return None;
    }
    let owner = fs::read_to_string(folder.join(OWNER)).ok()?;
    let (pid, start) = owner.split_once(' ')?;
    Some(start_ticks(pid.parse().ok()?) != Some(start.parse().ok()?))
}

fn strays(folder: &Path) -> Vec<Pid> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mark = format!("/{name}/");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_stray = |path: &PathBuf| {
        let mounts = fs::read_to_string(path.join("mountinfo")).unwrap_or_default();
        mounts.contains(&mark)
    };
    let paths = processes.map(|entry| entry.path()).filter(is_stray);
    paths.filter_map(|path| Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)).collect()
}
