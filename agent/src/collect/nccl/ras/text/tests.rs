use super::*;
use crate::collect::nccl::ras::answer::LaunchCounts;
use crate::collect::nccl::ras::answer::Rank;
use crate::ids::ProcKey;
use std::fmt::Write as _;

const HEALTHY: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/libnccl-2.27.5-three-ranks.txt");
const DEAD: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/reconstructed-2.27-dead.txt");
const MISSING: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/reconstructed-2.24-missing.txt");

/// Format of `src/ras/client_support.cc` at v2.24.3-1 and v2.25.1-1.
const MISMATCH_2_24: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/reconstructed-2.24-mismatch.txt");
/// Format of the same file at v2.26.2-1 to v2.28.3-1.
const MISMATCH_2_28: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/reconstructed-2.28-mismatch.txt");

fn process(pid: u32) -> Process {
    on("172.16.64.213", pid)
}

fn absent(rank: u32, process: Option<Process>, is_dead: bool) -> MissingRank {
    MissingRank { rank, process, is_unresponsive: true, is_dead }
}

fn on(host: &str, pid: u32) -> Process {
    Process::named(host, pid.into()).unwrap()
}

fn rank(number: u32, process: Process, counts: &[(&str, u64)]) -> Rank {
    let mut launched = LaunchCounts::default();
    for (name, count) in counts {
        launched.put(name, *count);
    }
    Rank { number, process, device: None, launched, total: launched.total() }
}

/// All named processes are on this node and trusted.
fn trust_all(text: &str) -> LocalNames {
    let named = text.lines().filter_map(manager);
    let key = |process: Process| ProcKey { pid: process.pid, start_ticks: 1 };
    let trusted = named.map(|process| (process, key(process))).collect();
    LocalNames { trusted, others: HashSet::new() }
}

fn read(text: &str) -> Option<Answer> {
    from_text(text, &trust_all(text)).ok()
}

/// One whose process has answered and is not a member.
fn left(rank: u32, process: Option<Process>) -> MissingRank {
    MissingRank { is_unresponsive: false, ..absent(rank, process, false) }
}

#[test]
fn the_size_of_a_job_and_differing_ranks_are_read() {
    let behind = rank(1, on("127.0.0.1", 13_029), &[("AllReduce", 49)]);
    let communicator = Communicator {
        ranks: vec![behind],
        foremost: 50,
        ..Communicator::new(CommunicatorHash(0x1db1_4a8a_713c_2fa5))
    };
    let wanted =
        Answer { nodes: 1, processes: 3, communicators: vec![communicator], ..Answer::default() };
    assert_eq!(read(HEALTHY), Some(wanted.clone()));
    let (same, _) = HEALTHY.split_once("#0-0").unwrap();
    assert_eq!(read(same), Some(Answer { communicators: Vec::new(), ..wanted }));
}

#[test]
fn the_oldest_format_lists_non_members_and_total_counts() {
    let answer = read(MISMATCH_2_24).unwrap();
    let behind = |number, pid| Rank { total: 6_649, ..rank(number, on("172.16.64.210", pid), &[]) };
    let world = Communicator {
        // Rank 9 has no process there.
        ranks: vec![behind(0, 483_072), behind(2, 483_074)],
        absent: vec![left(3, None), left(21, None)],
        missing: 2,
        left: 2,
        foremost: 6_651,
        ..Communicator::new(CommunicatorHash(0xcf26_4af5_3edb_e986))
    };
    let aborted = Communicator::new(CommunicatorHash(0x1db1_4a8a_713c_2fa5));
    let smaller = Communicator {
        absent: vec![left(5, None)],
        missing: 1,
        left: 1,
        ..Communicator::new(CommunicatorHash(0x3a4b_5c6d_7e8f_9012))
    };
    assert_eq!(answer.communicators, vec![world, aborted, smaller]);
    assert_eq!((answer.dead_count, answer.late_count), (0, 0));
}

