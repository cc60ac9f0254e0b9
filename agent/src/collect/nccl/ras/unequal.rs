//! Operation counts in which the ranks of a communicator differ, from NCCL's text status: of one
//! operation (2.26 and later) or of all together (2.24 and 2.25). The text groups ranks by count;
//! for a group of half the ranks or more it has only the size.

use super::answer::{LaunchCounts, Process, Rank, operation, sum};
use super::text::manager;
use std::collections::BTreeMap;

/// One such count.
#[derive(Debug)]
pub(super) struct Unequal {
    /// `None` for all operations together, or for an unknown one.
    operation: Option<&'static str>,
    groups: Vec<Group>,
    /// Listed ranks with their counts.
    listed: BTreeMap<u32, (u64, Option<Process>)>,
}

/// Ranks with the same count.
#[derive(Debug)]
struct Group {
    launched: u64,
    size: u32,
    listed: u32,
}

impl Unequal {
    /// Parses `Communicator ranks have different AllReduce operation counts`; 2.24 and 2.25 write
    /// `collective` instead of the operation.
    pub(super) fn begin(words: &str) -> Option<Self> {
        let rest = words.strip_prefix("Communicator ranks have different ")?;
        let name = rest.strip_suffix(" operation counts")?;
        Some(Self { operation: operation(name), groups: Vec::new(), listed: BTreeMap::new() })
    }

    /// Parses a line; false if it does not belong to a count.
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

    /// Adds a rank to the last group.
    fn list(&mut self, number: u32, process: &str) -> bool {
        let Some(group) = self.groups.last_mut() else { return false };
        group.listed = group.listed.saturating_add(1);
        self.listed.entry(number).or_insert((group.launched, manager(process)));
        true
    }

    /// The highest count.
    pub(super) fn foremost(&self) -> u64 {
        self.groups.iter().map(|group| group.launched).max().unwrap_or(0)
    }

    /// The count of a rank. The count of unlisted ranks is known if there is only one group with
    /// unlisted ranks.
    fn of(&self, number: u32) -> Option<u64> {
        if let Some((launched, _)) = self.listed.get(&number) {
            return Some(*launched);
        }
        let mut others = self.groups.iter().filter(|group| group.listed < group.size);
        let only = others.next()?;
        others.next().is_none().then_some(only.launched)
    }

    /// The listed ranks with their processes.
    pub(super) fn processes(all: &[Self]) -> BTreeMap<u32, Process> {
        let listed = all.iter().flat_map(|one| &one.listed);
        let named = listed.filter_map(|(number, (_, process))| Some((*number, (*process)?)));
        named.collect()
    }

    /// A rank with all of its counts. The ranks of a communicator call the same operations in the
    /// same order, so the foremost rank is foremost in each.
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

/// Parses `launched up to operation 6650`, or `not launched any operations` (2.26 and later).
fn launched(words: &str) -> Option<u64> {
    if words == "not launched any operations" {
        return Some(0);
    }
    words.strip_prefix("launched up to operation ")?.parse().ok()
}
