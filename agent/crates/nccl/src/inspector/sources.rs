//! The files that are read, each with the process that writes it.

use super::exposition::{self, Exposition};
use super::processes::Processes;
use super::tail::Tail;
use gpuwho_model::catalog::inspector::LineOutcome;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::tenant_files::TenantFile;
use std::io::{self, Read as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long means are exported: a little more than two of the Inspector's minimum intervals.
const FRESH: Duration = Duration::from_secs(90);
/// An exposition is written in several pieces; it is complete after this time.
const SETTLED: Duration = Duration::from_secs(1);
/// A file that is read.
#[derive(Debug)]
pub(super) struct Source {
    pub process: ProcKey,
    /// The owner whose share of the budget it uses.
    pub owner: QuotaKey,
    pub content: Content,
    /// Another process writes it too.
    pub is_shared: bool,
}

#[derive(Debug)]
pub(super) enum Content {
    Records(Tail),
    Exposition(MeanValues),
}

/// The last content of an exposition file.
#[derive(Debug)]
pub(super) struct MeanValues {
    file: TenantFile,
    written: Option<SystemTime>,
    /// Budget saved up until the file can be read as a whole.
    credit: u64,
    pub rows: Exposition,
}

impl Source {
    pub(super) fn is_records(&self) -> bool {
        matches!(self.content, Content::Records(_))
    }

    /// Notes that another process has the file open for writing: a child that inherited it, or an
    /// unrelated process.
    pub(super) fn join(&mut self, other: ProcKey, processes: &Processes) {
        if other == self.process {
            return;
        }
        let parent = |process| processes.get(process).map(|process| process.own.parent);
        if parent(self.process) == Some(other.pid) {
            self.process = other;
        } else if parent(other) != Some(self.process.pid) {
            self.is_shared = true;
        }
    }
}

impl MeanValues {
    /// A file that was not read yet.
    pub(super) fn new(file: TenantFile) -> Self {
        Self { file, written: None, credit: 0, rows: Exposition::new() }
    }

    /// Reads the file if it was rewritten and is complete, once the saved budget suffices; returns
    /// the bytes read.
    pub(super) fn read(
        &mut self,
        share: u64,
        count: &mut dyn FnMut(LineOutcome),
    ) -> io::Result<u64> {
        let state = self.file.stat_now()?;
        let written = UNIX_EPOCH + Duration::from_nanos(state.modified_ns);
        let is_settled = written.elapsed().is_ok_and(|age| age >= SETTLED);
        if self.written == Some(written) || !is_settled {
            return Ok(0);
        }
        self.credit = self.credit.saturating_add(share).min(exposition::MAX_FILE);
        if state.size.min(exposition::MAX_FILE) > self.credit {
            return Ok(0);
        }
        self.credit = 0;
        let mut text = String::new();
        let from_start = FromStart { file: &self.file, offset: 0 };
        let bytes = from_start.take(exposition::MAX_FILE).read_to_string(&mut text)?;
        self.rows = exposition::parse(&text, count);
        self.written = Some(written);
        Ok(bytes as u64)
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.written.and_then(|written| written.elapsed().ok()).is_some_and(|age| age < FRESH)
    }
}

/// Reads a file from its start.
struct FromStart<'a> {
    file: &'a TenantFile,
    offset: u64,
}

impl io::Read for FromStart<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(room, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
