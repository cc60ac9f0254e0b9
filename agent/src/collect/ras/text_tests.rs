use super::super::answer::Rank;
use super::*;
use crate::catalog::nccl::Operation;
use crate::communicators::CommunicatorHash;

const HEALTHY: &str =
    include_str!("../../../../tests/fixtures/nccl-ras/libnccl-2.27.5-three-ranks.txt");
const DEAD: &str = include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.27-dead.txt");
const MISSING: &str =
    include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.24-missing.txt");

/// As the format strings of `src/ras/client_support.cc` at v2.24.3-1 and v2.25.1-1 make it.
const MISMATCH_2_24: &str =
    include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.24-mismatch.txt");
/// As those at v2.26.2-1 to v2.28.3-1 make it.
const MISMATCH_2_28: &str =
    include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.28-mismatch.txt");

fn process(pid: u32) -> Process {
    Process { host: "172.16.64.213".into(), pid }
}

fn absent(rank: u32, process: Option<Process>, is_dead: bool) -> Absent {
    Absent { rank, process, device: None, is_unresponsive: true, is_dead }
}

fn on(host: &str, pid: u32) -> Process {
    Process { host: host.into(), pid }
}

fn rank(number: u32, process: Option<Process>, launched: &[(Operation, u64)]) -> Rank {
    let total = launched.iter().map(|(_, launched)| launched).sum();
    Rank { number, process, device: None, launched: launched.to_vec(), total }
}

/// One whose process has answered and is no member.
fn left(rank: u32, process: Option<Process>) -> Absent {
    Absent { is_unresponsive: false, ..absent(rank, process, false) }
}

#[test]
fn a_jobs_size_is_told_and_of_ranks_who_differs() {
    let behind = rank(1, Some(on("127.0.0.1", 13_029)), &[(Operation::AllReduce, 49)]);
    let communicator = Communicator {
        hash: CommunicatorHash(0x1db1_4a8a_713c_2fa5),
        size: None,
        ranks: vec![behind],
        absent: Vec::new(),
        missing: 0,
        left: 0,
        foremost: 50,
    };
    let wanted = Answer {
        version: "2.27.5".into(),
        nodes: 1,
        processes: 3,
        communicators: vec![communicator],
        ..Answer::default()
    };
    assert_eq!(from_text(HEALTHY), Some(wanted.clone()));
    let (same, _) = HEALTHY.split_once("#0-0").unwrap();
    assert_eq!(from_text(same), Some(Answer { communicators: Vec::new(), ..wanted }));
}

#[test]
fn the_oldest_form_tells_who_is_no_member_and_what_all_operations_together_differ_in() {
    let answer = from_text(MISMATCH_2_24).unwrap();
    let behind = |number, pid: Option<u32>, total| {
        let process = pid.map(|pid| on("172.16.64.210", pid));
        Rank { number, process, device: None, launched: Vec::new(), total }
    };
    let world = Communicator {
        hash: CommunicatorHash(0xcf26_4af5_3edb_e986),
        size: None,
        ranks: vec![
            behind(0, Some(483_072), 6_649),
            behind(2, Some(483_074), 6_649),
            behind(9, None, 6_651),
        ],
        absent: vec![left(3, None), left(21, None)],
        missing: 2,
        left: 2,
        foremost: 6_651,
    };
    let hash = CommunicatorHash(0x1db1_4a8a_713c_2fa5);
    let (ranks, absent, missing, foremost) = (Vec::new(), Vec::new(), 0, 0);
    let aborted = Communicator { hash, size: None, ranks, absent, missing, left: 0, foremost };
    let smaller = Communicator {
        hash: CommunicatorHash(0x3a4b_5c6d_7e8f_9012),
        absent: vec![left(5, None)],
        missing: 1,
        left: 1,
        ..aborted.clone()
    };
    assert_eq!(answer.communicators, vec![world, aborted, smaller]);
    assert_eq!((answer.dead_count, answer.late_count), (0, 0));
}

#[test]
fn missing_ranks_that_the_oldest_form_tells_twice_are_missing_once() {
    let again = "\n#0-0 (cf264af53edbe986) MISMATCH\n  Communicator ranks have different status\n  \
                 30 ranks have status RUNNING\n  Rank 7 has status FINALIZE -- GPU 7 managed by \
                 process 483079 on node 172.16.64.210\n  Rank 21 has status UNKNOWN\n\n";
    let answer = from_text(&format!("{MISSING}{again}")).unwrap();
    let communicator = &answer.communicators[0];
    assert_eq!(answer.communicators.len(), 1);
    assert_eq!(
        (&communicator.absent, communicator.missing, communicator.left),
        (&vec![absent(21, None, false)], 1, 0)
    );
}

#[test]
fn a_list_of_ranks_that_was_cut_off_is_read_as_far_as_it_is_whole() {
    let all: Vec<String> = (1_000..1_300).map(|rank| rank.to_string()).collect();
    let (list, lost) =
        all.join(",").split_at_checked(1_023).map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    assert!(lost > 0 && list.ends_with("120"), "{list}");
    let text = MISSING.replace("The missing rank: 21", &format!("The missing ranks: {list}"));
    let answer = from_text(&text.replace("from 1 rank\n", "from 300 ranks\n")).unwrap();
    let communicator = &answer.communicators[0];
    let ranks: Vec<u32> = communicator.absent.iter().map(|absent| absent.rank).collect();
    assert_eq!((ranks, communicator.missing), ((1_000..1_204).collect(), 300));
}

