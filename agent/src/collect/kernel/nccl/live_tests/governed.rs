//! What is left of the counts while the probes are cut back, and what that costs.

use super::*;
use crate::catalog::event::EventKind;
use crate::collect::schedule::thread_cpu;
use crate::event::{Governed, Severity};
use aya::maps::HashMap;
use gpuwho_common::nccl::{LOST_THREAD, PLACE_THREAD, STRANGERS_ROOM, Thread};

/// Everything that the governor told, whole.
fn told(source: &Source) -> Vec<(Severity, Governed)> {
    let events = source.desk.drain().into_iter().map(|event| event.what);
    let events = events.filter(|what| what.kind == EventKind::GovernorChange);
    events.map(|what| (what.severity, *what.governed.unwrap())).collect()
}

/// Attached and wanted seconds so far, and the calls counted.
fn sums(source: &mut Source, rank: &Rank) -> (f64, f64, f64) {
    let told = source.read();
    let seconds = |metric: &str, dims: &str| match told.all(metric).get(&(
        0,
        "-".to_owned(),
        dims.to_owned(),
    )) {
        Some(Value::Double(seconds)) => *seconds,
        other => panic!("{metric}: {other:?}"),
    };
    let calls = told.int("nccl.collective.calls", rank, "all_reduce lt_4KiB").unwrap_or(0);
    (
        seconds("nccl.probe.attached_time", "entry"),
        seconds("nccl.probe.wanted_time", ""),
        calls as f64,
    )
}

#[test]
fn each_step_of_the_governor_is_an_event_with_library_rate_price_and_budget() {
    use GovernorLevel::{Cycled, Detached, Entries, Full};
    let patience = Patience { rest: Duration::from_secs(1), calm_looks: 1 };
    let Some(mut source) = Source::patient(Duration::from_mins(1), Some(500), patience) else {
        return;
    };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    source.read();
    until_level(&mut source, &mut ranks, "pace 100 400 ncclAllReduce world 16 7", Entries);
    until_level(&mut source, &mut ranks, "pace 1000 4000 ncclAllReduce world 16 7", Cycled);
    until_level(&mut source, &mut ranks, "storm 200 ncclAllReduce world 16 7", Detached);
    until_level(&mut source, &mut ranks, "pace 20 50 ncclAllReduce world 16 7", Full);
    let told = told(&source);
    let mut steps: Vec<_> = told.iter().map(|(_, one)| (one.before, one.level)).collect();
    steps.dedup();
    // At the border of the budget a level may come twice.
    for wanted in [
        (Full, Entries),
        (Entries, Cycled),
        (Cycled, Detached),
        (Detached, Entries),
        (Entries, Full),
    ] {
        assert!(steps.contains(&wanted), "{wanted:?} in {told:?}");
    }
    for (severity, one) in &told {
        assert_eq!(&*one.libraries, scene.library().to_str().unwrap());
        assert_eq!((&*one.versions, one.budget), ("2.29.7+cuda13.0", 500));
        assert!((200..100_000).contains(&one.hit_ns), "{one:?}");
        let is_less = matches!(
            (one.before, one.level),
            (Full, Entries) | (Entries, Cycled) | (Entries | Cycled, Detached)
        );
        if is_less {
            assert_eq!(*severity, Severity::Warning);
            assert!(one.rate > one.budget, "{one:?}");
        }
    }
}

#[test]
fn counts_divided_by_coverage_are_the_calls_made_while_the_governor_takes_turns() {
    use GovernorLevel::Cycled;
    let Some(mut source) = Source::start(Duration::from_mins(1), 1_000) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    source.read();
    until_level(&mut source, &mut ranks, "pace 2000 4000 ncclAllReduce world 16 7", Cycled);
    let before = sums(&mut source, &ranks[0]);
    let made = 60_000.0;
    ranks[0].order("pace 60000 4000 ncclAllReduce world 16 7");
    let after = sums(&mut source, &ranks[0]);
    let level = source.nccl.shared.with(|known| known.level);
    let covered = (after.0 - before.0) / (after.1 - before.1);
    let counted = after.2 - before.2;
    let found = counted / covered / made;
    println!("{counted} of {made} counted, {covered:.4} covered: {found:.3} of the calls made");
    assert_eq!(level, Cycled);
    assert!(covered < 0.7 && counted < 0.8 * made, "{covered}");
    // A dozen seconds with turns of one: what is off is the load's own unevenness.
    assert!((found - 1.0).abs() < 0.15, "{found}");
}

