//! The variables of a process's environment, or of a file: the one reader of both.
//!
//! A stream, 4 KiB at a time: only variables whose names begin as wanted are stored, all others are
//! skipped, and what was stored is overwritten at the end. Variables that a program sets after its
//! start (`os.environ`) are not visible.

use std::io::{self, Read};

/// The most that is read. The kernel allows up to a quarter of the stack limit (usually 2 MB) of
/// arguments and environment; a variable beyond this limit is missing, which is not wrong.
pub const MAX_READ: u64 = 128 * 1024;

/// Which variables are stored.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// How their names begin.
    pub prefixes: &'static [&'static [u8]],
    /// Bytes of a value. A longer one is dropped, not cut: half a name is a wrong name.
    pub max_value: usize,
}

/// Maximum length of a name; all wanted names are shorter.
const MAX_NAME: usize = 64;

/// Passes name and value of each wanted variable, terminated by `end`: NUL in an environment, a newline
/// in a file. Returns whether the source was longer than is read: missing variables may be in the rest.
pub fn read(
    source: impl Read,
    end: u8,
    wanted: Wanted,
    mut take: impl FnMut(&str, &str),
) -> io::Result<bool> {
    let mut reader = source.take(MAX_READ + 1);
    let mut chunk = [0_u8; 4096];
    let mut variable = Variable::new(wanted);
    let mut seen = 0_u64;
    let outcome = loop {
        let bytes = match reader.read(&mut chunk) {
            Ok(0) => break Ok(seen > MAX_READ),
            Ok(count) => chunk.get(..count).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break Err(error),
        };
        for byte in bytes {
            seen += 1;
            if *byte == end {
                variable.end(&mut take);
            } else {
                variable.push(*byte);
            }
        }
    };
    // The limit may have cut the last variable.
    let mut last = |name: &str, value: &str| {
        if matches!(outcome, Ok(false)) {
            take(name, value);
        }
    };
    variable.end(&mut last);
    chunk.fill(0);
    outcome
}

/// The variable being read.
struct Variable {
    wanted: Wanted,
    /// Never reallocated, which would leave a copy.
    bytes: Vec<u8>,
    /// Whether it is too long, or not wanted.
    skipped: bool,
}

impl Variable {
    fn new(wanted: Wanted) -> Self {
        let bytes = Vec::with_capacity(MAX_NAME + 1 + wanted.max_value);
        Self { wanted, bytes, skipped: false }
    }

    fn push(&mut self, byte: u8) {
        let at = self.bytes.len();
        let fits = |prefix: &&[u8]| {
            prefix.get(at).is_none_or(|expected| *expected == byte)
                && prefix.iter().zip(&self.bytes).all(|(expected, byte)| expected == byte)
        };
        self.skipped = self.skipped
            || at >= MAX_NAME + 1 + self.wanted.max_value
            || !self.wanted.prefixes.iter().any(fits);
        if !self.skipped {
            self.bytes.push(byte);
        }
    }

    fn end(&mut self, take: &mut impl FnMut(&str, &str)) {
        let text = std::str::from_utf8(&self.bytes).ok().filter(|_| !self.skipped);
        if let Some((name, value)) = text.and_then(|text| text.split_once('='))
            && value.len() <= self.wanted.max_value
        {
            take(name, value);
        }
        self.bytes.fill(0);
        self.bytes.clear();
        self.skipped = false;
    }
}
