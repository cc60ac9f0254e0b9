//! A ceiling on the series of this host, so that a crowd of processes cannot make more than a receiver
//! takes, and shares of it, so that no owner can take it from the others.
//!
//! What is new beyond the ceiling is left out and counted. The agent's own series are always let
//! through, because they say what was left out. The others come in this order: devices, the basic
//! series of processes and owners, what NCCL's probes count, what its Inspector writes; the last two
//! may fill the ceiling only in part. An owner may have more than its share as long as nobody else
//! needs it, but for the last twentieth. Where an owner below its share finds no room, the owner with
//! the most series of collectives makes way.
//!
//! Costs nothing for a series that goes on; a hash lookup when one begins or ends; a walk over the
//! owners in a batch for which somebody made room is needed.

use crate::attribute::quota::QuotaKey;
use crate::catalog::agent::{DropReason, SourceState};
use crate::collect::status::Report;
use crate::subject::SeriesClass;
use std::collections::HashMap;

/// Owners among whom the ceiling is divided at least: with fewer a new one would find all taken.
const LEAST_OWNERS: usize = 5;
/// An owner counts as one of them from this part of the ceiling on: many small ones need no share.
const SMALL: usize = 100;
/// The part of each room that is kept for owners below their share: the first series of a new process
/// need not wait for somebody to make way.
const SPARE: usize = 20;

/// How many series there may be and are.
#[derive(Debug)]
pub(super) struct SeriesLimit {
    limit: usize,
    alive: usize,
    owners: HashMap<Option<QuotaKey>, OwnerUsage>,
    /// Most series of an owner while others need the room.
    share: usize,
    /// Series of devices that are still to come in this batch, where it is the last that fits.
    owed: usize,
    /// Series that owners below their share were refused in the last batches of all sources.
    needed: Needed,
    giver: Option<EvictionCandidate>,
    /// The same of this batch.
    wanted: Needed,
    /// Series left out of the batch so far.
    refused: usize,
    /// Points left out since the start, and when owners were last told of theirs.
    lost: u64,
    reported: u64,
    /// Ended counters whose start is remembered.
    remembered: usize,
}

/// What an owner has.
#[derive(Clone, Copy, Debug, Default)]
struct OwnerUsage {
    basic: usize,
    of_collectives: usize,
    /// Points left out since they were last taken.
    refused: u64,
}

impl OwnerUsage {
    fn all(self) -> usize {
        self.basic + self.of_collectives
    }
}

/// The owner that makes way.
#[derive(Clone, Copy, Debug)]
struct EvictionCandidate {
    owner: QuotaKey,
    /// The most important series that it gives.
    rank: SeriesClass,
    left: usize,
}

/// Where a series belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) rank: SeriesClass,
    /// `None` where it is nobody's: then it has no share to exceed.
    pub(super) owner: Option<QuotaKey>,
}

/// Numbers of series by [`SeriesClass`].
pub(super) type Needed = [usize; 5];