#[test]
fn ranks_listed_twice_in_the_oldest_format_are_missing_once() {
    let again = "\n#0-0 (cf264af53edbe986) MISMATCH\n  Communicator ranks have different status\n  \
                 30 ranks have status RUNNING\n  Rank 7 has status FINALIZE -- GPU 7 managed by \
                 process 483079 on node 172.16.64.210\n  Rank 21 has status UNKNOWN\n\n";
    let answer = read(&format!("{MISSING}{again}")).unwrap();
    let communicator = &answer.communicators[0];
    assert_eq!(answer.communicators.len(), 1);
    assert_eq!(
        (&communicator.absent, communicator.missing, communicator.left),
        (&vec![absent(21, None, false)], 1, 0)
    );
}

#[test]
fn a_truncated_list_of_ranks_is_read_up_to_the_last_whole_one() {
    let all: Vec<String> = (1_000..1_300).map(|rank| rank.to_string()).collect();
    let (list, lost) =
        all.join(",").split_at_checked(1_023).map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    assert!(lost > 0 && list.ends_with("120"), "{list}");
    let text = MISSING.replace("The missing rank: 21", &format!("The missing ranks: {list}"));
    let answer = read(&text.replace("from 1 rank\n", "from 300 ranks\n")).unwrap();
    let communicator = &answer.communicators[0];
    let ranks: Vec<u32> = communicator.absent.iter().map(|absent| absent.rank).collect();
    assert_eq!((ranks, communicator.missing), ((1_000..1_204).collect(), 300));
}

#[test]
fn non_members_and_lagging_ranks_are_read_by_operation() {
    let answer = read(MISMATCH_2_28).unwrap();
    let node = "172.16.64.210";
    let counts = |broadcast, all_reduce| [("Broadcast", broadcast), ("AllReduce", all_reduce)];
    let world = Communicator {
        ranks: vec![
            rank(0, on(node, 483_072), &counts(12, 6_649)),
            rank(2, on(node, 483_074), &counts(12, 6_649)),
            rank(6, on(node, 483_078), &counts(0, 6_600)),
        ],
        absent: vec![
            absent(21, Some(process(3_487_984)), false),
            left(3, Some(on(node, 483_075))),
            left(4, None),
        ],
        missing: 3,
        left: 2,
        foremost: 6_662,
        ..Communicator::new(CommunicatorHash(0xcf26_4af5_3edb_e986))
    };
    let most_left = Communicator {
        missing: 5,
        left: 5,
        ..Communicator::new(CommunicatorHash(0x1db1_4a8a_713c_2fa5))
    };
    assert_eq!(answer.communicators, vec![world, most_left]);
}

#[test]
fn dead_and_missing_processes_are_read_with_their_ranks() {
    let answer = read(DEAD).unwrap();
    let lost = |pid, devices| LostProcess { process: process(pid), devices };
    assert_eq!((answer.nodes, answer.processes), (4, 31));
    assert_eq!((answer.dead, answer.dead_count), (vec![lost(3_487_984, 1 << 5)], 1));
    assert_eq!((answer.late, answer.late_count), (vec![lost(3_487_985, 3 << 6)], 1));
    let wanted = Communicator {
        ranks: vec![
            rank(0, on("172.16.64.210", 483_072), &[("AllReduce", 6_649)]),
            rank(2, on("172.16.64.210", 483_074), &[("AllReduce", 6_649)]),
        ],
        absent: vec![
            absent(21, Some(process(3_487_984)), true),
            absent(22, Some(process(3_487_985)), false),
            absent(23, None, false),
        ],
        missing: 3,
        foremost: 6_650,
        ..Communicator::new(CommunicatorHash(0xcf26_4af5_3edb_e986))
    };
    assert_eq!(answer.communicators, vec![wanted]);
}

