//! What a stage made on the host, written down before it is made, so that whoever comes later can
//! remove what a killed owner left. Directories that were there before are never written down and
//! so never removed; one that another stage came to use is handed on to that stage.

use super::StageError;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where the records are; gone at boot, as the cgroups are.
const FOLDER: &str = "/run/gpuwho-stage";

/// The record of directories whose maker is gone but which others still use.
const SHARED: &str = "shared";

/// What one stage made.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    made: BTreeSet<PathBuf>,
}

impl Record {
    /// An empty record of this process.
    pub(crate) fn new() -> Result<Self, StageError> {
        let path = Path::new(FOLDER).join(own_name());
        let _lock = lock()?;
        let record = Self { path, made: BTreeSet::new() };
        record.save()?;
        Ok(record)
    }

    /// Makes directories with `make`, having written down which of them and of their parents
    /// are not there yet.
    pub(crate) fn make(
        &mut self,
        directories: &[PathBuf],
        make: impl FnOnce() -> Result<(), StageError>,
    ) -> Result<(), StageError> {
        let _lock = lock()?;
        for directory in directories {
            let missing = directory.ancestors().take_while(|ancestor| !ancestor.exists());
            self.made.extend(missing.map(Path::to_owned));
        }
        self.save()?;
        make()
    }

    /// Removes all of it; what others use now is theirs to remove.
    pub(crate) fn remove(&mut self) -> Result<(), StageError> {
        let _lock = lock()?;
        let shared = Path::new(FOLDER).join(SHARED);
        let mut left: BTreeSet<_> = read(&shared).into_iter().chain(self.made.clone()).collect();
        remove_below(&self.made);
        remove_directories(&mut left);
        self.made.clear();
        write(&shared, &left)?;
        fs::remove_file(&self.path).map_err(|source| StageError::at(&self.path, source))
    }

    fn save(&self) -> Result<(), StageError> {
        write(&self.path, &self.made)
    }
}

/// Removes what stages left whose process is gone; gives the number of such stages.
pub(super) fn sweep() -> Result<usize, StageError> {
    let _lock = lock()?;
    let shared = Path::new(FOLDER).join(SHARED);
    let mut left: BTreeSet<_> = read(&shared).into_iter().collect();
    let dead: Vec<_> = records()?.into_iter().filter(|path| !owner_lives(path)).collect();
    for path in &dead {
        let made: BTreeSet<_> = read(path).into_iter().collect();
        leaves(&made).for_each(|directory| super::end_processes(directory));
        remove_below(&made);
        left.extend(made);
    }
    remove_directories(&mut left);
    write(&shared, &left)?;
    for path in &dead {
        fs::remove_file(path).map_err(|source| StageError::at(path, source))?;
    }
    Ok(dead.len())
}

/// The groups themselves: processes directly in a parent, `/system.slice` say, are not ours. What is below a
/// directory comes next in the set.
fn leaves(made: &BTreeSet<PathBuf>) -> impl Iterator<Item = &PathBuf> {
    let next = made.iter().skip(1).map(Some).chain([None]);
    let each = made.iter().zip(next);
    let leaves =
        each.filter(|(directory, next)| !next.is_some_and(|next| next.starts_with(directory)));
    leaves.map(|(directory, _)| directory)
}

/// Removes what those who live in our groups made in them: Slurm its jobs, a container its own.
fn remove_below(made: &BTreeSet<PathBuf>) {
    for leaf in leaves(made) {
        let below = super::directories_of(leaf).into_iter().filter(|directory| directory != leaf);
        remove_directories(&mut below.collect());
    }
}

/// Removes deepest first (a child sorts after its parent) and keeps what is still in use.
fn remove_directories(directories: &mut BTreeSet<PathBuf>) {
    let deepest_first: Vec<_> = directories.iter().rev().cloned().collect();
    for directory in deepest_first {
        match fs::remove_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => {
                directories.remove(&directory);
            }
        }
    }
}

fn records() -> Result<Vec<PathBuf>, StageError> {
    let folder = Path::new(FOLDER);
    let entries = fs::read_dir(folder).map_err(|source| StageError::at(folder, source))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter(|path| owner(path).is_some()).collect())
}

/// A new name by which others can tell whether this process lives.
pub(crate) fn own_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let pid = process::id();
    let start = start_ticks(pid).unwrap_or_default();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{pid}-{start}-{number}")
}

/// The process a record is named after: PID and start time, which no later process shares.
fn owner(record: &Path) -> Option<(u32, u64)> {
    let name = record.file_name()?.to_str()?;
    let mut parts = name.split('-');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether the process lives that made a file or folder of such a name.
pub(crate) fn owner_lives(record: &Path) -> bool {
    owner(record).is_some_and(|(pid, start)| start_ticks(pid) == Some(start))
}

/// When a process started; `None` when there is none, or only its zombie.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22, of which the state was field 3.
    fields.nth(18)?.parse().ok()
}

fn read(path: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

fn write(path: &Path, directories: &BTreeSet<PathBuf>) -> Result<(), StageError> {
    let lines: Vec<_> = directories.iter().map(|line| line.display().to_string()).collect();
    fs::write(path, lines.join("\n")).map_err(|source| StageError::at(path, source))
}

/// One stage at a time changes directories and records; released when the file is dropped.
pub(crate) fn lock() -> Result<File, StageError> {
    let at = |source| StageError::at(Path::new(FOLDER), source);
    fs::create_dir_all(FOLDER).map_err(at)?;
    let file = File::create(Path::new(FOLDER).join("lock")).map_err(at)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|errno| at(errno.into()))?;
    Ok(file)
}
