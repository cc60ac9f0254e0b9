use super::*;
use crate::inspector::rank::{SPEED_BOUNDS, TIME_BOUNDS};
use crate::inspector::record::HashText;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::catalog::nccl::SizeClass;
use gpuwho_model::sample::{Histogram, Subject, Value};
use gpuwho_owners::communicators::{
    CommunicatorHash, CommunicatorUpdate, MemberFacts, MemberKey, Origin,
};
use std::collections::BTreeMap;
use std::time::SystemTime;

const PROCESS: ProcKey = ProcKey { pid: 7, start_ticks: 70 };
const HASH: CommunicatorHash = CommunicatorHash(0x1db1_4a8a_713c_2fa5);
const MIB: u64 = 1 << 20;

fn owner() -> QuotaKey {
    QuotaKey::of_user(1)
}

fn record(sequence: u64) -> Record<'static> {
    Record {
        hash: HashText::parse("0x1db14a8a713c2f").unwrap(),
        name: Some("TP Group 0".into()),
        rank: 3,
        ranks: 8,
        pid: 7,
        operation: Operation::AllReduce,
        sequence: Some(sequence),
        bytes: 2 * MIB,
        bus_bytes: 2 * MIB * 14 / 8,
        seconds: 602e-6,
        algorithm_bandwidth: 3.483_641e9,
        bus_bandwidth: 6.096_372e9,
    }
}

fn read(ranks: &mut Ranks, communicators: &Communicators, records: &[Record<'_>]) -> Batch {
    read_gone(ranks, communicators, records, &HashSet::new())
}

fn read_gone(
    ranks: &mut Ranks,
    communicators: &Communicators,
    records: &[Record<'_>],
    gone: &HashSet<ProcKey>,
) -> Batch {
    ranks.begin(communicators);
    for record in records {
        assert_eq!(ranks.count(PROCESS, owner(), record, communicators), LineOutcome::Taken);
    }
    ranks.end(gone, communicators);
    let mut out = Batch::new("test", SystemTime::now());
    ranks.report(&mut out);
    ranks.remove_processes(gone);
    out
}

fn value(batch: &Batch, name: &str) -> Option<Value> {
    let mut of = batch.samples.iter().filter(|(_, sample)| sample.metric.name == name);
    let found = of.next().map(|(_, sample)| sample.value.clone());
    assert!(of.next().is_none(), "several {name}");
    found
}

/// The attributes of the only rank.
fn attributes(batch: &Batch, communicators: &Communicators) -> AttrSet {
    match batch.samples[0].1.subject {
        Subject::Member(id) => communicators.facts(id).unwrap().attributes(),
        other => panic!("not a rank: {other:?}"),
    }
}

fn text(set: &AttrSet) -> BTreeMap<&'static str, String> {
    set.iter().map(|(key, value)| (key.name, value.to_string())).collect()
}

#[test]
fn completions_are_added_up_in_the_catalogues_units() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let batch = read(&mut ranks, &communicators, &[record(0), record(1)]);
    let histogram = |bounds: &'static [f64], at: f64, sum: f64| {
        let mut counts = vec![0; bounds.len() + 1];
        counts[bounds.partition_point(|bound| *bound < at)] = 2;
        Some(Value::Histogram(Box::new(Histogram { bounds: bounds.into(), counts, sum })))
    };
    let duration = histogram(TIME_BOUNDS, 602e-6, 1_204e-6);
    assert_eq!(value(&batch, "nccl.inspector.duration"), duration);
    let bus = histogram(SPEED_BOUNDS, 6.1e9, 12.192_744e9);
    assert_eq!(value(&batch, "nccl.inspector.bus_bandwidth"), bus);
    let algorithm = histogram(SPEED_BOUNDS, 3.5e9, 6.967_282e9);
    assert_eq!(value(&batch, "nccl.inspector.algorithm_bandwidth"), algorithm);
    let bytes = 4 * 1_048_576;
    assert_eq!(value(&batch, "nccl.inspector.bytes"), Some(Value::Int(bytes)));
    assert_eq!(value(&batch, "nccl.inspector.bus_traffic"), Some(Value::Int(bytes * 14 / 8)));
    assert_eq!(value(&batch, "nccl.inspector.missed"), Some(Value::Int(0)));
    assert_eq!(value(&batch, "nccl.inspector.info"), Some(Value::Int(1)));
    let dims = batch.samples.iter().map(|(_, sample)| sample.dims).find(|dims| dims[1] != 255);
    assert_eq!(dims, Some([Operation::AllReduce as u8, SizeClass::Below16MiB as u8]));
}

