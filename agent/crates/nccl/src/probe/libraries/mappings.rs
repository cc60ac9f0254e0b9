//! Parses the file mappings in `/proc/PID/maps` as a stream: never stores more than a line, because
//! the process determines the length of the paths.

use super::FileKey;
use std::io::{self, BufRead as _, BufReader, Read};

/// Limit of a line; the path at its end is truncated. A path can be longer than `PATH_MAX`.
pub(in super::super) const MAX_LINE_BYTES: usize = 8 << 10;
/// Limit on lines: the default limit of mappings (`vm.max_map_count`, 65,530).
pub(in super::super) const MAX_LINES: u32 = 65_536;
/// Limit on all bytes: that many mappings at 512 bytes each.
const MAX_BYTES: u64 = 32 << 20;

/// A part of a file that a process maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Mapping<'a> {
    /// The first address, and the one after the last.
    pub range: (u64, u64),
    /// Offset of the range in the file.
    pub offset: u64,
    /// Device and inode in this list, which may differ from those of `stat`.
    pub key: FileKey,
    pub is_code: bool,
    pub path: &'a [u8],
}

/// The limit that was reached; the rest was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Cut {
    Lines,
    Bytes,
}

impl Cut {
    /// A description.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Lines => "it has more than 65536 mappings",
            Self::Bytes => "the list of its mappings is longer than 32 MiB",
        }
    }
}

/// Passes the file mappings to `each`, in the order of their addresses, up to the limits.
pub(in super::super) fn read(
    maps: impl Read,
    mut each: impl FnMut(Mapping<'_>),
) -> io::Result<Option<Cut>> {
    let mut maps = BufReader::with_capacity(MAX_LINE_BYTES, maps);
    let (mut line, mut bytes) = (Vec::with_capacity(256), 0);
    for _ in 0..MAX_LINES {
        line.clear();
        let mut has_ended = false;
        while !has_ended {
            let buffer = match maps.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                mapping(&line).into_iter().for_each(&mut each);
                return Ok(None);
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or_default();
            let room = MAX_LINE_BYTES.saturating_sub(line.len());
            line.extend(part.iter().take(room));
            let taken = part.len() + usize::from(end.is_some());
            maps.consume(taken);
            has_ended = end.is_some();
            bytes += taken as u64;
            if bytes > MAX_BYTES {
                return Ok(Some(Cut::Bytes));
            }
        }
        mapping(&line).into_iter().for_each(&mut each);
    }
    Ok(Some(Cut::Lines))
}

/// Parses a file's mapping: `7f00-7f01 r-xp 00001000 08:01 1234 /path`.
fn mapping(line: &[u8]) -> Option<Mapping<'_>> {
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (begin, end) = field()?.split_once('-')?;
    let permissions = field()?;
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = field()?.parse().ok().filter(|inode| *inode != 0)?;
    let path = fields.next()?.trim_ascii_start();
    let is_code = permissions.get(2..3) == Some("x");
    let mapping = Mapping {
        range: (hex(begin)?, hex(end)?),
        offset,
        key: FileKey { device, inode },
        is_code,
        path,
    };
    path.starts_with(b"/").then_some(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    const LINE: &str = "7f12-7f13 r-xp 00026000 fd:00 1234                       /lib/libnccl.so.2";

    fn all(maps: &str) -> Vec<(u64, bool, Vec<u8>)> {
        let mut found = Vec::new();
        let each = |one: Mapping<'_>| found.push((one.key.inode, one.is_code, one.path.to_vec()));
        assert_eq!(read(maps.as_bytes(), each).unwrap(), None);
        found
    }

    #[test]
    fn files_and_nothing_else_are_mappings() {
        let key = FileKey { device: (0xfd, 0), inode: 1234 };
        let path = &b"/lib/libnccl.so.2"[..];
        let range = (0x7f12, 0x7f13);
        let wanted = Mapping { range, offset: 0x26000, key, is_code: true, path };
        assert_eq!(mapping(LINE.as_bytes()), Some(wanted));
        let text = LINE.replace("r-xp", "r--p");
        assert_eq!(mapping(text.as_bytes()), Some(Mapping { is_code: false, ..wanted }));
        for other in [
            "7f12-7f13 rwxp 00000000 00:00 0                          [heap]",
            "7f12-7f13 r-xp 00000000 00:00 0 ",
            "7f12-7f13 r-xp 00000000 00:00 7 anon",
            "7f12 r-xp 00000000 00:00 7 /a",
            "",
        ] {
            assert_eq!(mapping(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_long_path_is_truncated_and_the_next_line_is_read() {
        let long = format!("{LINE}{}", "/deep".repeat(100_000));
        let maps = format!("{long}\n{}\n{LINE}", LINE.replace("1234", "77"));
        let found = all(&maps);
        let lengths: Vec<_> = found.iter().map(|(inode, _, path)| (*inode, path.len())).collect();
        let whole = "/lib/libnccl.so.2".len();
        let cut = MAX_LINE_BYTES - (LINE.len() - whole);
        assert_eq!(lengths, [(1234, cut), (77, whole), (1234, whole)]);
    }

    /// Returns lines for ever and counts the bytes read.
    struct Endless<'a> {
        line: &'a [u8],
        given: usize,
    }

    impl Read for Endless<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let at = self.given % self.line.len();
            let count = room.len().min(self.line.len() - at);
            room[..count].copy_from_slice(&self.line[at..at + count]);
            self.given += count;
            Ok(count)
        }
    }

    #[test]
    fn an_endless_list_is_bounded_by_lines_and_bytes() {
        let mut found = 0_u32;
        let line = format!("{LINE}\n");
        let mut maps = Endless { line: line.as_bytes(), given: 0 };
        assert_eq!(read(&mut maps, |_| found += 1).unwrap(), Some(Cut::Lines));
        assert_eq!(found, MAX_LINES);
        let text: String = iter::once(LINE).chain(iter::repeat_n("/deep", 100_000)).collect();
        let line = format!("{text}\n");
        let mut maps = Endless { line: line.as_bytes(), given: 0 };
        assert_eq!(read(&mut maps, |_| ()).unwrap(), Some(Cut::Bytes));
        let most = usize::try_from(MAX_BYTES).unwrap() + MAX_LINE_BYTES;
        assert!(maps.given <= most, "{}", maps.given);
        // A line without end, too.
        let mut maps = Endless { line: b"x", given: 0 };
        assert_eq!(read(&mut maps, |_| ()).unwrap(), Some(Cut::Bytes));
    }
}
