//! The processor time that the readers of an owner's pages take: whoever makes answers dear is asked
//! less often.

use gpuwho_owners::attribute::quota::QuotaKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
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
        let accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.get(&owner).is_none_or(|free_at| *free_at <= now + CREDIT)
    }

    /// Adds processor time that a request took.
    pub(super) fn charge(&self, owner: QuotaKey, now: Instant, spent: Duration) {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|_, free_at| *free_at > now);
        *accounts.entry(owner).or_insert(now) += spent.saturating_mul(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
