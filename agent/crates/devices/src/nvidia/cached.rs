//! Readings that rarely change: read every few ticks, and exported at every tick from the cache.

use super::caller::{NvmlCaller, PollEvery};
use crate::wire::WireValue;

/// How often a group with a failed call is read again at the next ticks, before it waits for its
/// turn.
const RETRIES: u32 = 3;

/// A group of readings, as last read.
#[derive(Debug)]
pub(super) struct CachedReadings {
    pace: PollEvery,
    values: Vec<WireValue>,
    /// A call failed and its value is missing: the group is read again at the next readings.
    retries: u32,
}

impl CachedReadings {
    /// Starts empty.
    pub(super) fn new(pace: PollEvery) -> Self {
        Self { pace, values: Vec::new(), retries: 0 }
    }

    /// Reads the group if it is due, and adds the last values.
    pub(super) fn read(
        &mut self,
        caller: &mut NvmlCaller,
        out: &mut Vec<WireValue>,
        body: impl FnOnce(&mut NvmlCaller, &mut Vec<WireValue>),
    ) {
        let due = caller.due(self.pace);
        if due || self.retries > 0 {
            self.values.clear();
            let failed = caller.cost().failed;
            body(caller, &mut self.values);
            let left = if due { RETRIES } else { self.retries - 1 };
            self.retries = if caller.cost().failed == failed { 0 } else { left };
        }
        out.extend_from_slice(&self.values);
    }
}

#[cfg(test)]
mod tests {
    use super::{CachedReadings, NvmlCaller, PollEvery};
    use crate::nvidia::caller::Call;
    use crate::wire::push;
    use gpuwho_model::catalog::device as metric;
    use nvml_wrapper::error::NvmlError;

    /// How often a reading is made and how often it is exported in a number of ticks, if it fails
    /// `failures` times first.
    fn run(turns: u32, mut failures: u32) -> (u32, usize) {
        let (mut caller, mut cached) = (NvmlCaller::of(0), CachedReadings::new(PollEvery::Slow));
        let (mut asked, mut exported) = (0, Vec::new());
        for turn in 0..turns {
            caller.begin(turn == 0);
            cached.read(&mut caller, &mut exported, |caller, out| {
                asked += 1;
                let answer = if failures == 0 { Ok(7) } else { Err(NvmlError::Unknown) };
                failures = failures.saturating_sub(1);
                push(out, &metric::POWER_STATE, (), caller.call(Call::PowerState, || answer));
            });
        }
        (asked, exported.len())
    }

    #[test]
    fn it_is_read_rarely_and_exported_at_every_reading() {
        assert_eq!(run(30, 0), (1, 30));
        assert_eq!(run(31, 0), (2, 31));
    }

    #[test]
    fn a_failure_is_not_exported_and_is_retried_at_once() {
        assert_eq!(run(30, 3), (4, 27));
    }

    #[test]
    fn a_permanent_failure_is_not_retried_at_every_reading() {
        assert_eq!(run(60, 99), (8, 0));
    }
}
