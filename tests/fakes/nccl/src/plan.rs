//! What the next calls of this process shall do: take time, fail, or never return.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Nanoseconds that each call takes.
static TAKES_NS: AtomicU64 = AtomicU64::new(0);
/// Whether the next call never returns.
static HANGS: AtomicU32 = AtomicU32::new(0);
/// What the next call returns.
static RETURNS: AtomicU32 = AtomicU32::new(0);

/// Every call from now on takes so long.
pub(crate) fn take(time: Duration) {
    TAKES_NS.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
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
    let takes = TAKES_NS.load(Ordering::Relaxed);
    if takes != 0 {
        thread::sleep(Duration::from_nanos(takes));
    }
    if HANGS.load(Ordering::Relaxed) != 0 {
        loop {
            thread::park();
        }
    }
    if RETURNS.load(Ordering::Relaxed) == 0 { 0 } else { RETURNS.swap(0, Ordering::Relaxed) }
}
