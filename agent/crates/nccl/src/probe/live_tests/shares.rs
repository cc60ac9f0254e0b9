//! Tests of what one owner's calls leave to others: map entries, and counting.

use super::*;
use gpuwho_common::nccl::{EVERYBODY, MAX_COMMUNICATORS, PLACE_CALL, STRANGERS_ROOM};
use std::collections::{HashMap, HashSet};

const GREEDY: u32 = 7;
const OTHER: u32 = 8;

/// A greedy rank, another one and one of an unattributed process, on one library.
fn three() -> Option<(Scene, [Rank; 3], Bare)> {
    let scene = Scene::new();
    let ranks = [(); 3].map(|()| Rank::with(&scene.library()));
    let mut bare = Bare::on(&ranks[0], Way::Session)?;
    bare.quotas.follow(vec![(ranks[0].process(), GREEDY), (ranks[1].process(), OTHER)]);
    Some((scene, ranks, bare))
}

fn make(rank: &mut Rank, name: &str, count: u32) {
    let id = rank.order("id");
    for number in 0..count {
        assert_eq!(rank.order(&format!("init {name}{number} 1 0 {id}")), "0");
    }
}

/// Communicators in the map, of each rank.
fn held(bare: &Bare, ranks: &[Rank; 3]) -> [usize; 3] {
    let snapshot = bare.read();
    ranks.each_ref().map(|rank| of_pid(&snapshot, rank.child.id()).len())
}

#[test]
fn unattributed_processes_share_a_few_entries() {
    let Some((_scene, mut ranks, bare)) = three() else { return };
    make(&mut ranks[2], "s", 100);
    make(&mut ranks[1], "o", 200);
    assert_eq!(held(&bare, &ranks), [0, 200, 64]);
    let taken = bare.quotas.taken();
    assert_eq!(STRANGERS_ROOM[PLACE_COMMUNICATOR], 64);
    assert_eq!((taken[&STRANGERS].refused, taken[&OTHER].refused), ([36, 0, 0, 0], [0; 4]));
}

#[test]
fn an_owner_at_its_limit_leaves_entries_to_others_and_gets_freed_ones_back() {
    let Some((_scene, mut ranks, mut bare)) = three() else { return };
    make(&mut ranks[0], "g", 600);
    make(&mut ranks[1], "o", 300);
    let half = usize::try_from(MAX_COMMUNICATORS / 2).unwrap();
    assert_eq!(held(&bare, &ranks), [half, half / 2, 0]);
    // All of the greedy rank's entries are freed; the other's stay.
    let before = bare.quotas.taken();
    let snapshot = bare.read();
    let gone = of_pid(&snapshot, ranks[0].child.id());
    for (number, communicator) in &gone {
        bare.maps.remove(*number, Some(communicator), &[]);
    }
    let numbers: HashSet<u64> = gone.iter().map(|(number, _)| *number).collect();
    let left = bare.quotas.held(&snapshot, &[], &numbers, &HashSet::new());
    assert_eq!(left[&OTHER][PLACE_COMMUNICATOR], 256);
    bare.quotas.apply(&before, &left);
    make(&mut ranks[0], "again", 600);
    // Fewer than are free next to those of the other.
    assert_eq!(held(&bare, &ranks), [(1_024 - 256) / 2, 256, 0]);
}

#[test]
fn entries_taken_during_a_reading_are_not_freed() {
    let Some((_scene, mut ranks, mut bare)) = three() else { return };
    make(&mut ranks[0], "g", 500);
    let (before, snapshot) = (bare.quotas.taken(), bare.read());
    make(&mut ranks[0], "late", 5);
    let left = bare.quotas.held(&snapshot, &[], &HashSet::new(), &HashSet::new());
    bare.quotas.apply(&before, &left);
    make(&mut ranks[0], "more", 100);
    assert_eq!(held(&bare, &ranks), [512, 0, 0]);
}

