//! Finds the rank that arrived last: compares the same collective, by sequence number, on the ranks
//! of this node.

use super::seconds;
use gpuwho_common::nccl::{ARRIVALS, Arrival, BUCKETS, FIRST_BUCKET_NS};
use gpuwho_model::ids::MemberId;
use gpuwho_model::sample::Histogram;
use gpuwho_owners::communicators::Group;
use std::collections::HashMap;

/// Upper bounds of the time buckets in seconds; the same as the programs'.
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

/// The latest collectives of a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatestCalls<'a> {
    pub member: MemberId,
    /// Sequence number of the last one.
    pub sequence: u64,
    pub arrivals: &'a [Arrival; ARRIVALS],
}

impl LatestCalls<'_> {
    /// The time and the kind of a collective, if it is still in the ring.
    pub(super) fn at(&self, sequence: u64) -> Option<(u64, u32)> {
        let place = usize::try_from(sequence).ok()? % ARRIVALS;
        let arrival = self.arrivals.get(place)?;
        let [number, what] = [arrival.what >> 32, arrival.what & u64::from(u32::MAX)];
        (number == sequence & u64::from(u32::MAX) && arrival.at_ns != 0)
            .then_some((arrival.at_ns, u32::try_from(what).unwrap_or(0)))
    }

    /// Sequence number of the oldest one still in the ring.
    pub(super) fn oldest(&self) -> u64 {
        self.sequence.saturating_sub(ARRIVALS as u64 - 1).max(1)
    }
}

/// The results for a rank since it was first seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ArrivalSkew {
    /// Recorded on the rank that arrived last.
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
    /// The last compared collective of each communicator.
    done: HashMap<Group, u64>,
    of: HashMap<MemberId, ArrivalSkew>,
}

impl Comparison {
    /// Compares the collectives that all ranks of a communicator on this node have called since the
    /// last reading.
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

    /// The results for a rank.
    pub(super) fn of(&self, member: MemberId) -> Option<&ArrivalSkew> {
        self.of.get(&member)
    }

    /// Removes a rank.
    pub(super) fn remove(&mut self, member: MemberId) {
        self.of.remove(&member);
    }

    /// Removes communicators without a rank.
    pub(super) fn retain(&mut self, is_there: impl Fn(Group) -> bool) {
        self.done.retain(|group, _| is_there(*group));
    }
}

/// Finds the period in which collectives repeat, and times the repetitions.
#[derive(Debug)]
pub(in super::super) struct Steps {
    /// End of the last whole repetition.
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
    /// Takes the calls of a rank since the last reading.
    pub(super) fn take(&mut self, rank: &LatestCalls<'_>) {
        if rank.sequence == self.anchor {
            return;
        }
        let calls: Option<Vec<(u64, u32)>> =
            (rank.oldest()..=rank.sequence).map(|sequence| rank.at(sequence)).collect();
        // An entry is being overwritten: the next reading has it.
        let Some(calls) = calls else { return };
        let what: Vec<u32> = calls.iter().map(|(_, what)| *what).collect();
        let Some(period) = period(&what).and_then(|period| u64::try_from(period).ok()) else {
            self.period = 0;
            return;
        };
        if period != self.period || self.anchor < rank.oldest() {
            // A new pattern: its earlier repetitions were not timed.
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

/// The shortest period that fits all calls at least [`REPETITIONS`] times.
fn period(what: &[u32]) -> Option<usize> {
    (1..=what.len() / REPETITIONS).find(|period| {
        let later = what.iter().skip(*period);
        later.zip(what).all(|(now, before)| now == before)
    })
}

#[cfg(test)]
mod tests;
