//! The bounded queue between the tick and the sender: encoded requests, oldest first. A full queue
//! drops the oldest.
//!
//! The request in flight is not in the queue, so memory is bounded by the limit plus one request.

use super::body::{Compression, Encoding};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use tokio::sync::Notify;

/// Largest message before compression; JSON is larger than the encoder's 1 MiB of protobuf.
const MAX_MESSAGE: usize = 16 << 20;

/// One encoded request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The body as compressed; gRPC's prefix is not in it.
    pub(crate) body: Bytes,
    /// Points in it.
    pub(crate) points: u64,
    /// What the body is.
    pub(crate) encoding: Encoding,
}

impl Request {
    /// The same compressed with gzip, where the receiver does not know zstd; `None` where the body is
    /// not zstd.
    pub(super) fn without_zstd(&self, no_zstd: bool) -> Option<Self> {
        if !no_zstd || self.encoding.compression != Compression::Zstd {
            return Some(self.clone());
        }
        let raw = zstd::bulk::decompress(&self.body, MAX_MESSAGE).ok()?;
        let compression = Compression::Gzip;
        let body = compression.compress(&raw).ok()?.into();
        let encoding = Encoding { compression, ..self.encoding };
        Some(Self { body, points: self.points, encoding })
    }
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    waiting: Mutex<Waiting>,
    pushed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: VecDeque<Request>,
    bytes: usize,
    points: u64,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, waiting: Mutex::default(), pushed: Notify::new() }
    }

    /// Adds the newest request; returns the points of the dropped ones.
    pub(super) fn push(&self, request: Request) -> u64 {
        let mut waiting = self.waiting();
        waiting.bytes += request.body.len();
        waiting.points += request.points;
        waiting.requests.push_back(request);
        let mut lost = 0;
        while waiting.bytes > self.limit {
            let Some(oldest) = waiting.pop() else { break };
            lost += oldest.points;
        }
        drop(waiting);
        self.pushed.notify_one();
        lost
    }

    /// Puts back the request that could not be sent, as the oldest; returns its points when there
    /// is no room for it any more.
    pub(super) fn put_back(&self, request: Request) -> u64 {
        let mut waiting = self.waiting();
        if waiting.bytes + request.body.len() > self.limit {
            return request.points;
        }
        waiting.bytes += request.body.len();
        waiting.points += request.points;
        waiting.requests.push_front(request);
        0
    }

    /// The oldest request, if any.
    pub(super) fn pop(&self) -> Option<Request> {
        self.waiting().pop()
    }

    /// Returns after a push.
    pub(super) async fn pushed(&self) {
        self.pushed.notified().await;
    }

    /// Points that wait.
    pub(super) fn points(&self) -> u64 {
        self.waiting().points
    }

    /// Number of queued bytes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.waiting().bytes
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock()
    }
}

impl Waiting {
    fn pop(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()?;
        self.bytes -= request.body.len();
        self.points -= request.points;
        Some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::Format;
    use super::*;

    fn request(points: u64, bytes: usize) -> Request {
        let encoding = Encoding { format: Format(1), compression: Compression::None };
        Request { body: Bytes::from(vec![0; bytes]), points, encoding }
    }

    fn points(queue: &Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop()).map(|request| request.points).collect()
    }

    #[test]
    fn a_full_queue_drops_the_oldest_and_counts_its_points() {
        let queue = Queue::new(100);
        let lost: Vec<u64> = (1..=5).map(|n| queue.push(request(n, 40))).collect();
        assert_eq!(lost, [0, 0, 1, 2, 3]);
        assert_eq!(queue.bytes(), 80);
        assert_eq!(points(&queue), [4, 5]);
    }

    #[test]
    fn request_put_back_is_the_oldest_and_goes_first() {
        let queue = Queue::new(100);
        queue.push(request(1, 40));
        let first = queue.pop().unwrap();
        queue.push(request(2, 40));
        assert_eq!(queue.put_back(first), 0);
        assert_eq!(points(&queue), [1, 2]);
    }

    #[test]
    fn request_put_back_is_counted_when_newer_ones_took_its_room() {
        let queue = Queue::new(100);
        queue.push(request(1, 40));
        let first = queue.pop().unwrap();
        queue.push(request(2, 40));
        queue.push(request(3, 40));
        assert_eq!(queue.put_back(first), 1);
        assert_eq!(points(&queue), [2, 3]);
    }

    #[test]
    fn request_larger_than_the_queue_is_counted_and_leaves_it_empty() {
        let queue = Queue::new(100);
        assert_eq!(queue.push(request(9, 101)), 9);
        assert_eq!(queue.bytes(), 0);
    }
}
