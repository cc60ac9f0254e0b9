//! `agent.cpu_limit`: where the agent and its readers use more of a core than they may, sources are read
//! less often, the least important ones first, and as configured again once that fits.
//!
//! Before that the owners whose processes cost most are charged: where the records of processes that hold
//! devices take a good part of the limit, or owners make more of them than they may, each owner may have
//! fewer ([`DIVISORS`]): those with the most are heard less, and no source is read less often in that window.
//!
//! Once in [`WINDOW`] the CPU time is compared with the limit; each time it is above it is one step more
//! (two where it is more than twice the limit), and one less after some windows well below it. What had
//! to be taken back at once waits twice as long before the next try.

use gpuwho_model::catalog::agent::{self as metric, SourceState};
use gpuwho_model::sample::{Agent, Batch};
use gpuwho_model::status::Report;
use parking_lot::Mutex;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name under which the status registry has it, where a limit is set.
pub const STATUS: &str = "cpu_limit";

/// Time over which use is compared with the limit: some readings at the default interval.
const WINDOW: Duration = Duration::from_secs(30);

/// A step is given back below this part of the limit: what the step saves is at most half.
const LOW: f64 = 0.6;

/// Windows below [`LOW`] before a step is given back, at first and at most.
const CALM: u32 = 4;
const MAX_CALM: u32 = 64;

/// No source is read less often than this, unless it is configured so.
const SLOWEST: Duration = Duration::from_mins(1);

/// How much less often a source may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// What runs on the devices: inference engines, NCCL.
    Extra,
    /// The host and its cgroups.
    Host,
    /// Devices and their processes. Never less often than every second time: owners' time and the
    /// devices' health would have gaps.
    Device,
    /// The agent itself, and what is cheap.
    Always,
}

/// Each step: how many times less often the sources of [`Importance::Extra`], [`Importance::Host`] and
/// [`Importance::Device`] are read.
const STEPS: [[u32; 3]; 5] = [[1, 1, 1], [2, 1, 1], [4, 2, 1], [8, 4, 1], [8, 8, 2]];

/// One record of so many that an owner may have without the limit, at each step.
const DIVISORS: [u32; 4] = [1, 4, 16, 64];

/// The part of the limit from which the thread that reads the records is charged first.
const OWNERS_PART: f64 = 0.25;

/// The limit, and how far the sources are slowed down now.
#[derive(Clone, Debug, Default)]
pub struct CpuLimit(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Fraction of a core; `None` if it is not limited.
    limit: Option<f64>,
    step: usize,
    /// The start of the window, and the CPU seconds until then.
    window: Option<(Instant, f64)>,
    /// Use in the last window.
    used: f64,
    /// Windows below [`LOW`] in a row, and how many are needed.
    calm: u32,
    needed: u32,
    /// The last step was one less.
    is_trying: bool,
    owners: Owners,
}

/// What owners' records cost.
#[derive(Debug, Default)]
struct Owners {
    step: usize,
    /// CPU seconds of the thread that reads them, and records beyond owners' shares: so far, and at the
    /// start of the window.
    now: (f64, u64),
    before: (f64, u64),
}

impl Owners {
    /// How it stands where nothing else is slowed down.
    fn report(&self) -> Report {
        let divisor = DIVISORS.get(self.step).copied().unwrap_or(1);
        if divisor == 1 {
            return Report::ready();
        }
        let reason = format!(
            "owners' processes that fork and end cost much of agent.cpu_limit; of each owner one record of \
             {divisor} is read at most"
        );
        let remedy = "gpuwho.owner.refused (openings, process_records) has whose they are";
        Report::of(SourceState::Degraded, reason, remedy)
    }

    /// At the end of a window: whether they cost much.
    fn cost_much(&mut self, elapsed: f64, limit: f64) -> bool {
        let ((seconds, beyond), (seconds_before, beyond_before)) = (self.now, self.before);
        self.before = self.now;
        (seconds - seconds_before) / elapsed > limit * OWNERS_PART || beyond > beyond_before
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            limit: None,
            step: 0,
            window: None,
            used: 0.0,
            calm: 0,
            needed: CALM,
            is_trying: false,
            owners: Owners::default(),
        }
    }
}

impl CpuLimit {
    /// With a fraction of a core.
    pub fn new(limit: Option<f64>) -> Self {
        let new = Self::default();
        new.set(limit);
        new
    }

