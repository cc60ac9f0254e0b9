//! The folder of a spool and the files in it: who may read it, which files are there, where they end.

use super::segment::{self, MAX_FILE, NotOurs, Place, Reader};
use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

/// Requests name users and jobs.
const FOLDER_MODE: u32 = 0o700;
/// A file becomes no link and no pipe between the check and the open.
pub(super) const NO_LINK: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;
/// How the files' names begin; the number of the first request follows.
pub(super) const PREFIX: &str = "requests-";
/// Digits of that number.
const DIGITS: usize = 20;

/// A file of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpoolFile {
    pub(super) first: Place,
    pub(super) bytes: u64,
}

/// What opening found that is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Files of another version of the format, which were deleted: their number, bytes, and one version.
    pub foreign: Option<(usize, u64, u32)>,
    /// Files without a readable header, which were deleted.
    pub damaged_files: usize,
    /// There are requests, but the position was not readable: some may be sent again.
    pub lost_position: bool,
}

/// Makes the folder, or takes it from all others.
pub(super) fn secure(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let about = fs::symlink_metadata(folder)?;
    if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it is not a folder of the agent's own user"));
    }
    if about.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
    }
    Ok(())
}

/// The files of a spool in order, and those that cannot be used. Changes nothing.
pub(super) fn list(folder: &Path) -> io::Result<(VecDeque<SpoolFile>, Opened, Vec<PathBuf>)> {
    let mut files = Vec::new();
    let (mut opened, mut unusable) = (Opened::default(), Vec::new());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let number = number.filter(|digits| digits.len() == DIGITS).map(str::parse::<u64>);
        let Ok(about) = entry.metadata() else { continue };
        // What is no file of ours stays where it is.
        let (Some(Ok(number)), true) = (number, about.is_file()) else { continue };
        let path = entry.path();
        let file = match open_to_read(&path) {
            Ok(file) => file,
            // `gpuwho doctor` reads while the agent deletes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        match segment::read_file_header(&file)? {
            Ok(first) if first.number == number => {
                files.push(SpoolFile { first, bytes: about.len().min(MAX_FILE) });
            }
            Err(NotOurs::Version(version)) => {
                let (count, bytes, _) = opened.foreign.unwrap_or_default();
                opened.foreign = Some((count + 1, bytes + about.len(), version));
                unusable.push(path);
            }
            Ok(_) | Err(NotOurs::Damaged) => {
                opened.damaged_files += 1;
                unusable.push(path);
            }
        }
    }
    files.sort_by_key(|file| file.first.number);
    // Points before an entry only grow.
    let mut before = 0;
    files.retain(|file| {
        let is_in_order = file.first.before >= before;
        if is_in_order {
            before = file.first.before;
        } else {
            opened.damaged_files += 1;
            unusable.push(path(folder, file.first));
        }
        is_in_order
    });
    Ok((files.into(), opened, unusable))
}

/// The place behind the last readable entry.
pub(super) fn end_of(folder: &Path, files: &VecDeque<SpoolFile>) -> io::Result<Option<Place>> {
    let Some(newest) = files.back() else { return Ok(None) };
    let file = open_to_read(&path(folder, newest.first))?;
    let mut reader = Reader::new(file, newest.first);
    let mut end = newest.first;
    while let Some(entry) = reader.next()? {
        if entry.at.number >= end.number {
            end = entry.next();
        }
    }
    Ok(Some(end))
}

pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NO_LINK).open(path)
}

/// Where a file is.
pub(super) fn path(folder: &Path, first: Place) -> PathBuf {
    folder.join(format!("{PREFIX}{:0DIGITS$}", first.number))
}
