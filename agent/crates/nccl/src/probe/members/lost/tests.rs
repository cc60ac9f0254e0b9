use super::*;
use crate::probe::libraries::library::VersionAndPath;
use crate::probe::members::OpenCall;
use gpuwho_model::ids::OwnerId;
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::communicators::{CommunicatorHash, Communicators, MemberFacts, MemberKey};

const SECOND: u64 = 1_000_000_000;
const NOW: u64 = 1_000 * SECOND;
const HANG_AFTER_NS: u64 = 60 * SECOND;

/// Processes below the number live.
struct LivingBelow(u32);

impl Processes for LivingBelow {
    fn find(&self, pid: u32, _: u64) -> Option<ProcKey> {
        Some(process(pid))
    }

    fn is_alive(&self, process: ProcKey) -> bool {
        process.pid < self.0
    }

    fn library(&self, _: ProcKey, _: u32) -> Option<VersionAndPath> {
        None
    }

    fn gap_ns(&self, _: ProcKey, _: u32) -> u64 {
        0
    }
}

fn process(pid: u32) -> ProcKey {
    ProcKey { pid, start_ticks: 1 }
}

/// The ranks of one communicator in the processes 0, 1 and 2.
struct Rig {
    lost: LostRanks,
    ownership: Ownership,
    members: Vec<Member>,
    groups: Groups,
}

impl Rig {
    fn new(owners: [Option<(u32, OwnerId)>; 3]) -> Self {
        let communicators = Communicators::default();
        let (mut members, mut groups) = (Vec::new(), Groups::new());
        for (pid, owner) in (0..).zip(owners) {
            let hash = CommunicatorHash(7);
            let facts = MemberFacts {
                hash: Some(hash),
                rank: Some(pid),
                ranks: Some(3),
                ..MemberFacts::new(process(pid))
            };
            let key = MemberKey { process: process(pid), number: 7 };
            let id = communicators.put(key, facts.clone());
            groups.insert(id, Group { hash, owner });
            members.push(Member::silent(id, facts));
        }
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || NOW);
        Self { lost: LostRanks::default(), ownership, members, groups }
    }

    /// A reading in which these ranks are there, of which the first `living` processes live. Gives
    /// the number of ended ranks that rank 0 waits for.
    fn read(&mut self, there: &[u32], living: u32) -> Option<i64> {
        let is_there =
            |member: &&Member| member.facts.rank.is_some_and(|rank| there.contains(&rank));
        let mut members: Vec<_> = self.members.iter().filter(is_there).cloned().collect();
        let gone = self.members.iter().filter(|member| !is_there(member)).map(|member| member.id);
        let vanished = gone.collect();
        for member in &mut members {
            member.has_ended = member.facts.process.pid >= living;
        }
        let reading = Reading { members, vanished, ..Reading::default() };
        let sources = (&LivingBelow(living) as &dyn Processes, &self.ownership);
        self.lost.note(&reading, &self.groups, sources, NOW - HANG_AFTER_NS);
        self.lost.missed_by(self.members[0].id)
    }

    fn calls(&mut self, rank: usize, seconds: u64, is_certain: bool) {
        let since_ns = NOW - seconds * SECOND;
        self.members[rank].call = Some(OpenCall { since_ns, operation: 0, bytes: 8, is_certain });
    }
}

fn owner(number: u32) -> (u32, OwnerId) {
    (number, OwnerId::OTHER)
}

#[test]
fn a_rank_that_ended_is_missed_while_a_peer_stays_in_a_call() {
    let mut rig = Rig::new([Some(owner(1)); 3]);
    assert_eq!(rig.read(&[0, 1, 2], 3), None);
    assert_eq!(rig.read(&[0, 1, 2], 2), None, "nobody waits");
    rig.calls(1, 59, true);
    assert_eq!(rig.read(&[0, 1], 2), None, "not long enough");
    rig.calls(1, 60, false);
    assert_eq!(rig.read(&[0, 1], 2), None, "its return may have been missed");
    rig.calls(1, 60, true);
    assert_eq!(rig.read(&[0, 1], 2), Some(1), "on each of its ranks");
    assert_eq!(rig.lost.of.values().next().unwrap().waiting, [process(1)]);
    rig.members[1].call = None;
    assert_eq!(rig.read(&[0, 1], 2), None, "they go on");
    rig.read(&[], 0);
    assert!(rig.lost.of.is_empty(), "nobody is left to miss it");
}

#[test]
fn a_rank_that_vanished_with_its_process_is_missed_and_one_that_left_is_not() {
    let mut rig = Rig::new([Some(owner(1)); 3]);
    rig.calls(0, 60, true);
    rig.read(&[0, 1, 2], 3);
    assert_eq!(rig.read(&[0, 1], 3), None, "its process lives: it was ended");
    rig.read(&[0, 1, 2], 3);
    assert_eq!(rig.read(&[0, 1], 2), Some(1), "it was making the communicator, say");
    let mut rig = Rig::new([Some(owner(1)); 3]);
    rig.calls(0, 60, true);
    rig.members[2].has_left = true;
    rig.read(&[0, 1, 2], 3);
    assert_eq!(rig.read(&[0, 1, 2], 2), None);
}

#[test]
fn another_owners_end_in_the_same_communicator_is_not_missed() {
    let mut rig = Rig::new([owner(1), owner(1), owner(2)].map(Some));
    rig.calls(0, 60, true);
    rig.read(&[0, 1, 2], 3);
    assert_eq!(rig.read(&[0, 1, 2], 2), None);
    let mut rig = Rig::new([None; 3]);
    rig.calls(0, 60, true);
    rig.read(&[0, 1, 2], 3);
    assert_eq!(rig.read(&[0, 1, 2], 2), None, "unknown owners may be two");
}

#[test]
fn the_ended_ranks_of_a_communicator_are_bounded() {
    let mut rig = Rig::new([Some(owner(1)); 3]);
    rig.calls(0, 60, true);
    for pid in 2..100 {
        rig.members[2].facts.process = process(pid);
        rig.read(&[0, 1, 2], pid + 1);
        rig.read(&[0, 1, 2], 2);
    }
    assert_eq!(rig.read(&[0, 1], 2), i64::try_from(MAX_LOST).ok());
}
