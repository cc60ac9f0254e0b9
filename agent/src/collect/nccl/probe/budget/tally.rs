//! What the hits of each process were: the budget is each process's, over all libraries that it has
//! loaded. Hits are counted by thread where the programs keep what it is in; a look reads some hundred
//! bytes a thread.

use gpuwho_common::nccl::Thread;
use std::collections::HashMap;

/// Hits a second that a process is allowed by default. One costs whoever makes it 0.6 to 2 µs, program
/// included, on the machines that were measured (`agent/docs/benchmarks.md`): two per cent of a core at
/// the most.
pub(in super::super) const BUDGET: u64 = 10_000;
/// For so many hits counts one at an instruction that the kernel has to step through: 11.7 + 0.5 µs
/// beside 0.9 + 0.5 (decision 8), rounded down.
const STEPPED: u64 = 8;

/// Hits of a thread or of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Tally {
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
    pub(in super::super) fn of(thread: &Thread) -> Self {
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

    /// For how many hits it counts. Where the programs do not know what the kernel steps through, it
    /// is this part of the entries: so many of so many functions.
    pub(in super::super) fn cost(self, stepped: u64, functions: u64) -> u64 {
        let supposed = self.entries.saturating_mul(stepped) / functions.max(1);
        let stepped = self.stepped.max(supposed).min(self.entries);
        self.entries + self.returns + stepped.saturating_mul(STEPPED - 1)
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
        let plain = Tally { entries: 1_000, stepped: 0, returns: 0 };
        assert_eq!(plain.cost(0, 30), 1_000);
        assert_eq!(Tally { returns: 600, ..plain }.cost(0, 30), 1_600);
        assert_eq!(Tally { stepped: 1_000, ..plain }.cost(0, 30), 8_000);
        // Where no cookie tells, by how many functions of its library are stepped through.
        assert_eq!(plain.cost(15, 30), 4_500);
    }
}