impl SeriesLimit {
    /// A ceiling over no series yet.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            alive: 0,
            owners: HashMap::new(),
            share: limit / LEAST_OWNERS,
            owed: 0,
            needed: Needed::default(),
            giver: None,
            wanted: Needed::default(),
            refused: 0,
            lost: 0,
            reported: 0,
            remembered: 0,
        }
    }

    /// Series alive now.
    pub(super) fn alive(&self) -> usize {
        self.alive
    }

    /// Begins a batch of some samples. `needed` is what the last batches of all sources left out;
    /// `of_devices` counts the new series of devices in it, which is asked for only where room may
    /// be short.
    pub(super) fn begin(
        &mut self,
        samples: usize,
        needed: Needed,
        of_devices: impl FnOnce() -> usize,
    ) {
        let short = self.alive.saturating_add(samples) > self.limit;
        self.owed = if short { of_devices() } else { 0 };
        self.needed = needed;
        self.wanted = Needed::default();
        self.refused = 0;
        self.giver = if needed == Needed::default() { None } else { self.find_giver() };
    }

    /// Ends a batch; gives how many series were left out of it, and those of them that have a right
    /// to room.
    pub(super) fn finish(&mut self) -> (usize, Needed) {
        self.owed = 0;
        (self.refused, self.wanted)
    }

    /// Whether there is room for a new series; takes it.
    pub(super) fn admit(&mut self, place: Place) -> bool {
        let Place { rank, owner } = place;
        let room = self.room(rank);
        let share = self.share;
        let held = self.owners.entry(owner).or_default();
        // Its own collectives never keep a process's basic series out.
        let has = if rank < SeriesClass::Basic { held.all() } else { held.basic };
        let is_below = owner.is_none() || has < share;
        let kept =
            if is_below { 0 } else { self.limit / SPARE + self.needed.iter().sum::<usize>() };
        let free = match rank {
            SeriesClass::Agent => true,
            SeriesClass::Device => {
                self.owed = self.owed.saturating_sub(1);
                room > 0
            }
            _ => room > self.owed + kept,
        };
        if free {
            self.alive += 1;
            held.add(rank);
        } else {
            held.refused += 1;
            self.refused += 1;
            self.lost += 1;
            if let Some(wanted) = self.wanted.get_mut(rank as usize).filter(|_| is_below) {
                *wanted += 1;
            }
        }
        free
    }

    /// Whether a series that goes on has to make way for others'; it has ended then.
    pub(super) fn takes_back(&mut self, place: Place) -> bool {
        let Some(giver) = &mut self.giver else { return false };
        let is_it = Some(giver.owner) == place.owner && place.rank <= giver.rank && giver.left > 0;
        if is_it {
            giver.left -= 1;
            self.release(place);
            self.refused += 1;
            self.lost += 1;
            if let Some(held) = self.owners.get_mut(&place.owner) {
                held.refused += 1;
            }
        }
        is_it
    }

    /// A series ended.
    pub(super) fn release(&mut self, place: Place) {
        self.alive = self.alive.saturating_sub(1);
        if let Some(held) = self.owners.get_mut(&place.owner) {
            held.remove(place.rank);
            if held.all() == 0 && held.refused == 0 {
                self.owners.remove(&place.owner);
            }
        }
    }

    /// A series is another owner's now.
    pub(super) fn moved(&mut self, from: Place, to: Place) {
        self.release(from);
        self.alive += 1;
        self.owners.entry(to.owner).or_default().add(to.rank);
    }

    /// Whether an ended counter may be remembered: as many as may live, and those of devices.
    pub(super) fn remember(&mut self, place: Place) -> bool {
        let has_room = self.remembered < self.limit || place.rank >= SeriesClass::Device;
        self.remembered += usize::from(has_room);
        has_room
    }

    /// One that was remembered is forgotten, or lives again.
    pub(super) fn forget(&mut self) {
        self.remembered = self.remembered.saturating_sub(1);
    }

    /// What each owner was refused since this was last asked. While nothing is, nobody is looked at.
    pub(super) fn take_refused(&mut self) -> Vec<(QuotaKey, u64)> {
        if std::mem::replace(&mut self.reported, self.lost) == self.lost {
            return Vec::new();
        }
        let mut refused = Vec::new();
        self.owners.retain(|owner, held| {
            let count = std::mem::take(&mut held.refused);
            refused.extend(owner.filter(|_| count > 0).map(|owner| (owner, count)));
            held.all() > 0
        });
        refused
    }

    /// How it stands when so many series were left out of the last batches of all sources, most of
    /// them of one owner; `None` while nothing ever was.
    pub(super) fn report(
        &self,
        refused: usize,
        worst: Option<(String, u64)>,
        switches: &str,
    ) -> Option<Report> {
        if self.lost == 0 {
            return None;
        }
        let mut report = Report::ready();
        if refused > 0 {
            let whose = worst.map(|(owner, count)| format!("; the most, {count}, are of {owner}"));
            let reason = format!(
                "{refused} series are left out: there are {} and may be {} (agent.series_limit){}",
                self.alive,
                self.limit,
                whose.unwrap_or_default()
            );
            let remedy = format!("raise agent.series_limit, or tell less: {switches}");
            report = Report::of(SourceState::Degraded, reason, remedy);
        }
        report.dropped = vec![(DropReason::SeriesLimit, self.lost)];
        Some(report)
    }

    /// How many new series of a rank find room.
    fn room(&self, rank: SeriesClass) -> usize {
        let most = match rank {
            SeriesClass::Inspector => self.limit / 5 * 3,
            SeriesClass::Collective => self.limit / 5 * 4,
            SeriesClass::Basic | SeriesClass::Device | SeriesClass::Agent => self.limit,
        };
        most.saturating_sub(self.alive)
    }

    /// Who makes way for the most important of what is needed.
    fn find_giver(&mut self) -> Option<EvictionCandidate> {
        let large = self.owners.values().filter(|held| held.all() > self.limit / SMALL).count();
        self.share = self.limit / large.max(LEAST_OWNERS);
        let ranks = [
            SeriesClass::Device,
            SeriesClass::Basic,
            SeriesClass::Collective,
            SeriesClass::Inspector,
        ];
        let short = |rank: &SeriesClass| {
            let needed = self.needed.get(*rank as usize).copied().unwrap_or(0);
            needed.saturating_sub(self.room(*rank))
        };
        ranks.into_iter().find_map(|rank| {
            let short = short(&rank);
            (short > 0).then(|| self.giver_of(rank, short)).flatten()
        })
    }

    fn giver_of(&self, rank: SeriesClass, short: usize) -> Option<EvictionCandidate> {
        let owners = self.owners.iter();
        let owners = || owners.clone().filter_map(|(owner, held)| Some(((*owner)?, *held)));
        let is_basic = rank >= SeriesClass::Basic;
        let over = |held: OwnerUsage| held.all().saturating_sub(self.share);
        // For what is basic everybody's collectives make way, for collectives only what is above a
        // share.
        let may_give = |held: OwnerUsage| {
            if is_basic { held.of_collectives } else { held.of_collectives.min(over(held)) }
        };
        let most = owners().max_by_key(|(_, held)| may_give(*held));
        let (rank, most, gives) = match most {
            Some((owner, held)) if may_give(held) > 0 => {
                (rank.min(SeriesClass::Collective), owner, may_give(held))
            }
            _ if is_basic => {
                let (owner, held) = owners().max_by_key(|(_, held)| held.basic)?;
                (SeriesClass::Basic, owner, over(held))
            }
            _ => return None,
        };
        (gives > 0).then_some(EvictionCandidate { owner: most, rank, left: short.min(gives) })
    }
}

impl OwnerUsage {
    fn add(&mut self, rank: SeriesClass) {
        *self.count(rank) += 1;
    }

    fn remove(&mut self, rank: SeriesClass) {
        let count = self.count(rank);
        *count = count.saturating_sub(1);
    }

    fn count(&mut self, rank: SeriesClass) -> &mut usize {
        if rank < SeriesClass::Basic { &mut self.of_collectives } else { &mut self.basic }
    }
}

#[cfg(test)]
mod tests;
