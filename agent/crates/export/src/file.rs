//! A file of lines that rotates by size and age. Its space on disk is bounded, and a full disk costs
//! the lines of that time: what was written in part is cut off, and the next batch is tried again.
//!
//! `FILE` is renamed to `FILE.1`, `FILE.1` to `FILE.2`, and so on. If another program (`logrotate`)
//! renames or deletes the file, the next batch begins a new one. Only regular files rotate: a pipe
//! or a device is written as it is. A file that another user has or can replace is not written, and tried
//! again with each batch.

use gpuwho_model::paths::{link_of_another, shared_part};
use parking_lot::Mutex;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Readable by root and its group: lines name users and jobs.
const MODE: u32 = 0o640;

/// When a file rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rotation {
    /// Largest size of one file in bytes.
    pub(super) max_bytes: u64,
    /// Longest age of the file in use; `None`: no limit.
    pub(super) max_age: Option<Duration>,
    /// Number of older files.
    pub(super) keep: u32,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { max_bytes: 100 << 20, max_age: None, keep: 4 }
    }
}

/// Why a file is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsafeFile {
    /// It is another user's, or a link of one.
    #[error("the file belongs to user {0}, who would read or redirect what is written")]
    File(u32),
    /// A folder of its path is.
    #[error("a folder of its path belongs to user {0}, who can replace the file")]
    Folder(u32),
    /// A link in its path is.
    #[error("a link in its path belongs to user {0}, who can redirect what is written")]
    Link(u32),
    /// A folder of its path is everybody's.
    #[error("every user can write in a folder of its path, and replace the file")]
    Shared,
}

impl UnsafeFile {
    fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    /// What helps.
    pub(super) const REMEDY: &str =
        "remove it, or name a file in a folder that only the agent's user can write";
}

/// Why the file is not written now; for the sink's report.
#[derive(Clone, Debug, Default)]
pub(super) struct FileState(Arc<Mutex<Option<UnsafeFile>>>);

impl FileState {
    pub(super) fn refusal(&self) -> Option<UnsafeFile> {
        *self.0.lock()
    }

    fn note(&self, error: Option<&io::Error>) {
        *self.0.lock() = error.and_then(UnsafeFile::of);
    }
}

/// A file that is opened once nobody else has it: what is to be written before is lost.
#[derive(Debug)]
pub(super) struct GuardedFile {
    path: PathBuf,
    rotation: Rotation,
    file: Option<RotatingFile>,
    pub(super) state: FileState,
}

impl GuardedFile {
    /// Opens the file, or says in its state whose it is.
    pub(super) fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let (opened, state) = (RotatingFile::open(path, rotation), FileState::default());
        state.note(opened.as_ref().err());
        let file = match opened {
            Err(error) if state.refusal().is_none() => return Err(error),
            opened => opened.ok(),
        };
        Ok(Self { path: path.to_owned(), rotation, file, state })
    }

    fn file(&mut self) -> io::Result<&mut RotatingFile> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(RotatingFile::open(&self.path, self.rotation)?)),
        }
    }
}

impl Write for GuardedFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.file()?.write(lines)
    }

    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        let written = self.file().and_then(|file| file.write_all(lines));
        self.state.note(written.as_ref().err());
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file()?.flush()
    }
}

/// The file in use.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    /// Bytes in it; `None` if it does not rotate.
    bytes: Option<u64>,
    created: SystemTime,
}

impl RotatingFile {
    /// Opens the file, or makes it.
    pub(super) fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let (file, about) = open(path)?;
        let bytes = about.is_file().then_some(about.len());
        let created = created(&about);
        Ok(Self { path: path.to_owned(), rotation, file, bytes, created })
    }

    /// Makes place for so many bytes.
    fn prepare(&mut self, more: usize, now: SystemTime) -> io::Result<()> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        if !self.is_in_place()? {
            *self = Self::open(&self.path, self.rotation)?;
            return Ok(());
        }
        // A clock that was set back makes no file old.
        let age = now.duration_since(self.created).unwrap_or_default();
        let is_old = self.rotation.max_age.is_some_and(|max| age >= max);
        let is_full = bytes.saturating_add(more as u64) > self.rotation.max_bytes;
        if bytes > 0 && (is_old || is_full) {
            self.rotate()?;
        }
        Ok(())
    }

    /// Whether the path still names the open file.
    fn is_in_place(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        match fs::metadata(&self.path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        if self.rotation.keep == 0 {
            fs::remove_file(&self.path)?;
        }
        for number in (0..self.rotation.keep).rev() {
            match fs::rename(numbered(&self.path, number), numbered(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *self = Self::open(&self.path, self.rotation)?;
        Ok(())
    }
}

impl Write for RotatingFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.file.write(lines)
    }

    /// Writes all lines, or none.
    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        self.prepare(lines.len(), SystemTime::now())?;
        let written = self.file.write_all(lines);
        if let Some(bytes) = &mut self.bytes {
            match &written {
                Ok(()) => *bytes += lines.len() as u64,
                // A full disk refuses only what is added.
                Err(_) => self.file.set_len(*bytes)?,
            }
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Opens the file, or makes it. A link or a file that another user put there is refused: in a folder where
/// others may write, a link leads the lines into root's files, also one above the file, and a file shows them to
/// its owner. What the system itself links, as `/dev/stdout`, is followed.
fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let options = || {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(MODE);
        options
    };
    let is_of_system = is_of_system(path);
    // Before it is opened: a pipe of another user's would hold the agent up.
    check(path).map_err(io::Error::other)?;
    let file = match options().custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            refuse_others(&fs::symlink_metadata(path)?).map_err(io::Error::other)?;
            options().open(path)?
        }
        opened => opened?,
    };
    let about = file.metadata()?;
    let kind = about.file_type();
    if (kind.is_file() || kind.is_fifo()) && !is_of_system {
        refuse_others(&about).map_err(io::Error::other)?;
    }
    Ok((file, about))
}