/// Recorded from three processes of the library, one of them stopped for 75 seconds.
#[test]
fn a_recorded_dead_process_is_read() {
    const RECORDED: &str =
        include_str!("../../../../../../tests/fixtures/nccl-ras/libnccl-2.27.5-one-dead.txt");
    let process = on("127.0.0.1", 13_033);
    let communicator = Communicator {
        ranks: vec![
            rank(0, on("127.0.0.1", 13_028), &[("AllReduce", 50)]),
            rank(1, on("127.0.0.1", 13_029), &[("AllReduce", 49)]),
        ],
        absent: vec![absent(2, Some(process), true)],
        missing: 1,
        foremost: 50,
        ..Communicator::new(CommunicatorHash(0x1db1_4a8a_713c_2fa5))
    };
    let wanted = Answer {
        nodes: 1,
        processes: 3,
        communicators: vec![communicator],
        dead: vec![LostProcess { process, devices: 1 << 2 }],
        dead_count: 1,
        ..Answer::default()
    };
    assert_eq!(read(RECORDED), Some(wanted));
}

#[test]
fn the_oldest_format_lists_missing_ranks_by_number() {
    let answer = read(MISSING).unwrap();
    assert_eq!(answer.late_count, 1);
    let communicator = &answer.communicators[0];
    assert_eq!((&communicator.absent, communicator.missing), (&vec![absent(21, None, false)], 1));
}

#[test]
fn a_text_without_its_headings_is_invalid() {
    for text in ["", "HTTP/1.1 400 Bad Request\r\n\r\n", "Job summary\n", "Communicators...\n"] {
        assert_eq!(read(text), None, "{text}");
    }
    let (first, _) = HEALTHY.split_once("Communicators").unwrap();
    assert_eq!(read(first), None, "cut short");
    let (first, _) = HEALTHY.split_once("Warnings").unwrap();
    assert_eq!(read(first), None, "cut short before what it warns of");
    assert_eq!(read(HEALTHY.trim_end()), None, "cut short within a line");
    let wrong =
        HEALTHY.replace("      1          3            1", "      x          3            1");
    assert_ne!(wrong, HEALTHY);
    assert_eq!(read(&wrong), None);
}

#[test]
fn an_impossible_job_size_is_invalid() {
    let sizes = |nodes: u64, processes: u64| {
        let found =
            format!("(total)\n  {nodes}  {processes}  {processes}\n\nCommunicators...\nWarnings\n");
        read(&found).map(|answer| (answer.nodes, answer.processes))
    };
    assert_eq!(sizes(4, 31), Some((4, 31)));
    assert_eq!(sizes(u32::MAX.into(), u32::MAX.into()), None, "it would never be asked again");
    assert_eq!(sizes(5, 4), None);
}

#[test]
fn only_trusted_processes_are_stored_and_claims_about_others_are_counted() {
    let mut here = trust_all(DEAD);
    let other = on("172.16.64.210", 483_074);
    here.trusted.remove(&other);
    here.others.insert(other);
    let answer = from_text(DEAD, &here).unwrap();
    let ranks: Vec<u32> = answer.communicators[0].ranks.iter().map(|rank| rank.number).collect();
    assert_eq!((ranks, answer.claims), (vec![0], 1));
}

/// A status with this body.
fn reported(body: &str) -> String {
    format!("(total)\n  1  1  1\n\nCommunicators...\n\nWarnings\n{body}\n")
}

#[test]
fn a_text_is_bounded_and_takes_linear_time() {
    let (mut communicators, mut unequal) = (String::new(), String::new());
    let mut dead = String::from("DEAD\n");
    unequal +=
        "#0-0 (1) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n";
    for number in 0..20_000_u32 {
        writeln!(communicators, "#0-0 ({number:x}) INCOMPLETE").unwrap();
        let at = format!("GPU 0 managed by process {number} on node 10.0.0.1");
        writeln!(unequal, "  Rank {number} has launched up to operation {number} -- {at}").unwrap();
        writeln!(dead, "  Process {number}1 on node 10.0.0.1 managing GPU 5").unwrap();
    }
    for fits in [communicators, unequal, dead] {
        // With quadratic time this would take minutes.
        assert!(read(&reported(&fits)).is_some());
    }
    let short = "  The missing ranks: 0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n".repeat(1 << 13);
    let error =
        from_text(&reported(&format!("#0-0 (1) INCOMPLETE\n{short}")), &LocalNames::default());
    assert!(matches!(error, Err(TextError::TooMany)), "{error:?}");
}
