//! Whether a mapped file has the collective library's functions, and where: a few small reads
//! through the file's own hash table of the names that it exports, since such a file can have half
//! a gigabyte; where there is none, and the file was not stripped, its table of all names.
//!
//! The file is somebody else's: every offset in it is checked by reading, never by trust, and
//! nothing is mapped, so that a file that shrinks meanwhile is a short read. Only so much is read
//! (`content`), and a function is one only where its code is inside an executable segment that the
//! file has as a whole.

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

/// What the functions' names begin with; the second is the alias that profilers leave alone.
const PREFIXES: [&str; 2] = ["nccl", "pnccl"];
/// The symbol without which a file is no collective library.
const MARK: &str = "AllReduce";
/// Program headers, entries of the dynamic section and sections that any real file has fewer of.
const MAX_HEADERS: u64 = 4_096;
/// Names in one chain of the hash table.
const MAX_CHAINED: u32 = 4_096;
/// Bytes of a file that are read for its functions: for those of a library of half a gigabyte one
/// and a half megabytes, mostly of its code.
const MAX_READ: u64 = 8 << 20;
/// Constants that are searched for the version: a library has some megabytes of them.
const MAX_CONSTANTS: u64 = 16 << 20;
/// Constants, or names, read at once.
const CHUNK: usize = 1 << 20;
/// Code that is read of one function.
const MAX_CODE: u64 = 16 << 10;

/// What this program's own file says of its processor. An emulator maps libraries for another one,
/// and a trap for this one in their code would be nonsense there.
const OWN_MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// What a file offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Exports {
    /// Rows of the table of symbols, with the place of each in the file.
    pub entries: Vec<(usize, u64)>,
    /// Of these rows, those of functions whose first instruction the kernel has to step through.
    pub stepped: Vec<usize>,
    /// `2.27.5+cuda12.9`; `>=2.27`, as the set of functions tells, until the constants are read.
    pub version: Arc<str>,
    /// The linker's id of the file, in hex.
    pub build_id: Option<Arc<str>>,
}

/// Looks for the functions; `None` where the file has none, or is no file of this machine's kind.
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

/// The functions that the file exports: rows, and places in the file.
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

/// The version that the file's constants tell: reads them, some megabytes.
pub(in super::super) fn version(file: &dyn ReadAt) -> io::Result<Option<Arc<str>>> {
    let file = Content::new(file, MAX_CONSTANTS + MAX_READ)?;
    let Some(image) = Image::open(&file)? else { return Ok(None) };
    Ok(image.version()?.map(Arc::from))
}

/// The code of functions, in the order of their names without prefix, and for which machine it
/// is, as the header numbers them; of a function that the file does not have, none.
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

/// The newest version that a function of the set came with.
fn at_least(entries: &[(usize, u64)]) -> Arc<str> {
    let rows = entries.iter().filter_map(|(row, _)| SYMBOLS.get(*row));
    let code = rows.map(|symbol| symbol.since).max().unwrap_or(0);
    Arc::from(format!(">={}.{}", code / 10_000, code / 100 % 100))
}

/// A file that some machine with accelerators can map.
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
        // 64 bits, little-endian: all machines that have accelerators.
        if ident.magic != ELFMAG || (ident.class, ident.data) != (2, 1) {
            return Ok(None);
        }
        let count = u64::from(header.e_phnum.get(LE)).min(MAX_HEADERS);
        let mut segments = file.read_all(header.e_phoff.get(LE), count)?;
        // What the file does not have as a whole is no segment of it.
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

    /// The place in the file of an address.
    fn offset(&self, address: u64) -> Option<(u64, u32)> {
        self.of_kind(PT_LOAD).find_map(|segment| {
            let into = address.checked_sub(segment.p_vaddr.get(LE))?;
            let inside = into < segment.p_filesz.get(LE);
            let offset = segment.p_offset.get(LE).checked_add(into)?;
            inside.then_some((offset, segment.p_flags.get(LE)))
        })
    }

    /// Whether code begins at a place in the file.
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

    /// The version among the constants: a section where the file says so, else every segment that
    /// is only read.
    fn version(&self) -> io::Result<Option<String>> {
        let (at, count) = self.sections;
        let sections = self.file.read_all::<SectionHeader64<LE>>(at, count.min(MAX_HEADERS))?;
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
            let read_only = self.of_kind(PT_LOAD).filter(|segment| segment.p_flags.get(LE) == 4);
            let place = |segment: &ProgramHeader64<LE>| {
                (segment.p_offset.get(LE), segment.p_filesz.get(LE))
            };
            places = read_only.map(place).collect();
        }
        // The text constants are small beside the code for the devices.
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

    /// The place in the file of a function that the file itself has.
    fn offset(&self, image: &Image<'_>, name: &str) -> io::Result<Option<u64>> {
        Ok(self.function(image, name)?.map(|(offset, _)| offset))
    }

    /// The place of a function and its size.
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