fn is_of_system(path: &Path) -> bool {
    ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder))
}

/// Whether another user has the file, or can replace it: the folders of its path, the links in it and the folders
/// that these lead to.
pub(super) fn check(path: &Path) -> Result<(), UnsafeFile> {
    if is_of_system(path) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    if let Some((_, user)) = link_of_another(folder) {
        return Err(UnsafeFile::Link(user));
    }
    let target = fs::canonicalize(folder).unwrap_or_default();
    let shared = shared_part(folder, true).or_else(|| shared_part(&target, true));
    match shared.map(|(_, user)| user) {
        Some(Some(user)) => Err(UnsafeFile::Folder(user)),
        Some(None) => Err(UnsafeFile::Shared),
        None => fs::symlink_metadata(path).map_or(Ok(()), |there| refuse_others(&there)),
    }
}

fn refuse_others(about: &Metadata) -> Result<(), UnsafeFile> {
    match about.uid() {
        0 => Ok(()),
        uid if uid == rustix::process::geteuid().as_raw() => Ok(()),
        uid => Err(UnsafeFile::File(uid)),
    }
}

/// When the file was made; now where the file system does not record it.
fn created(about: &Metadata) -> SystemTime {
    about.created().unwrap_or_else(|_| SystemTime::now())
}

/// The path of an older file; 0 is the file in use.
fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_disk::on_small_disk;
    use std::collections::BTreeMap;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
    use tempfile::TempDir;

    const SMALL: Rotation = Rotation { max_bytes: 10, max_age: None, keep: 2 };

    fn files(folder: &TempDir) -> BTreeMap<String, String> {
        let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
        entries
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap())
            })
            .collect()
    }

    fn expected(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_link_or_a_file_of_another_users_is_refused_and_the_agents_own_is_followed() {
        let folder = TempDir::new().unwrap();
        let [target, link, file] = ["t", "l", "f"].map(|name| folder.path().join(name));
        fs::write(&target, "").unwrap();
        fs::write(&file, "").unwrap();
        symlink(&target, &link).unwrap();
        let open = |path: &Path| RotatingFile::open(path, SMALL).map(drop);
        assert!(open(&link).is_ok() && open(&file).is_ok(), "the agent's own");
        if lchown(&link, Some(65_534), None).is_err() || lchown(&file, Some(65_534), None).is_err()
        {
            println!("skipped: needs root, to make another user's files");
            return;
        }
        for path in [&link, &file] {
            let error = open(path).unwrap_err().to_string();
            assert!(error.starts_with("the file belongs to user 65534"), "{error}");
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "");
        assert!(open(Path::new("/dev/null")).is_ok());
        let above = folder.path().join("above");
        symlink(folder.path(), &above).unwrap();
        assert!(open(&above.join("new")).is_ok(), "by the agent's own");
        lchown(&above, Some(65_534), None).unwrap();
        let error = open(&above.join("other")).unwrap_err();
        assert_eq!(UnsafeFile::of(&error), Some(UnsafeFile::Link(65_534)), "{error}");
        assert!(!folder.path().join("other").exists(), "none is made where it leads");
    }

    #[test]
    fn a_file_that_another_user_has_or_can_replace_is_written_as_soon_as_he_cannot() {
        let folder = TempDir::new().unwrap();
        let logs = folder.path().join("logs");
        fs::create_dir(&logs).unwrap();
        let mode = |mode| fs::set_permissions(&logs, Permissions::from_mode(mode)).unwrap();
        let path = logs.join("f");
        mode(0o777);
        let mut file = GuardedFile::open(&path, SMALL).unwrap();
        assert_eq!(file.state.refusal(), Some(UnsafeFile::Shared));
        assert!(file.write_all(b"a\n").is_err() && !path.exists(), "none is made");
        mode(0o1777);
        file.write_all(b"b\n").unwrap();
        assert_eq!((file.state.refusal(), fs::read(&path).unwrap()), (None, b"b\n".to_vec()));
        // A link in the path leads to where others write.
        let link = folder.path().join("link");
        symlink(&logs, &link).unwrap();
        mode(0o777);
        assert_eq!(check(&link.join("g")), Err(UnsafeFile::Shared));
        mode(0o755);
        if lchown(&path, Some(65_534), None).is_err() {
            println!("skipped: needs root, to make another user's files");
            return;
        }
        let mut file = GuardedFile::open(&path, SMALL).unwrap();
        assert_eq!(file.state.refusal(), Some(UnsafeFile::File(65_534)));
        assert!(file.write_all(b"c\n").is_err());
        fs::rename(&path, logs.join("his")).unwrap();
        file.write_all(b"d\n").unwrap();
        assert_eq!((file.state.refusal(), fs::read(&path).unwrap()), (None, b"d\n".to_vec()));
        lchown(&logs, Some(65_534), None).unwrap();
        assert_eq!(check(&path), Err(UnsafeFile::Folder(65_534)));
        assert!(GuardedFile::open(Path::new("/no/folder/f"), SMALL).is_err(), "a wrong path");
    }

    #[test]
    fn a_full_file_becomes_an_older_one_and_the_oldest_goes() {
        let folder = TempDir::new().unwrap();
        let mut file = RotatingFile::open(&folder.path().join("p"), SMALL).unwrap();
        for line in
            ["aaaa\n", "bbbb\n", "cccc\n", "dddddd\n", "eeeeee\n", "a line that is longer\n"]
        {
            file.write_all(line.as_bytes()).unwrap();
        }
        let left = [("p", "a line that is longer\n"), ("p.1", "eeeeee\n"), ("p.2", "dddddd\n")];
        assert_eq!(files(&folder), expected(&left));
    }

    #[test]
    fn an_agent_that_starts_again_goes_on_in_the_same_file_and_counts_what_is_in_it() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("p");
        for line in ["aaaa\n", "bbbb\n", "cccc\n"] {
            RotatingFile::open(&path, SMALL).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(files(&folder), expected(&[("p", "cccc\n"), ("p.1", "aaaa\nbbbb\n")]));
    }

    #[test]
    fn without_older_files_the_file_begins_anew() {
        let folder = TempDir::new().unwrap();
        let rotation = Rotation { keep: 0, ..SMALL };
        let mut file = RotatingFile::open(&folder.path().join("p"), rotation).unwrap();
        file.write_all(b"aaaaaaaa\n").unwrap();
        file.write_all(b"bbbbbbbb\n").unwrap();
        assert_eq!(files(&folder), expected(&[("p", "bbbbbbbb\n")]));
    }

    #[test]
    fn an_old_file_rotates_and_a_clock_set_back_rotates_none() {
        let folder = TempDir::new().unwrap();
        let age = Duration::from_hours(24);
        let rotation = Rotation { max_bytes: 1000, max_age: Some(age), keep: 1 };
        let mut file = RotatingFile::open(&folder.path().join("p"), rotation).unwrap();
        file.write_all(b"a\n").unwrap();
        let made = file.created;
        file.prepare(1, made - age).unwrap();
        file.prepare(1, made + age - Duration::from_secs(1)).unwrap();
        assert_eq!(files(&folder), expected(&[("p", "a\n")]));
        file.prepare(1, made + age).unwrap();
        assert_eq!(files(&folder), expected(&[("p", ""), ("p.1", "a\n")]));
    }

    #[test]
    fn a_file_that_another_program_renames_or_deletes_is_made_again() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("p");
        let mut file = RotatingFile::open(&path, Rotation::default()).unwrap();
        file.write_all(b"a\n").unwrap();
        fs::rename(&path, folder.path().join("q")).unwrap();
        file.write_all(b"b\n").unwrap();
        assert_eq!(files(&folder), expected(&[("p", "b\n"), ("q", "a\n")]));
        fs::remove_file(&path).unwrap();
        file.write_all(b"c\n").unwrap();
        assert_eq!(files(&folder), expected(&[("p", "c\n"), ("q", "a\n")]));
    }

    #[test]
    fn a_device_does_not_rotate() {
        let mut file = RotatingFile::open(Path::new("/dev/null"), SMALL).unwrap();
        for _ in 0..3 {
            file.write_all(b"eight by\n").unwrap();
        }
        assert!(fs::symlink_metadata("/dev/null.1").is_err());
    }

    #[test]
    fn a_full_disk_takes_no_part_of_a_batch_and_the_next_lines_are_written() {
        on_small_disk("16k", fill);
    }

    fn fill(folder: &Path) {
        let path = folder.join("p");
        let mut file = RotatingFile::open(&path, Rotation::default()).unwrap();
        file.write_all(b"whole\n").unwrap();
        let error = file.write_all(&vec![b'x'; 64 << 10]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        file.write_all(b"again\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole\nagain\n");
    }
}
