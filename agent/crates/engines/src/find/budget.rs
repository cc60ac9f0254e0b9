//! What the looks at one owner's cgroups may cost in a reading.

use gpuwho_owners::sockets::Allowance;
use std::time::{Duration, Instant};

/// Descriptors and lines of tables; the rest comes at the next reading.
const LOOK_BUDGET: usize = 1 << 16;
/// Time after which no other process is looked at.
const LOOK_TIME: Duration = Duration::from_millis(100);
/// What a process costs beside its descriptors, in such.
const PROCESS_ENTRIES: usize = 16;

/// What is left of it.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) entries: Allowance,
    pub(super) time: Duration,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self { entries: Allowance::new(LOOK_BUDGET, None), time: LOOK_TIME }
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.entries.is_used_up() || self.time.is_zero()
    }

    /// Takes the time since the last call.
    pub(super) fn spend(&mut self, since: &mut Instant) {
        let now = Instant::now();
        self.time = self.time.saturating_sub(now - std::mem::replace(since, now));
    }

    /// Takes what a process costs beside its descriptors.
    pub(super) fn take_process(&self) {
        self.entries.take(PROCESS_ENTRIES);
    }
}
