//! The end of all helpers, before the agent's own: a service manager may refuse to start an agent again beside what
//! the former one left.

use super::{Helper, Pool, Slot};
use crate::tenant_files::MAX_HELPERS;
use crate::tenant_files::tenant::FileOwner;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the helpers that were killed.
const STEP: Duration = Duration::from_millis(2);

impl Pool {
    /// Kills every helper, and waits at most so long for those that do not hang in the kernel. Later requests are
    /// refused as if all were busy.
    pub(in crate::tenant_files) fn close(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut ending = self.take_all(deadline);
        ending.iter_mut().for_each(Helper::kill);
        while !ending.is_empty() && Instant::now() < deadline {
            ending.retain_mut(|helper| !helper.has_ended());
            thread::sleep(STEP);
        }
    }

    /// Takes the helpers out of all slots, and those of requests that end in time.
    fn take_all(&self, deadline: Instant) -> Vec<Helper> {
        let (mut ending, mut taken) = (Vec::new(), 0);
        let mut inner = self.inner.lock();
        loop {
            for slot in &mut inner.slots {
                if matches!(slot, Slot::Busy(..)) {
                    continue;
                }
                taken += 1;
                match std::mem::replace(slot, Slot::Busy(FileOwner::default(), deadline)) {
                    Slot::Idle(helper, _) => ending.push(helper),
                    Slot::Late(late) => ending.push(late.helper),
                    Slot::Empty | Slot::Busy(..) => {}
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if taken >= MAX_HELPERS || left.is_zero() {
                return ending;
            }
            self.changed.wait_for(&mut inner, left);
        }
    }
}
