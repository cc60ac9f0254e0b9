//! What the hits of each process were: the budget is each process's, over all libraries that it has
//! loaded. Hits are counted by thread where the programs keep what it is in; a look reads some hundred
//! bytes a thread.

use super::price::Price;
use gpuwho_common::nccl::Thread;
use std::collections::HashMap;
use std::time::Duration;

/// Hits of a thread or of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub entries: u64,
    /// Those of them that the kernel has stepped through, as far as the programs know it.
    pub stepped: u64,
    pub returns: u64,
}

/// Threads at the last look, and what processes have made since it was last taken.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    threads: HashMap<u64, Tally>,
    processes: HashMap<u32, Tally>,
}

impl Tally {
    /// Of a thread so far.
    pub(super) fn of(thread: &Thread) -> Self {
        Self { entries: thread.hits, stepped: thread.stepped, returns: thread.returns }
    }

    fn since(self, before: Self) -> Self {
        // A number that has gone back is another thread's.
        let before = if before.entries <= self.entries { before } else { Self::default() };
        Self {
            entries: self.entries.saturating_sub(before.entries),
            stepped: self.stepped.saturating_sub(before.stepped),
            returns: self.returns.saturating_sub(before.returns),
        }
    }

    fn add(&mut self, more: Self) {
        self.entries += more.entries;
        self.stepped += more.stepped;
        self.returns += more.returns;
    }

    /// What it has cost in hits of the cheapest kind. Where the programs do not know what the kernel
    /// steps through, it is this part of the entries.
    pub(super) fn cost(self, price: &Price, stepped: f64) -> u64 {
        let ns = |time: Duration| time.as_nanos() as f64;
        let (entries, returns) = (self.entries as f64, self.returns as f64);
        let stepped = (self.stepped as f64).max(entries * stepped);
        let traps = (entries - stepped) * ns(price.entry) + stepped * ns(price.stepped);
        let sum = traps + returns * ns(price.returned) + (entries + returns) * ns(price.program);
        price.plain_hits(sum)
    }
}

impl Tallies {
    /// Takes the hits of each thread so far, by `bpf_get_current_pid_tgid`.
    pub(super) fn look(&mut self, threads: Vec<(u64, Tally)>) {
        let before = std::mem::take(&mut self.threads);
        for (task, now) in &threads {
            let new = now.since(before.get(task).copied().unwrap_or_default());
            if let Ok(pid) = u32::try_from(task >> 32)
                && new != Tally::default()
            {
                self.processes.entry(pid).or_default().add(new);
            }
        }
        self.threads = threads.into_iter().collect();
    }

    /// The processes that have made any.
    pub(super) fn processes(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }

    /// Takes out those of some processes.
    pub(super) fn take(&mut self, is_one: impl Fn(u32) -> bool) -> Vec<(u32, Tally)> {
        self.processes.extract_if(|pid, _| is_one(*pid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: u64, thread: u64) -> u64 {
        pid << 32 | thread
    }

    fn hits(entries: u64) -> Tally {
        Tally { entries, ..Tally::default() }
    }

    #[test]
    fn a_process_has_the_hits_of_all_its_threads_since_they_were_taken() {
        let mut tallies = Tallies::default();
        // Two libraries of process 7 are called from a thread each.
        let first = vec![(task(7, 7), hits(600)), (task(7, 8), hits(500)), (task(9, 9), hits(900))];
        tallies.look(first);
        assert_eq!(tallies.take(|pid| pid == 7), [(7, hits(1_100))]);
        let then = vec![(task(7, 7), hits(610)), (task(7, 8), hits(500)), (task(9, 9), hits(990))];
        tallies.look(then.clone());
        tallies.look(then);
        assert_eq!(tallies.take(|pid| pid == 9), [(9, hits(990))]);
        // Thread 9 is a new one.
        tallies.look(vec![(task(9, 9), hits(30)), (task(7, 7), hits(620))]);
        let mut all = tallies.take(|_| true);
        all.sort_unstable_by_key(|(pid, _)| *pid);
        assert_eq!(all, [(7, hits(20)), (9, hits(30))]);
        assert_eq!(tallies.processes().count(), 0);
    }

    #[test]
    fn each_process_pays_for_its_own_hits_only() {
        let ns = Duration::from_nanos;
        let price =
            Price { entry: ns(900), stepped: ns(11_700), returned: ns(700), program: ns(300) };
        let plain = Tally { entries: 1_000, stepped: 0, returns: 0 };
        assert_eq!(plain.cost(&price, 0.0), 1_000);
        assert_eq!(Tally { returns: 600, ..plain }.cost(&price, 0.0), 1_500);
        assert_eq!(Tally { stepped: 1_000, ..plain }.cost(&price, 0.0), 10_000);
        // Where no cookie tells, by how many functions of its library are stepped through.
        assert_eq!(plain.cost(&price, 0.5), 5_500);
    }
}
