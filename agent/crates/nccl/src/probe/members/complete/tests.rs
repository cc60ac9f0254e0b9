use super::*;
use gpuwho_common::nccl::{ARRIVALS, Activity, Arrival, Identity, SEEN};
use gpuwho_model::paths::Paths;
use gpuwho_owners::communicators::{LocalRank, LocalRanks, ReportedRanks};
use gpuwho_owners::communicators::{MemberFacts, MemberKey};
use gpuwho_owners::proc_scan::living;
use std::sync::Arc;

/// This test process, whose memory contains the communicators.
struct Here(ProcKey);

impl Processes for Here {
    fn find(&self, _: u32, _: u64) -> Option<ProcKey> {
        Some(self.0)
    }

    fn is_alive(&self, _: ProcKey) -> bool {
        true
    }

    fn library(&self, _: ProcKey, _: u32) -> Option<(Arc<str>, Arc<str>)> {
        None
    }

    fn gap_ns(&self, _: ProcKey, _: u32) -> u64 {
        0
    }
}

/// A communicator of a library, with the fields below.
#[repr(C)]
struct Made {
    hash: u64,
    rank: u32,
    ranks: u32,
    device: u32,
    more: u32,
}

const FIELDS: Fields = Fields { rank: 8, ranks: 12, device: Some(16), hash: Some(0) };
const HASH: u64 = 0x1db1_4a8a_713c_2fa5;

fn made(hash: u64, rank: u32, ranks: u32) -> Made {
    Made { hash, rank, ranks, device: 3, more: 0 }
}

fn seen(handle: u64, origin: u32) -> Communicator {
    let identity = Identity {
        born_ns: 5,
        start_ns: 1,
        hash: 0,
        base: 0,
        parent: 0,
        handle,
        pid: 1,
        rank: UNKNOWN,
        ranks: UNKNOWN,
        origin,
        color: 0,
        key: 0,
        child: UNKNOWN,
        device: UNKNOWN,
        library: 0,
        reserved: 0,
    };
    let activity = Activity {
        sequence: 0,
        last_ns: 0,
        last_bytes: 0,
        ended_ns: 0,
        errors: 0,
        calls: 1,
        last_operation: 0,
        end: 0,
        last_error: 0,
        async_error: 0,
        children: 0,
        failed_children: 0,
    };
    Communicator { identity, activity, arrivals: [Arrival { at_ns: 0, what: 0 }; ARRIVALS] }
}

fn at(made: &Made) -> Communicator {
    seen(std::ptr::from_ref(made).addr() as u64, SEEN)
}

fn here() -> ProcKey {
    living(&Paths::default(), std::process::id()).unwrap()
}

/// The results for these, by number from 1.
fn read_all(all: Vec<Communicator>, fields: Fields) -> HashMap<u64, Completed> {
    let mut snapshot = Snapshot { communicators: (1..).zip(all).collect(), ..Snapshot::default() };
    let (files, process) = (TenantFiles::direct(&Paths::default()), here());
    let fields = HashMap::from([(process, fields)]);
    let processes = Here(process);
    let sources = Sources { files: &files, processes: &processes, fields: &fields };
    Completion::default().read(&mut snapshot, &sources);
    snapshot.completed
}

fn completed(hash: Option<u64>, rank: u32, ranks: u32, by: KnownBy) -> Completed {
    Completed { hash: hash.map(CommunicatorHash), rank, ranks, device: Some(3), by }
}

#[test]
fn a_communicator_is_read_where_the_library_has_its_fields() {
    let one = made(HASH, 5, 8);
    let wanted = completed(Some(HASH), 5, 8, KnownBy::Memory);
    assert_eq!(read_all(vec![at(&one)], FIELDS), HashMap::from([(1, wanted)]));
}

#[test]
fn what_cannot_be_a_rank_is_left_out() {
    let no_rank = made(HASH, 8, 8);
    let too_many = made(HASH, 0, MAX_RANKS + 1);
    let not_ready = made(0, u32::MAX, u32::MAX);
    let refused = made(HASH, 5, 8);
    let mut refused = at(&refused);
    refused.activity.errors = 1;
    let unmapped = seen(0x10, SEEN);
    let all = vec![at(&no_rank), at(&too_many), at(&not_ready), refused, unmapped];
    assert_eq!(read_all(all, FIELDS), HashMap::new());
    // An address, or zero, is not a hash.
    let address = made(0x7f00_0000_1000, 1, 2);
    let wanted = completed(None, 1, 2, KnownBy::Memory);
    assert_eq!(read_all(vec![at(&address)], FIELDS), HashMap::from([(1, wanted)]));
    let far = Fields { rank: 8, ranks: 12 + MAX_SPAN, device: None, hash: None };
    assert_eq!(read_all(vec![at(&made(HASH, 5, 8))], far), HashMap::new());
}

