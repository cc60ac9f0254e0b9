//! Which process pays most for the probes: the budget is each process's, over all libraries that it
//! has loaded, so the one with most hits decides. A thread's entries are counted where the programs
//! keep what it is in; a look reads some hundred bytes a thread.

use std::collections::HashMap;

/// Threads at the last look.
#[derive(Debug, Default)]
pub(super) struct Busiest(HashMap<u64, u64>);

/// A process's part of the entries since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// Its number; `None` where no thread is known to have made any.
    pub pid: Option<u32>,
    hits: u64,
    of: u64,
}

impl Busiest {
    /// Takes the entries of each thread so far, by `bpf_get_current_pid_tgid`.
    pub(super) fn look(&mut self, threads: Vec<(u64, u64)>) -> Part {
        let mut processes: HashMap<u64, u64> = HashMap::new();
        for (task, hits) in &threads {
            // A number that has gone back is another thread's.
            let before = self.0.get(task).copied().filter(|before| before <= hits);
            *processes.entry(task >> 32).or_insert(0) += hits - before.unwrap_or(0);
        }
        self.0 = threads.into_iter().collect();
        let of = processes.values().sum();
        let most = processes.into_iter().max_by_key(|(pid, hits)| (*hits, *pid));
        let Some((pid, hits)) = most.filter(|(_, hits)| *hits > 0) else { return Part::default() };
        Part { pid: u32::try_from(pid).ok(), hits, of }
    }
}

impl Part {
    /// So much of a whole; all of it where nothing is known, as if it were one process's.
    pub(super) fn of(self, whole: u128) -> u128 {
        if self.of == 0 { whole } else { whole * u128::from(self.hits) / u128::from(self.of) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(pid: u64, thread: u64) -> u64 {
        pid << 32 | thread
    }

    #[test]
    fn a_process_has_the_hits_of_all_its_threads_since_the_last_look() {
        let mut busiest = Busiest::default();
        // Two libraries of process 7 are called from a thread each.
        let first = vec![(task(7, 7), 600), (task(7, 8), 500), (task(9, 9), 900)];
        assert_eq!(busiest.look(first), Part { pid: Some(7), hits: 1_100, of: 2_000 });
        let then = vec![(task(7, 7), 610), (task(7, 8), 500), (task(9, 9), 990)];
        assert_eq!(busiest.look(then.clone()), Part { pid: Some(9), hits: 90, of: 100 });
        assert_eq!(busiest.look(then), Part::default());
        // Thread 9 is a new one.
        let again = busiest.look(vec![(task(9, 9), 30), (task(7, 7), 620)]);
        assert_eq!(again, Part { pid: Some(9), hits: 30, of: 40 });
        assert_eq!(again.of(1_000), 750);
    }

    #[test]
    fn hits_of_nobody_are_one_processs() {
        assert_eq!(Busiest::default().look(Vec::new()).of(8_000), 8_000);
    }
}
