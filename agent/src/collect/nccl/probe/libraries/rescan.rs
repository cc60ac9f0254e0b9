//! Wakes the thread that finds libraries, from whoever has seen something happen to a process.

use crate::ids::ProcKey;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Processes that have become another program or opened another device since the last look.
pub(in super::super) type PendingRescans = Arc<Mutex<HashSet<ProcKey>>>;
/// More are found by the looks that come anyway.
const MAX_PENDING: usize = 1_024;

/// Says that a process has opened a device, became another program or ended: libraries are looked
/// for at once.
#[derive(Clone, Debug)]
pub struct RescanHandle {
    pub(in super::super) wake: Weak<OwnedFd>,
    pub(in super::super) pending: PendingRescans,
}

impl RescanHandle {
    /// Wakes the thread, unless it is awake or gone. What it finds in this process it will look
    /// for as often as in one that is new.
    pub fn request(&self, process: ProcKey) {
        let mut stirred = locked(&self.pending);
        if stirred.len() < MAX_PENDING {
            stirred.insert(process);
        }
        drop(stirred);
        self.wake();
    }

    /// Wakes the thread, unless it is awake or gone.
    pub fn wake(&self) {
        if let Some(wake) = self.wake.upgrade() {
            // Full: it will look anyway.
            let _ = rustix::io::write(&wake, &[1]);
        }
    }
}

/// A set is whole whatever panicked beside it.
pub(in super::super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
