use super::*;
use gpuwho_model::catalog::nccl::Operation;
use gpuwho_model::ids::ProcKey;
use std::collections::HashSet;
use std::fmt::Write as _;

const USER_GUIDE: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/user-guide-2.29.1.json");

fn process(host: &str, pid: i64) -> Process {
    Process::named(host, pid).unwrap()
}

/// These processes are on this node, and the answer is trusted about them.
fn here(all: &[(&str, i64)]) -> LocalNames {
    let key = |pid: i64| ProcKey { pid: pid.try_into().unwrap(), start_ticks: 1 };
    let trusted = all.iter().map(|(host, pid)| (process(host, *pid), key(*pid))).collect();
    LocalNames { trusted, others: HashSet::new() }
}

fn read(text: &str, here: &LocalNames) -> Result<Answer, JsonError> {
    from_json(text.as_bytes(), here)
}

#[test]
fn the_user_guides_answer_is_read_whole() {
    let answer = read(USER_GUIDE, &here(&[("172.16.64.245", 1_524_344)])).unwrap();
    let mut launched = LaunchCounts::default();
    for name in ["AllGather", "AllReduce", "Broadcast", "Reduce", "ReduceScatter"] {
        launched.put(name, 0);
    }
    let there = Rank {
        number: 0,
        process: process("172.16.64.245", 1_524_344),
        device: Some(0),
        launched,
        total: 0,
    };
    let absent = MissingRank {
        rank: 1,
        process: Some(process("172.16.64.245", 1_524_345)),
        is_unresponsive: true,
        is_dead: false,
    };
    let communicator = Communicator {
        hash: CommunicatorHash(0xae94_423c_fbb2_ef4a),
        size: Some(2),
        present: 1,
        ranks: vec![there],
        absent: vec![absent],
        missing: 1,
        left: 0,
        foremost: 0,
    };
    let late = LostProcess { process: absent.process.unwrap(), devices: 2 };
    let wanted = Answer {
        nodes: 1,
        processes: 2,
        communicators: vec![communicator],
        late: vec![late],
        late_count: 1,
        ..Answer::default()
    };
    assert_eq!(answer, wanted);
}

#[test]
fn a_dead_process_is_reported_once_with_all_its_devices() {
    let text = USER_GUIDE.replace("\"considered_dead\": false", "\"considered_dead\": true");
    let communicators: serde_json::Value = serde_json::from_str(&text).unwrap();
    let one = communicators["communicators"][0].clone();
    let mut other = one.clone();
    other["hash"] = "0x1".into();
    other["missing_ranks"][0]["cuda_dev"] = 3.into();
    let text = serde_json::json!({ "nccl_version": "2.30.7", "communicators": [one, other] });
    let answer = read(&text.to_string(), &LocalNames::default()).unwrap();
    let lost = LostProcess { process: process("172.16.64.245", 1_524_345), devices: 10 };
    assert_eq!(answer.dead, vec![lost]);
    assert_eq!(lost.devices().as_deref(), Some("1,3"));
    assert_eq!((answer.dead_count, answer.late_count, answer.processes), (1, 0, 2));
}

/// Recorded from three processes of the library, one of them stopped: for some seconds in 2.28.9,
/// which omits a comma, for 75 seconds in 2.30.4.
#[test]
fn recorded_answers_are_read_even_where_they_are_invalid_json() {
    const STOPPED: &str =
        include_str!("../../../../../../tests/fixtures/nccl-ras/libnccl-2.28.9-one-stopped.json");
    const DEAD: &str =
        include_str!("../../../../../../tests/fixtures/nccl-ras/libnccl-2.30.4-one-dead.json");
    assert!(serde_json::from_str::<serde_json::Value>(STOPPED).is_err());
    let counts = |answer: &Answer| {
        let [communicator] = answer.communicators.as_slice() else { panic!("{answer:?}") };
        let ranks =
            communicator.ranks.iter().map(|rank| (rank.number, rank.launched.iter().count()));
        let absent = communicator.absent.iter().map(|absent| (absent.rank, absent.is_dead));
        (communicator.size, ranks.collect::<Vec<_>>(), absent.collect::<Vec<_>>())
    };
    let local = |pids: [i64; 2]| here(&pids.map(|pid| ("127.0.0.1", pid)));
    let stopped = read(STOPPED, &local([13_054, 13_055])).unwrap();
    assert_eq!(counts(&stopped), (Some(3), vec![(0, 5), (1, 5)], vec![(2, false)]));
    assert_eq!((stopped.late_count, stopped.dead_count, stopped.processes), (1, 0, 3));
    let dead = read(DEAD, &local([13_042, 13_045])).unwrap();
    assert_eq!(counts(&dead), (Some(3), vec![(0, 5), (1, 5)], vec![(2, true)]));
    assert_eq!((dead.late_count, dead.dead_count, dead.processes), (0, 1, 3));
}

#[test]
fn unknown_values_stay_unknown() {
    let text = USER_GUIDE
        .replace("\"host\": \"172.16.64.245\"", "\"host\": \"unknown\"")
        .replace("1524344", "-1")
        .replace("\"AllReduce\": 0", "\"NewOperation\": 5");
    let answer = read(&text, &LocalNames::default()).unwrap();
    assert_eq!((answer.processes, answer.communicators[0].foremost), (0, 0));
}