#[test]
fn a_storm_is_over_for_its_makers_within_seconds_and_costs_the_agent_next_to_nothing() {
    let Some(mut source) = Source::patient(Duration::from_mins(1), None, Patience::default())
    else {
        return;
    };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 2);
    source.read();
    let began = Instant::now();
    let watched = |source: &Source| {
        source.board.all().remove("nccl:watch").and_then(|of| of.cpu_seconds).unwrap()
    };
    let watched_before = watched(&source);
    let (mut relieved, mut then) = (None, None);
    let mut best = (0.0_f64, u64::MAX);
    while began.elapsed() < Duration::from_secs(20) {
        let (rate, ns) = storm(&mut ranks, 250);
        let (level, detaching) = source.nccl.shared.with(|known| (known.level, known.detaching));
        // By turns or not at all, as quick as this machine is at the moment.
        let is_let_go = matches!(level, GovernorLevel::Cycled | GovernorLevel::Detached);
        if is_let_go && detaching == 0 {
            relieved.get_or_insert_with(|| began.elapsed());
            then.get_or_insert_with(|| {
                source.nccl.shared.with(|known| known.covers.read(Instant::now()).all)
            });
            if rate > best.0 {
                best = (rate, ns);
            }
        }
    }
    let (lasted, reading) = (began.elapsed(), thread_cpu());
    source.read();
    // And a reading each ten seconds.
    let read = 2.0 * thread_cpu().saturating_sub(reading).as_secs_f64();
    let spent = (watched(&source) - watched_before + read) / lasted.as_secs_f64();
    let (relieved, then) = (relieved.unwrap(), then.unwrap());
    let since = source.nccl.shared.with(|known| known.covers.read(Instant::now()).all).since(then);
    let [covered, _] = since.parts().unwrap();
    println!(
        "let go after {relieved:?}; then {:.0} calls/s of {} ns, {covered:.3} covered; \
         agent {:.3} % of a core",
        best.0,
        best.1,
        100.0 * spent
    );
    // A look a second, and a machine that does other things as well.
    assert!(relieved < Duration::from_secs(10), "{relieved:?}");
    assert!(best.0 > 1e6, "{best:?}");
    assert!(covered < 0.3, "{covered}");
    // What it costs is for the bench to say; this only finds that it grows with the calls.
    assert!(spent < 0.01, "{spent}");
}

/// Takes the probes off once the programs have seen something begin.
fn let_go_when(bare: &mut Bare, has_begun: impl Fn(&Bare) -> bool) {
    let end = Instant::now() + DEADLINE;
    while !has_begun(bare) {
        assert!(Instant::now() < end, "it does not begin");
    }
    bare.allow(Attach::Nothing);
    drop(std::mem::take(&mut bare.attached).into_holds());
}

fn attach_again(bare: &mut Bare, rank: &Rank) {
    let libraries = looked_at(&Paths::default(), &[rank.process()]);
    let library = libraries.in_use().next().unwrap().1;
    let target = Target { file: &library.place(), exports: &library.exports, number: 1 };
    bare.attached = bare.probes.attach(&target, true).unwrap();
    bare.allow(Attach::Full);
}

#[test]
fn a_call_whose_return_was_not_seen_hides_no_later_one() {
    let Some((_scene, mut rank, mut bare)) = alone(Way::Session, 0) else { return };
    // Longer than it takes to detach, on a busy machine too.
    rank.order("take 2000000000");
    rank.begin("call 1 ncclAllReduce world 16 7");
    let pid = rank.child.id();
    let is_open = |bare: &Bare| bare.read().threads.iter().any(|(_, one)| one.open.since_ns != 0);
    let_go_when(&mut bare, is_open);
    assert_eq!(rank.answer(), "0");
    assert!(is_open(&bare), "its return was seen");
    rank.order("take 0");
    attach_again(&mut bare, &rank);
    assert_eq!(rank.order("call 5 ncclAllReduce world 16 7"), "0");
    let snapshot = bare.read();
    let (number, found) = only(of_pid(&snapshot, pid));
    assert_eq!(found.activity.calls, 6);
    let (_, reduced) = only(calls(&snapshot, number, operation::ALL_REDUCE));
    assert_eq!((reduced.count, reduced.enqueue.iter().sum::<u64>()), (6, 5));
}

#[test]
fn a_group_whose_end_was_not_seen_is_no_group_for_later_calls() {
    let Some((_scene, mut rank, mut bare)) = alone(Way::Session, 0) else { return };
    // Longer than it takes to detach, on a busy machine too.
    rank.order("take 2000000000");
    rank.begin("group 2 ncclAllReduce world 16 7");
    let depth = |bare: &Bare| bare.read().threads.iter().any(|(_, one)| one.group.depth == 1);
    let_go_when(&mut bare, depth);
    rank.answer();
    rank.order("take 0");
    attach_again(&mut bare, &rank);
    assert_eq!(rank.order("call 3 ncclReduce world 16 7"), "0");
    rank.order("group 2 ncclBroadcast world 16 7");
    let snapshot = bare.read();
    let (number, _) = only(of_pid(&snapshot, rank.child.id()));
    let timed = |operation| {
        let (_, calls) = only(calls(&snapshot, number, operation));
        (calls.count, calls.enqueue.iter().sum::<u64>())
    };
    // Alone each is timed, in a group the launch is.
    assert_eq!((timed(operation::REDUCE), timed(operation::BROADCAST)), ((3, 3), (2, 1)));
}

