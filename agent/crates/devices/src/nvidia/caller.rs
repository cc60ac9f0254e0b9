//! Calls the library, and distinguishes *unsupported* (remembered, called once), *failed* (counted,
//! retried) and *absent* (nothing there now).

pub(super) use super::functions::Call;
use crate::CallTimes;
use crate::in_flight;
use crate::wire::{Cost, Outcome};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::nvmlReturn_t;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Argument version mismatch: the driver is too old for this version of a structure.
const ARGUMENT_VERSION: nvmlReturn_t = 25;
/// The driver no longer lists the device.
const GPU_NOT_FOUND: nvmlReturn_t = 28;

/// Calls without which nothing is known of a device.
const MAIN: &[Call] = &[
    Call::Handle,
    Call::Uuid,
    Call::Utilization,
    Call::Memory,
    Call::Temperature,
    Call::Power,
    Call::ComputeProcesses,
];

impl Call {
    fn bit(self) -> u128 {
        1 << (self as u8)
    }
}

/// Readings between two polls of values that rarely change: five minutes at 10 s.
const SLOW: u32 = 30;
/// Readings between two polls of expensive values: a minute at 10 s.
const MEDIUM: u32 = 6;

/// How often a value is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollEvery {
    /// At every reading.
    EveryTick,
    /// At every sixth reading, staggered over the devices.
    Medium,
    /// At every thirtieth reading, staggered over the devices.
    Slow,
    /// Once per handle.
    Once,
}

/// The state and the cost of one device's calls.
#[derive(Debug, Default)]
pub(super) struct NvmlCaller {
    /// One bit for each [`Call`]; cleared with the handle.
    unsupported: u128,
    /// Readings since the device was opened or its MIG mode changed.
    turn: u32,
    /// Offset of this device in the polling cycle.
    offset: u32,
    cost: Cost,
    answered: u32,
    refused_handle: bool,
    last_failure: String,
    end: Option<Outcome>,
    /// Times by function, if timing is on.
    times: Option<Vec<CallTimes>>,
}

/// The meaning of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorClass {
    Unsupported,
    Absent,
    Lost,
    DriverGone,
    Failed,
}

/// The error's own words; those of a lost device are NVIDIA's, which the library misspells.
fn words(error: &NvmlError) -> String {
    match error {
        NvmlError::GpuLost => "device fell off the bus or is otherwise inaccessible".to_owned(),
        error => error.to_string(),
    }
}

fn classify(error: &NvmlError) -> ErrorClass {
    match error {
        NvmlError::NotSupported
        | NvmlError::FunctionNotFound
        | NvmlError::FailedToLoadSymbol(_)
        | NvmlError::UnexpectedVariant(ARGUMENT_VERSION) => ErrorClass::Unsupported,
        NvmlError::NotFound | NvmlError::NoData => ErrorClass::Absent,
        NvmlError::GpuLost
        | NvmlError::ResetRequired
        | NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => ErrorClass::Lost,
        NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch | NvmlError::Uninitialized => {
            ErrorClass::DriverGone
        }
        _ => ErrorClass::Failed,
    }
}

impl NvmlCaller {
    /// The caller of the device at an index.
    pub(super) fn of(index: u32) -> Self {
        Self { offset: index, ..Self::default() }
    }

    /// Begins a reading; a new handle clears what was unsupported.
    pub(super) fn begin(&mut self, new_handle: bool) {
        let turn = self.turn.wrapping_add(1);
        let (unsupported, turn) = if new_handle { (0, 0) } else { (self.unsupported, turn) };
        let times = self.times.take();
        *self = Self { unsupported, turn, times, ..Self::of(self.offset) };
    }

    /// Clears what was unsupported: with MIG enabled a device supports other calls.
    pub(super) fn forget(&mut self) {
        self.unsupported = 0;
        self.turn = 0;
    }

    /// Whether a poll is due. At the first reading of a handle all are.
    pub(super) fn due(&self, pace: PollEvery) -> bool {
        let turn = |round| self.turn.wrapping_add(self.offset).is_multiple_of(round);
        self.turn == 0
            || match pace {
                PollEvery::EveryTick => true,
                PollEvery::Medium => turn(MEDIUM),
                PollEvery::Slow => turn(SLOW),
                PollEvery::Once => false,
            }
    }

