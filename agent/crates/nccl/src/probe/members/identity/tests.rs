use super::*;
use gpuwho_common::nccl::{
    ARRIVALS, Activity, Arrival, CLASS_BOUNDS, Identity, SEEN, SYMBOLS, UNSIZED, message_bytes,
    operation, size_class,
};
use gpuwho_model::catalog::nccl::{Operation, SizeClass};
use std::collections::BTreeMap;
use std::sync::Arc;

/// All processes run; creations before a time may have been missed.
struct Alive(u64);

impl Processes for Alive {
    fn find(&self, pid: u32, start_ns: u64) -> Option<ProcKey> {
        Some(ProcKey { pid, start_ticks: start_ns })
    }

    fn is_alive(&self, _: ProcKey) -> bool {
        true
    }

    fn library(&self, _: ProcKey, _: u32) -> Option<(Arc<str>, Arc<str>)> {
        None
    }

    fn gap_ns(&self, _: ProcKey, _: u32) -> u64 {
        self.0
    }
}

fn identity(pid: u32, origin: u32) -> Identity {
    Identity {
        born_ns: 1,
        start_ns: 1,
        hash: 0,
        base: 0,
        parent: 0,
        handle: 0x1000,
        pid,
        rank: UNKNOWN,
        ranks: UNKNOWN,
        origin,
        color: 0,
        key: 0,
        child: UNKNOWN,
        device: UNKNOWN,
        library: 0,
        reserved: 0,
    }
}

fn communicator(identity: Identity, children: u32) -> Communicator {
    let activity = Activity {
        sequence: 0,
        last_ns: 0,
        last_bytes: 0,
        ended_ns: 0,
        errors: 0,
        calls: 0,
        last_operation: 0,
        end: 0,
        last_error: 0,
        async_error: 0,
        children,
        failed_children: 0,
    };
    Communicator { identity, activity, arrivals: [Arrival { at_ns: 0, what: 0 }; ARRIVALS] }
}

/// Ranks of a world of three on this node, each with its half of a split by color and key.
fn split(ranks: &[(u32, u32, u32)], of: u32) -> BTreeMap<u32, (Option<u32>, Option<u32>)> {
    let mut snapshot = Snapshot::default();
    for (rank, color, key) in ranks.iter().copied() {
        let world = Identity { hash: 7, rank, ranks: of, ..identity(rank, MADE) };
        snapshot.communicators.push((u64::from(rank) + 1, communicator(world, 1)));
        let half = Identity {
            born_ns: 2,
            parent: u64::from(rank) + 1,
            child: 1,
            color,
            key,
            ..identity(rank, SPLIT)
        };
        snapshot.communicators.push((u64::from(rank) + 101, communicator(half, 0)));
    }
    let (found, lost) = Lineage::default().identify(&snapshot, &Alive(0));
    assert_eq!(lost, Vec::<u64>::new());
    let halves = found.iter().filter(|one| one.communicator.identity.origin == SPLIT);
    halves.map(|one| (one.facts.process.pid, (one.facts.rank, one.facts.ranks))).collect()
}

#[test]
fn a_split_orders_by_key_then_by_the_rank_before() {
    let found = split(&[(0, 5, 9), (1, 5, 9), (2, 5, u32::MAX)], 3);
    // The last key is -1.
    let place = |rank| (Some(rank), Some(3));
    assert_eq!(found, BTreeMap::from([(0, place(1)), (1, place(2)), (2, place(0))]));
}

#[test]
fn a_split_with_ranks_on_other_nodes_has_no_order_here() {
    let found = split(&[(0, 5, 9), (1, 5, 9)], 3);
    assert_eq!(found, BTreeMap::from([(0, (None, None)), (1, (None, None))]));
}

#[test]
fn children_of_what_was_there_before_have_no_name() {
    let mut snapshot = Snapshot::default();
    snapshot.communicators.push((1, communicator(identity(9, SEEN), 1)));
    let child = Identity { born_ns: 2, parent: 1, child: UNKNOWN, ..identity(9, SPLIT) };
    snapshot.communicators.push((2, communicator(child, 0)));
    let (found, _) = Lineage::default().identify(&snapshot, &Alive(0));
    let keys: Vec<(u64, Option<CommunicatorHash>)> =
        found.iter().map(|one| (one.key.number, one.facts.hash)).collect();
    assert_eq!(keys, vec![(0, None), (0, None)]);
}

