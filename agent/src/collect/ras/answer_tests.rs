use super::*;

const USER_GUIDE: &str = include_str!("../../../../tests/fixtures/nccl-ras/user-guide-2.29.1.json");

fn process(host: &str, pid: u32) -> Process {
    Process { host: host.into(), pid }
}

#[test]
fn the_user_guides_answer_is_read_whole() {
    let answer = from_json(USER_GUIDE.as_bytes()).unwrap();
    let launched = [
        Operation::AllGather,
        Operation::AllReduce,
        Operation::Broadcast,
        Operation::Reduce,
        Operation::ReduceScatter,
    ];
    let there = Rank {
        number: 0,
        process: Some(process("172.16.64.245", 1_524_344)),
        device: Some(0),
        launched: launched.map(|operation| (operation, 0)).to_vec(),
        total: 0,
    };
    let absent = Absent {
        rank: 1,
        process: Some(process("172.16.64.245", 1_524_345)),
        device: Some(1),
        is_unresponsive: true,
        is_dead: false,
    };
    let communicator = Communicator {
        hash: CommunicatorHash(0xae94_423c_fbb2_ef4a),
        size: Some(2),
        ranks: vec![there],
        absent: vec![absent.clone()],
        missing: 1,
        left: 0,
        foremost: 0,
    };
    let late = Lost { process: absent.process.unwrap(), devices: Some("1".into()) };
    let wanted = Answer {
        version: "2.29.1".into(),
        is_whole: true,
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
fn a_dead_process_is_told_once_with_all_its_devices() {
    let text = USER_GUIDE.replace("\"considered_dead\": false", "\"considered_dead\": true");
    let communicators: serde_json::Value = serde_json::from_str(&text).unwrap();
    let one = communicators["communicators"][0].clone();
    let mut other = one.clone();
    other["hash"] = "0x1".into();
    other["missing_ranks"][0]["cuda_dev"] = 3.into();
    let text = serde_json::json!({ "nccl_version": "2.30.7", "communicators": [one, other] });
    let answer = from_json(text.to_string().as_bytes()).unwrap();
    let process = Process { host: "172.16.64.245".into(), pid: 1_524_345 };
    assert_eq!(answer.dead, vec![Lost { process, devices: Some("1,3".into()) }]);
    assert_eq!((answer.dead_count, answer.late_count, answer.processes), (1, 0, 2));
}

/// From three processes of the library, one of them stopped: for some seconds in 2.28.9, which
/// leaves out a comma, for 75 seconds in 2.30.4.
#[test]
fn real_libraries_answers_are_read_also_where_they_are_no_json() {
    const STOPPED: &str =
        include_str!("../../../../tests/fixtures/nccl-ras/libnccl-2.28.9-one-stopped.json");
    const DEAD: &str =
        include_str!("../../../../tests/fixtures/nccl-ras/libnccl-2.30.4-one-dead.json");
    assert!(serde_json::from_str::<serde_json::Value>(STOPPED).is_err());
    let counts = |answer: &Answer| {
        let [communicator] = answer.communicators.as_slice() else { panic!("{answer:?}") };
        let ranks = communicator.ranks.iter().map(|rank| (rank.number, rank.launched.len()));
        let absent = communicator.absent.iter().map(|absent| (absent.rank, absent.is_dead));
        (communicator.size, ranks.collect::<Vec<_>>(), absent.collect::<Vec<_>>())
    };
    let stopped = from_json(STOPPED.as_bytes()).unwrap();
    assert_eq!(counts(&stopped), (Some(3), vec![(0, 5), (1, 5)], vec![(2, false)]));
    assert_eq!((stopped.late_count, stopped.dead_count, stopped.processes), (1, 0, 3));
    let dead = from_json(DEAD.as_bytes()).unwrap();
    assert_eq!(counts(&dead), (Some(3), vec![(0, 5), (1, 5)], vec![(2, true)]));
    assert_eq!((dead.late_count, dead.dead_count, dead.processes), (0, 1, 3));
}

#[test]
fn a_comma_is_put_in_only_where_one_is_missing() {
    let repaired = |text: &str| {
        let mut all = String::new();
        Commas::new(text.as_bytes()).read_to_string(&mut all).unwrap();
        all
    };
    let (broken, wanted) = (r#"{"a": 1 "b": {}"c": "x"}"#, r#"{"a": 1 ,"b": {},"c": "x"}"#);
    assert_eq!(repaired(broken), wanted);
    let whole = r#"{"a\\": [1, "2\"", "\\"], "b": {"c": null}}"#;
    assert_eq!(repaired(whole), whole);
}

#[test]
fn what_nccl_does_not_know_is_not_known() {
    let text = USER_GUIDE
        .replace("\"host\": \"172.16.64.245\"", "\"host\": \"unknown\"")
        .replace("1524344", "-1")
        .replace("\"AllReduce\": 0", "\"NewOperation\": 5");
    let answer = from_json(text.as_bytes()).unwrap();
    let rank = &answer.communicators[0].ranks[0];
    assert_eq!((&rank.process, rank.launched.len()), (&None, 4));
    assert_eq!(answer.processes, 0);
}

#[test]
fn what_is_no_answer_is_an_error() {
    for text in ["", "{}", "[]", "ERROR: no\n", "{\"nccl_version\": \"2.29.1\"", "\0\0"] {
        assert!(from_json(text.as_bytes()).is_err(), "{text}");
    }
    let text = USER_GUIDE.replace("0xae94423cfbb2ef4a", "0xnothing");
    assert!(from_json(text.as_bytes()).is_err());
}
