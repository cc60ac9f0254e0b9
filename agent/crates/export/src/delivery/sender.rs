//! The thread that sends to the receiver: takes requests off the backlog in order, one at a time, and
//! retries a retryable one until it is accepted, gives way to newer ones, or the agent ends.

use super::Transport;
use super::backlog::Backlog;
use super::cause::Cause;
use super::connection::Connection;
use super::counts::SinkCounters;
use super::health::Health;
use super::queue::{Queue, Request};
use super::retry::{Verdict, Waits, chance};
use super::settings::Settings;
use crate::Held;
use crate::spool::SpoolFolder;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// Set at the end: until when the sender may continue.
pub(super) type Closing = watch::Receiver<Option<Instant>>;

/// How often a spool that does not work is tried again while nothing comes.
const RETRY_SPOOL: Duration = Duration::from_secs(10);

/// The sender's state.
#[derive(Debug)]
pub(super) struct Sender {
    queue: Arc<Queue>,
    backlog: Backlog,
    counts: Arc<SinkCounters>,
    transport: Box<dyn Transport>,
    connection: Connection,
    /// The receiver does not know zstd.
    no_zstd: bool,
    waits: Waits,
    health: Health,
    /// The request in flight; it is not in the queue.
    current: Option<Request>,
    closing: Closing,
    /// How long after a tick its request is sent.
    phase: Duration,
}

impl Sender {
    pub(super) fn new(
        settings: &Settings,
        transport: Box<dyn Transport>,
        (queue, spool): (Arc<Queue>, Option<SpoolFolder>),
        counts: Arc<SinkCounters>,
        closing: Closing,
    ) -> Self {
        Self {
            backlog: Backlog::new(Arc::clone(&queue), spool, Arc::clone(&counts)),
            queue,
            counts,
            waits: Waits::new(settings.backoff),
            health: Health::new(settings.endpoint.clone(), transport.sentences()),
            transport,
            connection: Connection::new(settings.clone()),
            no_zstd: false,
            current: None,
            closing,
            phase: settings.spread.mul_f64(chance()),
        }
    }

    /// Sends until closed; what is left at the deadline stays in the spool, or is counted as undelivered.
    pub(super) async fn run(mut self) {
        let deadline = deadline(self.closing.clone());
        tokio::select! {
            () = self.send_all() => {}
            () = deadline => {}
        }
        let current = self.current.take();
        self.backlog.close(current);
    }

    async fn send_all(&mut self) {
        loop {
            if let Some(request) = self.backlog.next() {
                let wait = self.backlog.pause(&request, Instant::now());
                self.current = Some(request);
                self.wait(wait).await;
                self.attempt().await;
            } else if self.closing.borrow().is_some() {
                return;
            } else {
                tokio::select! {
                    () = self.queue.pushed() => {}
                    // The loop checks the change.
                    _ = self.closing.changed() => continue,
                    // A spool that could not be opened is tried again.
                    () = tokio::time::sleep(RETRY_SPOOL), if self.backlog.is_troubled() => continue,
                }
                self.backlog.store();
                // Ten thousand agents that were started together do not send together.
                let wait = self.phase.mul_f64(0.9 + 0.2 * chance());
                self.wait(wait).await;
            }
        }
    }

    /// Waits, until the agent ends at most.
    async fn wait(&mut self, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let Self { backlog, closing, .. } = self;
        let end = async {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = closing.changed() => {}
            }
        };
        backlog.while_storing(end).await;
    }

    async fn attempt(&mut self) {
        let Some(request) = self.current.clone() else { return };
        self.counts.add(|report| {
            report.requests += 1;
            report.bytes += request.body.len() as u64;
        });
        let points = request.points;
        let Self { backlog, transport, connection, no_zstd, .. } = self;
        let sending = send(transport.as_mut(), connection, &request, *no_zstd);
        let verdict = backlog.while_storing(sending).await;
        if self.current.take().is_none() {
            return;
        }
        let now = Instant::now();
        let (bytes, answer) = (request.body.len(), &verdict);
        tracing::debug!(endpoint = %self.health.endpoint, points, bytes, %answer, "sent");
        match verdict {
            Verdict::Accepted { rejected, message } => {
                let rejected = rejected.min(points);
                self.backlog.done(points - rejected, rejected);
                self.counts.add(|report| report.held = None);
                self.waits.reset();
                self.health.worked(now);
                if rejected > 0 {
                    self.health.partial(rejected, &message, now);
                }
            }
            Verdict::Refused(cause) => {
                self.backlog.done(0, points);
                self.waits.reset();
                self.health.failed(&cause, false, now);
            }
            Verdict::NotOurs => self.backlog.discard(&request),
            Verdict::Retry { cause, after } => {
                self.no_zstd |= matches!(cause, Cause::NoZstd);
                self.backlog.put_back(request);
                let held = match cause {
                    Cause::Untrusted { untrusted } => Some(Held::Secret(untrusted)),
                    _ => None,
                };
                self.counts.add(|report| report.held = held);
                self.health.failed(&cause, true, now);
                let wait = self.waits.next(after);
                // When the agent ends, the last attempt is made at once.
                self.wait(wait).await;
            }
        }
    }
}

/// One attempt.
async fn send(
    transport: &mut dyn Transport,
    connection: &mut Connection,
    request: &Request,
    no_zstd: bool,
) -> Verdict {
    let Some(Request { body, encoding, .. }) = request.without_zstd(no_zstd) else {
        return Verdict::NotOurs;
    };
    let now = SystemTime::now();
    let (body, headers) = match transport.request(encoding, body, now) {
        Ok(Some(request)) => request,
        Ok(None) => return Verdict::NotOurs,
        Err(cause) => return Verdict::lost(cause),
    };
    match connection.post(body, &headers).await {
        Ok(answer) => transport.verdict(encoding, &answer, now),
        Err(cause) => Verdict::lost(cause),
    }
}

/// Returns when the sender is closed and its time is over.
async fn deadline(mut closing: Closing) {
    let until = match closing.wait_for(Option::is_some).await {
        Ok(until) => *until,
        // The sink was dropped.
        Err(_) => None,
    };
    if let Some(until) = until {
        tokio::time::sleep_until(until.into()).await;
    }
}
