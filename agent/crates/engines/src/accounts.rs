//! What the readers of an owner's pages take: processor time, so that whoever makes answers dear is asked
//! less often, and names, so that an engine that starts again has not its first page again.

use super::finder::{MAX_ENGINES, MAX_OF_OWNER};
use gpuwho_model::labels::SeenLabels;
use gpuwho_owners::attribute::quota::QuotaKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time without a request for each time that a request took: an owner has a twentieth of a processor.
const PAUSE: u32 = 20;
/// How far an owner may be ahead: half a second of a processor at once. A real page takes some
/// milliseconds.
const CREDIT: Duration = Duration::from_secs(10);

/// By when each owner's time is paid for.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts(Arc<Mutex<HashMap<QuotaKey, Instant>>>);

impl Accounts {
    /// Whether an owner's engine may be asked now.
    pub(super) fn is_free(&self, owner: QuotaKey, now: Instant) -> bool {
        let accounts = self.0.lock();
        accounts.get(&owner).is_none_or(|free_at| *free_at <= now + CREDIT)
    }

    /// Adds processor time that a request took.
    pub(super) fn charge(&self, owner: QuotaKey, now: Instant, spent: Duration) {
        let mut accounts = self.0.lock();
        accounts.retain(|_, free_at| *free_at > now);
        *accounts.entry(owner).or_insert(now) += spent.saturating_mul(PAUSE);
    }
}

/// Places of engines whose labels are known: twice as many as are read at a time.
const MAX_PLACES: usize = 2 * MAX_ENGINES;

/// The labels that each owner's engines have had, by place: an owner has as many places as engines that are
/// read, and an engine takes that of its port, else a new one, else one that no engine has any more, or shares
/// the oldest: one that has ended still has its own for a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Arc<Mutex<Vec<Place>>>);

#[derive(Debug)]
struct Place {
    owner: QuotaKey,
    port: u16,
    labels: SeenLabels,
}

impl Places {
    /// The place of an engine that starts.
    pub(super) fn take(&self, owner: QuotaKey, port: u16) -> SeenLabels {
        let mut places = self.0.lock();
        let is_mine = |place: &Place| place.owner == owner;
        let has_room = places.iter().filter(|place| is_mine(place)).count() < MAX_OF_OWNER;
        let find = |is_it: &dyn Fn(&Place) -> bool| {
            places.iter().position(|place| is_mine(place) && is_it(place))
        };
        let taken = find(&|place| place.port == port)
            .or_else(|| find(&|place| !has_room && !place.labels.is_used()))
            .or_else(|| find(&|_| !has_room));
        let labels = taken.map_or_else(SeenLabels::default, |at| places.remove(at).labels);
        if places.len() >= MAX_PLACES
            && let Some(unused) = places.iter().position(|place| !place.labels.is_used())
        {
            places.remove(unused);
        }
        places.push(Place { owner, port, labels: labels.clone() });
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes as attr;
    use gpuwho_model::labels::{LabelSets, MAX_NEW_PER_HOUR};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NAMES: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn an_owner_has_a_twentieth_of_a_processor_and_delays_no_other() {
        let (accounts, now) = (Accounts::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let [one, other] = [1, 2].map(QuotaKey::of_user);
        // Sixteen engines whose answers take 0.2 s each, all at once.
        for _ in 0..16 {
            accounts.charge(one, now, Duration::from_millis(200));
        }
        assert_eq!([now, after(53)].map(|at| accounts.is_free(one, at)), [false; 2]);
        assert!(accounts.is_free(one, after(54)) && accounts.is_free(other, now));
        // Real pages.
        for second in 0..100 {
            for _ in 0..16 {
                accounts.charge(other, after(10 * second), Duration::from_millis(10));
            }
            assert!(accounts.is_free(other, after(10 * second)), "{second}");
        }
    }

    /// The sets of an engine that starts, and how many of so many new names its first page has.
    fn first_page(places: &Places, owner: QuotaKey, port: u16, names: usize) -> (LabelSets, usize) {
        let mut sets = LabelSets::sharing(1 << 10, places.take(owner, port));
        let name = || format!("m{}", NAMES.fetch_add(1, Ordering::Relaxed));
        let intern = |sets: &mut LabelSets| sets.intern(&[(&attr::GPU_MODEL, &name())]);
        let known = (0..names).filter(|_| !intern(&mut sets).is_folded()).count();
        sets.expect_few_new();
        (sets, known)
    }

    #[test]
    fn an_engine_that_starts_again_has_no_first_page_again() {
        let (places, [one, other]) = (Places::default(), [1, 2].map(QuotaKey::of_user));
        let known = |owner, port| first_page(&places, owner, port, 100).1;
        assert_eq!((known(one, 8000), known(one, 8000)), (100, MAX_NEW_PER_HOUR));
        assert_eq!((known(one, 8000), known(other, 8000)), (0, 100), "the hour's are used up");
        // As many engines at a time as are read each have a first page, by whatever port.
        let all: Vec<_> =
            (0..16).map(|port| first_page(&places, other, 9000 + port, 100)).collect();
        let first: Vec<usize> = all.iter().map(|(_, known)| *known).collect();
        assert_eq!(first, [&[100; 15][..], &[MAX_NEW_PER_HOUR]].concat(), "one had port 8000");
        assert_eq!(known(other, 1), MAX_NEW_PER_HOUR, "it shares the oldest");
        drop(all);
        // Later ones have a place of those that have ended, and its hour.
        assert_eq!((known(other, 2), known(other, 3)), (MAX_NEW_PER_HOUR, MAX_NEW_PER_HOUR));
    }

    #[test]
    fn the_places_are_bounded_and_those_of_engines_that_are_read_stay() {
        let places = Places::default();
        let user = |number| QuotaKey::of_user(u32::try_from(number).unwrap());
        let (_running, _) = first_page(&places, user(0), 8000, 100);
        for number in 1..2 * MAX_PLACES {
            first_page(&places, user(number), 8000, 1);
        }
        let all = places.0.lock();
        assert_eq!((all.len(), all[0].owner), (MAX_PLACES, user(0)));
    }
}
