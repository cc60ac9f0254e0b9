//! The page of one endpoint: its lines as samples.
//!
//! Each page is read line by line, and of the endpoints of one source one at a time: only what is said
//! of the last page stays in memory. A page of vLLM (53 kB) takes about 0.4 ms.

mod buckets;
mod draft;
mod names;
mod series;
mod totals;

use super::exposition::LineError;
use super::table::Version;
use draft::Draft;
use gpuwho_model::ids::EngineId;
use gpuwho_model::labels::{LabelSets, SeenLabels};
use gpuwho_model::sample::Batch;
use parking_lot::Mutex;
use series::Notes;
use std::sync::Arc;

/// The longest page that is read. SGLang's has 86 kB, TGI's 97.
pub const MAX_PAGE: usize = 8 << 20;
/// Lines that are read of a page. TGI's has 1942.
pub const MAX_LINES: usize = 1 << 16;
/// Labels that are read of a page. SGLang's has 3400.
pub const MAX_LABELS: usize = 1 << 18;
/// Series and histograms of a page that are read, the first ones on it: vLLM has 55 a data-parallel
/// rank.
const MAX_SERIES: usize = 1 << 12;
/// Sets of labels that are kept apart on a page; a rank of a model has a few dozen.
const MAX_LABEL_SETS: usize = 3 << 10;

/// Why a page has no samples.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PageError {
    /// Longer than [`MAX_PAGE`].
    #[error("the page has {0} bytes, more than {MAX_PAGE}")]
    TooLong(usize),
    /// Nothing on it: SGLang before its first request, say.
    #[error("the page has no series")]
    Empty,
    /// HTML, JSON, or what else is no exposition.
    #[error("the page is no exposition: line {line}: {cause}")]
    NoExposition {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        cause: LineError,
    },
    /// An exposition of something else.
    #[error("the page is of no known engine")]
    UnknownEngine,
}

/// What a page was.
#[derive(Debug)]
pub struct PageSummary<'a> {
    /// The engine, by its row in `ENGINES`.
    pub engine: &'static str,
    /// Models that it names, [`MAX_MODELS`] at most.
    pub models: &'a [Box<str>],
    /// Start of the server's process in seconds since 1970, if the page has it.
    pub started: Option<f64>,
    /// Samples pushed.
    pub samples: usize,
    /// Families with the engine's prefix that its table does not have, or of another type than
    /// there: the first [`MAX_UNKNOWN`].
    pub unknown: &'a [Box<str>],
    /// How many there are.
    pub unknown_count: usize,
    /// Families that the engine's version should have and the page has not.
    pub missing: &'a [&'static str],
    /// Lines that were not read.
    pub bad_lines: usize,
    /// The first of them, counted from 1, and what is wrong with it.
    pub first_bad: Option<(usize, LineError)>,
    /// Histograms of this page whose counts fall from a bucket to the next, which were left out.
    pub unsound: usize,
    /// Lines of series beyond those that are read of a page.
    pub left_out: usize,
    /// Sets of labels that became `other`.
    pub folded: usize,
}

/// Names of unknown families that are kept.
pub const MAX_UNKNOWN: usize = 32;
/// Names of models that are kept.
pub const MAX_MODELS: usize = 16;

/// Of all readers that share it one reads a page at a time: that takes some times the page's memory.
#[derive(Clone, Debug, Default)]
pub struct ParseTurn(Arc<Mutex<()>>);

/// Reads the pages of one endpoint.
#[derive(Debug)]
pub struct PageReader {
    version: Option<Version>,
    /// Of the last page.
    notes: Notes,
    labels: LabelSets,
    drafting: ParseTurn,
}

impl PageReader {
    /// Has read nothing yet.
    pub fn new() -> Self {
        Self::sharing(&ParseTurn::default(), SeenLabels::default())
    }

    /// Has read nothing yet, and reads no page while another one does. Labels count as new
    /// beside those that the server before it had.
    pub fn sharing(drafting: &ParseTurn, labels: SeenLabels) -> Self {
        let labels = LabelSets::sharing(MAX_LABEL_SETS, labels);
        Self { version: None, notes: Notes::default(), labels, drafting: drafting.clone() }
    }

    /// Takes the engine's version, which says what should be on its page.
    pub fn set_version(&mut self, version: Option<Version>) {
        self.version = version;
    }

    /// Pushes the samples of one page; `subject` is the engine instance.
    pub fn read(
        &mut self,
        page: &[u8],
        subject: EngineId,
        out: &mut Batch,
    ) -> Result<PageSummary<'_>, PageError> {
        if page.len() > MAX_PAGE {
            return Err(PageError::TooLong(page.len()));
        }
        let folded = self.labels.folded();
        // Nothing that it guards is left half done.
        let _turn = self.drafting.0.lock();
        let series = Draft::read(page).series(self.version, &mut self.labels);
        self.labels.clear();
        let series = series?;
        self.labels.expect_few_new();
        let before = out.samples.len();
        let unsound = series.push(subject, out);
        self.notes = series.notes;
        let folded = usize::try_from(self.labels.folded() - folded).unwrap_or(usize::MAX);
        Ok(self.notes.summary(out.samples.len() - before, unsound, folded))
    }

    /// Sets of labels that found no room, since the start.
    pub fn folded(&self) -> u64 {
        self.labels.folded()
    }
}

impl Default for PageReader {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
