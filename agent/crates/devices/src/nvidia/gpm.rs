//! GPM: the performance counters of Hopper and later, of a device and of each of its MIG instances.
//!
//! A value is computed from two samples. One sample is stored from each reading to the next, so
//! that no reading waits for a second one: three calls a device (the streaming state, the sample,
//! all metrics) and two for each GPU instance, and no value at the first reading. Two samples are
//! compared only if they match: the same handle, MIG mode, instance (by identity, because the
//! driver reuses numbers at once) and stream, neither too close nor too far apart. Otherwise there
//! is no value rather than a wrong one.
//!
//! GPM does not take the profilers' lock (Nsight, CUPTI, DCGM before Hopper). If the driver says
//! that another program uses the counters, or that this user may not read them, the state is
//! exported and the read is retried later. The agent never turns the counters' streaming on or off.

mod errors;
mod timing;
mod wanted;

use super::caller::{Call, NvmlCaller};
use super::instances::Handle;
use crate::wire::{Reading, WireValue, push};
use errors::{classify, is_lack};
use gpuwho_model::catalog::gpm as metric;
use gpuwho_model::catalog::gpm::CounterState;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_sys::nvml::gpm::{self, GpmQuery, Sample};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::collections::BTreeMap;
use timing::{is_early, is_near_enough};
use wanted::{Counter, CounterSet, WANTED};

/// Pause before counters that another program uses are read again.
const BUSY_PAUSE_NS: u64 = 30_000_000_000;
/// Pause before counters that this user may not read are tried again.
const FORBIDDEN_PAUSE_NS: u64 = 600_000_000_000;

/// One device's counters.
pub(super) struct Gpm {
    nvml: &'static Nvml,
    /// Enabled in the configuration.
    enabled: bool,
    /// Whether the device has counters, once known.
    supported: Option<bool>,
    /// Whether the counters were streaming at the last reading.
    streaming: Option<bool>,
    /// The driver rejects a query with metrics that it does not have.
    is_older: bool,
    /// Pairs of the device itself (`None`) and of its GPU instances.
    pairs: BTreeMap<Option<u32>, Pair>,
    asked: Vec<GpmQuery>,
}

/// The two samples of a device or an instance: the last one, and one to read into.
struct Pair {
    /// Identity of the instance: one with the same number and another mark is a different one.
    mark: u64,
    /// State at the last reading.
    state: CounterState,
    last: Option<Taken>,
    spare: Option<Sample>,
    /// Time between the two previous samples.
    gap_ns: Option<u64>,
    /// The driver has no counters for it.
    unsupported: bool,
    /// Why it is not read, and until when.
    pause: Option<(CounterState, u64)>,
    /// Metrics that it does not have.
    lacks: CounterSet,
}

/// A sample with its time.
struct Taken {
    sample: Sample,
    at_ns: u64,
}

/// The result of sampling a device or an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Two matching samples exist.
    Pair,
    /// One sample exists.
    First,
    /// It is too early for another sample.
    Early,
    /// No sample; the state says why.
    Refused(CounterState),
}

/// What is sampled.
#[derive(Clone, Copy)]
struct Source<'a> {
    device: &'a Device<'static>,
    gpu_instance: Option<u32>,
}

impl Gpm {
    /// The counters of a device that was not read yet.
    pub(super) fn new(nvml: &'static Nvml, enabled: bool) -> Self {
        Self {
            nvml,
            enabled,
            supported: None,
            streaming: None,
            is_older: false,
            pairs: BTreeMap::new(),
            asked: Vec::new(),
        }
    }

    /// Clears everything and frees the samples: the handle or the MIG mode changed.
    pub(super) fn forget(&mut self) {
        *self =
            Self { asked: std::mem::take(&mut self.asked), ..Self::new(self.nvml, self.enabled) };
    }

    /// Whether the device has counters and they are read.
    pub(super) fn is_supported(&self) -> bool {
        self.enabled && self.supported == Some(true)
    }

    /// Reads the counters of a device and its instances; `reading.instances` is in the order of the
    /// handles.
    pub(super) fn read(
        &mut self,
        device: &Device<'static>,
        instances: &[Handle],
        caller: &mut NvmlCaller,
        reading: &mut Reading,
    ) {
        if !self.enabled {
            return;
        }
        let state = match self.ready(device, caller) {
            Ok(()) => self.read_all(device, instances, caller, reading),
            Err(state) => state,
        };
        for known in CounterState::ALL {
            let on = i64::from(*known == state);
            push(&mut reading.values, &metric::STATUS, *known, Some(on));
        }
    }

    /// Whether the counters can be read now.
    fn ready(
        &mut self,
        device: &Device<'static>,
        caller: &mut NvmlCaller,
    ) -> Result<(), CounterState> {
        if self.supported.is_none() {
            self.supported = caller.call(Call::GpmSupport, || is_supported(device));
        }
        match self.supported {
            None => return Err(CounterState::Failing),
            Some(false) => return Err(CounterState::Unsupported),
            Some(true) => {}
        }
        let streaming = caller.call(Call::GpmStreaming, || gpm::is_streaming(device));
        if streaming.is_some() && self.streaming.is_some_and(|before| Some(before) != streaming) {
            self.pairs.values_mut().for_each(Pair::begin_anew);
        }
        self.streaming = streaming.or(self.streaming);
        Ok(())
    }

