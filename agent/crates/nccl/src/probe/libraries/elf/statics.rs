//! Finds the functions of a library that is statically linked into a program, which exports
//! nothing: in the table of all symbols, unless the file is stripped.
//!
//! Two passes over names and symbols, a megabyte at a time: the first finds the offsets of the
//! wanted names, the second their symbols. Most files need only the first.

use super::{CHUNK, Image, MARK, MAX_HEADERS};
use gpuwho_common::nccl::SYMBOLS;
use object::LittleEndian as LE;
use object::elf::{PF_X, SHN_UNDEF, SHT_SYMTAB, STT_FUNC, SectionHeader64, Sym64};
use std::collections::HashMap;
use std::io;

/// The prefix of the functions' names; a profiler's alias has the same offset.
const PREFIX: &[u8] = b"nccl";
/// Limit on the names, and on the symbols, that are read: half of the limit of a file. A program
/// with the library has some hundred kilobytes of each.
const MAX_BYTES: u64 = super::MAX_READ / 2;
/// Limit of a name; the longest wanted one is shorter.
const MAX_NAME_LEN: usize = 64;
/// Symbols per read.
const SYMBOLS_AT_ONCE: u64 = 32 << 10;

/// Rows of the symbol table and file offsets; empty if the mark is missing.
pub(super) fn functions(image: &Image<'_>) -> io::Result<Vec<(usize, u64)>> {
    let (at, count) = image.sections;
    let sections = image.file.read_all::<SectionHeader64<LE>>(at, count.min(MAX_HEADERS))?;
    let Some(table) = sections.iter().find(|section| section.sh_type.get(LE) == SHT_SYMTAB) else {
        return Ok(Vec::new());
    };
    let strings = usize::try_from(table.sh_link.get(LE)).ok().and_then(|link| sections.get(link));
    let Some(strings) = strings else { return Ok(Vec::new()) };
    let names = wanted(image, strings.sh_offset.get(LE), strings.sh_size.get(LE))?;
    let is_mark = |row: &usize| SYMBOLS.get(*row).is_some_and(|symbol| symbol.name == MARK);
    if !names.values().any(is_mark) {
        return Ok(Vec::new());
    }
    let mut places = HashMap::new();
    let size = table.sh_size.get(LE).min(MAX_BYTES);
    let (mut at, end) = (table.sh_offset.get(LE), table.sh_offset.get(LE).saturating_add(size));
    while at < end {
        let symbols = image.file.read_all::<Sym64<LE>>(at, SYMBOLS_AT_ONCE.min((end - at) / 24))?;
        if symbols.is_empty() {
            break;
        }
        at += 24 * symbols.len() as u64;
        for symbol in symbols {
            let is_defined = symbol.st_shndx.get(LE) != SHN_UNDEF;
            let row = names.get(&symbol.st_name.get(LE)).copied();
            let row = row.filter(|_| is_defined && symbol.st_info & 15 == STT_FUNC);
            if let Some(row) = row
                && let Some((offset, flags)) = image.offset(symbol.st_value.get(LE))
                && flags & PF_X != 0
            {
                places.insert(row, offset);
            }
        }
    }
    if !places.keys().any(is_mark) {
        return Ok(Vec::new());
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_unstable();
    Ok(places)
}

/// The string offsets of the wanted names, with their rows.
fn wanted(image: &Image<'_>, strings: u64, size: u64) -> io::Result<HashMap<u32, usize>> {
    let rows: HashMap<&str, usize> =
        SYMBOLS.iter().enumerate().map(|(row, symbol)| (symbol.name, row)).collect();
    let mut found = HashMap::new();
    let (mut at, size) = (0, size.min(MAX_BYTES));
    while at < size {
        // A name across the border is also in the next chunk.
        let length = usize::try_from(size - at).unwrap_or(CHUNK).min(CHUNK + MAX_NAME_LEN);
        let chunk = image.file.bytes(strings.saturating_add(at), length)?;
        for (begin, _) in chunk.iter().enumerate().filter(|(_, byte)| **byte == b'n') {
            let name = chunk.get(begin..).and_then(|text| text.strip_prefix(PREFIX));
            let Some(name) = name else { continue };
            let end = name.iter().take(MAX_NAME_LEN).position(|byte| *byte == 0);
            let name = end.and_then(|end| name.get(..end));
            let row = name.and_then(|name| rows.get(std::str::from_utf8(name).ok()?));
            if let (Some(row), Ok(place)) = (row, u32::try_from(at + begin as u64)) {
                found.insert(place, *row);
            }
        }
        if chunk.len() < length {
            break;
        }
        at += CHUNK as u64;
    }
    Ok(found)
}
