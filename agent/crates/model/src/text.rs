//! Sanitizes text that tenants write before it reaches an attribute or a terminal.
//!
//! A workload chooses the names of its processes, cgroups and units. Printable Unicode stays; every
//! other character (control characters, text directions, characters without width) becomes U+FFFD,
//! so that no name moves the cursor, hides a part of itself or looks like another.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

/// Replaces a character that is not printable.
const REPLACED: char = char::REPLACEMENT_CHARACTER;

/// Largest `/proc` file that is read whole: 14 lines of `cgroup`, each of `PATH_MAX`, are shorter.
pub const MAX_FILE: u64 = 128 * 1024;

/// Invisible letters and marks, beside those that Rust escapes (`Default_Ignorable_Code_Point` of
/// Unicode).
const INVISIBLE: &[std::ops::RangeInclusive<char>] = &[
    '\u{034f}'..='\u{034f}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{e0100}'..='\u{e01ef}',
];

/// Replaces every character that is not printable.
pub fn printable(text: &str) -> Cow<'_, str> {
    keeping(text, |_| false)
}

/// Whether [`printable`] of a text is another; nothing is allocated.
pub(crate) fn prints_as(text: &str, printed: &str) -> bool {
    text.chars().map(|c| if is_printed(c) { c } else { REPLACED }).eq(printed.chars())
}

/// [`printable`] for text of several lines; line ends stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    keeping(text, |c| c == '\n')
}

/// The same for shared text, which seldom changes.
pub(crate) fn printable_arc(text: Arc<str>) -> Arc<str> {
    match printable(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => Arc::from(clean),
    }
}

/// Reads a file of `/proc` as text and replaces bytes that are not UTF-8. A process can choose a
/// name of any bytes, which must not hide the rest of the file.
pub fn read_lossy(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn keeping(text: &str, also: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_clean = |c: char| also(c) || is_printed(c);
    if text.chars().all(is_clean) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_clean(c) { c } else { REPLACED }).collect::<String>().into()
}

fn is_printed(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    // A combining mark is printable after another letter; alone it would be escaped.
    let mut pair = [b'a', 0, 0, 0, 0];
    let length = pair.get_mut(1..).map_or(0, |rest| c.encode_utf8(rest).len());
    let pair = pair.get(..=length).and_then(|pair| str::from_utf8(pair).ok());
    let is_escaped = pair.is_none_or(|pair| pair.escape_debug().nth(1) != Some(c));
    !is_escaped && !INVISIBLE.iter().any(|range| range.contains(&c))
}

/// Names of devices, those that follow one another as a range: `0-3,7`, `amd:0-2`.
pub fn ranges(names: &[String]) -> String {
    let parts = |name: &String| {
        let (vendor, number) = name.rsplit_once(':').unwrap_or(("", name));
        Some((vendor.to_owned(), number.parse::<u32>().ok()?))
    };
    let follows = |one: &String, next: &String| {
        parts(one).and_then(|(vendor, one)| Some((vendor, one.checked_add(1)?))) == parts(next)
    };
    let runs = names.chunk_by(follows).map(|run| match run {
        [first, .., last] if run.len() > 2 => {
            format!("{first}-{}", last.rsplit(':').next().unwrap_or_default())
        }
        all => all.join(","),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Brings the names that are most like another to the front.
pub fn sort_by_likeness(name: &str, known: &mut [&str]) {
    let likeness = |known: &str| strsim::jaro_winkler(name, known);
    known.sort_by(|one, other| likeness(other).total_cmp(&likeness(one)));
}

/// A device's index, with the vendor that counts it where there are several: what `--gpu` takes.
pub fn device_name(vendor: &str, index: u32, is_mixed: bool) -> String {
    if is_mixed { format!("{vendor}:{index}") } else { index.to_string() }
}

/// The verb behind a number of things.
pub fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// A number of things.
pub fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_one_another_are_a_range() {
        let ranges = |all: &str| ranges(&all.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(ranges("0 1 2 3 5 7 8"), "0-3,5,7,8");
        assert_eq!(ranges("amd:0 amd:1 nvidia:2 x y"), "amd:0,amd:1,nvidia:2,x,y");
        assert_eq!(ranges("amd:0 amd:1 amd:2"), "amd:0-2");
        assert_eq!(ranges(&u32::MAX.to_string()), "4294967295");
    }

    #[test]
    fn letters_of_every_script_stay() {
        for text in ["trainer-0", "a b", "größe", "हिन्दी", "模型", "e\u{301}", "🚀", "\u{fffd}"]
        {
            assert_eq!(printable(text), text);
        }
    }

    #[test]
    fn control_direction_and_invisible_characters_are_replaced() {
        for c in [
            '\x1b',
            '\n',
            '\t',
            '\0',
            '\x7f',
            '\u{9b}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{2028}',
            '\u{202e}',
            '\u{2066}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{fff9}',
            '\u{ffff}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{10ffff}',
        ] {
            assert_eq!(printable(&format!("a{c}b")), "a\u{fffd}b", "{c:?}");
        }
        assert_eq!(printable_lines("a\nb\x1b[2J\n"), "a\nb\u{fffd}[2J\n");
    }

    #[test]
    fn a_file_with_bytes_that_are_not_utf8_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("status");
        std::fs::write(&path, b"Name:\t\xff\xfeA\nUid:\t7\n").unwrap();
        assert_eq!(read_lossy(&path).unwrap(), "Name:\t\u{fffd}\u{fffd}A\nUid:\t7\n");
    }
}
