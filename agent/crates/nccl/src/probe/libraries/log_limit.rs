//! Limits the log lines about a process's libraries, whose number and names the process controls.

use gpuwho_model::ids::ProcKey;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Log lines per process and period; a job has one or two libraries.
const MAX_LINES: u32 = 4;
const PERIOD: Duration = Duration::from_mins(1);

/// Log lines of each process.
#[derive(Debug, Default)]
pub(in super::super) struct ProcessLogLimit(HashMap<ProcKey, (Instant, u32)>);

impl ProcessLogLimit {
    /// Whether another line may be logged.
    pub(in super::super) fn allows(&mut self, process: ProcKey, now: Instant) -> bool {
        self.0.retain(|_, (since, _)| now.saturating_duration_since(*since) < PERIOD);
        let (_, lines) = self.0.entry(process).or_insert((now, 0));
        *lines += 1;
        *lines <= MAX_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_of_a_process_are_limited() {
        let (mut limit, now) = (ProcessLogLimit::default(), Instant::now());
        let process = |pid| ProcKey { pid, start_ticks: 7 };
        let allowed = (0..1_000).filter(|_| limit.allows(process(1), now)).count();
        assert_eq!(u32::try_from(allowed), Ok(MAX_LINES));
        assert!(limit.allows(process(2), now), "another one's are its own");
        assert!(limit.allows(process(1), now + PERIOD));
        assert_eq!(limit.0.len(), 1, "and nothing is kept of who is silent");
    }
}
