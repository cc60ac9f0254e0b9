//! The OTLP sink: encodes on the tick's thread, queues within bounds, and sends over HTTP or gRPC from a thread
//! that all receivers share (`thread`).
//!
//! While the receiver is unavailable, requests wait in order and keep their own timestamps. A full
//! queue drops the oldest and counts them. Costs about 0.1 µs a point for
//! encoding and 0.3 µs for gzip, no allocation a point, and at most `queue_bytes` plus two
//! requests of memory.

mod backlog;
pub mod body;
pub(crate) mod cause;
pub mod connection;
mod counts;
pub mod def;
mod delta;
pub mod encode;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod grpc;
mod health;
pub(crate) mod http;
mod json;
mod logs;
mod proxy;
pub(crate) mod queue;
pub mod resource;
pub(crate) mod retry;
pub(crate) mod secrets;
pub(crate) mod sender;
pub mod settings;
mod thread;
pub mod trust;
mod wire;

use crate::spool::SpoolFolder;
use crate::{Report, Sink};
use body::{Encoding, Format};
use counts::SinkCounters;
use delta::Deltas;
use encode::{Encoder, Limits};
use gpuwho_model::point::EnrichedBatch;
use queue::{Queue, Request};
use sender::{Sender, Transport};
use settings::{Settings, Temporality};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};
use thread::SendThread;
use tokio::sync::watch;

pub use logs::LogsSink;
pub use resource::Resource;

/// Time for the sender to count the remaining points after its deadline.
const GRACE: Duration = Duration::from_millis(500);

/// The sender's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the OTLP sender ({0})")]
pub struct StartError(#[from] io::Error);

/// Sends batches to one OTLP receiver.
#[derive(Debug)]
pub struct OtlpSink {
    encoder: Encoder,
    /// `None` where counters are cumulative.
    deltas: Option<Deltas>,
    encoding: Encoding,
    queue: OtlpQueue,
}

impl OtlpSink {
    /// Starts the sender of a receiver. Nothing is connected or resolved before the first batch, and
    /// nothing is read but the spool.
    pub fn start(settings: &Settings, resource: &Resource) -> Result<Self, StartError> {
        Self::with_spool("export:otlp", settings, resource, None)
    }

    /// The same with a thread's name, and what has waited on disk.
    pub fn with_spool(
        thread: &str,
        settings: &Settings,
        resource: &Resource,
        spool: Option<SpoolFolder>,
    ) -> Result<Self, StartError> {
        let encoding = Encoding::of(settings, Format::Metrics, Format::MetricsJson);
        let queue = OtlpQueue::start(thread, settings, Transport::otlp(settings), spool)?;
        let encoder =
            Encoder::new(resource, Limits::default()).with_temporality(settings.temporality);
        let is_delta = settings.temporality == Temporality::Delta;
        Ok(Self { encoder, deltas: is_delta.then(Deltas::default), encoding, queue })
    }
}

impl Sink for OtlpSink {
    fn export(&mut self, batch: &EnrichedBatch) {
        let Self { encoder, deltas, encoding, queue } = self;
        let batch = match deltas {
            Some(deltas) => deltas.of(batch),
            None => batch,
        };
        let mut emit = |raw: &[u8], points: usize| match encoding.format {
            Format::MetricsJson => queue.push(&json::metrics(raw), *encoding, points as u64),
            _ => queue.push(raw, *encoding, points as u64),
        };
        encoder.encode(batch, &mut emit);
    }

    fn start_flush(&mut self, deadline: Instant) {
        self.queue.close(deadline);
    }

    fn flush(&mut self, deadline: Instant) {
        self.queue.flush(deadline);
    }

    fn report(&self) -> Report {
        self.queue.report(self.encoder.not_finite())
    }
}

/// The queue of one signal and the thread that sends from it.
#[derive(Debug)]
pub(crate) struct OtlpQueue {
    queue: Arc<Queue>,
    counts: Arc<SinkCounters>,
    closing: watch::Sender<Option<Instant>>,
    done: Receiver<()>,
}

impl OtlpQueue {
    pub(crate) fn start(
        thread: &str,
        settings: &Settings,
        transport: Transport,
        spool: Option<SpoolFolder>,
    ) -> Result<Self, StartError> {
        let queue = Arc::new(Queue::new(settings.queue_bytes));
        let counts = Arc::new(SinkCounters::default());
        let (closing, closed) = watch::channel(None);
        let (ended, done) = sync_channel(1);
        let thread = SendThread::of(thread, spool.is_some())?;
        let waiting = (Arc::clone(&queue), spool);
        let sender = Sender::new(settings, transport, waiting, Arc::clone(&counts), closed);
        thread.run(async move {
            sender.run().await;
            // The receiving end is gone when the sink was dropped without a flush.
            let _ = ended.send(());
        });
        Ok(Self { queue, counts, closing, done })
    }

    /// Queues a message with `points` points or records.
    pub(crate) fn push(&self, raw: &[u8], encoding: Encoding, points: u64) {
        let closed = self.closing.borrow().is_some();
        let packed = encoding.compression.compress(raw);
        match packed {
            Ok(body) if !closed => {
                let lost = self.queue.push(Request { body: body.into(), points, encoding });
                self.counts.add(|report| {
                    report.taken += points;
                    report.queue_full += lost;
                });
            }
            // The sender has ended after the flush. Compression into memory does not fail.
            Ok(_) | Err(_) => self.counts.add(|report| {
                report.taken += points;
                report.undelivered += points;
            }),
        }
    }

    pub(crate) fn close(&self, deadline: Instant) {
        self.closing.send_replace(Some(deadline));
    }

    pub(crate) fn flush(&self, deadline: Instant) {
        self.close(deadline);
        let left = deadline.saturating_duration_since(Instant::now());
        // An error means that the sender has already ended.
        let _ = self.done.recv_timeout(left + GRACE);
    }

    pub(crate) fn report(&self, not_finite: u64) -> Report {
        self.counts.report(not_finite, self.queue.points())
    }
}

impl Drop for OtlpQueue {
    /// Ends the sender's thread at once; [`Sink::flush`] before this sends the queued requests.
    fn drop(&mut self) {
        self.closing.send_replace(Some(Instant::now()));
    }
}
