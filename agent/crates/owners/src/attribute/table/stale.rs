//! Numbers that a driver goes on listing although their process is gone: a context that somebody else holds
//! (a forked child, a socket with its descriptor) outlives its process.

use super::MAX_HOLDERS;
use std::collections::HashMap;

/// Turns without a question after which a number counts as off the drivers' lists. A list may be read at
/// some ticks only, while the agent keeps to its share of the processor.
const STALE_TURNS: u64 = 16;

/// The numbers, with the turn of the last question about each.
#[derive(Debug, Default)]
pub(super) struct StaleNumbers {
    asked: HashMap<u32, u64>,
    turn: u64,
}

impl StaleNumbers {
    pub(super) fn contains(&self, pid: u32) -> bool {
        self.asked.contains_key(&pid)
    }

    /// False where there is no room.
    #[must_use]
    pub(super) fn note(&mut self, pid: u32) -> bool {
        let has_room = self.asked.len() < MAX_HOLDERS || self.contains(pid);
        if has_room {
            self.asked.insert(pid, self.turn);
        }
        has_room
    }

    /// Once a tick: forgets numbers that no driver lists any more.
    pub(super) fn expire(&mut self) {
        self.turn += 1;
        self.asked.retain(|_, asked| self.turn - *asked <= STALE_TURNS);
    }
}
