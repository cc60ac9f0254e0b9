//! A limit of the series of this host, so that many processes cannot make more than a receiver
//! accepts, and shares of it, so that no owner can use up the room of the others.
//!
//! New series above the limit are dropped and counted. The agent's own series always pass, because
//! they report what was dropped. The others have this order: devices, the basic series of processes
//! and owners, the counts of NCCL's probes, the values of NCCL's Inspector; the last two may fill
//! only a part of the limit. An owner may exceed its share while no other owner needs the room,
//! except for the last twentieth. If an owner below its share finds no room, the owner with the
//! most series of collectives loses some of them.
//!
//! An owner's histogram counts as many as Prometheus makes of it: one for each bucket, one above them all, a
//! sum and a count.
//!
//! Cost: nothing for a series that continues; a hash lookup for one that starts or ends; a scan of
//! the owners for a batch in which room is needed.

use gpuwho_model::sample::Value;
use gpuwho_model::subject::SeriesClass;
use gpuwho_owners::attribute::quota::QuotaKey;
use std::collections::HashMap;

/// The limit is divided among at least this many owners, so that a new owner finds room.
const MIN_OWNERS: usize = 5;
/// An owner counts for the division above this fraction of the limit (1/100): small owners need no
/// share.
const SMALL: usize = 100;
/// The fraction of the room (1/20) reserved for owners below their share, so that a new process's
/// first series need no eviction.
const SPARE: usize = 20;

/// The number of series, and the limit of it.
#[derive(Debug)]
pub(super) struct SeriesLimit {
    limit: usize,
    alive: usize,
    owners: HashMap<Option<QuotaKey>, OwnerUsage>,
    /// The most series an owner may have while others need the room.
    share: usize,
    /// New device series still to come in this batch; counted only if the batch may exceed the
    /// limit.
    owed: usize,
    /// Dropped series of owners below their share, in the last batches of all sources.
    needed: Needed,
    /// The owner that loses series in this batch.
    candidate: Option<EvictionCandidate>,
    /// Dropped series of owners below their share, in this batch.
    wanted: Needed,
    /// Series dropped from this batch so far.
    refused: usize,
    /// Points dropped since the start, and their number when owners last took theirs.
    lost: u64,
    reported: u64,
    /// Ended counters with a stored start time.
    remembered: usize,
}

/// An owner's series.
#[derive(Clone, Copy, Debug, Default)]
struct OwnerUsage {
    basic: usize,
    of_collectives: usize,
    /// Points dropped since they were last taken.
    refused: u64,
}

impl OwnerUsage {
    fn all(self) -> usize {
        self.basic + self.of_collectives
    }
}

/// The owner that loses series.
#[derive(Clone, Copy, Debug)]
struct EvictionCandidate {
    owner: QuotaKey,
    /// The most important class of series that it loses.
    rank: SeriesClass,
    left: usize,
}

/// A series' class, owner and weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) rank: SeriesClass,
    /// How many series it counts as.
    pub(super) weight: u32,
    /// `None` if it counts on no owner's share.
    pub(super) owner: Option<QuotaKey>,
    /// The family of metrics with a limit of its own.
    pub(super) family: Option<u8>,
}

impl Place {
    /// A place in no family; the agent's own histograms are few and count once.
    pub(super) fn new(rank: SeriesClass, weight: u32, owner: Option<QuotaKey>) -> Self {
        let weight = if rank < SeriesClass::Device { weight } else { 1 };
        Self { rank, weight, owner, family: None }
    }
}

/// Numbers of series by [`SeriesClass`].
pub(super) type Needed = [usize; 5];

/// How many series Prometheus makes of a value: of a histogram one for each bound, one above them
/// all, the sum and the count.
pub(super) fn weight(value: &Value) -> u32 {
    match value {
        Value::Int(_) | Value::Double(_) => 1,
        Value::Histogram(histogram) => {
            u32::try_from(histogram.bounds.len()).unwrap_or(u32::MAX).saturating_add(3)
        }
    }
}

impl SeriesLimit {
    /// Changes the limit.
    pub(super) fn set(&mut self, limit: usize) {
        self.limit = limit;
        self.share = limit / MIN_OWNERS;
    }

