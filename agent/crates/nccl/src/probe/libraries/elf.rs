//! Finds the collective library's functions in a mapped file: a few small reads through the hash
//! table of exported names, because such a file can have half a gigabyte; without that table, in
//! the table of all names unless the file is stripped.
//!
//! The file is untrusted: every offset is checked by reading, and nothing is mapped, so that a file
//! that shrinks meanwhile is a short read. The number of bytes is limited (`content`), and a
//! function counts only if its code is inside an executable segment that is completely in the file.

mod content;
mod place;
mod statics;
mod version;

use content::Content;
pub(in super::super) use content::ReadAt;
use gpuwho_common::nccl::SYMBOLS;
use object::elf::{
    Dyn64, ELFMAG, EM_AARCH64, EM_X86_64, FileHeader64, PF_X, PT_DYNAMIC, PT_LOAD, PT_NOTE,
    ProgramHeader64, SHN_UNDEF, STT_FUNC, SectionHeader64, Sym64,
};
use object::{LittleEndian as LE, U32, U64};
use place::cheapest_place;
use std::io;
use std::sync::Arc;
use version::find_version;

/// Prefixes of the functions' names; the second is the alias that profilers do not intercept.
const PREFIXES: [&str; 2] = ["nccl", "pnccl"];
/// A file without this symbol is not a collective library.
const MARK: &str = "AllReduce";
/// Limit on program headers, dynamic entries and sections; any real file has fewer.
const MAX_HEADERS: u64 = 4_096;
/// Limit on names in one chain of the hash table.
const MAX_CHAINED: u32 = 4_096;
/// Limit on the bytes read of a file to find its functions: a library of half a gigabyte takes one
/// and a half megabytes, mostly of its code.
const MAX_READ: u64 = 8 << 20;
/// Limit on the constants searched for the version: a library has some megabytes.
const MAX_CONSTANTS: u64 = 16 << 20;
/// Bytes of constants, or names, per read.
const CHUNK: usize = 1 << 20;
/// Limit on the code read of one function.
const MAX_CODE: u64 = 16 << 10;

/// The machine type of this program. An emulator maps libraries for another machine, whose code
/// must not get traps for this one.
const OWN_MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// The relevant contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Exports {
    /// Rows of the symbol table, with the offset of each in the file.
    pub entries: Vec<(usize, u64)>,
    /// The rows of functions whose first instruction the kernel must single-step.
    pub stepped: Vec<usize>,
    /// `2.27.5+cuda12.9`; `>=2.27`, derived from the set of functions, until the constants are
    /// read.
    pub version: Arc<str>,
    /// The linker's build id, in hex.
    pub build_id: Option<Arc<str>>,
}

/// Finds the functions; `None` if the file has none or is for another machine.
pub(in super::super) fn exports(file: &dyn ReadAt) -> io::Result<Option<Exports>> {
    let file = Content::new(file, MAX_READ)?;
    let Some(image) = Image::open(&file)?.filter(|image| image.machine == OWN_MACHINE) else {
        return Ok(None);
    };
    let mut places = exported(&image)?;
    if places.is_empty() {
        places = statics::functions(&image)?;
    }
    if places.is_empty() {
        return Ok(None);
    }
    let (mut entries, mut stepped) = (Vec::new(), Vec::new());
    for (row, offset) in places {
        let (offset, is_stepped) = cheapest_place(&file, offset)?;
        if !image.is_code(offset) {
            continue;
        }
        entries.push((row, offset));
        stepped.extend(is_stepped.then_some(row));
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let version = at_least(&entries);
    Ok(Some(Exports { entries, stepped, version, build_id: image.build_id()?.map(Arc::from) }))
}

/// The exported functions: rows and file offsets.
fn exported(image: &Image<'_>) -> io::Result<Vec<(usize, u64)>> {
    let Some(names) = SymbolNames::find(image)? else { return Ok(Vec::new()) };
    let has = |prefix: &&&str| {
        names.offset(image, &format!("{prefix}{MARK}")).is_ok_and(|found| found.is_some())
    };
    let Some(prefix) = PREFIXES.iter().find(has) else { return Ok(Vec::new()) };
    let mut places = Vec::new();
    for (row, symbol) in SYMBOLS.iter().enumerate() {
        if let Some(offset) = names.offset(image, &format!("{prefix}{}", symbol.name))? {
            places.push((row, offset));
        }
    }
    Ok(places)
}

/// Reads the version from the file's constants, some megabytes.
pub(in super::super) fn version(file: &dyn ReadAt) -> io::Result<Option<Arc<str>>> {
    let file = Content::new(file, MAX_CONSTANTS + MAX_READ)?;
    let Some(image) = Image::open(&file)? else { return Ok(None) };
    Ok(image.version()?.map(Arc::from))
}

/// The code of functions, in the order of their names without prefix, and the machine type of the
/// header; empty code for a missing function.
pub(super) fn code(file: &dyn ReadAt, names: &[&str]) -> io::Result<Option<(u16, Vec<Vec<u8>>)>> {
    let file = Content::new(file, MAX_READ)?;
    let Some(image) = Image::open(&file)? else { return Ok(None) };
    let Some(symbols) = SymbolNames::find(&image)? else { return Ok(None) };
    let mut all = Vec::new();
    for name in names {
        let mut code = Vec::new();
        for prefix in PREFIXES {
            if let Some((at, size)) = symbols.function(&image, &format!("{prefix}{name}"))? {
                let size = usize::try_from(size.min(MAX_CODE)).unwrap_or(0);
                code = file.bytes(at, size)?;
                break;
            }
        }
        all.push(code);
    }
    Ok(Some((image.machine, all)))
}

/// The newest version that introduced one of the functions.
fn at_least(entries: &[(usize, u64)]) -> Arc<str> {
    let rows = entries.iter().filter_map(|(row, _)| SYMBOLS.get(*row));
    let code = rows.map(|symbol| symbol.since).max().unwrap_or(0);
    Arc::from(format!(">={}.{}", code / 10_000, code / 100 % 100))
}

/// An ELF file of a supported class.
struct Image<'a> {
    file: &'a Content<'a>,
    machine: u16,
    segments: Vec<ProgramHeader64<LE>>,
    sections: (u64, u64),
}

