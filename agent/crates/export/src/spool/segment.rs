//! The format of a spool's files, version 1. All numbers are little-endian.
//!
//! | bytes | file header | bytes | entry header |
//! |---|---|---|---|
//! | 0–7 | `GPUWHOSP` | 0–3 | `GWE1` |
//! | 8–11 | version | 4–7 | length of the body that follows |
//! | 12–19 | number of the first entry | 8–15 | number of the entry |
//! | 20–27 | points before it, since the spool began | 16–23 | when it was stored, nanoseconds since the epoch |
//! | 28–43 | 0 | 24–31 | points before it, since the spool began |
//! | 44–47 | CRC-32 of 0–43 | 32–35 | points in it |
//! | | | 36–37 | encoding of the body |
//! | | | 38–39 | 0 |
//! | | | 40–43 | CRC-32 of the body |
//! | | | 44–47 | CRC-32 of 0–43 |
//!
//! Since an entry has the number of all points before it, the points of a damaged entry are known from
//! the next good one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Length of either header.
pub(super) const HEADER: usize = 48;
/// Largest body. The encoder's requests have at most 1 MiB before compression, which may add a little;
/// those in older files have up to 3 MiB.
pub(super) const MAX_BODY: usize = 4 << 20;
/// Largest file that is read; what is behind it is not ours.
pub(super) const MAX_FILE: u64 = 8 << 20;
/// Most points of one entry.
const MAX_POINTS: u32 = 1 << 20;

const FILE_MAGIC: &[u8; 8] = b"GPUWHOSP";
const ENTRY_MAGIC: &[u8; 4] = b"GWE1";
pub(super) const VERSION: u32 = 1;

/// Bytes read at once in the search for the next entry behind a damaged one.
const SEARCH: usize = 16 << 10;

/// A place in the order of all entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of the entry there.
    pub(super) number: u64,
    /// Points in all entries before it.
    pub(super) before: u64,
}

impl Place {
    /// Whether an agent can have got there. Numbers in a file may be anything.
    pub(super) fn is_possible(self) -> bool {
        self.number < 1 << 62 && self.before < 1 << 62
    }
}

/// An entry's header, and where its body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: Place,
    pub(super) time_ns: u64,
    pub(super) points: u32,
    pub(super) encoding: u16,
    pub(super) len: u32,
    /// Where its header is in the file.
    pub(super) offset: u64,
    crc: u32,
}

impl Entry {
    /// Where the next one is in the file.
    pub(super) fn end(&self) -> u64 {
        self.offset + HEADER as u64 + u64::from(self.len)
    }

    /// The place behind it.
    pub(super) fn next(&self) -> Place {
        Place {
            number: self.at.number.saturating_add(1),
            before: self.at.before.saturating_add(u64::from(self.points)),
        }
    }

    /// Whether it can follow `expected`: entries are in order, and each has points.
    fn can_follow(&self, expected: Place) -> bool {
        let Some(skipped) = self.at.number.checked_sub(expected.number) else { return true };
        let Some(points) = self.at.before.checked_sub(expected.before) else { return false };
        let most = skipped.saturating_mul(u64::from(MAX_POINTS));
        skipped <= MAX_FILE / HEADER as u64 && points <= most && points >= skipped
    }
}

/// What is stored of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
    pub(super) at: Place,
    pub(super) time_ns: u64,
    pub(super) points: u32,
    pub(super) encoding: u16,
    pub(super) body: &'a [u8],
}

impl Stored<'_> {
    /// Whether the format can hold it.
    pub(super) fn fits(points: u64, body: &[u8]) -> bool {
        body.len() <= MAX_BODY && (1..=u64::from(MAX_POINTS)).contains(&points)
    }

    /// Writes header and body to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(ENTRY_MAGIC);
        out.extend_from_slice(&u32::try_from(self.body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&self.at.number.to_le_bytes());
        out.extend_from_slice(&self.time_ns.to_le_bytes());
        out.extend_from_slice(&self.at.before.to_le_bytes());
        out.extend_from_slice(&self.points.to_le_bytes());
        out.extend_from_slice(&self.encoding.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&crc32fast::hash(self.body).to_le_bytes());
        seal(out);
        out.extend_from_slice(self.body);
    }
}

/// The header of a file that begins at `first`.
pub(super) fn file_header(first: Place) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER);
    out.extend_from_slice(FILE_MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&first.number.to_le_bytes());
    out.extend_from_slice(&first.before.to_le_bytes());
    out.extend_from_slice(&[0; 16]);
    seal(&mut out);
    out
}

/// Why a file is none of a spool's, or not of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotOurs {
    /// Another version of the format.
    Version(u32),
    /// No header, or a damaged one.
    Damaged,
}

