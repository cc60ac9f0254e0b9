use super::*;
use crate::collect::ras::answer::from_json;

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
    communicator.ranks.push(Rank { number: 1, process: None, device: None, launched });
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
fn a_job_that_tells_more_launches_than_a_number_holds_is_behind_by_no_less() {
    let mut answer = from_json(USER_GUIDE.as_bytes()).unwrap();
    let communicator = &mut answer.communicators[0];
    let launched = vec![(Operation::AllReduce, u64::MAX), (Operation::Send, u64::MAX)];
    communicator.ranks.push(Rank { number: 99, process: None, device: None, launched });
    let all = &communicator.ranks[0].launched;
    let first: u64 = all.iter().map(|(_, launched)| launched).sum();
    let known = &digest(&answer, &here()).communicators[0];
    assert_eq!(known.local[0].behind, u64::MAX - first);
}