#[test]
fn a_rank_known_to_the_probes_is_joined_and_named() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let probed = communicators.put(
        MemberKey { process: PROCESS, number: 1 },
        MemberFacts {
            hash: Some(HASH),
            rank: Some(3),
            ranks: Some(8),
            origin: Origin::UniqueId,
            ..MemberFacts::new(PROCESS)
        },
    );
    let batch = read(&mut ranks, &communicators, &[record(0)]);
    let probed = communicators.facts(probed).unwrap();
    assert_eq!(attributes(&batch, &communicators), probed.attributes());
    assert_eq!(probed.name.as_deref(), Some("TP Group 0"));
}

#[test]
fn the_whole_hash_is_exported_once_another_source_knows_it() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let batch = read(&mut ranks, &communicators, &[record(0)]);
    let expected = BTreeMap::from([
        ("nccl.communicator.id_prefix", "0x1db14a8a713c2f".to_owned()),
        ("nccl.communicator.name", "TP Group 0".to_owned()),
        ("nccl.rank", "3".to_owned()),
        ("nccl.nranks", "8".to_owned()),
    ]);
    assert_eq!(text(&attributes(&batch, &communicators)), expected);
    communicators.learn(PROCESS, HASH, CommunicatorUpdate::default());
    let batch = read(&mut ranks, &communicators, &[]);
    let expected = BTreeMap::from([
        ("nccl.communicator.id", "0x1db14a8a713c2fa5".to_owned()),
        ("nccl.rank", "3".to_owned()),
        ("nccl.nranks", "8".to_owned()),
    ]);
    assert_eq!(text(&attributes(&batch, &communicators)), expected);
    assert_eq!(value(&batch, "nccl.inspector.bytes"), Some(Value::Int(2 * 1_048_576)));
}

#[test]
fn ambiguous_hash_prefixes_stay_unresolved() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    communicators.learn(PROCESS, HASH, CommunicatorUpdate::default());
    communicators.learn(PROCESS, CommunicatorHash(HASH.0 + 1), CommunicatorUpdate::default());
    let batch = read(&mut ranks, &communicators, &[record(0)]);
    assert!(text(&attributes(&batch, &communicators)).contains_key("nccl.communicator.id_prefix"));
}

#[test]
fn gaps_in_the_sequence_are_missed_and_its_order_does_not_matter() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let missed = |batch: &Batch| value(batch, "nccl.inspector.missed").unwrap();
    let batch = read(&mut ranks, &communicators, &[record(10), record(12), record(11)]);
    assert_eq!(missed(&batch), Value::Int(0));
    let batch = read(&mut ranks, &communicators, &[record(20)]);
    assert_eq!(missed(&batch), Value::Int(7));
    // A late one does not decrease the counter.
    let batch = read(&mut ranks, &communicators, &[record(15)]);
    assert_eq!(missed(&batch), Value::Int(7));
}

#[test]
fn an_ended_process_is_exported_once_more_and_removed() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    read(&mut ranks, &communicators, &[record(0)]);
    let gone = HashSet::from([PROCESS]);
    let batch = read_gone(&mut ranks, &communicators, &[record(1)], &gone);
    assert_eq!(value(&batch, "nccl.inspector.bytes"), Some(Value::Int(4 * 1_048_576)));
    // Its names stay until its last points are enriched.
    assert_eq!(communicators.of(PROCESS).len(), 1);
    assert!(read(&mut ranks, &communicators, &[]).samples.is_empty());
    assert_eq!(communicators.of(PROCESS).len(), 0);
}

#[test]
fn the_ranks_of_a_process_are_bounded() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let of =
        |number: u64| Record { hash: HashText::Start(0x10_0000_0000_0000 + number), ..record(0) };
    ranks.begin(&communicators);
    let outcomes: Vec<_> =
        (0..70).map(|number| ranks.count(PROCESS, owner(), &of(number), &communicators)).collect();
    let refused = outcomes.iter().filter(|outcome| **outcome == LineOutcome::NoRoom).count();
    assert_eq!(refused, 70 - MAX_OF_PROCESS);
    // An idle rank makes room.
    for _ in 0..=IDLE {
        ranks.begin(&communicators);
    }
    assert_eq!(ranks.count(PROCESS, owner(), &of(99), &communicators), LineOutcome::Taken);
    assert_eq!(ranks.known.len(), MAX_OF_PROCESS);
}

