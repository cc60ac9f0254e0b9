use super::*;
use crate::collect::ras::answer::from_json;
use crate::collect::ras::text::from_text;

const USER_GUIDE: &str = include_str!("../../../../tests/fixtures/nccl-ras/user-guide-2.29.1.json");
const HERE: ProcKey = ProcKey { pid: 7, start_ticks: 70 };

fn here() -> HashMap<Process, ProcKey> {
    let process = Process { host: "172.16.64.245".into(), pid: 1_524_344 };
    HashMap::from([(process, HERE)])
}

#[test]
fn a_rank_is_as_far_behind_as_the_foremost_one_is_ahead() {
    let text = USER_GUIDE.replace("\"AllReduce\": 0", "\"AllReduce\": 40");
    let mut answer = from_json(text.as_bytes()).unwrap();
    let communicator = &mut answer.communicators[0];
    let launched = vec![(Operation::AllReduce, 45), (Operation::Send, 1)];
    let ahead = Rank { number: 1, process: None, device: None, launched, total: 46 };
    communicator.ranks.push(ahead);
    communicator.foremost = 46;
    let digest = digest(&answer, &here());
    let known = &digest.communicators[0];
    let local: Vec<_> = known.local.iter().map(|one| (one.process, one.rank, one.behind)).collect();
    assert_eq!(local, vec![(HERE, 0, 6)]);
    let counts = (known.present, known.unresponsive, known.dead, known.left);
    assert_eq!(counts, (Some(2), 1, 0, 0));
    assert_eq!((digest.processes, digest.unresponsive, digest.dead), (2, 1, 0));
}

#[test]
fn only_an_answer_that_names_everybody_names_anybody() {
    let mut answer = from_json(USER_GUIDE.as_bytes()).unwrap();
    let ranks = local_ranks(&answer, &here(), 9);
    let hash = CommunicatorHash(0xae94_423c_fbb2_ef4a);
    let one = LocalRank { hash, rank: 0, ranks: 2, device: Some(0) };
    let wanted = HashMap::from([(HERE, ToldRanks { as_of_ns: 9, ranks: vec![one] })]);
    assert_eq!(ranks, wanted);
    answer.is_whole = false;
    assert_eq!(local_ranks(&answer, &here(), 9), HashMap::new());
}

#[test]
fn a_rank_that_is_neither_late_nor_dead_has_left() {
    let text = USER_GUIDE.replace("\"unresponsive\": true", "\"unresponsive\": false");
    let digest = digest(&from_json(text.as_bytes()).unwrap(), &HashMap::new());
    let known = &digest.communicators[0];
    assert_eq!((known.unresponsive, known.dead, known.left, known.local.len()), (0, 0, 1, 0));
}

#[test]
fn a_text_tells_how_far_behind_a_rank_is_and_who_has_left() {
    const TEXT: &str =
        include_str!("../../../../tests/fixtures/nccl-ras/reconstructed-2.28-mismatch.txt");
    let process = Process { host: "172.16.64.210".into(), pid: 483_078 };
    let digest = digest(&from_text(TEXT).unwrap(), &HashMap::from([(process, HERE)]));
    let launched = vec![(Operation::Broadcast, 0), (Operation::AllReduce, 6_600)];
    let known = Known {
        hash: CommunicatorHash(0xcf26_4af5_3edb_e986),
        present: None,
        unresponsive: 1,
        dead: 0,
        left: 2,
        local: vec![Local { process: HERE, rank: 6, launched, behind: 62 }],
    };
    assert_eq!(digest.communicators[0], known);
    // Not listed, since most have.
    let other = &digest.communicators[1];
    assert_eq!((other.unresponsive, other.left, other.local.len()), (0, 5, 0));
}

#[test]
fn a_job_that_tells_more_launches_than_a_number_holds_is_behind_by_no_less() {
    let most = format!("\"AllGather\": {0}, \"ReduceScatter\": {0}", u64::MAX);
    let none = "\"AllGather\": 0,\n            \"ReduceScatter\": 0";
    let told = USER_GUIDE.replacen(none, &most, 1);
    assert_ne!(told, USER_GUIDE);
    let answer = from_json(told.as_bytes()).unwrap();
    assert_eq!(answer.communicators[0].foremost, u64::MAX);
}
