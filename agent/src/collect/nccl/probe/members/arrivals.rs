//! Who came last: the same collective on the ranks of this node, compared by its number.

use super::seconds;
use crate::communicators::{Group, MemberId};
use crate::sample::Histogram;
use gpuwho_common::nccl::{ARRIVALS, Arrival, BUCKETS, FIRST_BUCKET_NS};
use std::collections::HashMap;

/// Upper bounds of the time buckets, in seconds; the same as the programs'.
pub(super) static TIME_BOUNDS: [f64; BUCKETS - 1] = time_bounds();

const fn time_bounds() -> [f64; BUCKETS - 1] {
    let mut bounds = [0.0; BUCKETS - 1];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = (FIRST_BUCKET_NS << (2 * at)) as f64 / 1e9;
        at += 1;
    }
    bounds
}

/// A rank's latest collectives.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatestCalls<'a> {
    pub member: MemberId,
    /// Number of the last one.
    pub sequence: u64,
    pub arrivals: &'a [Arrival; ARRIVALS],
}

impl LatestCalls<'_> {
    /// When a collective was called and what it was, if it is still there.
    pub(super) fn at(&self, sequence: u64) -> Option<(u64, u32)> {
        let place = usize::try_from(sequence).ok()? % ARRIVALS;
        let arrival = self.arrivals.get(place)?;
        let [number, what] = [arrival.what >> 32, arrival.what & u64::from(u32::MAX)];
        (number == sequence & u64::from(u32::MAX) && arrival.at_ns != 0)
            .then_some((arrival.at_ns, u32::try_from(what).unwrap_or(0)))
    }

    /// Number of the oldest one that is still there.
    pub(super) fn oldest(&self) -> u64 {
        self.sequence.saturating_sub(ARRIVALS as u64 - 1).max(1)
    }
}

/// What was found of a rank, since it was first seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrivalSkew {
    /// On the rank that came last.
    pub spread: Histogram,
    pub skew_ns: u64,
    pub compared: u64,
    pub mismatches: u64,
}

impl Default for ArrivalSkew {
    fn default() -> Self {
        Self { spread: Histogram::new(&TIME_BOUNDS), skew_ns: 0, compared: 0, mismatches: 0 }
    }
}

/// All comparisons so far.
#[derive(Debug, Default)]
pub(in super::super) struct Comparison {
    /// The last collective compared.
    done: HashMap<Group, u64>,
    of: HashMap<MemberId, ArrivalSkew>,
}

impl Comparison {
    /// Compares what all ranks of a communicator on this node have called since the last time.
    pub(super) fn compare(&mut self, group: Group, ranks: &[LatestCalls<'_>]) {
        let Some(last) = ranks.iter().map(|rank| rank.sequence).min() else { return };
        let oldest = ranks.iter().map(LatestCalls::oldest).max().unwrap_or(1);
        let done = self.done.insert(group, last).unwrap_or(0);
        if ranks.len() < 2 {
            return;
        }
        for sequence in oldest.max(done + 1)..=last {
            self.collective(ranks, sequence);
        }
    }

    fn collective(&mut self, ranks: &[LatestCalls<'_>], sequence: u64) {
        let mut came: Vec<(u64, MemberId, u32)> = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let Some((at_ns, what)) = rank.at(sequence) else { return };
            came.push((at_ns, rank.member, what));
        }
        came.sort_unstable();
        let (Some(first), Some(last)) = (came.first().copied(), came.last().copied()) else {
            return;
        };
        for (at_ns, member, what) in came {
            let found = self.of.entry(member).or_default();
            found.compared += 1;
            found.skew_ns += at_ns - first.0;
            found.mismatches += u64::from(what != first.2);
        }
        self.of.entry(last.1).or_default().spread.observe(seconds(last.0 - first.0));
    }

    /// What was found of a rank.
    pub(super) fn of(&self, member: MemberId) -> Option<&ArrivalSkew> {
        self.of.get(&member)
    }

    /// Forgets a rank.
    pub(super) fn remove(&mut self, member: MemberId) {
        self.of.remove(&member);
    }

    /// Forgets communicators without a rank.
    pub(super) fn retain(&mut self, is_there: impl Fn(Group) -> bool) {
        self.done.retain(|group, _| is_there(*group));
    }
}

/// Finds the pattern in which collectives repeat, and times its repetitions.
#[derive(Debug)]
pub(in super::super) struct Steps {
    /// Where the last whole repetition ended.
    anchor: u64,
    period: u64,
    pub interval: Histogram,
}

impl Default for Steps {
    fn default() -> Self {
        Self { anchor: 0, period: 0, interval: Histogram::new(&TIME_BOUNDS) }
    }
}

/// Repetitions that make a pattern.
const REPETITIONS: usize = 3;

impl Steps {
    /// Takes what a rank has called since the last time.
    pub(super) fn take(&mut self, rank: &LatestCalls<'_>) {
        if rank.sequence == self.anchor {
            return;
        }
        let calls: Option<Vec<(u64, u32)>> =
            (rank.oldest()..=rank.sequence).map(|sequence| rank.at(sequence)).collect();
        // One that is being overwritten: the next reading has it.
        let Some(calls) = calls else { return };
        let what: Vec<u32> = calls.iter().map(|(_, what)| *what).collect();
        let Some(period) = period(&what).and_then(|period| u64::try_from(period).ok()) else {
            self.period = 0;
            return;
        };
        if period != self.period || self.anchor < rank.oldest() {
            // A new pattern: its repetitions so far were not timed under this one.
            self.period = period;
            self.anchor = rank.oldest();
        }
        while self.anchor + period <= rank.sequence {
            if let (Some((from, _)), Some((to, _))) =
                (rank.at(self.anchor), rank.at(self.anchor + period))
            {
                self.interval.observe(seconds(to.saturating_sub(from)));
            }
            self.anchor += period;
        }
    }
}

/// The shortest period that fits everything, at least [`REPETITIONS`] times.
fn period(what: &[u32]) -> Option<usize> {
    (1..=what.len() / REPETITIONS).find(|period| {
        let later = what.iter().skip(*period);
        later.zip(what).all(|(now, before)| now == before)
    })
}

#[cfg(test)]
mod tests;
