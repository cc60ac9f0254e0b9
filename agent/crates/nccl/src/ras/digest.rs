//! Reduces an answer to what concerns this node: the ranks here and how far each is behind the
//! foremost; of ranks elsewhere only their numbers. A communicator without a process of the
//! answering tenant is dropped.

use super::answer::{Answer, Communicator, LaunchCounts, MAX_LOCAL, Rank, count};
use super::tenant::Server;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::communicators::{
    CommunicatorHash, Communicators, LocalRank, LocalRanks, ReportedRanks,
};
use std::collections::HashSet;

/// A communicator, as seen from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommunicatorView {
    pub hash: CommunicatorHash,
    /// Ranks that answered; `None` if the answer does not contain it.
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
    pub launched: LaunchCounts,
    /// Operations that the foremost rank has launched and this one has not.
    pub behind: u64,
}

/// An answer, as seen from this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest {
    pub processes: u32,
    pub unresponsive: u32,
    pub dead: u32,
    pub communicators: Vec<CommunicatorView>,
}

/// Reduces an answer. `known` are the communicators of the tenant's processes according to other
/// sources.
pub(super) fn digest(
    answer: &Answer,
    server: &Server,
    known: &HashSet<CommunicatorHash>,
) -> Digest {
    let trusted = &server.here.trusted;
    let is_of_tenant = |one: &&Communicator| {
        let mut absent = one.absent.iter().filter_map(|absent| absent.process);
        !one.ranks.is_empty()
            || absent.any(|process| trusted.contains_key(&process))
            || known.contains(&one.hash)
    };
    Digest {
        processes: answer.processes,
        unresponsive: answer.late_count,
        dead: answer.dead_count,
        communicators: answer
            .communicators
            .iter()
            .filter(is_of_tenant)
            .take(MAX_LOCAL)
            .map(|one| seen(one, server))
            .collect(),
    }
}

/// The known communicators of a tenant's processes.
pub(super) fn hashes(server: &Server, communicators: &Communicators) -> HashSet<CommunicatorHash> {
    server.trusted.iter().flat_map(|process| communicators.hashes(*process)).collect()
}

fn seen(communicator: &Communicator, server: &Server) -> CommunicatorView {
    let dead = count(communicator.absent.iter().filter(|absent| absent.is_dead).count());
    let left = communicator.left;
    let local = |rank: &Rank| {
        let process = *server.here.trusted.get(&rank.process)?;
        let behind = communicator.foremost.saturating_sub(rank.total);
        Some(Local { process, rank: rank.number, launched: rank.launched, behind })
    };
    CommunicatorView {
        hash: communicator.hash,
        present: communicator.size.map(|_| communicator.present),
        unresponsive: communicator.missing.saturating_sub(dead.saturating_add(left)),
        dead,
        left,
        local: communicator.ranks.iter().filter_map(local).collect(),
    }
}

/// The ranks of the tenant's processes on this node.
pub(super) fn local_ranks(answer: &Answer, server: &Server, as_of_ns: u64) -> LocalRanks {
    let mut all = LocalRanks::new();
    for communicator in &answer.communicators {
        let Some(size) = communicator.size else { continue };
        for rank in communicator.ranks.iter().filter(|rank| rank.number < size) {
            let Some(process) = server.here.trusted.get(&rank.process) else { continue };
            let (hash, device) = (communicator.hash, rank.device);
            let reported =
                all.entry(*process).or_insert(ReportedRanks { as_of_ns, ranks: Vec::new() });
            reported.ranks.push(LocalRank { hash, rank: rank.number, ranks: size, device });
        }
    }
    all
}

#[cfg(test)]
mod tests;