#[test]
fn operations_by_size_are_shared_alike() {
    let Some((_scene, mut ranks, bare)) = three() else { return };
    let kinds = ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "Gather"];
    let id = ranks[2].order("id");
    for number in 0..60 {
        assert_eq!(ranks[2].order(&format!("init s{number} 1 0 {id}")), "0");
        for kind in kinds {
            for size in [16, 65_536] {
                ranks[2].order(&format!("call 1 nccl{kind} s{number} {size} 7"));
            }
        }
    }
    assert_eq!(bare.read().calls.len(), usize::try_from(STRANGERS_ROOM[PLACE_CALL]).unwrap());
    let taken = bare.quotas.taken();
    assert_eq!(taken[&STRANGERS].refused[PLACE_CALL], 60 * 12 - STRANGERS_ROOM[PLACE_CALL]);
    assert_eq!(taken[&EVERYBODY].taken[PLACE_CALL], STRANGERS_ROOM[PLACE_CALL]);
}

#[test]
fn while_one_owner_is_paused_others_are_counted_whole() {
    for way in [Way::Session, Way::Multi, Way::Each] {
        let scene = Scene::new();
        let mut ranks = [(); 2].map(|()| Rank::with(&scene.library()));
        let Some(mut bare) = Bare::on(&ranks[0], way) else { continue };
        let owners = [GREEDY, OTHER];
        bare.quotas.follow(ranks.iter().map(Rank::process).zip(owners).collect());
        for rank in &mut ranks {
            make(rank, "c", 1);
        }
        let mut counted = Vec::new();
        for allowed in [Attach::Full, Attach::Nothing, Attach::Entries, Attach::Full] {
            bare.quotas.allow(vec![(GREEDY, allowed)]);
            for rank in &mut ranks {
                assert_eq!(rank.order("call 10 ncclAllReduce c0 16 7"), "0");
            }
            let snapshot = bare.read();
            counted.extend(ranks.each_ref().map(|rank| {
                let (number, _) = only(of_pid(&snapshot, rank.child.id()));
                let (_, calls) = only(calls(&snapshot, number, operation::ALL_REDUCE));
                (calls.count, calls.enqueue.iter().sum::<u64>())
            }));
        }
        let wanted =
            [(10, 10), (10, 10), (10, 10), (20, 20), (20, 10), (30, 30), (30, 20), (40, 40)];
        assert_eq!(counted, wanted, "{way:?}");
    }
}

#[test]
fn an_owner_with_too_many_processes_leaves_rows_for_others() {
    let mut quotas = Quotas::default();
    let process = |pid: u32| ProcKey { pid, start_ticks: u64::from(pid) };
    let mut holders: Vec<(ProcKey, u32)> = (1..20_000).map(|pid| (process(pid), GREEDY)).collect();
    holders.push((process(30_000), OTHER));
    quotas.follow(holders);
    let owners = quotas.owners();
    let of = |owner| owners.values().filter(|of| **of == owner).count();
    assert_eq!((of(GREEDY), of(OTHER)), (4_096, 1));
    assert_eq!((quotas.owner_of(1), quotas.owner_of(19_999)), (GREEDY, STRANGERS));
}

#[test]
fn a_process_stays_with_its_first_owner_until_its_last_counts_are_read() {
    let mut quotas = Quotas::default();
    let process = |start_ticks| ProcKey { pid: 5, start_ticks };
    quotas.follow(vec![(process(1), GREEDY)]);
    quotas.follow(vec![(process(1), OTHER)]);
    assert_eq!(quotas.owner_of(5), GREEDY);
    quotas.follow(Vec::new());
    assert_eq!(quotas.owner_of(5), GREEDY, "its last counts");
    for _ in 0..2 {
        quotas.apply(&HashMap::new(), &HashMap::new());
    }
    assert_eq!(quotas.owner_of(5), STRANGERS);
    quotas.follow(vec![(process(2), OTHER)]);
    assert_eq!(quotas.owner_of(5), OTHER, "another process");
}
