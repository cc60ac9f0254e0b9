//! What is asked for, and how much of it is read.

/// Bytes of a page; the largest of a real engine has 97 kB.
pub(super) const MAX_PAGE: usize = 8 << 20;
/// Bytes of a document about the version: llama.cpp's has the model's template, SGLang's all arguments.
pub(super) const MAX_JSON: usize = 256 << 10;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// A page of metrics.
    Page,
    /// The answer to a question for the version.
    Json,
}

impl Media {
    pub(super) fn accepted(self) -> &'static str {
        match self {
            // The text format of Prometheus, which every engine writes.
            Self::Page => "text/plain;version=0.0.4,*/*;q=0.1",
            Self::Json => "application/json",
        }
    }

    pub(super) fn is_it(self, media: &str) -> bool {
        match self {
            Self::Page => ["", "text/plain", "application/openmetrics-text"].contains(&media),
            Self::Json => media == "application/json",
        }
    }

    /// Bytes of it.
    pub(super) fn limit(self) -> usize {
        match self {
            Self::Page => MAX_PAGE,
            Self::Json => MAX_JSON,
        }
    }
}
