//! What is kept of an answer: who the ranks on this node are, and in one number what each is behind
//! the others; of ranks elsewhere only how many there are.

use super::answer::{Answer, Communicator, Process, Rank, count};
use super::{LocalRank, LocalRanks, ToldRanks};
use crate::catalog::nccl::Operation;
use crate::communicators::CommunicatorHash;
use crate::ids::ProcKey;
use std::collections::HashMap;

/// A communicator, as seen from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub hash: CommunicatorHash,
    /// Ranks that answered; `None` where the answer does not say.
    pub present: Option<u32>,
    pub unresponsive: u32,
    pub dead: u32,
    pub left: u32,
    pub local: Vec<Local>,
}

/// A rank on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    pub process: ProcKey,
    pub rank: u32,
    pub launched: Vec<(Operation, u64)>,
    /// Operations that the foremost rank has launched and this one has not.
    pub behind: u64,
}

/// An answer, as seen from this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub processes: u32,
    pub unresponsive: u32,
    pub dead: u32,
    pub communicators: Vec<Known>,
}

/// Looks at an answer from this node, where these of its processes are.
pub(super) fn digest(answer: &Answer, here: &HashMap<Process, ProcKey>) -> Digest {
    Digest {
        processes: answer.processes,
        unresponsive: answer.late_count,
        dead: answer.dead_count,
        communicators: answer.communicators.iter().map(|one| known(one, here)).collect(),
    }
}

fn known(communicator: &Communicator, here: &HashMap<Process, ProcKey>) -> Known {
    let dead = count(communicator.absent.iter().filter(|absent| absent.is_dead).count());
    let left = communicator.left;
    let local = |rank: &Rank| {
        let process = *here.get(rank.process.as_ref()?)?;
        let (launched, behind) =
            (rank.launched.clone(), communicator.foremost.saturating_sub(rank.total));
        Some(Local { process, rank: rank.number, launched, behind })
    };
    Known {
        hash: communicator.hash,
        present: communicator.size.map(|_| count(communicator.ranks.len())),
        unresponsive: communicator.missing.saturating_sub(dead.saturating_add(left)),
        dead,
        left,
        local: communicator.ranks.iter().filter_map(local).collect(),
    }
}

/// The ranks of this node's processes, where the answer names all of them.
pub(super) fn local_ranks(
    answer: &Answer,
    here: &HashMap<Process, ProcKey>,
    as_of_ns: u64,
) -> LocalRanks {
    let mut all = LocalRanks::new();
    if !answer.is_whole {
        return all;
    }
    for communicator in &answer.communicators {
        let Some(size) = communicator.size else { continue };
        for rank in communicator.ranks.iter().filter(|rank| rank.number < size) {
            let process = rank.process.as_ref().and_then(|process| here.get(process));
            let Some(process) = process else { continue };
            let (hash, device) = (communicator.hash, rank.device);
            let told = all.entry(*process).or_insert(ToldRanks { as_of_ns, ranks: Vec::new() });
            told.ranks.push(LocalRank { hash, rank: rank.number, ranks: size, device });
        }
    }
    all
}

#[cfg(test)]
#[path = "digest_tests.rs"]
mod tests;
