//! The library's version among a file's constants.

use super::{CHUNK, bytes};
use std::fs::File;
use std::io;

/// The text before the version.
const VERSION_MARKS: [&[u8]; 2] = [b"NCCL version ", b"RCCL version "];
/// A version's text.
const MOST_VERSION: usize = 48;

/// Looks for it in a part of a file.
pub(super) fn find_version(file: &File, at: u64, size: u64) -> io::Result<Option<String>> {
    let end = at.saturating_add(size);
    let mut at = at;
    while at < end {
        let length = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
        let chunk = bytes(file, at, length)?;
        if let Some(version) = version_in(&chunk) {
            return Ok(Some(version));
        }
        if chunk.len() < length || length < CHUNK {
            break;
        }
        // A text across the border is found in the next chunk.
        at += (CHUNK - 2 * MOST_VERSION) as u64;
    }
    Ok(None)
}

/// `2.27.5+cuda12.9` in `NCCL version 2.27.5+cuda12.9`; a format like `%d.%d` is none.
pub(super) fn version_in(text: &[u8]) -> Option<String> {
    let marks = VERSION_MARKS.iter().flat_map(|mark| {
        let starts = text.windows(mark.len()).enumerate();
        starts.filter(move |(_, found)| found == mark).map(|(at, _)| at + mark.len())
    });
    marks.filter_map(|at| text.get(at..)).find_map(|rest| {
        let text = rest.iter().take(MOST_VERSION).take_while(|byte| byte.is_ascii_graphic());
        let version: String = text.map(|byte| char::from(*byte)).collect();
        let is_number = version.starts_with(|first: char| first.is_ascii_digit());
        (is_number && version.contains('.')).then_some(version)
    })
}