impl<'a> Image<'a> {
    fn open(file: &'a Content<'a>) -> io::Result<Option<Self>> {
        let Some(header) = file.read::<FileHeader64<LE>>(0)? else { return Ok(None) };
        let ident = header.e_ident;
        // 64-bit little-endian: all machines with accelerators.
        if ident.magic != ELFMAG || (ident.class, ident.data) != (2, 1) {
            return Ok(None);
        }
        let count = u64::from(header.e_phnum.get(LE)).min(MAX_HEADERS);
        let mut segments = file.read_all(header.e_phoff.get(LE), count)?;
        // Segments that are not completely in the file are dropped.
        segments.retain(|segment: &ProgramHeader64<LE>| {
            let end = segment.p_offset.get(LE).checked_add(segment.p_filesz.get(LE));
            end.is_some_and(|end| end <= file.size())
        });
        let sections = (header.e_shoff.get(LE), header.e_shnum.get(LE).into());
        Ok(Some(Self { file, machine: header.e_machine.get(LE), segments, sections }))
    }

    fn of_kind(&self, kind: u32) -> impl Iterator<Item = &ProgramHeader64<LE>> {
        self.segments.iter().filter(move |segment| segment.p_type.get(LE) == kind)
    }

    /// The file offset of an address.
    fn offset(&self, address: u64) -> Option<(u64, u32)> {
        self.of_kind(PT_LOAD).find_map(|segment| {
            let into = address.checked_sub(segment.p_vaddr.get(LE))?;
            let inside = into < segment.p_filesz.get(LE);
            let offset = segment.p_offset.get(LE).checked_add(into)?;
            inside.then_some((offset, segment.p_flags.get(LE)))
        })
    }

    /// Whether a file offset is in an executable segment.
    fn is_code(&self, place: u64) -> bool {
        self.of_kind(PT_LOAD).any(|segment| {
            let into = place.checked_sub(segment.p_offset.get(LE));
            let is_inside = into.is_some_and(|into| into < segment.p_filesz.get(LE));
            is_inside && segment.p_flags.get(LE) & PF_X != 0
        })
    }

    fn build_id(&self) -> io::Result<Option<String>> {
        const BUILD_ID: u32 = 3;
        for segment in self.of_kind(PT_NOTE) {
            let (mut at, size) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
            let end = at.saturating_add(size.min(MAX_HEADERS));
            while at < end {
                let Some(note) = self.file.read::<[U32<LE>; 4]>(at)? else { break };
                let [name, length, kind, text] = note.map(|word| word.get(LE));
                if (name, kind, text) == (4, BUILD_ID, u32::from_le_bytes(*b"GNU\0")) {
                    let id = self.file.bytes(at + 16, length.min(64) as usize)?;
                    let halves = id.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                    return Ok(Some(
                        halves.filter_map(|half| char::from_digit(half.into(), 16)).collect(),
                    ));
                }
                let padded = |length: u32| u64::from(length).next_multiple_of(4);
                at += 12 + padded(name) + padded(length);
            }
        }
        Ok(None)
    }

