//! Entry points of the fuzz targets (`tests/fuzz`).

use super::libraries::elf::{self, ReadAt};
use super::libraries::{fields, mappings, mounts as list};
use std::io;

/// A file in memory.
struct Bytes<'a>(&'a [u8]);

impl ReadAt for Bytes<'_> {
    fn read_at(&self, room: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let length = rest.len().min(room.len());
        let (Some(to), Some(from)) = (room.get_mut(..length), rest.get(..length)) else {
            return Ok(0);
        };
        to.copy_from_slice(from);
        Ok(length)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

/// Parses any bytes as a mapped library; true if every probe would be inside it.
pub fn library(bytes: &[u8]) -> bool {
    let file = Bytes(bytes);
    // Every result is valid.
    let _ = elf::version(&file);
    let _ = fields::fields(&file);
    let exports = elf::exports(&file).ok().flatten();
    let entries = exports.map(|exports| exports.entries).unwrap_or_default();
    entries.iter().all(|(_, offset)| *offset < bytes.len() as u64)
}

/// Parses any bytes as a list of mappings; true if all are of files and within the bounds.
pub fn maps(bytes: &[u8]) -> bool {
    let (mut is_file, mut count) = (true, 0);
    let read = mappings::read(bytes, |mapping| {
        count += 1;
        is_file &= mapping.path.starts_with(b"/") && mapping.key.inode != 0;
        is_file &= mapping.path.len() <= mappings::MAX_LINE_BYTES;
    });
    let lines = bytes.split(|byte| *byte == b'\n').count();
    read.is_ok() && is_file && count <= lines.min(mappings::MAX_LINES as usize)
}

/// Parses any bytes as a list of mounts; true if the file system type of the mount is one word.
pub fn mounts(bytes: &[u8], mount: u64) -> bool {
    list::kind_of(bytes, mount).is_none_or(|kind| !kind.contains([' ', '\n']))
}