#[test]
fn a_reported_parent_gives_its_children_their_hash_and_parent() {
    let reported = |hash| Completed {
        hash: Some(CommunicatorHash(hash)),
        rank: 1,
        ranks: 4,
        device: None,
        by: KnownBy::Memory,
    };
    let mut snapshot = Snapshot::default();
    let mut put = |number, identity| {
        snapshot.communicators.push((number, communicator(identity, 1)));
    };
    put(1, identity(9, GROWN));
    let child = Identity { born_ns: 2, parent: 1, child: 1, color: 3, ..identity(9, SPLIT) };
    put(2, child);
    put(3, identity(9, SEEN));
    // Which child it is was not observed, but its own hash is reported.
    put(4, Identity { parent: 3, child: UNKNOWN, ..child });
    snapshot.completed = HashMap::from([(1, reported(71)), (3, reported(73)), (4, reported(74))]);
    let (found, lost) = Lineage::default().identify(&snapshot, &Alive(0));
    assert_eq!(lost, Vec::<u64>::new());
    let hash = |number: u64| Some(CommunicatorHash(number));
    let names: BTreeMap<u64, _> = found
        .iter()
        .map(|one| (one.number, (one.facts.hash, one.facts.parent, one.facts.known_by)))
        .collect();
    assert_eq!(
        names,
        BTreeMap::from([
            (1, (hash(71), None, KnownBy::Memory)),
            (2, (hash(Hash::of_child(71, 1, 3)), hash(71), KnownBy::Birth)),
            (3, (hash(73), None, KnownBy::Memory)),
            (4, (hash(74), hash(73), KnownBy::Memory)),
        ])
    );
}

fn hashes(snapshot: &Snapshot, gap_ns: u64) -> BTreeMap<u64, Option<u64>> {
    let (found, _) = Lineage::default().identify(snapshot, &Alive(gap_ns));
    found.iter().map(|one| (one.number, one.facts.hash.map(|hash| hash.0))).collect()
}

#[test]
fn the_hash_of_what_grew_comes_from_the_id_or_from_the_parent() {
    let mut snapshot = Snapshot::default();
    let mut put = |number, identity: Identity| {
        let identity = Identity { born_ns: number, ranks: 2, ..identity };
        snapshot.communicators.push((number, communicator(identity, 1)));
    };
    put(1, Identity { hash: 7, base: 70, ..identity(9, MADE) });
    put(2, Identity { parent: 1, child: 1, color: 3, ..identity(9, SPLIT) });
    // Children of the first, of its half, of what grew from that, and one that was added with an
    // id.
    put(3, Identity { parent: 1, child: 2, ..identity(9, GROWN) });
    put(4, Identity { parent: 2, child: 1, ..identity(9, GROWN) });
    put(5, Identity { parent: 4, child: 1, ..identity(9, GROWN) });
    put(6, Identity { base: 71, ..identity(9, GROWN) });
    // Neither its number nor its parent is known.
    put(7, Identity { parent: 1, child: UNKNOWN, ..identity(9, GROWN) });
    put(8, identity(9, GROWN));
    let half = Hash::of_child(7, 1, 3);
    let base = Hash::combine(half, 1);
    let wanted = [
        Some(7),
        Some(half),
        Some(Hash::combine(Hash::combine(70, 2), 2)),
        Some(Hash::combine(base, 2)),
        Some(Hash::combine(Hash::combine(base, 1), 2)),
        Some(Hash::combine(71, 2)),
        None,
        None,
    ];
    assert_eq!(hashes(&snapshot, 0), (1..).zip(wanted).collect());
}

#[test]
fn children_are_not_numbered_where_some_may_have_been_missed() {
    let mut snapshot = Snapshot::default();
    let mut put = |number, identity: Identity| {
        let identity = Identity { born_ns: 10 * number, ranks: 2, ..identity };
        snapshot.communicators.push((number, communicator(identity, 1)));
    };
    put(1, Identity { hash: 7, base: 70, ..identity(9, MADE) });
    put(2, Identity { parent: 1, child: 1, ..identity(9, SPLIT) });
    put(3, Identity { parent: 1, child: 2, ..identity(9, GROWN) });
    // A shrunk communicator has no number.
    put(4, Identity { parent: 1, child: 0, ..identity(9, SHRUNK) });
    let shrunk = Some(Hash::of_child(7, 0, 0));
    let known = |split, grown| BTreeMap::from([(1, Some(7)), (2, split), (3, grown), (4, shrunk)]);
    let (split, grown) = (Hash::of_child(7, 1, 0), Hash::combine(Hash::combine(70, 2), 2));
    assert_eq!(hashes(&snapshot, 9), known(Some(split), Some(grown)));
    assert_eq!(hashes(&snapshot, 15), known(None, None));
    // Known facts stay known.
    let mut lineage = Lineage::default();
    lineage.identify(&snapshot, &Alive(0));
    let (found, _) = lineage.identify(&snapshot, &Alive(15));
    let again = found.iter().map(|one| (one.number, one.facts.hash.map(|hash| hash.0)));
    assert_eq!(again.collect::<BTreeMap<_, _>>(), known(Some(split), Some(grown)));
}