    /// Finds the version in the constants: in the read-only sections, or in read-only segments if
    /// there are none.
    fn version(&self) -> io::Result<Option<String>> {
        let (at, count) = self.sections;
        let sections = self.file.read_all::<SectionHeader64<LE>>(at, count.min(MAX_HEADERS))?;
        let is_constant = |section: &&SectionHeader64<LE>| {
            let (kind, flags) = (section.sh_type.get(LE), section.sh_flags.get(LE));
            // Loaded contents that are neither writable nor executable.
            kind == 1 && flags & 7 == 2
        };
        let mut places: Vec<(u64, u64)> = sections
            .iter()
            .filter(is_constant)
            .map(|section| (section.sh_offset.get(LE), section.sh_size.get(LE)))
            .collect();
        if places.is_empty() {
            let read_only = self.of_kind(PT_LOAD).filter(|segment| segment.p_flags.get(LE) == 4);
            let place = |segment: &ProgramHeader64<LE>| {
                (segment.p_offset.get(LE), segment.p_filesz.get(LE))
            };
            places = read_only.map(place).collect();
        }
        // The text constants are small compared with the device code.
        places.sort_by_key(|(_, size)| *size);
        let mut left = MAX_CONSTANTS;
        for (at, size) in places {
            if size > left {
                break;
            }
            left -= size;
            if let Some(version) = find_version(self.file, at, size)? {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }
}

/// The file's dynamic symbols, by name.
struct SymbolNames {
    hash: u64,
    symbols: u64,
    strings: u64,
    buckets: u32,
    first: u32,
    bloom: u32,
    shift: u32,
}

impl SymbolNames {
    fn find(image: &Image<'_>) -> io::Result<Option<Self>> {
        const STRTAB: u64 = 5;
        const SYMTAB: u64 = 6;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let Some(segment) = image.of_kind(PT_DYNAMIC).next() else { return Ok(None) };
        let count = (segment.p_filesz.get(LE) / 16).min(MAX_HEADERS);
        let tags = image.file.read_all::<Dyn64<LE>>(segment.p_offset.get(LE), count)?;
        let place = |wanted: u64| {
            let tag = tags.iter().find(|tag| u64::try_from(tag.d_tag.get(LE)) == Ok(wanted))?;
            image.offset(tag.d_val.get(LE)).map(|(offset, _)| offset)
        };
        let (Some(hash), Some(symbols), Some(strings)) =
            (place(GNU_HASH), place(SYMTAB), place(STRTAB))
        else {
            return Ok(None);
        };
        let Some(header) = image.file.read::<[U32<LE>; 4]>(hash)? else { return Ok(None) };
        let [buckets, first, bloom, shift] = header.map(|word| word.get(LE));
        if buckets == 0 || bloom == 0 {
            return Ok(None);
        }
        Ok(Some(Self { hash, symbols, strings, buckets, first, bloom, shift }))
    }

    /// The file offset of a function that the file defines.
    fn offset(&self, image: &Image<'_>, name: &str) -> io::Result<Option<u64>> {
        Ok(self.function(image, name)?.map(|(offset, _)| offset))
    }

    /// The file offset of a function and its size.
    fn function(&self, image: &Image<'_>, name: &str) -> io::Result<Option<(u64, u64)>> {
        let wanted = gnu_hash(name);
        let place = u64::from(wanted / 64 % self.bloom);
        let Some(bloom) = image.file.read::<U64<LE>>(self.hash + 16 + 8 * place)? else {
            return Ok(None);
        };
        let bits = 1_u64 << (wanted % 64) | 1_u64 << (wanted.wrapping_shr(self.shift) % 64);
        if bloom.get(LE) & bits != bits {
            return Ok(None);
        }
        let buckets = self.hash + 16 + 8 * u64::from(self.bloom);
        let chains = buckets + 4 * u64::from(self.buckets);
        let bucket = buckets + 4 * u64::from(wanted % self.buckets);
        let Some(begin) = image.file.word(bucket)? else {
            return Ok(None);
        };
        for step in 0..MAX_CHAINED {
            let Some(chained) = begin.checked_add(step).filter(|index| *index >= self.first) else {
                return Ok(None);
            };
            let at = chains + 4 * u64::from(chained - self.first);
            let Some(hash) = image.file.word(at)? else {
                return Ok(None);
            };
            if hash | 1 == wanted | 1
                && let Some(place) = self.symbol(image, chained, name)?
            {
                return Ok(Some(place));
            }
            if hash & 1 == 1 {
                break;
            }
        }
        Ok(None)
    }

    fn symbol(&self, image: &Image<'_>, index: u32, name: &str) -> io::Result<Option<(u64, u64)>> {
        let at = self.symbols + 24 * u64::from(index);
        let Some(symbol) = image.file.read::<Sym64<LE>>(at)? else { return Ok(None) };
        let text = self.strings + u64::from(symbol.st_name.get(LE));
        let found = image.file.bytes(text, name.len() + 1)?;
        let is_function = symbol.st_info & 15 == STT_FUNC && symbol.st_shndx.get(LE) != SHN_UNDEF;
        if found.strip_suffix(&[0]) != Some(name.as_bytes()) || !is_function {
            return Ok(None);
        }
        let place = image.offset(symbol.st_value.get(LE));
        let is_code = place.filter(|(_, flags)| flags & PF_X != 0);
        Ok(is_code.map(|(offset, _)| (offset, symbol.st_size.get(LE))))
    }
}

/// `dl_new_hash` of the dynamic linker.
fn gnu_hash(name: &str) -> u32 {
    name.bytes().fold(5_381, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

#[cfg(test)]
pub(super) mod tests;
