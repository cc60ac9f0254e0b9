//! Wakes the thread that finds libraries after an event of a process.

use gpuwho_model::ids::ProcKey;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Processes that executed another program or opened another device since the last scan.
pub(in super::super) type PendingRescans = Arc<Mutex<HashSet<ProcKey>>>;
/// Limit; regular scans find the changes of further processes.
const MAX_PENDING: usize = 1_024;

/// Requests a scan after a process opened a device, executed another program or ended.
#[derive(Clone, Debug)]
pub struct RescanHandle {
    pub(in super::super) wake: Weak<OwnedFd>,
    pub(in super::super) pending: PendingRescans,
}

impl RescanHandle {
    /// Wakes the thread, unless it is awake or gone. The process will be scanned as often as a new
    /// one.
    pub fn request(&self, process: ProcKey) {
        let mut pending = self.pending.lock();
        if pending.len() < MAX_PENDING {
            pending.insert(process);
        }
        drop(pending);
        self.wake();
    }

    /// Wakes the thread, unless it is awake or gone.
    pub fn wake(&self) {
        if let Some(wake) = self.wake.upgrade() {
            // The pipe is full: the thread will scan anyway.
            let _ = rustix::io::write(&wake, &[1]);
        }
    }
}
