//! The thread that sends to the receiver: takes requests off the queue in order, one at a time, and
//! retries a retryable one until it is accepted, falls out of the queue, or the agent ends.

use super::counts::SinkCounters;
use super::grpc::Grpc;
use super::health::Health;
use super::http::Http;
use super::queue::{Queue, Request};
use super::retry::{Verdict, Waits};
use super::settings::{Protocol, Settings};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Set at the end: until when the sender may continue.
pub(super) type Closing = watch::Receiver<Option<Instant>>;

/// The sender's state.
#[derive(Debug)]
pub(super) struct Sender {
    queue: Arc<Queue>,
    counts: Arc<SinkCounters>,
    transport: Transport,
    waits: Waits,
    health: Health,
    /// The request in flight; it is not in the queue.
    current: Option<Request>,
    closing: Closing,
}

#[derive(Debug)]
enum Transport {
    Http(Http),
    Grpc(Grpc),
}

impl Sender {
    pub(super) fn new(
        settings: &Settings,
        queue: Arc<Queue>,
        counts: Arc<SinkCounters>,
        closing: Closing,
    ) -> Self {
        let transport = match settings.protocol {
            Protocol::Http => Transport::Http(Http::new(settings)),
            Protocol::Grpc => Transport::Grpc(Grpc::new(settings)),
        };
        Self {
            queue,
            counts,
            transport,
            waits: Waits::new(settings.backoff),
            health: Health::new(settings.endpoint.clone()),
            current: None,
            closing,
        }
    }

    /// Sends until closed; what is left at the deadline is counted as undelivered.
    pub(super) async fn run(mut self) {
        let deadline = deadline(self.closing.clone());
        tokio::select! {
            () = self.send_all() => {}
            () = deadline => {}
        }
        let left = self.current.take().into_iter().chain(std::iter::from_fn(|| self.queue.pop()));
        let points = left.map(|request| request.points).sum();
        SinkCounters::add(&self.counts.undelivered, points);
    }

    async fn send_all(&mut self) {
        loop {
            if let Some(request) = self.queue.pop() {
                self.attempt(request).await;
            } else if self.closing.borrow().is_some() {
                return;
            } else {
                tokio::select! {
                    () = self.queue.pushed() => {}
                    // The loop checks the change.
                    _ = self.closing.changed() => {}
                }
            }
        }
    }

    async fn attempt(&mut self, request: Request) {
        let body = request.body.clone();
        SinkCounters::add(&self.counts.requests, 1);
        SinkCounters::add(&self.counts.bytes, body.len() as u64);
        let points = request.points;
        self.current = Some(request);
        let verdict = match &mut self.transport {
            Transport::Http(http) => http.send(body).await,
            Transport::Grpc(grpc) => grpc.send(body).await,
        };
        let Some(request) = self.current.take() else { return };
        let now = Instant::now();
        match verdict {
            Verdict::Accepted { rejected, message } => {
                let rejected = rejected.min(points);
                SinkCounters::add(&self.counts.accepted, points - rejected);
                SinkCounters::add(&self.counts.refused, rejected);
                self.waits.reset();
                self.health.worked(now);
                if rejected > 0 {
                    self.health.partial(rejected, &message, now);
                }
            }
            Verdict::Refused(cause) => {
                SinkCounters::add(&self.counts.refused, points);
                self.waits.reset();
                self.health.failed(&cause, false, now);
            }
            Verdict::Retry { cause, after } => {
                SinkCounters::add(&self.counts.queue_full, self.queue.put_back(request));
                self.health.failed(&cause, true, now);
                let wait = self.waits.next(after);
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    // When the agent ends, the last attempt is made at once.
                    _ = self.closing.changed() => {}
                }
            }
        }
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