#[test]
fn means_are_joined_by_name_where_only_one_communicator_has_it() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let known = MemberFacts {
        hash: Some(HASH),
        rank: Some(3),
        ranks: Some(8),
        name: Some(Arc::from("TP Group 0")),
        ..MemberFacts::new(PROCESS)
    };
    communicators.put(MemberKey { process: PROCESS, number: 1 }, known.clone());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/nccl-inspector/");
    let text = std::fs::read_to_string(format!("{folder}inspector-2.30.7-v5.1.prom")).unwrap();
    let exposition = crate::inspector::exposition::parse(&text, &mut |_| {});
    ranks.begin(&communicators);
    let reported = ranks.levels(PROCESS, owner(), &exposition, &communicators);
    ranks.end(&HashSet::new(), &communicators);
    assert_eq!(reported.len(), 14);
    let (recent, ..) = reported[0];
    let facts = communicators.facts(recent.member).unwrap();
    assert_eq!(facts.attributes(), known.attributes());
    // A second communicator of the name makes the means ambiguous.
    let other = MemberFacts { hash: Some(CommunicatorHash(1)), ..known };
    communicators.put(MemberKey { process: PROCESS, number: 2 }, other);
    ranks.end(&HashSet::new(), &communicators);
    let facts = communicators.facts(recent.member).unwrap();
    assert_eq!((facts.hash, facts.name.as_deref()), (None, Some("TP Group 0")));
}

#[test]
fn the_names_of_a_rank_are_bounded() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let mut names = HashSet::new();
    for turn in 0..50 {
        let record = Record { name: Some(format!("name {turn}").into()), ..record(turn) };
        let batch = read(&mut ranks, &communicators, &[record]);
        names.insert(text(&attributes(&batch, &communicators))["nccl.communicator.name"].clone());
    }
    assert_eq!(names, HashSet::from(["name 0", "name 1", "name 2"].map(str::to_owned)));
    let refused = HashMap::from([((owner(), OwnerLimit::RankNames), 47)]);
    assert_eq!(ranks.take_refused(), refused);
}

#[test]
fn a_process_of_all_ranks_operations_and_sizes_has_a_bounded_number_of_series() {
    /// More than the limit.
    const MORE: u32 = 74;
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    ranks.begin(&communicators);
    for rank in 0..MORE {
        for operation in Operation::ALL {
            for bytes in [1, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 4 << 30] {
                let record =
                    Record { operation: *operation, bytes, rank, ranks: MORE, ..record(1) };
                ranks.count(PROCESS, owner(), &record, &communicators);
            }
        }
    }
    let mut out = Batch::new("test", SystemTime::now());
    ranks.report(&mut out);
    assert!(out.samples.len() <= 3_600, "{}", out.samples.len());
    let unsized_too = u8::try_from(SizeClass::ALL.len() - 1).unwrap();
    assert!(out.samples.iter().any(|(_, sample)| sample.dims[1] == unsized_too));
    let refused = ranks.take_refused();
    assert!(refused[&(owner(), OwnerLimit::InspectorRanks)] > 0);
    // Its end frees all of them.
    ranks.remove_processes(&HashSet::from([PROCESS]));
    assert_eq!((ranks.known.len(), ranks.spent.len()), (0, 0));
}

#[test]
fn means_of_ever_new_sizes_are_bounded() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    let mut reported = HashSet::new();
    for turn in 0..20 {
        ranks.begin(&communicators);
        let line = |size: u32| {
            format!(
                "nccl_bus_bandwidth_gbs{{collective=\"AllReduce\",nranks=\"8\",comm_name=\"x\",\
                 message_size=\"{size}B\"}} 1.5\n"
            )
        };
        let text: String = (0..40).map(|size| line(turn * 40 + size)).collect();
        let exposition = crate::inspector::exposition::parse(&text, &mut |_| {});
        assert_eq!(exposition.len(), 40);
        let levels = ranks.levels(PROCESS, owner(), &exposition, &communicators);
        reported.extend(levels.into_iter().map(|(recent, ..)| recent));
    }
    assert_eq!(reported.len(), MAX_MEANS);
}

#[test]
fn at_the_limit_the_owner_with_most_ranks_gives_one_up() {
    let (mut ranks, communicators) = (Ranks::default(), Communicators::default());
    ranks.begin(&communicators);
    let mut count = |pid, user, rank| {
        let process = ProcKey { pid, start_ticks: 1 };
        ranks.count(
            process,
            QuotaKey::of_user(user),
            &Record { rank, ranks: 64, ..record(1) },
            &communicators,
        )
    };
    for rank in 0..1_024 {
        assert_eq!(count(1_000 + rank / 64, 1, rank % 64), LineOutcome::Taken);
    }
    assert_eq!(count(5_000, 1, 0), LineOutcome::NoRoom, "nobody makes way for its own");
    for rank in 0..64 {
        assert_eq!(count(6_000, 2, rank), LineOutcome::Taken);
    }
    assert_eq!(ranks.known.len(), MAX_RANKS);
}
