//! Counts the hits of each process: the budget applies per process, over all libraries that it has
//! loaded. The programs count hits by thread; a reading costs some hundred bytes a thread.

use gpuwho_common::nccl::Thread;
use std::collections::HashMap;

/// Default limit in hits a second and process. A hit costs the process 0.6 to 2 µs, including the
/// program, on the machines that were measured (`agent/docs/benchmarks.md`): at most two per cent
/// of a core.
pub(in super::super) const BUDGET: u64 = 10_000;
/// Weight of a hit at an instruction that the kernel must single-step: 11.7 + 0.5 µs compared with
/// 0.9 + 0.5 (decision 8), rounded down.
const STEPPED: u64 = 8;

/// Hits of a thread or of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Tally {
    pub entries: u64,
    /// Entries that the kernel single-stepped, as far as the programs know.
    pub stepped: u64,
    pub returns: u64,
}

/// Threads at the last reading, and the hits of processes since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    threads: HashMap<u64, Tally>,
    processes: HashMap<u32, Tally>,
}

impl Tally {
    /// The hits of a thread so far.
    pub(in super::super) fn of(thread: &Thread) -> Self {
        Self { entries: thread.hits, stepped: thread.stepped, returns: thread.returns }
    }

    fn since(self, before: Self) -> Self {
        // A count that decreased belongs to another thread.
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

    /// The weighted number of hits. If the programs do not know which entries were single-stepped,
    /// the share of such functions is used.
    pub(in super::super) fn cost(self, stepped: u64, functions: u64) -> u64 {
        let supposed = self.entries.saturating_mul(stepped) / functions.max(1);
        let stepped = self.stepped.max(supposed).min(self.entries);
        self.entries + self.returns + stepped.saturating_mul(STEPPED - 1)
    }
}

impl Tallies {
    /// Takes the hits of each thread so far, by `bpf_get_current_pid_tgid`.
    pub(super) fn update(&mut self, threads: Vec<(u64, Tally)>) {
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

    /// The processes with hits.
    pub(super) fn processes(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }

    /// Removes and returns the hits of some processes.
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
        // Two threads of process 7 call one library each.
        let first = vec![(task(7, 7), hits(600)), (task(7, 8), hits(500)), (task(9, 9), hits(900))];
        tallies.update(first);
        assert_eq!(tallies.take(|pid| pid == 7), [(7, hits(1_100))]);
        let then = vec![(task(7, 7), hits(610)), (task(7, 8), hits(500)), (task(9, 9), hits(990))];
        tallies.update(then.clone());
        tallies.update(then);
        assert_eq!(tallies.take(|pid| pid == 9), [(9, hits(990))]);
        // Thread 9 is new.
        tallies.update(vec![(task(9, 9), hits(30)), (task(7, 7), hits(620))]);
        let mut all = tallies.take(|_| true);
        all.sort_unstable_by_key(|(pid, _)| *pid);
        assert_eq!(all, [(7, hits(20)), (9, hits(30))]);
        assert_eq!(tallies.processes().count(), 0);
    }

    #[test]
    fn each_process_is_charged_for_its_own_hits_only() {
        let plain = Tally { entries: 1_000, stepped: 0, returns: 0 };
        assert_eq!(plain.cost(0, 30), 1_000);
        assert_eq!(Tally { returns: 600, ..plain }.cost(0, 30), 1_600);
        assert_eq!(Tally { stepped: 1_000, ..plain }.cost(0, 30), 8_000);
        // Without a cookie, by the share of single-stepped functions of its library.
        assert_eq!(plain.cost(15, 30), 4_500);
    }
}
