//! The conditions of one device: its values of this tick against the rules.

use super::history::{Counter, History};
use super::rules::{Figures, RULES, Rule, Signal};
use crate::event::Observation;
use gpuwho_model::catalog::health::Condition;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// Seconds over which the power must be steady for a rise of temperature to be a fault.
const STEADY: f64 = 900.0;
/// The power of the last minutes may be this part above that before them.
const STEADY_PART: f64 = 1.1;
/// A device that is busy for this part of the time does not save power on its link.
pub(super) const BUSY: f64 = 0.5;

/// A condition that lasts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Active {
    /// When it started, by the wall clock.
    pub(super) since: SystemTime,
    /// The last value that was judged.
    pub(super) value: f64,
    /// The value is back since this time of the boot clock.
    pub(super) back: Option<f64>,
}

/// One rule on one device.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleState {
    pub(super) active: Option<Active>,
    /// The value is beyond the start since this time.
    beyond: Option<f64>,
    /// Whether it was judged since the device answers.
    pub(super) is_judged: bool,
    /// The last event that speaks for it, since the last tick.
    event: bool,
    pub(super) counter: Counter,
    pub(super) history: History,
    /// The highest sum of readings ever.
    pub(super) best: Option<f64>,
}

/// What one tick says of a device, besides the rules' inputs.
#[derive(Clone, Debug, Default)]
pub(super) struct Vital {
    /// Whether the device answers; `None` if that is unknown.
    pub(super) answers: Option<bool>,
    /// Whether another device is in its place.
    pub(super) is_replaced: bool,
    /// Busy fraction.
    pub(super) busy: Option<f64>,
    /// Joules since the driver was loaded.
    pub(super) energy: Option<f64>,
    /// Degrees of the die.
    pub(super) temperature: Option<f64>,
    /// The device's clock as a part of its peers'.
    pub(super) behind: Option<f64>,
    /// The lanes and the generation that its PCIe link is expected to have.
    pub(super) link: [Option<f64>; 2],
}

/// A condition that has started or ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) rule: &'static Rule,
    pub(super) figures: Figures,
    /// The value that started it, or when it had started.
    pub(super) how: How,
}

/// Which way a condition changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    Started(f64),
    Ended(SystemTime),
}

/// All conditions of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceHealth {
    /// In the order of [`RULES`].
    pub(super) rules: Vec<RuleState>,
    pub(super) energy: Counter,
    energies: History,
    /// Whether the device answered in the last tick.
    pub(super) answers: bool,
    /// Seconds of the boot clock at the last tick.
    pub(super) judged: f64,
    /// Whether an event said that faults before it are over.
    has_recovered: bool,
    /// Whether the driver advised a recovery action since the last tick.
    is_advised: bool,
}

impl DeviceHealth {
    pub(super) fn new() -> Self {
        Self {
            rules: vec![RuleState::default(); RULES.len()],
            energy: Counter::default(),
            energies: History::default(),
            answers: false,
            judged: 0.0,
            has_recovered: false,
            is_advised: false,
        }
    }

    /// Takes an event of this device or of its driver.
    pub(super) fn take(&mut self, what: &Observation) {
        if super::rules::faults::is_recovery(what) {
            self.has_recovered = true;
            self.is_advised = false;
            self.rules.iter_mut().for_each(|state| state.event = false);
        }
        self.is_advised |= super::rules::faults::is_advice(what);
        for (rule, state) in RULES.iter().zip(&mut self.rules) {
            if let Signal::Event(is_evidence) = rule.signal {
                state.event |= is_evidence(what);
            }
        }
    }

    /// Judges every enabled rule. `value` gives the sum of a rule's readings of one of its inputs.
    pub(super) fn evaluate(
        &mut self,
        figures: &[Option<Figures>],
        readings: &Readings<'_>,
        (now, time): (f64, SystemTime),
        changes: &mut Vec<Change>,
    ) {
        self.judged = now;
        self.answers = readings.vital.answers == Some(true);
        if let Some(energy) = readings.vital.energy {
            // A counter of the driver that starts again: the device was reset.
            self.has_recovered |= self.energy.has_restarted(energy);
            self.energy.take([Some(energy)].into_iter());
            self.energies.push(STEADY, now, self.energy.sum());
        }
        let (has_recovered, steady) =
            (std::mem::take(&mut self.has_recovered), self.is_steady(now));
        let is_advised = std::mem::take(&mut self.is_advised);
        let all = RULES.iter().zip(&mut self.rules).zip(figures).enumerate();
        for (at, ((rule, state), figures)) in all {
            let Some(figures) = figures else { continue };
            // Where the library has no recovery action, the kernel's line is all that says it.
            let is_fault = rule.about.condition == Condition::DriverFault;
            state.event |= is_fault && is_advised && !readings.has(Condition::DriverRecovery);
            let value = state.value(rule, readings.of(at), readings.vital, (now, steady));
            if value.is_none() && !self.answers {
                state.is_judged = false;
            }
            let is_over = has_recovered && matches!(rule.signal, Signal::Event(_));
            let how = state.apply(figures, value, (now, time), is_over);
            changes.extend(how.map(|how| Change { rule, figures: *figures, how }));
        }
    }