#[test]
fn who_is_no_member_and_who_is_behind_in_which_operation_is_told() {
    let answer = from_text(MISMATCH_2_28).unwrap();
    let node = "172.16.64.210";
    let counts = |broadcast, all_reduce| {
        [(Operation::Broadcast, broadcast), (Operation::AllReduce, all_reduce)]
    };
    let world = Communicator {
        hash: CommunicatorHash(0xcf26_4af5_3edb_e986),
        size: None,
        ranks: vec![
            rank(0, Some(on(node, 483_072)), &counts(12, 6_649)),
            rank(2, Some(on(node, 483_074)), &counts(12, 6_649)),
            rank(6, Some(on(node, 483_078)), &counts(0, 6_600)),
        ],
        absent: vec![
            absent(21, Some(process(3_487_984)), false),
            left(3, Some(on(node, 483_075))),
            left(4, None),
        ],
        missing: 3,
        left: 2,
        foremost: 6_662,
    };
    let most_left = Communicator {
        hash: CommunicatorHash(0x1db1_4a8a_713c_2fa5),
        size: None,
        ranks: Vec::new(),
        absent: Vec::new(),
        missing: 5,
        left: 5,
        foremost: 0,
    };
    assert_eq!(answer.communicators, vec![world, most_left]);
}

#[test]
fn dead_and_missing_processes_are_told_with_their_ranks() {
    let answer = from_text(DEAD).unwrap();
    let lost = |pid, devices: &str| Lost { process: process(pid), devices: Some(devices.into()) };
    assert_eq!((answer.nodes, answer.processes), (4, 31));
    assert_eq!((answer.dead, answer.dead_count), (vec![lost(3_487_984, "5")], 1));
    assert_eq!((answer.late, answer.late_count), (vec![lost(3_487_985, "6,7")], 1));
    let wanted = Communicator {
        hash: CommunicatorHash(0xcf26_4af5_3edb_e986),
        size: None,
        ranks: vec![
            rank(0, Some(on("172.16.64.210", 483_072)), &[(Operation::AllReduce, 6_649)]),
            rank(2, Some(on("172.16.64.210", 483_074)), &[(Operation::AllReduce, 6_649)]),
        ],
        absent: vec![
            absent(21, Some(process(3_487_984)), true),
            absent(22, Some(process(3_487_985)), false),
            absent(23, None, false),
        ],
        missing: 3,
        left: 0,
        foremost: 6_650,
    };
    assert_eq!(answer.communicators, vec![wanted]);
}

/// From three processes of the library, one of them stopped for 75 seconds.
#[test]
fn a_real_librarys_dead_process_is_told() {
    const RECORDED: &str =
        include_str!("../../../../tests/fixtures/nccl-ras/libnccl-2.27.5-one-dead.txt");
    let process = Process { host: "127.0.0.1".into(), pid: 13_033 };
    let communicator = Communicator {
        hash: CommunicatorHash(0x1db1_4a8a_713c_2fa5),
        size: None,
        ranks: vec![
            rank(0, Some(on("127.0.0.1", 13_028)), &[(Operation::AllReduce, 50)]),
            rank(1, Some(on("127.0.0.1", 13_029)), &[(Operation::AllReduce, 49)]),
        ],
        absent: vec![absent(2, Some(process.clone()), true)],
        missing: 1,
        left: 0,
        foremost: 50,
    };
    let wanted = Answer {
        version: "2.27.5".into(),
        nodes: 1,
        processes: 3,
        communicators: vec![communicator],
        dead: vec![Lost { process, devices: Some("2".into()) }],
        dead_count: 1,
        ..Answer::default()
    };
    assert_eq!(from_text(RECORDED), Some(wanted));
}

#[test]
fn the_oldest_form_lists_missing_ranks_by_number() {
    let answer = from_text(MISSING).unwrap();
    assert_eq!(answer.late_count, 1);
    let communicator = &answer.communicators[0];
    assert_eq!((&communicator.absent, communicator.missing), (&vec![absent(21, None, false)], 1));
}

#[test]
fn a_text_without_its_headings_is_no_answer() {
    for text in ["", "HTTP/1.1 400 Bad Request\r\n\r\n", "Job summary\n", "Communicators...\n"] {
        assert_eq!(from_text(text), None, "{text}");
    }
    let (first, _) = HEALTHY.split_once("Communicators").unwrap();
    assert_eq!(from_text(first), None, "cut short");
    let (first, _) = HEALTHY.split_once("Warnings").unwrap();
    assert_eq!(from_text(first), None, "cut short before what it warns of");
    assert_eq!(from_text(HEALTHY.trim_end()), None, "cut short within a line");
    let wrong =
        HEALTHY.replace("      1          3            1", "      x          3            1");
    assert_ne!(wrong, HEALTHY);
    assert_eq!(from_text(&wrong), None);
}

#[test]
fn a_size_that_no_job_has_is_no_answer() {
    let sizes = |nodes: u64, processes: u64| {
        let told =
            format!("(total)\n  {nodes}  {processes}  {processes}\n\nCommunicators...\nWarnings\n");
        from_text(&told).map(|answer| (answer.nodes, answer.processes))
    };
    assert_eq!(sizes(4, 31), Some((4, 31)));
    assert_eq!(sizes(u32::MAX.into(), u32::MAX.into()), None, "it would never be asked again");
    assert_eq!(sizes(5, 4), None);
}
