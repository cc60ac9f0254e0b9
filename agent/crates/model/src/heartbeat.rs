//! Whether the pipeline ticks: what `/healthz`, `/readyz` and systemd's watchdog ask.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// The shortest time after which a pipeline without a tick counts as stalled: a loaded machine
/// delays a thread by seconds, a hung one for ever.
const MIN_STALL: Duration = Duration::from_secs(30);

/// The time of the pipeline's last tick.
#[derive(Debug)]
pub struct Heartbeat {
    interval: Duration,
    stall: Duration,
    last: Mutex<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    is_first_done: bool,
}

/// The pipeline's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// No tick has ended yet.
    Starting,
    /// Ticks come.
    Ticking,
    /// The last tick, or the start, was this long ago.
    Stalled(Duration),
}

impl Heartbeat {
    /// The heartbeat of a pipeline with this interval, which starts now.
    pub fn new(interval: Duration) -> Self {
        let last = Last { at: Instant::now(), is_first_done: false };
        Self { interval, stall: (interval * 3).max(MIN_STALL), last: Mutex::new(last) }
    }

    /// The pipeline's interval.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Notes the end of a tick; returns whether it is the first.
    pub fn beat(&self) -> bool {
        let now = Last { at: Instant::now(), is_first_done: true };
        let before = std::mem::replace(&mut *self.last.lock(), now);
        !before.is_first_done
    }

    /// The state now.
    pub fn pulse(&self) -> Pulse {
        self.pulse_at(Instant::now())
    }

    fn pulse_at(&self, now: Instant) -> Pulse {
        let Last { at, is_first_done } = *self.last.lock();
        match now.saturating_duration_since(at) {
            age if age > self.stall => Pulse::Stalled(age),
            _ if is_first_done => Pulse::Ticking,
            _ => Pulse::Starting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_ready_after_its_first_tick_and_stalls_without_more() {
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        assert_eq!(heartbeat.pulse(), Pulse::Starting);
        assert!(heartbeat.beat());
        assert!(!heartbeat.beat());
        assert_eq!(heartbeat.pulse(), Pulse::Ticking);
        let later = Instant::now() + Duration::from_secs(31);
        assert!(matches!(heartbeat.pulse_at(later), Pulse::Stalled(age) if age > MIN_STALL));
    }

    #[test]
    fn a_long_interval_is_no_stall() {
        let heartbeat = Heartbeat::new(Duration::from_mins(1));
        heartbeat.beat();
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert_eq!(heartbeat.pulse_at(later(170)), Pulse::Ticking);
        assert!(matches!(heartbeat.pulse_at(later(190)), Pulse::Stalled(_)));
    }
}