#[test]
fn an_invalid_document_is_an_error() {
    for text in ["", "{}", "[]", "ERROR: no\n", "{\"nccl_version\": \"2.29.1\"", "\0\0"] {
        assert!(read(text, &LocalNames::default()).is_err(), "{text}");
    }
    let text = USER_GUIDE.replace("0xae94423cfbb2ef4a", "0xnothing");
    assert!(read(&text, &LocalNames::default()).is_err());
}

/// An answer with one communicator and these ranks.
fn answer(ranks: &str, missing: &str) -> String {
    format!(
        r#"{{"nccl_version": "2.29.7", "communicators": [
            {{"hash": "0xabc", "size": 8, "ranks": [{ranks}], "missing_ranks": [{missing}]}}]}}"#
    )
}

fn rank(number: u32, host: &str, pid: i64) -> String {
    format!(
        r#"{{"rank": {number}, "host": "{host}", "pid": {pid}, "cuda_dev": 4294967295,
            "collective_counts": {{"AllReduce": 7, "Nonsense": 9}}}}"#
    )
}

#[test]
fn only_trusted_local_processes_are_stored_and_claims_are_counted() {
    let mut here = here(&[("10.0.0.1", 7)]);
    here.others.insert(process("10.0.0.1", 8));
    let all = [rank(0, "10.0.0.1", 7), rank(1, "10.0.0.1", 8), rank(2, "10.0.0.2", 7)].join(",");
    let answer = read(&answer(&all, ""), &here).unwrap();
    let [communicator] = answer.communicators.as_slice() else { panic!("{answer:?}") };
    let stored: Vec<_> =
        communicator.ranks.iter().map(|rank| (rank.process.pid, rank.device)).collect();
    assert_eq!(stored, [(7, None)], "and no device has such a number");
    assert_eq!((communicator.present, communicator.foremost), (3, 7));
    assert_eq!((answer.claims, answer.processes, answer.nodes), (1, 3, 2));
    let launched: Vec<_> = communicator.ranks[0].launched.iter().collect();
    assert_eq!(launched, [(Operation::AllReduce, 7)]);
}

#[test]
fn a_host_that_is_not_an_address_has_no_process() {
    let names = ["\\u001b[2J", "\\u202egnp", "localhost", "10.0.0.1 ", "", "999.1.1.1"];
    for name in names {
        let answer = read(&answer(&rank(0, name, 7), ""), &LocalNames::default()).unwrap();
        assert_eq!((answer.processes, answer.communicators.len()), (0, 0), "{name}");
    }
    assert_eq!(process("fe80::1%ib0", 7), process("fe80::1", 7));
    assert_eq!(process("::ffff:10.0.0.1", 7), process("10.0.0.1", 7));
    for pid in [0, -1, 1 << 32] {
        assert_eq!(Process::named("10.0.0.1", pid), None);
    }
}

#[test]
fn invalid_numbers_and_duplicate_keys_end_the_answer() {
    let good = rank(0, "10.0.0.1", 7);
    for (number, other) in [("7,", "-7,"), ("7,", "1e308,"), ("7,", "0.5,"), ("7,", "[],")] {
        let bad = good.replacen(
            &format!("\"AllReduce\": {number}"),
            &format!("\"AllReduce\": {other}"),
            1,
        );
        assert_ne!(bad, good);
        assert!(read(&answer(&bad, ""), &LocalNames::default()).is_err(), "{bad}");
    }
    let twice = good.replacen("\"rank\": 0", "\"rank\": 0, \"rank\": 1", 1);
    assert!(read(&answer(&twice, ""), &LocalNames::default()).is_err());
}

/// Documents of some MB; a parsed tree of them would take hundreds.
fn hostile() -> [(&'static str, String); 4] {
    let begin = r#"{"nccl_version": "2.29.7", "communicators": ["#;
    let mut empties = String::from(begin);
    let mut many = String::from(begin) + r#"{"hash": "0x1", "size": 9, "missing_ranks": ["#;
    for number in 0..=MAX_ENTRIES {
        empties += r#"{"hash": "0x1", "size": 0, "ranks": []},"#;
        let (a, b) = (number / 256 % 256, number % 256);
        write!(
            many,
            r#"{{"rank": {number}, "host": "10.1.{a}.{b}", "pid": 1{number},
                "status": {{"unresponsive": true, "considered_dead": true}}}},"#
        )
        .unwrap();
    }
    let counts = "\"AllReduce\": 1,".repeat(1 << 18);
    let full = rank(0, "10.0.0.1", 7).replacen("\"AllReduce\": 7,", &counts, 1);
    let huge = format!("{begin}{{\"hash\": \"{}\"", "0".repeat(4 << 20));
    [("empties", empties), ("many", many), ("counts", answer(&full, "")), ("huge", huge)]
}

#[test]
fn memory_does_not_depend_on_the_content() {
    for (name, text) in hostile() {
        let mut outcome = None;
        let info = allocation_counter::measure(|| {
            outcome = Some(read(&text, &LocalNames::default()).err());
        });
        let error = outcome.flatten();
        let (bytes, length) = (info.bytes_max, text.len());
        assert!(bytes < 12 << 20, "{name}: {bytes} of {length} bytes: {error:?}");
        match name {
            "counts" => assert!(error.is_none(), "{error:?}"),
            "huge" => assert!(matches!(error, Some(JsonError::Json(_))), "{error:?}"),
            _ => assert!(matches!(error, Some(JsonError::TooMany)), "{name}: {error:?}"),
        }
    }
}
