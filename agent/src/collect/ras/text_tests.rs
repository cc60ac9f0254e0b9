use super::*;
use crate::communicators::CommunicatorHash;

const HEALTHY: &str =
    include_str!("../../../../tests/fixtures/nccl-ras/libnccl-2.27.5-three-ranks.txt");
const DEAD: &str = include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.27-dead.txt");
const MISSING: &str =
    include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.24-missing.txt");

fn process(pid: u32) -> Process {
    Process { host: "172.16.64.213".into(), pid }
}

fn absent(rank: u32, process: Option<Process>, is_dead: bool) -> Absent {
    Absent { rank, process, device: None, is_unresponsive: true, is_dead }
}

#[test]
fn a_healthy_job_tells_its_size_and_no_names() {
    let wanted = Answer { version: "2.27.5".into(), nodes: 1, processes: 3, ..Answer::default() };
    assert_eq!(from_text(HEALTHY), Some(wanted));
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
        ranks: Vec::new(),
        absent: vec![
            absent(21, Some(process(3_487_984)), true),
            absent(22, Some(process(3_487_985)), false),
            absent(23, None, false),
        ],
        missing: 3,
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
        ranks: Vec::new(),
        absent: vec![absent(2, Some(process.clone()), true)],
        missing: 1,
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
    let wrong =
        HEALTHY.replace("      1          3            1", "      x          3            1");
    assert_ne!(wrong, HEALTHY);
    assert_eq!(from_text(&wrong), None);
}

#[test]
fn a_size_that_no_job_has_is_no_answer() {
    let sizes = |nodes: u64, processes: u64| {
        let told = format!("(total)\n  {nodes}  {processes}  {processes}\n\nCommunicators...\n");
        from_text(&told).map(|answer| (answer.nodes, answer.processes))
    };
    assert_eq!(sizes(4, 31), Some((4, 31)));
    assert_eq!(sizes(u32::MAX.into(), u32::MAX.into()), None, "it would never be asked again");
    assert_eq!(sizes(5, 4), None);
}