#[test]
fn a_known_communicator_verifies_the_offsets() {
    let (old, born) = (made(HASH, 5, 8), made(77 << 50, 1, 4));
    let known = |hash: u64, rank| {
        let mut known = at(&born);
        (known.identity.origin, known.identity.hash) = (MADE, hash);
        (known.identity.rank, known.identity.ranks) = (rank, 4);
        known
    };
    let (whole, halved) =
        (completed(Some(HASH), 5, 8, KnownBy::Memory), completed(None, 5, 8, KnownBy::Memory));
    let right = read_all(vec![at(&old), known(77 << 50, 1)], FIELDS);
    assert_eq!(right, HashMap::from([(1, whole)]));
    let wrong_hash = read_all(vec![at(&old), known(78 << 50, 1)], FIELDS);
    assert_eq!(wrong_hash, HashMap::from([(1, halved)]));
    let wrong_rank = read_all(vec![at(&old), known(77 << 50, 2)], FIELDS);
    assert_eq!(wrong_rank, HashMap::new());
}

fn member(
    id: u64,
    hash: Option<u64>,
    communicators: &gpuwho_owners::communicators::Communicators,
) -> Member {
    let facts = MemberFacts { hash: hash.map(CommunicatorHash), ..MemberFacts::new(here()) };
    let key = MemberKey { process: here(), number: id };
    Member { numbers: vec![id], ..Member::silent(communicators.put(key, facts.clone()), facts) }
}

fn reported(as_of_ns: u64, ranks: &[(u64, u32, u32)]) -> LocalRanks {
    let ranks = ranks.iter().map(|(hash, rank, ranks)| LocalRank {
        hash: CommunicatorHash(*hash),
        rank: *rank,
        ranks: *ranks,
        device: Some(3),
    });
    HashMap::from([(here(), ReportedRanks { as_of_ns, ranks: ranks.collect() })])
}

/// The result of an answer for communicators 1 to `nameless` without hash, of which memory gave
/// rank and size of those in `found`; the process has one more that is known.
fn taken(nameless: u64, found: &[(u64, u32, u32)], answer: &LocalRanks) -> HashMap<u64, Completed> {
    let communicators = gpuwho_owners::communicators::Communicators::default();
    let mut members: Vec<Member> =
        (1..=nameless).map(|number| member(number, None, &communicators)).collect();
    members.push(member(99, Some(HASH), &communicators));
    let all = (1..=nameless).map(|number| (number, seen(number, SEEN)));
    let snapshot = Snapshot { communicators: all.collect(), ..Snapshot::default() };
    let known = found
        .iter()
        .map(|(number, rank, ranks)| (*number, completed(None, *rank, *ranks, KnownBy::Memory)));
    let mut completion = Completion { found: known.collect(), ..Completion::default() };
    completion.take(&snapshot, &members, answer);
    completion.found
}

#[test]
fn nccls_status_is_used_where_it_is_unambiguous() {
    let answer = reported(10, &[(HASH, 0, 2), (0xabc, 5, 8)]);
    let wanted = completed(Some(0xabc), 5, 8, KnownBy::Ras);
    assert_eq!(taken(1, &[], &answer), HashMap::from([(1, wanted)]));
    // Two fit, on either side.
    assert_eq!(taken(2, &[], &answer), HashMap::new());
    let two = reported(10, &[(HASH, 0, 2), (0xabc, 5, 8), (0xdef, 1, 4)]);
    assert_eq!(taken(1, &[], &two), HashMap::new());
    // The query was made before the communicator existed.
    assert_eq!(taken(1, &[], &reported(5, &[(0xabc, 5, 8)])), HashMap::new());
}

#[test]
fn facts_from_memory_resolve_ambiguity() {
    let answer = reported(10, &[(0xabc, 5, 8), (0xdef, 1, 4)]);
    let both = taken(2, &[(1, 1, 4), (2, 5, 8)], &answer);
    let first = completed(Some(0xdef), 1, 4, KnownBy::Ras);
    let second = completed(Some(0xabc), 5, 8, KnownBy::Ras);
    assert_eq!(both, HashMap::from([(1, first), (2, second)]));
    // The same rank of two communicators of one size.
    let alike = reported(10, &[(0xabc, 5, 8), (0xdef, 5, 8)]);
    let unchanged = completed(None, 5, 8, KnownBy::Memory);
    assert_eq!(taken(1, &[(1, 5, 8)], &alike), HashMap::from([(1, unchanged)]));
}
