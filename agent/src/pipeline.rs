//! The one place that knows all sides: sources into samples, samples into points, points to sinks.

use crate::attribute::Evidence;
use crate::attribute::ownership::Ownership;
use crate::collect::device::nvidia;
use crate::collect::own::{Gauges, Own};
use crate::collect::schedule::{Event, Schedule, Stop};
use crate::collect::status::Board;
use crate::collect::{Collector, kernel};
use crate::config::Settings;
use crate::control;
use crate::export::{EnrichedBatch, Sink};
use crate::inventory::Inventory;
use crate::series::Enricher;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Batches on their way to the pipeline: a few ticks of all sources; a source waits when it is
/// full.
const WAITING_BATCHES: usize = 16;

/// How long a tick's batch waits for the other sources', so that they share a request.
const GATHER: Duration = Duration::from_millis(300);

/// How long the sinks have at the end to send what is left.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The control socket.
    #[error(transparent)]
    Control(#[from] control::ControlError),
    /// A sink.
    #[error(transparent)]
    Sink(#[from] crate::sinks::SinkError),
    /// A thread.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// Signals.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// A name that is no source.
    #[error("no source `{name}`; there are: {}", SOURCES.join(", "))]
    UnknownSource {
        /// As asked.
        name: String,
    },
}

/// Sources that `gpuwho collect` can read.
pub const SOURCES: &[&str] = &[nvidia::NAME, crate::collect::own::NAME];

/// What the parts share.
#[derive(Debug)]
pub struct Core {
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) ownership: Ownership,
    pub(crate) board: Board,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) nvidia: Option<nvidia::Handle>,
    pub(crate) kernel: Option<kernel::Handle>,
}
