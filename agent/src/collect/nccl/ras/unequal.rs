//! Counts in which the ranks of a communicator differ, from NCCL's status as text: of one operation
//! (2.26 and later) or of all together (2.24 and 2.25). Ranks are there in groups of the same count;
//! of a group of half the ranks and more only the size is told.

use super::answer::{LaunchCounts, Process, Rank, operation, sum};
use super::text::manager;
use std::collections::BTreeMap;

/// One such count.
#[derive(Debug)]
pub(super) struct Unequal {
    /// `None` for all together, or one that is not known here.
    operation: Option<&'static str>,
    groups: Vec<Group>,
    /// Ranks that are listed, with what they have launched.
    listed: BTreeMap<u32, (u64, Option<Process>)>,
}

/// Ranks that have launched the same.
#[derive(Debug)]
struct Group {
    launched: u64,
    size: u32,
    listed: u32,
}

impl Unequal {
    /// `Communicator ranks have different AllReduce operation counts`; of 2.24 and 2.25
    /// `collective` where the operation is.
    pub(super) fn begin(words: &str) -> Option<Self> {
        let rest = words.strip_prefix("Communicator ranks have different ")?;
        let name = rest.strip_suffix(" operation counts")?;
        Some(Self { operation: operation(name), groups: Vec::new(), listed: BTreeMap::new() })
    }

    /// Takes a line; false if it says something else.
    pub(super) fn take(&mut self, words: &str) -> bool {
        if let Some((size, rest)) = words.split_once(" ranks have ") {
            let group = size.parse().ok().zip(launched(rest));
            return self.add(group.map(|(size, launched)| Group { launched, size, listed: 0 }));
        }
        let Some((number, rest)) = words.strip_prefix("Rank ").and_then(|one| one.split_once(' '))
        else {
            return false;
        };
        let Ok(number) = number.parse() else { return false };
        if let Some(rest) = rest.strip_prefix("has ") {
            let (said, process) = rest.split_once(" -- ").unwrap_or((rest, ""));
            let alone = launched(said).map(|launched| Group { launched, size: 1, listed: 0 });
            return self.add(alone) && self.list(number, process);
        }
        self.list(number, rest)
    }

    fn add(&mut self, group: Option<Group>) -> bool {
        let is_one = group.is_some();
        self.groups.extend(group);
        is_one
    }

    /// Lists a rank in the last group.
    fn list(&mut self, number: u32, process: &str) -> bool {
        let Some(group) = self.groups.last_mut() else { return false };
        group.listed = group.listed.saturating_add(1);
        self.listed.entry(number).or_insert((group.launched, manager(process)));
        true
    }

    /// What the foremost ranks have launched.
    pub(super) fn foremost(&self) -> u64 {
        self.groups.iter().map(|group| group.launched).max().unwrap_or(0)
    }

    /// What a rank has launched; of those that are listed nowhere it is known where there is one
    /// such group.
    fn of(&self, number: u32) -> Option<u64> {
        if let Some((launched, _)) = self.listed.get(&number) {
            return Some(*launched);
        }
        let mut others = self.groups.iter().filter(|group| group.listed < group.size);
        let only = others.next()?;
        others.next().is_none().then_some(only.launched)
    }

    /// The ranks that are listed in one of several counts with their processes.
    pub(super) fn processes(all: &[Self]) -> BTreeMap<u32, Process> {
        let listed = all.iter().flat_map(|one| &one.listed);
        let named = listed.filter_map(|(number, (_, process))| Some((*number, (*process)?)));
        named.collect()
    }

    /// A rank with all of its counts. The ranks of a communicator call the same in the same order,
    /// so the foremost is so in each.
    pub(super) fn rank(all: &[Self], number: u32, process: Process) -> Option<Rank> {
        let counts: Option<Vec<u64>> = all.iter().map(|one| one.of(number)).collect();
        let counts = counts?;
        let mut launched = LaunchCounts::default();
        for (one, count) in all.iter().zip(&counts) {
            if let Some(name) = one.operation {
                launched.put(name, *count);
            }
        }
        let total = sum(counts.iter().copied());
        Some(Rank { number, process, device: None, launched, total })
    }
}

/// `launched up to operation 6650`, or `not launched any operations` (2.26 and later).
fn launched(words: &str) -> Option<u64> {
    if words == "not launched any operations" {
        return Some(0);
    }
    words.strip_prefix("launched up to operation ")?.parse().ok()
}