    /// Starts without series.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            alive: 0,
            owners: HashMap::new(),
            share: limit / MIN_OWNERS,
            owed: 0,
            needed: Needed::default(),
            candidate: None,
            wanted: Needed::default(),
            refused: 0,
            lost: 0,
            reported: 0,
            remembered: 0,
        }
    }

    /// The weight of the live series.
    pub(super) fn alive(&self) -> usize {
        self.alive
    }

    /// Starts a batch of `samples` samples. `needed` is what the last batches of all sources
    /// dropped; `of_devices` counts the batch's new series of devices, and is called only if room
    /// may be short.
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
        self.candidate = if needed == Needed::default() { None } else { self.find_candidate() };
    }

    /// Ends a batch; returns how many series it dropped, and those entitled to room.
    pub(super) fn finish(&mut self) -> (usize, Needed) {
        self.owed = 0;
        (self.refused, self.wanted)
    }

    /// Whether there is room for a new series; if so, counts it.
    pub(super) fn admit(&mut self, place: Place) -> bool {
        let Place { rank, owner, weight, .. } = place;
        let weight = weight as usize;
        let room = self.room(rank);
        let share = self.share;
        let held = self.owners.entry(owner).or_default();
        // A process's own collectives never displace its basic series.
        let has = if rank < SeriesClass::Basic { held.all() } else { held.basic };
        let is_below = owner.is_none() || has < share;
        let reserved =
            if is_below { 0 } else { self.limit / SPARE + self.needed.iter().sum::<usize>() };
        let free = match rank {
            SeriesClass::Agent => true,
            SeriesClass::Device => {
                self.owed = self.owed.saturating_sub(1);
                room >= weight
            }
            _ => room >= self.owed + reserved + weight,
        };
        if free {
            self.alive += weight;
            held.add(place);
        } else {
            held.refused += 1;
            self.refused += 1;
            self.lost += 1;
            if let Some(wanted) = self.wanted.get_mut(rank as usize).filter(|_| is_below) {
                *wanted += weight;
            }
        }
        free
    }

    /// Whether a live series is evicted for other owners' series; it has then ended.
    pub(super) fn evicts(&mut self, place: Place) -> bool {
        let Some(candidate) = &mut self.candidate else { return false };
        let is_it = Some(candidate.owner) == place.owner
            && place.rank <= candidate.rank
            && candidate.left > 0;
        if is_it {
            candidate.left = candidate.left.saturating_sub(place.weight as usize);
            self.release(place);
            self.refused += 1;
            self.lost += 1;
            if let Some(held) = self.owners.get_mut(&place.owner) {
                held.refused += 1;
            }
        }
        is_it
    }

    /// Counts a series that ended.
    pub(super) fn release(&mut self, place: Place) {
        self.alive = self.alive.saturating_sub(place.weight as usize);
        if let Some(held) = self.owners.get_mut(&place.owner) {
            held.remove(place);
            if held.all() == 0 && held.refused == 0 {
                self.owners.remove(&place.owner);
            }
        }
    }

    /// Counts a series that is there already.
    pub(super) fn count(&mut self, place: Place) {
        self.alive += place.weight as usize;
        self.owners.entry(place.owner).or_default().add(place);
    }

    /// Whether to store an ended counter's start: at most as many as may live, and always for
    /// devices.
    pub(super) fn remember(&mut self, place: Place) -> bool {
        let has_room = self.remembered < self.limit || place.rank >= SeriesClass::Device;
        self.remembered += usize::from(has_room);
        has_room
    }

    /// Counts a stored start that was removed or is used again.
    pub(super) fn forget(&mut self) {
        self.remembered = self.remembered.saturating_sub(1);
    }

    /// Returns the points dropped for each owner since the last call. If none were, no owner is
    /// visited.
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

    /// Points dropped since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// The most series.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The room for new series of a class.
    fn room(&self, rank: SeriesClass) -> usize {
        let limit = match rank {
            SeriesClass::Inspector => self.limit / 5 * 3,
            SeriesClass::Collective => self.limit / 5 * 4,
            SeriesClass::Basic | SeriesClass::Device | SeriesClass::Agent => self.limit,
        };
        limit.saturating_sub(self.alive)
    }

    /// The owner that loses series for the most important class that needs room.
    fn find_candidate(&mut self) -> Option<EvictionCandidate> {
        let large = self.owners.values().filter(|held| held.all() > self.limit / SMALL).count();
        self.share = self.limit / large.max(MIN_OWNERS);
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
            (short > 0).then(|| self.candidate_for(rank, short)).flatten()
        })
    }

    fn candidate_for(&self, rank: SeriesClass, short: usize) -> Option<EvictionCandidate> {
        let owners = self.owners.iter();
        let owners = || owners.clone().filter_map(|(owner, held)| Some(((*owner)?, *held)));
        let is_basic = rank >= SeriesClass::Basic;
        let over = |held: OwnerUsage| held.all().saturating_sub(self.share);
        // For basic series every owner's collectives are evicted; for collectives only those above
        // the owner's share.
        let may_give = |held: OwnerUsage| {
            if is_basic { held.of_collectives } else { held.of_collectives.min(over(held)) }
        };
        let largest = owners().max_by_key(|(_, held)| may_give(*held));
        let (rank, owner, gives) = match largest {
            Some((owner, held)) if may_give(held) > 0 => {
                (rank.min(SeriesClass::Collective), owner, may_give(held))
            }
            _ if is_basic => {
                let (owner, held) = owners().max_by_key(|(_, held)| held.basic)?;
                (SeriesClass::Basic, owner, over(held))
            }
            _ => return None,
        };
        (gives > 0).then_some(EvictionCandidate { owner, rank, left: short.min(gives) })
    }
}

impl OwnerUsage {
    fn add(&mut self, place: Place) {
        *self.count(place.rank) += place.weight as usize;
    }

    fn remove(&mut self, place: Place) {
        let count = self.count(place.rank);
        *count = count.saturating_sub(place.weight as usize);
    }

    fn count(&mut self, rank: SeriesClass) -> &mut usize {
        if rank < SeriesClass::Basic { &mut self.of_collectives } else { &mut self.basic }
    }
}

#[cfg(test)]
mod tests;