    fn read_all(
        &mut self,
        device: &Device<'static>,
        instances: &[Handle],
        caller: &mut NvmlCaller,
        reading: &mut Reading,
    ) -> CounterState {
        let now_ns = boot_time_ns();
        let marks = marks(instances);
        self.pairs.retain(|of, pair| marks.get(of) == Some(&pair.mark));
        let mut seen = Vec::new();
        for (gpu_instance, mark) in marks {
            let of_this = |handle: &Handle| Some(handle.place.gpu_instance) == gpu_instance;
            // Counters belong to the GPU instance; they are exported on the first of its compute
            // instances.
            let place = instances.iter().position(of_this);
            let values = match place.and_then(|place| reading.instances.get_mut(place)) {
                Some(instance) => &mut instance.values,
                None => &mut reading.values,
            };
            let known = self.pairs.remove(&gpu_instance);
            let mut pair = known.unwrap_or_else(|| Pair::of(mark));
            let step = pair.step(Source { device, gpu_instance }, self.nvml, caller, now_ns);
            pair.state = match step {
                Step::Pair => self.values(&mut pair, gpu_instance.is_some(), caller, values),
                Step::First => CounterState::Waiting,
                Step::Early => pair.state,
                Step::Refused(state) => state,
            };
            seen.push(pair.state);
            self.pairs.insert(gpu_instance, pair);
        }
        sum_up(&seen)
    }

    /// Adds the values between a pair's samples.
    fn values(
        &mut self,
        pair: &mut Pair,
        of_instance: bool,
        caller: &mut NvmlCaller,
        out: &mut Vec<WireValue>,
    ) -> CounterState {
        let (Some(last), Some(earlier)) = (&pair.last, &pair.spare) else {
            return CounterState::Waiting;
        };
        let mut query = |is_older: bool, asked: &mut Vec<GpmQuery>| {
            asked.clear();
            asked.extend(
                rows(pair.lacks, of_instance, is_older)
                    .map(|(_, wanted)| GpmQuery { id: wanted.id, answer: Err(NvmlError::NoData) }),
            );
            caller.call(Call::GpmMetrics, || match last.sample.since(earlier, asked) {
                Ok(()) => Ok(true),
                // Some drivers reject the whole query because of one unknown metric.
                Err(NvmlError::InvalidArg) if !is_older => Ok(false),
                Err(error) => Err(error),
            })
        };
        let mut answer = query(self.is_older, &mut self.asked);
        let mut is_older = self.is_older;
        if answer == Some(false) {
            is_older = true;
            answer = query(is_older, &mut self.asked);
        }
        if answer != Some(true) {
            return CounterState::Failing;
        }
        self.is_older = is_older;
        let before = out.len();
        for ((row, wanted), asked) in rows(pair.lacks, of_instance, is_older).zip(&self.asked) {
            match &asked.answer {
                Ok(given) => out.extend(wanted.reading(of_instance, *given)),
                Err(NvmlError::InvalidArg) => pair.lacks.put(row),
                Err(error) if is_lack(error) => pair.lacks.put(row),
                Err(_) => {}
            }
        }
        if out.len() > before { CounterState::Ok } else { CounterState::Waiting }
    }
}

impl Pair {
    fn of(mark: u64) -> Self {
        Self {
            mark,
            state: CounterState::Waiting,
            last: None,
            spare: None,
            gap_ns: None,
            unsupported: false,
            pause: None,
            lacks: CounterSet::default(),
        }
    }

    /// Takes a sample and checks whether it matches the previous one, which becomes the spare.
    fn step(
        &mut self,
        source: Source<'_>,
        nvml: &'static Nvml,
        caller: &mut NvmlCaller,
        now_ns: u64,
    ) -> Step {
        if self.unsupported {
            return Step::Refused(CounterState::Unsupported);
        }
        if let Some((state, until_ns)) = self.pause
            && now_ns < until_ns
        {
            return Step::Refused(state);
        }
        self.pause = None;
        if self.last.as_ref().is_some_and(|last| is_early(last.at_ns, now_ns)) {
            return Step::Early;
        }
        let spare = self.spare.take();
        let Some(mut sample) = spare.or_else(|| caller.call(Call::GpmAlloc, || Sample::new(nvml)))
        else {
            return Step::Refused(CounterState::Failing);
        };
        let taken = source.take(&mut sample, caller);
        if taken != Some(Ok(())) {
            self.spare = Some(sample);
            return taken.and_then(Result::err).map_or(
                // The previous sample stays: the next one may still be close enough to it.
                Step::Refused(CounterState::Failing),
                |state| self.refused(state, now_ns),
            );
        }
        let Some(before) = self.last.replace(Taken { sample, at_ns: now_ns }) else {
            return Step::First;
        };
        self.spare = Some(before.sample);
        let gap_ns = now_ns.saturating_sub(before.at_ns);
        let typical_ns = self.gap_ns.replace(gap_ns);
        if is_near_enough(gap_ns, typical_ns) { Step::Pair } else { Step::First }
    }

