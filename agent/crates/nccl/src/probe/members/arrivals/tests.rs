use super::*;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::communicators::{CommunicatorHash, Communicators, MemberFacts, MemberKey};

const GROUP: Group = Group { hash: CommunicatorHash(1), owner: None };

fn members(count: u32) -> Vec<MemberId> {
    let communicators = Communicators::default();
    let member = |pid| {
        let process = ProcKey { pid, start_ticks: 1 };
        communicators.put(MemberKey { process, number: 1 }, MemberFacts::new(process))
    };
    (0..count).map(member).collect()
}

/// The ring after calls at these times; the kind of each is its number modulo `period`.
fn ring(times: &[u64], period: u64) -> [Arrival; ARRIVALS] {
    let mut ring = [Arrival { at_ns: 0, what: 0 }; ARRIVALS];
    for (sequence, at_ns) in (1_u64..).zip(times) {
        let place = usize::try_from(sequence).unwrap() % ARRIVALS;
        ring[place] = Arrival { at_ns: *at_ns, what: (sequence << 32) | (sequence % period) };
    }
    ring
}

fn arrived<'a>(member: MemberId, times: &[u64], ring: &'a [Arrival; ARRIVALS]) -> LatestCalls<'a> {
    LatestCalls { member, sequence: times.len() as u64, arrivals: ring }
}

#[test]
fn the_last_rank_has_the_spread_and_each_rank_its_skew() {
    let ids = members(3);
    let times = [vec![100, 1_100], vec![150, 3_000_100], vec![90, 1_090]];
    let rings: Vec<_> = times.iter().map(|times| ring(times, 7)).collect();
    let ranks: Vec<_> = (0..3).map(|rank| arrived(ids[rank], &times[rank], &rings[rank])).collect();
    let mut comparison = Comparison::default();
    comparison.compare(GROUP, &ranks);
    comparison.compare(GROUP, &ranks);
    let found = |rank: usize| {
        let found = comparison.of(ids[rank]).unwrap();
        (found.compared, found.skew_ns, found.spread.count())
    };
    assert_eq!(
        [found(0), found(1), found(2)],
        [(2, 10 + 10, 0), (2, 60 + 2_999_010, 2), (2, 0, 0)]
    );
    let spread = &comparison.of(ids[1]).unwrap().spread;
    assert!((spread.sum - (60.0 + 2_999_010.0) / 1e9).abs() < 1e-12, "{spread:?}");
}

#[test]
fn a_rank_that_is_behind_holds_back_the_comparison_only() {
    let ids = members(2);
    let (ahead, behind) = (vec![1_000; 600], vec![2_000; 500]);
    let rings = [ring(&ahead, 7), ring(&behind, 7)];
    let ranks = [arrived(ids[0], &ahead, &rings[0]), arrived(ids[1], &behind, &rings[1])];
    let mut comparison = Comparison::default();
    comparison.compare(GROUP, &ranks);
    // 345..=500: those that both rings still have.
    assert_eq!(comparison.of(ids[1]).unwrap().compared, 156);
}

#[test]
fn another_operation_at_the_same_place_is_a_mismatch() {
    let ids = members(2);
    let times = vec![10, 20];
    let (one, mut other) = (ring(&times, 7), ring(&times, 7));
    other[2].what ^= 1;
    let ranks = [arrived(ids[0], &times, &one), arrived(ids[1], &times, &other)];
    let mut comparison = Comparison::default();
    comparison.compare(GROUP, &ranks);
    let mismatches: u64 = ids.iter().map(|member| comparison.of(*member).unwrap().mismatches).sum();
    assert_eq!(mismatches, 1);
}

#[test]
fn steps_are_the_repetitions_of_the_pattern() {
    let member = members(1)[0];
    let mut steps = Steps::default();
    // Four collectives per step of a millisecond.
    let times: Vec<u64> = (0..40).map(|call| 1 + call / 4 * 1_000_000 + call % 4).collect();
    for called in [12, 13, 40] {
        let times = &times[..called];
        let ring = ring(times, 4);
        steps.take(&arrived(member, times, &ring));
    }
    assert_eq!(steps.interval.count(), 9);
    assert!((steps.interval.sum - 0.009).abs() < 1e-9, "{:?}", steps.interval);
}

#[test]
fn calls_without_a_pattern_have_no_steps() {
    let member = members(1)[0];
    let times: Vec<u64> = (1..200).collect();
    let ring = ring(&times, 1_000);
    let mut steps = Steps::default();
    steps.take(&arrived(member, &times, &ring));
    assert_eq!(steps.interval.count(), 0);
}

#[test]
fn time_buckets_are_those_of_the_programs() {
    for (at, bound) in TIME_BOUNDS.iter().enumerate() {
        let mut histogram = Histogram::new(&TIME_BOUNDS);
        histogram.observe(*bound);
        let ns = FIRST_BUCKET_NS << (2 * at);
        assert_eq!(gpuwho_common::nccl::bucket(ns), at);
        assert_eq!(gpuwho_common::nccl::bucket(ns + 1), at + 1);
        assert_eq!(histogram.counts.iter().position(|count| *count == 1), Some(at));
    }
}
