//! Work on several things at a time.

use anyhow::{Result, anyhow};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};

/// Calls a function for each item, for so many at a time, in order; gives the results in that order.
pub(crate) fn map<'a, T: Sync, R: Send>(
    at_a_time: usize,
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return results };
            results.push((at, work(item)));
        }
    };
    let mut results = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..at_a_time).map(|_| scope.spawn(work)).collect();
        for worker in workers.into_iter().map(ScopedJoinHandle::join) {
            results.extend(worker.map_err(|_| anyhow!("a thread panicked"))?);
        }
        Ok(())
    })?;
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::map;
    use anyhow::bail;
    use std::sync::Barrier;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        // Two at a time, or nobody gets past it.
        let both = Barrier::new(2);
        let work = |item: &u32| {
            both.wait();
            Ok(item * 2)
        };
        assert_eq!(map(2, &[1, 2, 3, 4], work).unwrap(), [2, 4, 6, 8]);
    }

    #[test]
    fn an_error_is_the_result_of_all() {
        let work = |item: &u32| if *item == 2 { bail!("two") } else { Ok(*item) };
        assert_eq!(map(2, &[1, 2, 3], work).unwrap_err().to_string(), "two");
    }
}