    /// Changes the limit.
    pub fn set(&self, limit: Option<f64>) {
        let mut state = self.0.lock();
        if state.limit != limit {
            *state = State { limit, step: limit.map_or(0, |_| state.step), ..State::default() };
        }
    }

    /// The time between two readings of a source now.
    pub fn slowed(&self, every: Duration, importance: Importance) -> Duration {
        let step = self.0.lock().step;
        let factors = STEPS.get(step).unwrap_or(&STEPS[0]);
        let [extra, host, device] = factors.map(|factor| every * factor);
        let slowed = match importance {
            Importance::Extra => extra.min(SLOWEST),
            Importance::Host => host.min(SLOWEST),
            Importance::Device => device,
            Importance::Always => every,
        };
        slowed.max(every)
    }

    /// Takes the CPU seconds that the agent and its readers have used so far.
    pub fn take(&self, now: Instant, seconds: f64) {
        let mut state = self.0.lock();
        let Some(limit) = state.limit else { return };
        let Some((began, before)) = state.window else {
            state.window = Some((now, seconds));
            return;
        };
        let elapsed = now.saturating_duration_since(began);
        if elapsed >= WINDOW {
            state.window = Some((now, seconds));
            let elapsed = elapsed.as_secs_f64();
            let owners_cost_much = state.owners.cost_much(elapsed, limit);
            state.adjust(((seconds - before) / elapsed).max(0.0), limit, owners_cost_much);
        }
    }

    /// Takes what the records of owners' processes have cost so far, and how many were beyond owners'
    /// shares; answers by what to divide these.
    pub fn take_owners(&self, spent: Duration, beyond: u64) -> u32 {
        let mut state = self.0.lock();
        state.owners.now = (spent.as_secs_f64(), beyond);
        DIVISORS.get(state.owners.step).copied().unwrap_or(1)
    }

    /// Adds the figures of the limit, where one is set.
    pub fn figures(&self, out: &mut Batch) {
        let state = self.0.lock();
        let Some(limit) = state.limit else { return };
        out.push(metric::CPU_LIMIT.sample(Agent, (), limit));
        out.push(metric::CPU_LIMIT_STEP.sample(
            Agent,
            (),
            i64::try_from(state.step).unwrap_or(i64::MAX),
        ));
    }

    /// How it stands; `None` without a limit.
    pub fn report(&self) -> Option<Report> {
        let state = self.0.lock();
        let limit = state.limit?;
        if state.step == 0 {
            return Some(state.owners.report());
        }
        let mut reason = format!(
            "the agent used {:.2} % of a core and agent.cpu_limit is {:.2} %; read less often:",
            state.used * 100.0,
            limit * 100.0
        );
        let names = ["inference engines and NCCL", "the host and cgroups", "devices"];
        let factors = STEPS.get(state.step).unwrap_or(&STEPS[0]);
        for (name, factor) in names.iter().zip(factors).filter(|(_, factor)| **factor > 1) {
            // Writing to a String cannot fail.
            let _ = write!(reason, " {name} {factor} times,");
        }
        reason.pop();
        let remedy = "raise agent.cpu_limit or agent.interval, or switch sources off";
        Some(Report::of(SourceState::Degraded, reason, remedy))
    }
}

