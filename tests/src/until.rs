//! Waiting for what has no event of its own: a file that grows, a port that opens.

use std::thread;
use std::time::{Duration, Instant};

/// Between two looks: short beside every time-out here, long beside what a look costs.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Looks until `look` gives something or `within` has passed.
pub fn until<T>(within: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    until_every(BETWEEN_LOOKS, within, look)
}

/// The same, with a time of its own between two looks.
pub fn until_every<T>(
    between: Duration,
    within: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    let end = Instant::now() + within;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(between);
    }
}
