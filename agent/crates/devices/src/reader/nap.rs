//! How long the agent sleeps after a request before it looks for answers: about as long as the child takes, so that it
//! wakes once and not for each device.

use std::thread;
use std::time::{Duration, Instant};

/// A longer one would be late for devices behind one that hangs.
const LONGEST: Duration = Duration::from_millis(200);

/// The time between a request and the first look.
#[derive(Debug, Default)]
pub(super) struct Nap(Duration);

impl Nap {
    /// Sleeps, at most a quarter of the time to the deadline.
    pub(super) fn sleep(&self, deadline: Instant) {
        thread::sleep(self.0.min(deadline.saturating_duration_since(Instant::now()) / 4));
    }

    /// Learns from a request whose answers `took` so long: at least that long where they had to be waited for,
    /// else perhaps shorter.
    pub(super) fn note(&mut self, has_waited: bool, took: Duration) {
        self.0 = if has_waited {
            (took + took / 8).min(LONGEST)
        } else {
            self.0.saturating_sub(self.0 / 32)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_becomes_as_long_as_the_answers_take_and_shorter_again() {
        let mut nap = Nap::default();
        for takes in [1.0, 80.0, 5.0, 0.1, 10_000.0] {
            let takes = Duration::from_secs_f64(takes / 1e3);
            let mut waits = 0;
            for round in 0..200 {
                let has_waited = nap.0 < takes;
                waits += usize::from(has_waited && round >= 100);
                nap.note(has_waited, takes.max(nap.0));
            }
            let most = takes.min(LONGEST) * 9 / 8;
            assert!(nap.0 <= most, "{nap:?} for {takes:?}");
            assert!(waits <= 30 || takes > LONGEST, "{waits} waits for {takes:?}");
        }
    }
}
