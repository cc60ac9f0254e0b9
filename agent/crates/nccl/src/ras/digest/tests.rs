use super::*;
use crate::ras::answer::{LocalNames, Process};
use crate::ras::json::from_json;
use crate::ras::tenant::Speaker;

const USER_GUIDE: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/user-guide-2.29.1.json");
const HERE: ProcKey = ProcKey { pid: 7, start_ticks: 70 };

/// A process of this node that answers, by its NCCL name.
fn server(host: &str, pid: i64) -> Server {
    let trusted = Process::named(host, pid).map(|name| (name, HERE)).into_iter().collect();
    Server {
        tenant: Speaker::Process(HERE),
        answering: vec![HERE],
        trusted: HashSet::from([HERE]),
        here: LocalNames { trusted, others: HashSet::new() },
        sees_host_pids: true,
    }
}

fn here() -> Server {
    server("172.16.64.245", 1_524_344)
}

fn read(text: &str) -> Answer {
    from_json(text.as_bytes(), &here().here).unwrap()
}

#[test]
fn a_rank_is_as_far_behind_as_the_foremost_one_is_ahead() {
    let text = USER_GUIDE.replace("\"AllReduce\": 0", "\"AllReduce\": 40");
    let mut answer = read(&text);
    answer.communicators[0].foremost = 46;
    let digest = digest(&answer, &here(), &HashSet::new());
    let known = &digest.communicators[0];
    let local: Vec<_> = known.local.iter().map(|one| (one.process, one.rank, one.behind)).collect();
    assert_eq!(local, vec![(HERE, 0, 6)]);
    let counts = (known.present, known.unresponsive, known.dead, known.left);
    assert_eq!(counts, (Some(1), 1, 0, 0));
    assert_eq!((digest.processes, digest.unresponsive, digest.dead), (2, 1, 0));
}

#[test]
fn an_answer_gives_local_ranks() {
    let answer = read(USER_GUIDE);
    let ranks = local_ranks(&answer, &here(), 9);
    let hash = CommunicatorHash(0xae94_423c_fbb2_ef4a);
    let one = LocalRank { hash, rank: 0, ranks: 2, device: Some(0) };
    let wanted = LocalRanks::from([(HERE, ReportedRanks { as_of_ns: 9, ranks: vec![one] })]);
    assert_eq!(ranks, wanted);
}

#[test]
fn a_rank_that_is_neither_late_nor_dead_has_left() {
    let text = USER_GUIDE.replace("\"unresponsive\": true", "\"unresponsive\": false");
    // The process that has left is the one that answers.
    let server = server("172.16.64.245", 1_524_345);
    let answer = from_json(text.as_bytes(), &server.here).unwrap();
    let digest = digest(&answer, &server, &HashSet::new());
    let known = &digest.communicators[0];
    assert_eq!((known.unresponsive, known.dead, known.left, known.local.len()), (0, 0, 1, 0));
}

#[test]
fn launch_counts_saturate() {
    let most = format!("\"AllGather\": {0}, \"ReduceScatter\": {0}", u64::MAX);
    let none = "\"AllGather\": 0,\n            \"ReduceScatter\": 0";
    let reported = USER_GUIDE.replacen(none, &most, 1);
    assert_ne!(reported, USER_GUIDE);
    let answer = read(&reported);
    assert_eq!(answer.communicators[0].foremost, u64::MAX);
}

#[test]
fn a_communicator_without_the_tenants_processes_is_dropped() {
    let others = server("10.0.0.1", 7);
    let answer = from_json(USER_GUIDE.as_bytes(), &others.here).unwrap();
    assert_eq!(digest(&answer, &others, &HashSet::new()).communicators, []);
    assert_eq!(local_ranks(&answer, &others, 9), LocalRanks::new());
    // Another source knows that one of its processes is in it.
    let known = HashSet::from([answer.communicators[0].hash]);
    let digest = digest(&answer, &others, &known);
    assert_eq!((digest.communicators.len(), digest.communicators[0].local.len()), (1, 0));
}
