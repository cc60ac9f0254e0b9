//! Reads the small kernel files behind a vendor's metrics without trusting them: each is read once, up
//! to a bound; invalid content is left out and counted. Most are opened for that and closed again.

use super::in_flight;
use super::wire::Cost;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A sysfs attribute has at most one page; a longer file is not an attribute.
const MAX_LEN: usize = 4096;
/// Bytes of a number; a longer text is none.
const MAX_NUMBER: usize = 32;
/// Limit on the directory entries that are read.
const MAX_ENTRIES: usize = 4096;

/// Reads files and accumulates the cost.
#[derive(Debug, Default)]
pub(super) struct Files {
    cost: Cost,
    why: Option<String>,
}

impl Files {
    /// Begins a reading.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// The cost of the reading so far.
    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    /// The error of the last file that failed.
    pub(super) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// A file's bytes; `None` if it is missing, empty or too long.
    pub(super) fn bytes(&mut self, path: &Path) -> Option<Vec<u8>> {
        self.bytes_up_to(path, MAX_LEN)
    }

    fn bytes_up_to(&mut self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        let begun = Instant::now();
        let read = in_flight::call(path, || read(path, limit));
        let spent = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.cost.calls += 1;
        self.cost.library_ns = self.cost.library_ns.saturating_add(spent);
        match read {
            Ok(bytes) => Some(bytes),
            Err(error) if is_unsupported(&error) => None,
            Err(error) => {
                self.cost.failed += 1;
                self.why = Some(format!("{}: {error}", path.display()));
                None
            }
        }
    }

    /// The number in a file that is open, as it is now; `None` also if the kernel has removed the file. `place`
    /// is what a reading that hangs is reported with.
    pub(super) fn number_again(&mut self, file: &File, place: &Path) -> Option<u64> {
        let (begun, mut room) = (Instant::now(), [0; MAX_NUMBER]);
        let read = in_flight::call(place, || file.read_at(&mut room, 0));
        self.count_call(begun.elapsed(), false);
        let text = room.get(..read.ok().filter(|length| *length > 0)?)?;
        let number = str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
        self.count_implausible(number.filter(|number| is_value(*number)))
    }

    /// A file's text, trimmed.
    pub(super) fn text(&mut self, path: &Path) -> Option<String> {
        self.long_text(path, MAX_LEN)
    }

    /// The text, trimmed, of a file that may be longer than an attribute.
    pub(super) fn long_text(&mut self, path: &Path, limit: usize) -> Option<String> {
        let text = String::from_utf8(self.bytes_up_to(path, limit)?).ok();
        let text = self.count_implausible(text)?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// A file's number; all ones means no value.
    pub(super) fn number(&mut self, path: &Path) -> Option<u64> {
        let number = self.text(path)?.parse().ok();
        self.count_implausible(number.filter(|number| is_value(*number)))
    }

    /// A file's signed number.
    pub(super) fn signed(&mut self, path: &Path) -> Option<i64> {
        let number = self.text(path)?.parse().ok();
        self.count_implausible(number)
    }

    /// Counts a call that is no file.
    pub(super) fn count_call(&mut self, took: Duration, has_failed: bool) {
        let spent = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.cost.calls += 1;
        self.cost.failed += u32::from(has_failed);
        self.cost.library_ns = self.cost.library_ns.saturating_add(spent);
    }

    /// Counts a missing value as implausible.
    pub(super) fn count_implausible<T>(&mut self, value: Option<T>) -> Option<T> {
        self.cost.implausible += u32::from(value.is_none());
        value
    }
}

/// Whether a number is one: all ones mean no value.
fn is_value(number: u64) -> bool {
    ![u64::MAX, u64::from(u32::MAX)].contains(&number)
}

/// Whether the error means that the device or the driver has no such reading.
fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS))
}

fn read(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    if limit > MAX_LEN {
        let length = u64::try_from(limit).unwrap_or(u64::MAX);
        file.take(length + 1).read_to_end(&mut bytes)?;
    } else {
        // The kernel gives an attribute as a whole, so that no second read has to find its end.
        let mut room = [0; MAX_LEN + 1];
        let length = file.read(&mut room)?;
        bytes.extend(room.iter().take(length));
    }
    match bytes.len() {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        length if length > limit => Err(io::ErrorKind::FileTooLarge.into()),
        _ => Ok(bytes),
    }
}

/// A directory's entries named prefix and more, with what follows the prefix; in no order.
pub(super) fn named(folder: &Path, prefix: &str) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let named = entries.filter_map(|entry| {
        let name = entry.file_name();
        Some((name.to_str()?.strip_prefix(prefix)?.to_owned(), entry.path()))
    });
    named.collect()
}

/// A directory's entries named prefix and number, sorted by number.
pub(super) fn numbered(folder: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    numbered_to(MAX_ENTRIES, folder, prefix)
}

/// The same of so many entries, the first that the directory lists.
pub(super) fn numbered_to(most: usize, folder: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(most);
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            Some((name.to_str()?.strip_prefix(prefix)?.parse().ok()?, entry.path()))
        })
        .collect();
    found.sort_unstable();
    found
}
