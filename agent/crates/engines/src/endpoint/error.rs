//! Why an endpoint has no samples.

use crate::fetch::FetchError;
use crate::page::PageError;
use gpuwho_model::catalog::endpoint::PageOutcome;

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("the process that serves it has ended")]
    Gone,
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error("a page of DCGM's exporter, which only root with CAP_SYS_ADMIN is believed")]
    UntrustedExporter,
    #[error("the answers of its owner's engines have taken too much of the agent's time")]
    OverCpuBudget,
}

impl ReadError {
    pub(super) fn outcome(&self) -> PageOutcome {
        match self {
            Self::Gone => PageOutcome::Unreachable,
            Self::Page(PageError::TooLong(_)) => PageOutcome::TooLarge,
            Self::Page(_) => PageOutcome::NotUnderstood,
            Self::UntrustedExporter => PageOutcome::Refused,
            Self::OverCpuBudget => PageOutcome::Late,
            Self::Fetch(error) => error.outcome(),
        }
    }

    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Gone => "",
            Self::Fetch(error) => error.remedy(),
            Self::Page(PageError::Empty) => "it has none before its first request",
            Self::Page(_) => "name the page's own address in engines.endpoints",
            Self::OverCpuBudget => "see why the engine's answers are long; it is asked again",
            Self::UntrustedExporter => "name the exporter in engines.endpoints",
        }
    }
}