    /// Whether the power did not rise in the last minutes.
    fn is_steady(&self, now: f64) -> bool {
        let at = |ago: f64| self.energies.at(now - ago);
        let (Some(begin), Some(middle)) = (at(STEADY), at(STEADY / 3.0)) else { return false };
        let watts =
            |(from, joules): (f64, f64), (to, more): (f64, f64)| (more - joules) / (to - from);
        let (before, since) = (watts(begin, middle), watts(middle, (now, self.energy.sum())));
        before > 0.0 && since <= STEADY_PART * before
    }
}

/// The readings of one tick for one device.
#[derive(Debug)]
pub(super) struct Readings<'a> {
    pub(super) vital: &'a Vital,
    /// The values of all rules' inputs, rule after rule.
    pub(super) values: &'a [Option<f64>],
    /// Where each rule's inputs are in `values`.
    pub(super) places: &'a [std::ops::Range<usize>],
}

impl Readings<'_> {
    /// Whether a condition's inputs are read.
    fn has(&self, condition: Condition) -> bool {
        let at = RULES.iter().position(|rule| rule.about.condition == condition);
        at.is_some_and(|at| self.of(at).iter().any(Option::is_some))
    }

    fn of(&self, rule: usize) -> &[Option<f64>] {
        let place = self.places.get(rule).cloned().unwrap_or_default();
        self.values.get(place).unwrap_or_default()
    }
}

impl RuleState {
    /// The rule's value of this tick; `None` where it cannot be judged now.
    fn value(
        &mut self,
        rule: &Rule,
        readings: &[Option<f64>],
        vital: &Vital,
        (now, is_steady): (f64, bool),
    ) -> Option<f64> {
        let sum = || {
            let mut present = readings.iter().flatten().peekable();
            present.peek()?;
            Some(present.sum::<f64>())
        };
        match rule.signal {
            Signal::Value(_) => sum(),
            Signal::Link(_, part) => {
                let expected = *vital.link.get(part as usize)?;
                Some((*readings.first()?)? / expected?)
            }
            Signal::Increase(_, window) | Signal::MostIncrease(_, window) => {
                if !self.counter.take(readings.iter().copied()) {
                    return None;
                }
                let is_sum = matches!(rule.signal, Signal::Increase(..));
                let total = if is_sum { self.counter.sum() } else { self.counter.most() };
                self.history.push(window, now, total);
                Some(total - self.history.oldest()?)
            }
            Signal::Loss(_) => {
                let value = sum()?;
                let best = self.best.map_or(value, |best| best.max(value));
                self.best = Some(best);
                Some(best - value)
            }
            Signal::Ramp(window) => {
                let temperature = vital.temperature?;
                let before = self.history.at(now - window);
                self.history.push(window, now, temperature);
                let (_, before) = before?;
                let rise = temperature - before;
                is_steady.then_some(rise)
            }
            Signal::Peers => vital.behind,
            Signal::Event(_) => {
                let has_event = std::mem::take(&mut self.event);
                (has_event || self.is_judged || self.active.is_some()).then_some(if has_event {
                    1.0
                } else {
                    0.0
                })
            }
        }
    }

    /// Starts or ends the condition.
    fn apply(
        &mut self,
        figures: &Figures,
        value: Option<f64>,
        (now, time): (f64, SystemTime),
        is_over: bool,
    ) -> Option<How> {
        let Some(value) = value else {
            self.beyond = None;
            if let Some(active) = &mut self.active {
                active.back = None;
            }
            return None;
        };
        self.is_judged = true;
        if let Some(active) = &mut self.active {
            if figures.ends(value) {
                let back = *active.back.get_or_insert(now);
                if now - back >= figures.clear || is_over {
                    let since = active.since;
                    self.active = None;
                    return Some(How::Ended(since));
                }
            } else {
                active.back = None;
                active.value = value;
            }
            return None;
        }
        if !figures.starts(value) {
            self.beyond = None;
            return None;
        }
        let beyond = *self.beyond.get_or_insert(now);
        if now - beyond < figures.after {
            return None;
        }
        self.beyond = None;
        self.active = Some(Active { since: time, value, back: None });
        Some(How::Started(value))
    }
}

impl Change {
    /// The condition.
    pub(super) fn condition(&self) -> Condition {
        self.rule.about.condition
    }
}
