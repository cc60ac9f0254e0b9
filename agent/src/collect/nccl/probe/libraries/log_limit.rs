//! What is said in the log of the libraries of a process, which may be as many and as odd as it
//! likes.

use crate::ids::ProcKey;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of the log that a process's libraries are worth, in such a time: a job has one or two.
const MAX_LINES: u32 = 4;
const WORDS_OF: Duration = Duration::from_mins(1);

/// Lines that were said of each process.
#[derive(Debug, Default)]
pub(in super::super) struct ProcessLogLimit(HashMap<ProcKey, (Instant, u32)>);

impl ProcessLogLimit {
    /// Whether there is a line left for it.
    pub(in super::super) fn allows(&mut self, process: ProcKey, now: Instant) -> bool {
        self.0.retain(|_, (since, _)| now.saturating_duration_since(*since) < WORDS_OF);
        let (_, lines) = self.0.entry(process).or_insert((now, 0));
        *lines += 1;
        *lines <= MAX_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_process_a_few_lines_a_minute_are_said() {
        let (mut words, now) = (ProcessLogLimit::default(), Instant::now());
        let process = |pid| ProcKey { pid, start_ticks: 7 };
        let said = (0..1_000).filter(|_| words.allows(process(1), now)).count();
        assert_eq!(u32::try_from(said), Ok(MAX_LINES));
        assert!(words.allows(process(2), now), "another one's are its own");
        assert!(words.allows(process(1), now + WORDS_OF));
        assert_eq!(words.0.len(), 1, "and nothing is kept of who is silent");
    }
}
