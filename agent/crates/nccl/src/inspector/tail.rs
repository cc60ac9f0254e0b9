//! Reads the end of a growing file: only new bytes, and only complete lines.
//!
//! A file that became shorter, or whose bytes before the current offset changed, was rewritten and
//! is read from its start. One that grew by more than the budget is read at its end. Buffers at
//! most one line.

use gpuwho_owners::tenant_files::TenantFile;
use std::io;

/// Bytes per read call.
const CHUNK: usize = 64 * 1024;
/// Limit of a line; a verbose record of 64 channels is 16 KiB.
pub(super) const MAX_LINE: usize = 64 * 1024;
/// Bytes compared to detect a rewritten file.
const MARK: usize = 64;

/// A file and the current offset.
#[derive(Debug)]
pub(super) struct Tail {
    file: TenantFile,
    offset: u64,
    /// An incomplete line.
    rest: Vec<u8>,
    /// The last bytes before `offset`.
    mark: Vec<u8>,
    /// The next bytes continue a line whose start was not read.
    in_line: bool,
}

/// What a reading passes to the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A line without its line break.
    Line(&'a [u8]),
    /// A line longer than [`MAX_LINE`].
    TooLong,
}

/// The cost of a reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadCost {
    /// Bytes read.
    pub bytes: u64,
    /// Bytes skipped.
    pub skipped: u64,
}

impl Tail {
    /// Reads a file from its start.
    pub(super) fn from_start(file: TenantFile) -> Self {
        Self { file, offset: 0, rest: Vec::new(), mark: Vec::new(), in_line: false }
    }

    /// Reads only what is written from now on.
    pub(super) fn from_end(file: TenantFile) -> io::Result<Self> {
        let size = file.stat_now()?.size;
        let mut tail = Self { offset: size, ..Self::from_start(file) };
        let start = size.saturating_sub(MARK as u64);
        tail.mark = tail.peek(start, MARK)?;
        tail.in_line = tail.mark.last().is_some_and(|byte| *byte != b'\n');
        Ok(tail)
    }

    /// Reads new bytes, at most `budget`.
    pub(super) fn read(
        &mut self,
        budget: u64,
        each: &mut dyn FnMut(Piece<'_>),
    ) -> io::Result<ReadCost> {
        let size = self.file.stat_now()?.size;
        let mut took = ReadCost::default();
        if size == self.offset {
            return Ok(took);
        }
        if size < self.offset || !self.is_same()? {
            self.begin(0, false);
        }
        let backlog = size - self.offset;
        if backlog > budget {
            took.skipped = backlog - budget + self.rest.len() as u64;
            self.begin(size - budget, true);
        }
        let mut chunk = vec![0; CHUNK];
        let mut left = budget.min(backlog);
        while left > 0 {
            let max = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let Some(room) = chunk.get_mut(..max) else { break };
            let count = self.file.read_at(room, self.offset)?;
            if count == 0 {
                break;
            }
            let bytes = room.get(..count).unwrap_or_default();
            self.offset += count as u64;
            left -= count as u64;
            took.bytes += count as u64;
            self.remember(bytes);
            took.skipped += self.split(bytes, each);
        }
        Ok(took)
    }

    fn begin(&mut self, offset: u64, in_line: bool) {
        self.offset = offset;
        self.in_line = in_line;
        self.rest.clear();
        self.mark.clear();
    }

    /// Whether the bytes before the offset are unchanged.
    fn is_same(&self) -> io::Result<bool> {
        let start = self.offset.saturating_sub(self.mark.len() as u64);
        Ok(self.peek(start, self.mark.len())? == self.mark)
    }

    fn peek(&self, start: u64, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
            match self.file.read_at(room, start + filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn remember(&mut self, bytes: &[u8]) {
        let last = bytes.get(bytes.len().saturating_sub(MARK)..).unwrap_or_default();
        self.mark.extend_from_slice(last);
        let more = self.mark.len().saturating_sub(MARK);
        self.mark.drain(..more);
    }

    /// Passes the lines that these bytes complete; returns the number of skipped bytes.
    fn split(&mut self, mut bytes: &[u8], each: &mut dyn FnMut(Piece<'_>)) -> u64 {
        let mut skipped = 0;
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (line, next) = bytes.split_at(end.unwrap_or(bytes.len()));
            if self.in_line {
                skipped += line.len() as u64;
                self.in_line = end.is_none();
            } else if self.rest.len() + line.len() > MAX_LINE {
                each(Piece::TooLong);
                self.rest = Vec::new();
                self.in_line = end.is_none();
            } else if end.is_none() {
                self.rest.extend_from_slice(line);
            } else if self.rest.is_empty() {
                each(Piece::Line(line));
            } else {
                self.rest.extend_from_slice(line);
                each(Piece::Line(&self.rest));
                self.rest.clear();
            }
            bytes = next.get(1..).unwrap_or_default();
        }
        skipped
    }
}

#[cfg(test)]
mod tests;
