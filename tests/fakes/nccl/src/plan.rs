//! What the next calls of this process shall do: wait, fail, or never return.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Whether the next call waits at the gate.
static WAITS: AtomicU32 = AtomicU32::new(0);
/// A FIFO.
static GATE: Mutex<Option<PathBuf>> = Mutex::new(None);
/// Whether the next call never returns.
static HANGS: AtomicU32 = AtomicU32::new(0);
/// What the next call returns.
static RETURNS: AtomicU32 = AtomicU32::new(0);

/// The next call waits until somebody opens this FIFO for writing.
pub(crate) fn wait_at(fifo: PathBuf) {
    *GATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(fifo);
    WAITS.store(1, Ordering::Release);
}

/// The next call never returns.
pub(crate) fn hang() {
    HANGS.store(1, Ordering::Relaxed);
}

/// The next call returns this.
pub(crate) fn fail(result: u32) {
    RETURNS.store(result, Ordering::Relaxed);
}

/// Does what is planned for a call; gives its result.
pub(crate) fn carry_out() -> u32 {
    if WAITS.load(Ordering::Relaxed) != 0 && WAITS.swap(0, Ordering::Acquire) != 0 {
        let fifo = GATE.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A FIFO that is gone keeps nobody waiting.
        let _ = fifo.map(File::open);
    }
    if HANGS.load(Ordering::Relaxed) != 0 {
        loop {
            thread::park();
        }
    }
    if RETURNS.load(Ordering::Relaxed) == 0 { 0 } else { RETURNS.swap(0, Ordering::Relaxed) }
}