/// Reads a file's header.
pub(super) fn read_file_header(file: &File) -> io::Result<Result<Place, NotOurs>> {
    let Some(header) = read_header(file, 0)? else { return Ok(Err(NotOurs::Damaged)) };
    if !header.starts_with(FILE_MAGIC) {
        return Ok(Err(NotOurs::Damaged));
    }
    // Before the check sum, which another version may have elsewhere.
    let version = u32_at(&header, 8);
    if version != VERSION {
        return Ok(Err(NotOurs::Version(version)));
    }
    if !is_sealed(&header) {
        return Ok(Err(NotOurs::Damaged));
    }
    let first = Place { number: u64_at(&header, 12), before: u64_at(&header, 20) };
    Ok(if first.is_possible() { Ok(first) } else { Err(NotOurs::Damaged) })
}

/// Reads the entries of a file in order.
#[derive(Debug)]
pub(super) struct Reader {
    file: File,
    /// Where the next header should be.
    offset: u64,
    /// What the next entry should be, at least.
    expected: Place,
}

impl Reader {
    pub(super) fn new(file: File, first: Place) -> Self {
        Self { file, offset: HEADER as u64, expected: first }
    }

    /// Reads an entry again: the next one will be this.
    pub(super) fn back_to(&mut self, entry: &Entry) {
        self.offset = entry.offset;
        self.expected = entry.at;
    }

    /// The next entry that can be read; behind damage, the first good one after it.
    pub(super) fn next(&mut self) -> io::Result<Option<Entry>> {
        let end = self.file.metadata()?.len().min(MAX_FILE);
        let mut offset = self.offset;
        let found = loop {
            let Some(header) = read_header(&self.file, offset)? else { break None };
            let entry = entry(&header, offset)
                .filter(|entry| entry.end() <= end && entry.can_follow(self.expected));
            if entry.is_some() {
                break entry;
            }
            let Some(candidate) = self.search(offset + 1, end)? else { break None };
            offset = candidate;
        };
        self.offset = found.as_ref().map_or(end, Entry::end);
        if let Some(entry) = &found {
            self.expected = entry.next();
        }
        Ok(found)
    }

    /// An entry's body; `None` where it is not what was written.
    pub(super) fn body(&self, entry: &Entry) -> io::Result<Option<Vec<u8>>> {
        let mut body = vec![0; entry.len as usize];
        match self.file.read_exact_at(&mut body, entry.offset + HEADER as u64) {
            Ok(()) => Ok((crc32fast::hash(&body) == entry.crc).then_some(body)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where the next bytes are that look like an entry's.
    fn search(&self, from: u64, end: u64) -> io::Result<Option<u64>> {
        let mut chunk = vec![0; SEARCH];
        let mut at = from;
        while at + HEADER as u64 <= end {
            let got = self.file.read_at(&mut chunk, at)?;
            let read = chunk.get(..got).unwrap_or_default();
            if let Some(found) = read.windows(ENTRY_MAGIC.len()).position(|w| w == ENTRY_MAGIC) {
                return Ok(Some(at + found as u64));
            }
            // The magic may begin in the last bytes of what was read.
            match got.checked_sub(ENTRY_MAGIC.len() - 1) {
                None | Some(0) => return Ok(None),
                Some(step) => at += step as u64,
            }
        }
        Ok(None)
    }
}

fn entry(header: &[u8; HEADER], offset: u64) -> Option<Entry> {
    if !header.starts_with(ENTRY_MAGIC) || !is_sealed(header) {
        return None;
    }
    let entry = Entry {
        at: Place { number: u64_at(header, 8), before: u64_at(header, 24) },
        time_ns: u64_at(header, 16),
        points: u32_at(header, 32),
        encoding: u16::from_le_bytes(bytes_at(header, 36)),
        len: u32_at(header, 4),
        offset,
        crc: u32_at(header, 40),
    };
    let is_bounded = entry.len as usize <= MAX_BODY && (1..=MAX_POINTS).contains(&entry.points);
    (is_bounded && entry.at.is_possible()).then_some(entry)
}

/// A header's bytes; `None` where the file is shorter.
fn read_header(file: &File, offset: u64) -> io::Result<Option<[u8; HEADER]>> {
    let mut header = [0; HEADER];
    match file.read_exact_at(&mut header, offset) {
        Ok(()) => Ok(Some(header)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Appends the check sum of what is in `out`.
pub(super) fn seal(out: &mut Vec<u8>) {
    let crc = crc32fast::hash(out);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Whether the last four bytes are the check sum of those before.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    let (content, crc) = bytes.split_at(bytes.len().saturating_sub(4));
    crc == crc32fast::hash(content).to_le_bytes()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

/// The bytes from `at`; zeros where there are none, which the callers' fixed lengths rule out.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}