/// Results of `hashCombine` of NCCL 2.32.3.
#[test]
fn two_words_are_combined_as_nccl_does() {
    let all = [(0, 0), (0x1db1_4a8a_713c_2fa5, 8), (u64::MAX, u64::MAX)];
    assert_eq!(
        all.map(|(base, value)| Hash::combine(base, value)),
        [0x7069_4081_9bf1_f4c1, 0x25a3_3a57_1541_917a, 0x3563_a73e_09c5_de67]
    );
}

/// The expected hash is from a second implementation, which matched what NCCL 2.32.3 logged (`NCCL
/// CALL ncclGetUniqueId`) for its own ids.
#[test]
fn hash_of_a_unique_id_is_nccls_own() {
    let mut words = [0; 16];
    words[0] = 0xa19f_cb79_6719_66dc;
    words[1] = 0x0200_db6d_b00b_0002;
    words[2] = 0x0101_a8c0;
    assert_eq!(Hash::of_unique_id(&words), 0x1a41_cfd8_85a9_f8c6);
}

#[test]
fn numbers_of_the_programs_are_places_in_the_catalogue() {
    let name = |code| crate::probe::members::rank_status::operation_of(code).map(Operation::as_str);
    assert_eq!(name(operation::ALL_REDUCE), Some("all_reduce"));
    assert_eq!(name(operation::ALL_TO_ALL), Some("all_to_all"));
    assert_eq!(name(operation::WAIT_SIGNAL), Some("wait_signal"));
    assert_eq!(Operation::ALL.len(), usize::try_from(operation::COUNT).unwrap());
    assert_eq!(SizeClass::ALL.len(), usize::try_from(UNSIZED).unwrap() + 1);
    for (class, bound) in (0_u32..).zip(CLASS_BOUNDS) {
        assert_eq!((size_class(bound - 1), size_class(bound)), (class, class + 1));
    }
}

#[test]
fn sizes_that_cannot_be_are_no_sizes() {
    assert_eq!(message_bytes(1 << 40, 8, 1 << 20), Some(1 << 63));
    assert_eq!(message_bytes((1 << 40) + 1, 8, 1), None);
    assert_eq!(message_bytes(u64::MAX, 0, 1), None);
    assert_eq!(message_bytes(3, 10, 2), Some(6));
    assert_eq!(message_bytes(3, 12, 2), None);
    assert_eq!(message_bytes(1, 0, UNKNOWN), None);
}

#[test]
fn every_symbol_has_a_name_and_a_program_of_its_own() {
    let names: HashSet<&str> = SYMBOLS.iter().map(|symbol| symbol.name).collect();
    let programs: HashSet<&str> = SYMBOLS.iter().map(|symbol| symbol.program).collect();
    assert_eq!((names.len(), programs.len()), (SYMBOLS.len(), SYMBOLS.len()));
}

/// What the newest library exports, and why the rest of it is not probed.
#[test]
fn every_function_of_the_newest_library_is_probed_or_irrelevant() {
    const EXPORTS: &str =
        include_str!("../../../../../../../tests/fixtures/nccl/exports-2.32.3.txt");
    // Memory and windows, settings, errors, and device-side communication.
    let beginnings = [
        "CommRegister",
        "CommDeregister",
        "CommWindow",
        "CommMemStats",
        "CommQueryProperties",
        // Memory of a communicator is released, and allocated again; the communicator stays the
        // same.
        "CommSuspend",
        "CommResume",
        // An id for ranks that will be added: they pass it to `CommGrow`.
        "CommGetUniqueId",
        "DevComm",
        "Get",
        "Gin",
        "LLA2A",
        "Lsa",
        "Mem",
        "Param",
        "RedOp",
        "ResetDebugInit",
        "SetEncryption",
        "Team",
        "WinGet",
    ];
    let names: Vec<&str> = EXPORTS.lines().map(|name| name.trim_start_matches("nccl")).collect();
    let is_probed = |name: &str| SYMBOLS.iter().any(|symbol| symbol.name == name);
    let says_nothing = |name: &str| beginnings.iter().any(|begin| name.starts_with(begin));
    let unknown: Vec<&&str> =
        names.iter().filter(|name| !is_probed(name) && !says_nothing(name)).collect();
    assert_eq!(unknown, [""; 0].iter().collect::<Vec<_>>());
    // Every probed function exists, except those that only RCCL has.
    let missing: Vec<&str> =
        SYMBOLS.iter().map(|symbol| symbol.name).filter(|name| !names.contains(name)).collect();
    assert_eq!(missing, ["AllReduceWithBias", "AllToAll", "AllToAllv", "AlltoAllv"]);
}
