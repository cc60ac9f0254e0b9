//! What every sink with retries has: a queue within bounds, a spool on disk where there is one, one connection
//! (HTTP/1.1 or HTTP/2, TLS, proxy, secrets), retries, counters, and words in the log. A sink of these pushes
//! encoded messages into a [`Delivery`] and says in a [`Transport`] what its requests and answers are.
//!
//! All send from one thread (`thread`). While the receiver is unavailable, requests wait in order and keep
//! their own timestamps; a full queue drops the oldest and counts them.

mod backlog;
pub mod body;
pub(crate) mod cause;
pub mod connection;
mod counts;
mod health;
mod proxy;
mod queue;
pub(crate) mod retry;
pub mod secrets;
mod sender;
pub mod settings;
mod thread;
pub mod trust;

use crate::Report;
use crate::spool::SpoolFolder;
use body::Encoding;
use bytes::Bytes;
use cause::Cause;
use connection::Answer;
use counts::SinkCounters;
use hyper::header::{HeaderName, HeaderValue};
use queue::{Queue, Request};
use retry::Verdict;
use sender::Sender;
use settings::Settings;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant, SystemTime};
use thread::SendThread;
use tokio::sync::watch;

/// Time for the sender to count the remaining points after its deadline.
const GRACE: Duration = Duration::from_millis(500);

/// The thread that sends could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the thread that sends ({0})")]
pub struct StartError(#[from] io::Error);

/// What one kind of receiver has of its own.
pub(crate) trait Transport: fmt::Debug + Send {
    /// Its words in the log.
    fn sentences(&self) -> &'static Sentences;

    /// What is sent of a message, and its headers beside those that are configured. `None`: it is none of this
    /// transport's, as what an earlier configuration left in the spool. An error makes it wait.
    fn request(
        &mut self,
        encoding: Encoding,
        body: Bytes,
        now: SystemTime,
    ) -> Result<Option<(Bytes, Headers)>, Cause>;

    /// What an answer means.
    fn verdict(&mut self, encoding: Encoding, answer: &Answer, now: SystemTime) -> Verdict;
}

/// Headers of a request.
pub(crate) type Headers = Vec<(HeaderName, HeaderValue)>;

/// The words about one kind of receiver.
#[derive(Debug)]
pub(crate) struct Sentences {
    pub(crate) fails: &'static str,
    pub(crate) refuses: &'static str,
    pub(crate) works: &'static str,
    pub(crate) rejects: &'static str,
}

/// The queue of one receiver and the thread that sends from it.
#[derive(Debug)]
pub(crate) struct Delivery {
    queue: Arc<Queue>,
    counts: Arc<SinkCounters>,
    closing: watch::Sender<Option<Instant>>,
    done: Receiver<()>,
}

impl Delivery {
    /// Starts the sender. Nothing is connected or resolved before the first message, and nothing is read but
    /// the spool.
    pub(crate) fn start(
        thread: &str,
        settings: &Settings,
        transport: impl Transport + 'static,
        spool: Option<SpoolFolder>,
    ) -> Result<Self, StartError> {
        let queue = Arc::new(Queue::new(settings.queue_bytes));
        let counts = Arc::new(SinkCounters::default());
        let (closing, closed) = watch::channel(None);
        let (ended, done) = sync_channel(1);
        let thread = SendThread::of(thread, spool.is_some())?;
        let waiting = (Arc::clone(&queue), spool);
        let sender =
            Sender::new(settings, Box::new(transport), waiting, Arc::clone(&counts), closed);
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

impl Drop for Delivery {
    /// Ends the sender's thread at once; [`Self::flush`] before this sends the queued requests.
    fn drop(&mut self) {
        self.closing.send_replace(Some(Instant::now()));
    }
}