impl State {
    fn adjust(&mut self, used: f64, limit: f64, owners_cost_much: bool) {
        self.used = used;
        if used > limit {
            if owners_cost_much && self.owners.step + 1 < DIVISORS.len() {
                (self.owners.step, self.calm) = (self.owners.step + 1, 0);
                return;
            }
            if std::mem::take(&mut self.is_trying) {
                self.needed = (self.needed * 2).min(MAX_CALM);
            }
            let more = if used > limit * 2.0 { 2 } else { 1 };
            (self.step, self.calm) = ((self.step + more).min(STEPS.len() - 1), 0);
            return;
        }
        if std::mem::take(&mut self.is_trying) && self.step == 0 {
            self.needed = CALM;
        }
        self.calm = if used < limit * LOW { self.calm + 1 } else { 0 };
        if self.step > 0 && self.calm >= self.needed {
            (self.step, self.calm, self.is_trying) = (self.step - 1, 0, true);
        } else if self.owners.step > 0 && self.calm >= self.needed && !owners_cost_much {
            (self.owners.step, self.calm) = (self.owners.step - 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit of 2 % after windows in which this fraction of a core was used.
    struct Rig {
        limit: CpuLimit,
        now: Instant,
        seconds: f64,
    }

    impl Rig {
        fn new() -> Self {
            let rig = Self { limit: CpuLimit::new(Some(0.02)), now: Instant::now(), seconds: 5.0 };
            rig.limit.take(rig.now, rig.seconds);
            rig
        }

        fn window(&mut self, used: f64) -> usize {
            self.now += WINDOW;
            self.seconds += used * WINDOW.as_secs_f64();
            self.limit.take(self.now, self.seconds);
            self.limit.0.lock().step
        }
    }

    const EVERY: Duration = Duration::from_secs(10);

    #[test]
    fn the_least_important_are_slowed_down_first_and_devices_last_and_at_most_twice() {
        let mut rig = Rig::new();
        let mut seen = Vec::new();
        for _ in 0..5 {
            rig.window(0.03);
            let of = |importance| rig.limit.slowed(EVERY, importance).as_secs();
            seen.push([Importance::Extra, Importance::Host, Importance::Device].map(of));
            assert_eq!(of(Importance::Always), 10);
        }
        assert_eq!(seen, [[20, 10, 10], [40, 20, 10], [60, 40, 10], [60, 60, 20], [60, 60, 20]]);
        let slow = Duration::from_mins(5);
        assert_eq!(rig.limit.slowed(slow, Importance::Extra), slow, "as configured");
    }

    #[test]
    fn the_owner_that_costs_is_slowed_down_before_everybody_else() {
        let mut rig = Rig::new();
        let mut spent = Duration::ZERO;
        let mut seen = Vec::new();
        for _ in 0..4 {
            spent += WINDOW.mul_f64(0.02);
            let divisor = rig.limit.take_owners(spent, 0);
            seen.push((divisor, rig.window(0.05)));
        }
        assert_eq!(seen, [(1, 0), (4, 0), (16, 0), (64, 2)], "the others after the last step");
        let mut rig = Rig::new();
        rig.limit.take_owners(Duration::ZERO, 7);
        assert_eq!(rig.window(0.03), 0, "records beyond an owner's share");
        assert_eq!(rig.limit.report().unwrap().state, SourceState::Degraded);
        assert_eq!(rig.window(0.03), 1, "none more: it is not the owners");
        let back = |rig: &mut Rig| {
            rig.window(0.01);
            rig.limit.take_owners(Duration::ZERO, 7)
        };
        assert!((0..100).any(|_| back(&mut rig) == 1), "given back when all fits");
    }

    #[test]
    fn far_above_the_limit_two_steps_are_taken_at_once() {
        let mut rig = Rig::new();
        assert_eq!(rig.window(0.05), 2);
        assert_eq!(rig.window(0.5), 4);
        assert_eq!(rig.window(0.5), 4, "the last one");
    }

    #[test]
    fn what_was_taken_is_given_back_and_each_failed_try_doubles_the_wait() {
        let mut rig = Rig::new();
        rig.window(0.03);
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push((1..1000).find(|_| rig.window(0.01) == 0).unwrap());
            assert_eq!(rig.window(0.03), 1, "too early");
        }
        assert_eq!(waits, [4, 8, 16, 32, 64, 64]);
        assert!((0..1000).any(|_| rig.window(0.01) == 0));
        assert_eq!(rig.window(0.015), 0, "it stays");
        assert_eq!(rig.window(0.03), 1);
        assert_eq!((1..1000).find(|_| rig.window(0.01) == 0).unwrap(), 4, "as at the start");
    }

    #[test]
    fn between_the_marks_nothing_changes() {
        let mut rig = Rig::new();
        rig.window(0.03);
        for _ in 0..100 {
            assert_eq!(rig.window(0.015), 1);
        }
    }

    #[test]
    fn without_a_limit_nothing_is_slowed_down_or_said() {
        let mut rig = Rig::new();
        rig.window(0.5);
        let report = rig.limit.report().unwrap();
        assert_eq!(report.state, SourceState::Degraded);
        let reason = "the agent used 50.00 % of a core and agent.cpu_limit is 2.00 %; read less often: \
                      inference engines and NCCL 4 times, the host and cgroups 2 times";
        assert_eq!(report.reason, reason);
        rig.limit.set(None);
        assert_eq!((rig.window(0.5), rig.limit.report()), (0, None));
        let mut out = Batch::new("test", std::time::SystemTime::now());
        rig.limit.figures(&mut out);
        assert!(out.samples.is_empty());
    }
}
