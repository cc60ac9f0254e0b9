//! The page of one endpoint: its lines as samples.

use super::exposition::LineError;
use super::table::Version;
use crate::engines::EngineId;
use crate::sample::Batch;

/// The longest page that is read.
pub const MAX_PAGE: usize = 8 << 20;

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
    /// When the server's process began, in seconds since 1970, where the page says it.
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
}

/// Names of unknown families that are kept.
pub const MAX_UNKNOWN: usize = 32;
/// Names of models that are kept.
pub const MAX_MODELS: usize = 16;

/// Reads the pages of one endpoint; remembers the last page's shape, so that a steady line costs no
/// allocation.
#[derive(Debug)]
pub struct PageReader {
    version: Option<Version>,
}

impl PageReader {
    /// Has read nothing yet.
    pub fn new() -> Self {
        Self { version: None }
    }

    /// Takes the engine's version, which says what should be on its page.
    pub fn set_version(&mut self, version: Option<Version>) {
        self.version = version;
    }

    /// Pushes the samples of one page; `subject` is the engine instance.
    pub fn read(
        &mut self,
        _page: &[u8],
        _subject: EngineId,
        _out: &mut Batch,
    ) -> Result<PageSummary<'_>, PageError> {
        Err(PageError::Empty)
    }
}

impl Default for PageReader {
    fn default() -> Self {
        Self::new()
    }
}