    /// Whether earlier knowledge about the device is invalid: this is the first reading of a handle
    /// or mode.
    pub(super) fn renewed(&self) -> bool {
        self.turn == 0
    }

    /// Starts to time each function.
    pub(super) fn time_calls(&mut self) {
        self.times.get_or_insert_default();
    }

    /// The collected times.
    pub(super) fn times(&self) -> &[CallTimes] {
        self.times.as_deref().unwrap_or_default()
    }

    fn record_time(&mut self, call: Call, took: Duration) {
        let Some(times) = &mut self.times else { return };
        let function = call.function();
        let at = times.iter().position(|row| row.function == function).unwrap_or_else(|| {
            times.push(CallTimes { function: function.to_owned(), ..CallTimes::default() });
            times.len() - 1
        });
        if let Some(row) = times.get_mut(at) {
            row.calls += 1;
            row.total += took;
            row.longest = row.longest.max(took);
        }
    }

    /// Makes a call unless the device does not support it or is known to be lost.
    pub(super) fn call<T>(
        &mut self,
        call: Call,
        body: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Option<T> {
        if self.end.is_some() || self.lacks(call) {
            return None;
        }
        let begun = Instant::now();
        let answer = in_flight::call(call, body);
        let took = begun.elapsed();
        self.cost.calls += 1;
        self.cost.library_ns += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.record_time(call, took);
        match answer {
            Ok(value) => {
                // A handle shows nothing about the device behind it; fields are counted one by one.
                self.answered += u32::from(!matches!(call, Call::Handle | Call::Fields));
                Some(value)
            }
            Err(error) => {
                let is_main = MAIN.contains(&call);
                if self.note(&call, &error, is_main) == ErrorClass::Unsupported {
                    self.unsupported |= call.bit();
                }
                None
            }
        }
    }

    /// Records one of several answers of one call; the caller keeps track of which are unsupported.
    pub(super) fn record<T>(
        &mut self,
        what: &impl Debug,
        answer: Result<T, NvmlError>,
    ) -> Result<T, ErrorClass> {
        match answer {
            Ok(value) => {
                self.answered += 1;
                Ok(value)
            }
            // A field, or a part of the device, that this driver does not have.
            Err(NvmlError::InvalidArg) => Err(ErrorClass::Unsupported),
            Err(error) => Err(self.note(what, &error, false)),
        }
    }

    /// Counts an implausible answer.
    pub(super) fn reject(&mut self) {
        self.cost.implausible += 1;
    }

    /// The value if it is in range; otherwise it is counted as implausible.
    pub(super) fn in_range<T: PartialOrd>(
        &mut self,
        value: Option<T>,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        let value = value?;
        if range.contains(&value) {
            return Some(value);
        }
        self.reject();
        None
    }

    /// Whether a call was not supported.
    pub(super) fn lacks(&self, call: Call) -> bool {
        self.unsupported & call.bit() != 0
    }

    /// Whether nothing was answered although nothing failed: the device supports none of the calls.
    pub(super) fn is_silent(&self) -> bool {
        self.end.is_none() && self.answered == 0 && self.last_failure.is_empty()
    }

    /// The outcome of the reading.
    pub(super) fn outcome(&mut self) -> Outcome {
        match self.end.take() {
            Some(end) => end,
            None if self.answered > 0 => Outcome::Ok,
            None if self.refused_handle => Outcome::Lost(self.last_failure.clone()),
            None => Outcome::Failing(self.last_failure.clone()),
        }
    }

    /// The cost of the reading.
    pub(super) fn cost(&self) -> Cost {
        self.cost
    }

    fn note(&mut self, what: &impl Debug, error: &NvmlError, is_main: bool) -> ErrorClass {
        // A device that needs a reset says so to the main calls; to another it is that one's failure.
        let is_of_side = matches!(error, NvmlError::ResetRequired) && !is_main;
        let class = if is_of_side { ErrorClass::Failed } else { classify(error) };
        match class {
            ErrorClass::Unsupported => {}
            // An answer too: nothing is there.
            ErrorClass::Absent => self.answered += 1,
            ErrorClass::Lost => self.end = Some(Outcome::Lost(words(error))),
            ErrorClass::DriverGone => self.end = Some(Outcome::DriverGone(error.to_string())),
            ErrorClass::Failed => {
                self.cost.failed += 1;
                self.refused_handle |= matches!(error, NvmlError::InvalidArg);
                self.last_failure = format!("{what:?}: {error}");
            }
        }
        class
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, NvmlCaller, Outcome, PollEvery};
    use nvml_wrapper::error::NvmlError;

    #[test]
    fn unsupported_calls_are_made_once_per_handle() {
        let mut caller = NvmlCaller::default();
        let mut asked = 0;
        for new_handle in [true, false, false, true] {
            caller.begin(new_handle);
            let _none: Option<()> = caller.call(Call::Fan, || {
                asked += 1;
                Err(NvmlError::NotSupported)
            });
        }
        assert_eq!(asked, 2);
    }

    #[test]
    fn slow_values_are_polled_at_once_and_then_every_thirtieth_time() {
        let turns = |index, pace| {
            let mut caller = NvmlCaller::of(index);
            let due = (0..61).filter(|turn| {
                caller.begin(*turn == 0);
                caller.due(pace)
            });
            due.collect::<Vec<u32>>()
        };
        assert_eq!(turns(0, PollEvery::Slow), [0, 30, 60]);
        assert_eq!(turns(4, PollEvery::Medium)[..3], [0, 2, 8]);
        assert_eq!(
            turns(7, PollEvery::Slow),
            [0, 23, 53],
            "not when the first device has its turn"
        );
        assert_eq!(turns(7, PollEvery::Once), [0]);
        assert_eq!(turns(7, PollEvery::EveryTick).len(), 61);
    }

    #[test]
    fn a_failed_call_is_counted_and_retried() {
        let mut caller = NvmlCaller::default();
        for _ in 0..2 {
            caller.begin(false);
            let none: Option<()> = caller.call(Call::Power, || Err(NvmlError::Unknown));
            assert_eq!((none, caller.cost().calls, caller.cost().failed), (None, 1, 1));
        }
    }

    #[test]
    fn a_reset_that_a_side_call_wants_costs_only_its_own_value() {
        let mut caller = NvmlCaller::default();
        for call in [Call::AccountingBuffer, Call::CaptureSessions, Call::Fan, Call::GpmStreaming] {
            let _none: Option<()> = caller.call(call, || Err(NvmlError::ResetRequired));
        }
        let _ = caller.record(&"field 1", Err::<(), _>(NvmlError::ResetRequired));
        assert_eq!((caller.call(Call::Power, || Ok(1)), caller.cost().failed), (Some(1), 5));
        assert_eq!(caller.outcome(), Outcome::Ok);
        let _none: Option<()> = caller.call(Call::Memory, || Err(NvmlError::ResetRequired));
        assert!(matches!(caller.outcome(), Outcome::Lost(_)));
        // Not of the main calls alone: a device that answers nothing else fails.
        let mut caller = NvmlCaller::default();
        let _none: Option<()> = caller.call(Call::Fan, || Err(NvmlError::ResetRequired));
        assert!(matches!(caller.outcome(), Outcome::Failing(_)));
    }

    #[test]
    fn no_call_follows_once_the_device_is_lost() {
        let mut caller = NvmlCaller::default();
        let _none: Option<()> = caller.call(Call::Power, || Err(NvmlError::GpuLost));
        assert_eq!(caller.call(Call::Fan, || Ok(1)), None);
        assert!(matches!(caller.outcome(), Outcome::Lost(_)));
    }

    #[test]
    fn an_unknown_handle_is_a_lost_device() {
        let mut caller = NvmlCaller::default();
        let _none: Option<()> = caller.call(Call::Power, || Err(NvmlError::InvalidArg));
        assert!(matches!(caller.outcome(), Outcome::Lost(_)));
    }
}