#[test]
fn what_finds_no_room_is_counted_by_what_was_full() {
    let Some(mut source) = Source::usual() else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    let id = rank.order("id");
    let kinds = [
        "ncclAllReduce",
        "ncclAllGather",
        "ncclReduceScatter",
        "ncclBroadcast",
        "ncclReduce",
        "ncclGather",
        "ncclScatter",
        "ncclAlltoAll",
        "ncclSend",
        "ncclRecv",
    ];
    // 450 of ten kinds each, where one owner may have half of 8,192; one is there already without
    // calls.
    for number in 0..450 {
        rank.order(&format!("init c{number} 1 0 {id}"));
        for kind in kinds {
            rank.order(&format!("call 1 {kind} c{number} 16 7"));
        }
    }
    let lost = vec![
        (DropReason::CommunicatorsFull, 0),
        (DropReason::OperationsFull, 4_500 - 4_096),
        (DropReason::ThreadsFull, 0),
    ];
    source.until("losses counted", |source| source.nccl.report().dropped == lost);
    source.read();
    assert_eq!(source.entries()[..2], [451, 4_096]);
    drop(ranks);
    source.read();
    assert_eq!(source.entries(), [0, 0, 0]);
}

#[test]
fn a_thread_that_finds_no_room_is_counted_and_its_calls_are_not() {
    let Some((_scene, mut rank, mut bare)) = alone(Way::Session, 0) else { return };
    let me = bare.read().threads[0];
    let mut threads = HashMap::<_, u64, Thread>::try_from(&mut bare.maps.threads).unwrap();
    threads.remove(&me.0).unwrap();
    // As many of strangers as may be.
    let taken = bare.quotas.taken();
    let held = [0, 0, STRANGERS_ROOM[PLACE_THREAD], 0];
    bare.quotas.settle(&taken, &[(STRANGERS, held)].into());
    rank.order("call 7 ncclAllReduce world 16 7");
    let lost = bare.probes.counts.get(&LOST_THREAD, 0).unwrap().iter().sum::<u64>();
    let snapshot = bare.read();
    let (_, found) = only(of_pid(&snapshot, rank.child.id()));
    assert_eq!((lost, found.activity.calls), (7, 0));
    assert_eq!(snapshot.threads.len(), 0);
    assert_eq!(bare.quotas.taken()[&STRANGERS].refused, [0, 0, 7, 0]);
}

#[test]
fn a_handle_that_stands_for_another_communicator_is_looked_up_again() {
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    let Some(mut bare) = Bare::on(&rank, Way::Session) else { return };
    let id = rank.order("id");
    // Sizes that only user space learns, and one handle after the other.
    for turn in 1..4_u32 {
        assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
        rank.order("call 2 ncclReduceScatter world 100 0");
        let (_, found) = only(
            of_pid(&bare.read(), rank.child.id())
                .into_iter()
                .filter(|(_, one)| one.activity.ended_ns == 0),
        );
        bare.maps.size(found.identity.handle, rank.child.id(), 1 + turn);
        rank.order("call 3 ncclReduceScatter world 100 0");
        assert_eq!(rank.order("destroy world"), "0");
    }
    let snapshot = bare.read();
    let mut all = of_pid(&snapshot, rank.child.id());
    all.sort_by_key(|(_, one)| one.identity.born_ns);
    let bytes = all.iter().map(|(number, _)| {
        let (_, calls) = only(calls(&snapshot, *number, operation::REDUCE_SCATTER));
        (calls.count, calls.bytes)
    });
    let bytes: Vec<(u64, u64)> = bytes.collect();
    assert_eq!(bytes, [(5, 2 * 100 + 3 * 200), (5, 2 * 100 + 3 * 300), (5, 2 * 100 + 3 * 400)]);
}

#[test]
fn stepping_through_is_dearer_and_the_programs_part_is_measured() {
    let Some(mut source) = Source::patient(Duration::from_mins(1), None, Patience::default())
    else {
        return;
    };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    let usual = super::super::price::USUAL;
    let end = Instant::now() + DEADLINE;
    let price = loop {
        assert!(Instant::now() < end, "the programs are not measured");
        ranks[0].order("pace 100 1000 ncclAllReduce world 16 7");
        let price = source.nccl.shared.with(|known| known.price);
        if price.program != usual.program && price.entry != usual.entry {
            break price;
        }
    };
    println!("{price:?}");
    // No processor is so quick, and none so slow that does anything else.
    let is_likely = |part: Duration| (50..50_000).contains(&part.as_nanos());
    assert!(is_likely(price.entry) && is_likely(price.program), "{price:?}");
    assert!(price.stepped > price.entry.mul_f64(1.2), "{price:?}");
    // A reading tells what was paid: more than the traps of the calls so far.
    source.until("paid", |source| {
        let told = source.read();
        let paid = told.all("nccl.probe.cpu.time").into_values().next();
        matches!(paid, Some(Value::Double(paid)) if paid > 100.0 * price.entry.as_secs_f64())
    });
}
