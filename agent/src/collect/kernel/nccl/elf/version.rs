//! The library's version: the text among the file's constants, or what the set of its functions
//! tells. Reads some megabytes, a megabyte at a time.

use super::{CHUNK, Image, MOST_HEADERS, bytes, read_all};
use gpuwho_common::nccl::SYMBOLS;
use object::LittleEndian as LE;
use object::elf::{PT_LOAD, ProgramHeader64, SectionHeader64};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// The text before the version.
const VERSION_MARKS: [&[u8]; 2] = [b"NCCL version ", b"RCCL version "];
/// Constants that are searched for the version: a library has some megabytes of them.
const MOST_CONSTANTS: u64 = 64 << 20;
/// A version's text.
const MOST_VERSION: usize = 48;

/// The newest version that a function of the set came with.
pub(super) fn at_least(entries: &[(usize, u64)]) -> Arc<str> {
    let rows = entries.iter().filter_map(|(row, _)| SYMBOLS.get(*row));
    let code = rows.map(|symbol| symbol.since).max().unwrap_or(0);
    Arc::from(format!(">={}.{}", code / 10_000, code / 100 % 100))
}

/// The version among the constants: a section where the file says so, else every segment that
/// is only read.
pub(super) fn among_constants(image: &Image<'_>) -> io::Result<Option<String>> {
    let (at, count) = image.sections;
    let sections = read_all::<SectionHeader64<LE>>(image.file, at, count.min(MOST_HEADERS))?;
    let is_constant = |section: &&SectionHeader64<LE>| {
        let (kind, flags) = (section.sh_type.get(LE), section.sh_flags.get(LE));
        // Contents that are in memory, not written and not run.
        kind == 1 && flags & 7 == 2
    };
    let mut places: Vec<(u64, u64)> = sections
        .iter()
        .filter(is_constant)
        .map(|section| (section.sh_offset.get(LE), section.sh_size.get(LE)))
        .collect();
    if places.is_empty() {
        let read_only = image.of_kind(PT_LOAD).filter(|segment| segment.p_flags.get(LE) == 4);
        let place =
            |segment: &ProgramHeader64<LE>| (segment.p_offset.get(LE), segment.p_filesz.get(LE));
        places = read_only.map(place).collect();
    }
    // The text constants are small beside the code for the devices.
    places.sort_by_key(|(_, size)| *size);
    let mut left = MOST_CONSTANTS;
    for (at, size) in places {
        if size > left {
            break;
        }
        left -= size;
        if let Some(version) = find_version(image.file, at, size)? {
            return Ok(Some(version));
        }
    }
    Ok(None)
}

fn find_version(file: &File, at: u64, size: u64) -> io::Result<Option<String>> {
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
