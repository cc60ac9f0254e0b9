//! One request's devices: a worker takes them one after the other, and the main thread takes what is left from a
//! worker that is blocked.

use crate::DeviceRead;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device and its position.
pub(super) type Placed = (usize, Box<dyn DeviceRead>);

/// The devices of one request that one worker reads.
pub(super) struct Round {
    pub(super) tick: u64,
    /// Processes that have the vendor's nodes open.
    pub(super) openers: Arc<[u32]>,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    left: VecDeque<Placed>,
    /// The device that is being read, and since when.
    current: Option<(usize, Instant)>,
    /// Devices that were read.
    done: Vec<Placed>,
}

/// How far a worker is.
pub(super) enum State {
    /// It may take this much longer with its device.
    Reading(Duration),
    /// It is blocked in a device; the others, which it has not read.
    Blocked(usize, VecDeque<Placed>),
}

impl Round {
    pub(super) fn new(tick: u64, openers: Arc<[u32]>, left: VecDeque<Placed>) -> Self {
        let progress = Mutex::new(Progress { left, ..Progress::default() });
        Self { tick, openers, progress }
    }

    /// The next device to read.
    pub(super) fn next(&self) -> Option<Placed> {
        let mut progress = self.progress.lock();
        let next = progress.left.pop_front();
        progress.current = next.as_ref().map(|(slot, _)| (*slot, Instant::now()));
        next
    }

    /// Returns a device.
    pub(super) fn put(&self, device: Placed) {
        let mut progress = self.progress.lock();
        progress.current = None;
        progress.done.push(device);
    }

    /// Takes the devices that were read.
    pub(super) fn take_done(&self) -> Vec<Placed> {
        std::mem::take(&mut self.progress.lock().done)
    }

    /// Looks after a worker whose devices may take so long each; takes what is left from one that is blocked.
    pub(super) fn look_after(&self, limit: Duration) -> State {
        let mut progress = self.progress.lock();
        match progress.current.map(|(slot, since)| (slot, limit.saturating_sub(since.elapsed()))) {
            Some((slot, Duration::ZERO)) => {
                State::Blocked(slot, std::mem::take(&mut progress.left))
            }
            Some((_, left)) => State::Reading(left),
            // It has not been scheduled yet, or is between two devices.
            None => State::Reading(limit),
        }
    }
}