    fn refused(&mut self, state: CounterState, now_ns: u64) -> Step {
        self.begin_anew();
        match state {
            CounterState::Busy => self.pause = Some((state, now_ns + BUSY_PAUSE_NS)),
            CounterState::Forbidden => self.pause = Some((state, now_ns + FORBIDDEN_PAUSE_NS)),
            _ => {
                self.unsupported = true;
                self.spare = None;
            }
        }
        Step::Refused(state)
    }

    /// Makes the next sample the first one again.
    fn begin_anew(&mut self) {
        if let Some(last) = self.last.take() {
            self.spare = Some(last.sample);
        }
        self.gap_ns = None;
    }
}

impl Source<'_> {
    /// Takes a sample; `None` on failure.
    fn take(
        self,
        sample: &mut Sample,
        caller: &mut NvmlCaller,
    ) -> Option<Result<(), CounterState>> {
        let Self { device, gpu_instance } = self;
        match gpu_instance {
            None => caller.call(Call::GpmSample, || classify(sample.take(device))),
            Some(id) => {
                caller.call(Call::GpmMigSample, || match sample.take_instance(device, id) {
                    // The instance was destroyed since it was listed.
                    Err(NvmlError::InvalidArg) => Err(NvmlError::NotFound),
                    taken => classify(taken),
                })
            }
        }
    }
}

fn is_supported(device: &Device<'_>) -> Result<bool, NvmlError> {
    match gpm::is_supported(device) {
        Err(error) if is_lack(&error) => Ok(false),
        answer => answer,
    }
}

/// The rows of [`WANTED`] to query.
fn rows(
    lacks: CounterSet,
    of_instance: bool,
    is_older: bool,
) -> impl Iterator<Item = (usize, &'static Counter)> {
    let has = move |row: usize, wanted: &Counter| {
        !(lacks.has(row) || of_instance && !wanted.is_of_instances() || is_older && wanted.is_newer)
    };
    WANTED.iter().enumerate().filter(move |(row, wanted)| has(*row, wanted))
}

/// The device itself and each GPU instance, with a mark of all its compute instances.
fn marks(instances: &[Handle]) -> BTreeMap<Option<u32>, u64> {
    let mut marks = BTreeMap::from([(None, 0)]);
    for handle in instances {
        let mark: &mut u64 = marks.entry(Some(handle.place.gpu_instance)).or_default();
        *mark = mark.rotate_left(7) ^ handle.mark;
    }
    marks
}

/// The state of a device from those of the device and its instances: states that an operator can
/// fix come first.
fn sum_up(seen: &[CounterState]) -> CounterState {
    let order = [
        CounterState::Busy,
        CounterState::Forbidden,
        CounterState::Failing,
        CounterState::Ok,
        CounterState::Waiting,
    ];
    let first = order.into_iter().find(|state| seen.contains(state));
    first.unwrap_or(CounterState::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::{CounterSet, CounterState, NvmlError, WANTED, classify, rows, sum_up};

    #[test]
    fn counters_in_use_or_forbidden_are_not_failures() {
        let reported = |error| classify(Err(error)).ok();
        assert_eq!(reported(NvmlError::InUse), Some(Err(CounterState::Busy)));
        assert_eq!(reported(NvmlError::UnexpectedVariant(23)), Some(Err(CounterState::Busy)));
        assert_eq!(reported(NvmlError::NoPermission), Some(Err(CounterState::Forbidden)));
        assert_eq!(reported(NvmlError::NotSupported), Some(Err(CounterState::Unsupported)));
        assert_eq!(reported(NvmlError::Unknown), None);
        assert_eq!(reported(NvmlError::GpuLost), None, "the device's own state");
    }

    #[test]
    fn an_older_driver_and_an_instance_are_queried_for_fewer_metrics() {
        let ids = |of_instance, is_older| -> Vec<u32> {
            rows(CounterSet::default(), of_instance, is_older)
                .map(|(_, wanted)| wanted.id)
                .collect()
        };
        assert_eq!(ids(false, false).len(), WANTED.len());
        assert_eq!(ids(false, true).iter().max(), Some(&61));
        assert!(!ids(true, false).contains(&60) && ids(true, false).contains(&20));
        let mut lacks = CounterSet::default();
        lacks.put(1);
        assert!(rows(lacks, false, false).all(|(_, wanted)| wanted.id != 2));
    }

    #[test]
    fn a_device_has_its_most_actionable_state() {
        use CounterState::{Busy, Failing, Ok, Unsupported, Waiting};
        assert_eq!(sum_up(&[Unsupported, Ok, Waiting]), Ok);
        assert_eq!(sum_up(&[Unsupported, Waiting]), Waiting);
        assert_eq!(sum_up(&[Ok, Busy]), Busy);
        assert_eq!(sum_up(&[Ok, Failing]), Failing);
        assert_eq!(sum_up(&[Unsupported]), Unsupported);
        assert_eq!(sum_up(&[]), Unsupported);
    }
}
