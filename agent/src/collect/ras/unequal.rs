//! Counts in which the ranks of a communicator differ, from NCCL's status as text: of one operation
//! (2.26 and later) or of all together (2.24 and 2.25). Ranks are there in groups of the same count;
//! of a group of half the ranks and more only the size is told.

use super::answer::{Process, Rank, count, operation, sum};
use super::text::manager;
use crate::catalog::nccl::Operation;
use std::collections::BTreeMap;

/// One such count.
#[derive(Debug)]
pub(super) struct Unequal {
    /// `None` for all together, or one that is not known here.
    operation: Option<Operation>,
    groups: Vec<Group>,
}

/// Ranks that have launched the same.
#[derive(Debug)]
struct Group {
    launched: u64,
    size: u32,
    listed: Vec<(u32, Option<Process>)>,
}

impl Unequal {
    /// `Communicator ranks have different AllReduce operation counts`; of 2.24 and 2.25
    /// `collective` where the operation is.
    pub(super) fn begin(words: &str) -> Option<Self> {
        let rest = words.strip_prefix("Communicator ranks have different ")?;
        let name = rest.strip_suffix(" operation counts")?;
        Some(Self { operation: operation(name), groups: Vec::new() })
    }

    /// Takes a line; false if it says something else.
    pub(super) fn take(&mut self, words: &str) -> bool {
        if let Some((size, rest)) = words.split_once(" ranks have ") {
            let group = size.parse().ok().zip(launched(rest));
            let listed = Vec::new();
            return self.add(group.map(|(size, launched)| Group { launched, size, listed }));
        }
        let Some((number, rest)) = words.strip_prefix("Rank ").and_then(|one| one.split_once(' '))
        else {
            return false;
        };
        let Ok(number) = number.parse() else { return false };
        if let Some(rest) = rest.strip_prefix("has ") {
            let (said, process) = rest.split_once(" -- ").unwrap_or((rest, ""));
            let listed = vec![(number, manager(process))];
            return self.add(launched(said).map(|launched| Group { launched, size: 1, listed }));
        }
        let Some(group) = self.groups.last_mut() else { return false };
        group.listed.push((number, manager(rest)));
        true
    }

    fn add(&mut self, group: Option<Group>) -> bool {
        let is_one = group.is_some();
        self.groups.extend(group);
        is_one
    }

    /// What the foremost ranks have launched.
    pub(super) fn foremost(&self) -> u64 {
        self.groups.iter().map(|group| group.launched).max().unwrap_or(0)
    }

    /// What a rank has launched; of those that are listed nowhere it is known where there is one
    /// such group.
    fn of(&self, number: u32) -> Option<u64> {
        let is_in = |group: &&Group| group.listed.iter().any(|(one, _)| *one == number);
        if let Some(group) = self.groups.iter().find(is_in) {
            return Some(group.launched);
        }
        let mut others = self.groups.iter().filter(|group| count(group.listed.len()) < group.size);
        let only = others.next()?;
        others.next().is_none().then_some(only.launched)
    }

    /// The ranks that are listed in one of several counts, with all of them. The ranks of a
    /// communicator call the same in the same order, so the foremost is so in each.
    pub(super) fn ranks(all: &[&Self]) -> Vec<Rank> {
        let listed = all.iter().flat_map(|one| &one.groups).flat_map(|group| &group.listed);
        let mut named: BTreeMap<u32, Option<Process>> = BTreeMap::new();
        for (number, process) in listed {
            let known = named.entry(*number).or_default();
            *known = known.take().or_else(|| process.clone());
        }
        let rank = |(number, process)| {
            let counts: Option<Vec<u64>> = all.iter().map(|one| one.of(number)).collect();
            let counts = counts?;
            let by_name = all.iter().zip(&counts);
            let launched = by_name.filter_map(|(one, count)| Some((one.operation?, *count)));
            let (launched, total) = (launched.collect(), sum(counts.iter().copied()));
            Some(Rank { number, process, device: None, launched, total })
        };
        named.into_iter().filter_map(rank).collect()
    }
}

/// `launched up to operation 6650`, or `not launched any operations` (2.26 and later).
fn launched(words: &str) -> Option<u64> {
    if words == "not launched any operations" {
        return Some(0);
    }
    words.strip_prefix("launched up to operation ")?.parse().ok()
}
