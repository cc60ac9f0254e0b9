//! Finds the library's version in a file's constants.

use super::{CHUNK, Content};
use std::io;

/// The text before the version.
const VERSION_MARKS: [&[u8]; 2] = [b"NCCL version ", b"RCCL version "];
/// Limit of a version's text.
const MAX_VERSION_LEN: usize = 48;

/// Searches a part of a file.
pub(super) fn find_version(file: &Content<'_>, at: u64, size: u64) -> io::Result<Option<String>> {
    let end = at.saturating_add(size);
    let mut at = at;
    while at < end {
        let length = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
        let chunk = file.bytes(at, length)?;
        if let Some(version) = version_in(&chunk) {
            return Ok(Some(version));
        }
        if chunk.len() < length || length < CHUNK {
            break;
        }
        // A text across the border is found in the next chunk.
        at += (CHUNK - 2 * MAX_VERSION_LEN) as u64;
    }
    Ok(None)
}

/// Finds `2.27.5+cuda12.9` in `NCCL version 2.27.5+cuda12.9`; a format such as `%d.%d` does not
/// match.
pub(super) fn version_in(text: &[u8]) -> Option<String> {
    let firsts = text.iter().enumerate().filter(|(_, byte)| matches!(byte, b'N' | b'R'));
    let marks = firsts.filter_map(|(at, _)| {
        let rest = text.get(at..)?;
        let mark = VERSION_MARKS.iter().find(|mark| rest.starts_with(mark))?;
        Some(at + mark.len())
    });
    marks.filter_map(|at| text.get(at..)).find_map(|rest| {
        let text = rest.iter().take(MAX_VERSION_LEN).take_while(|byte| byte.is_ascii_graphic());
        let version: String = text.map(|byte| char::from(*byte)).collect();
        let is_number = version.starts_with(|first: char| first.is_ascii_digit());
        (is_number && version.contains('.')).then_some(version)
    })
}
