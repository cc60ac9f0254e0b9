//! Tests of the counts while less is attached, and of the remaining cost.

use super::*;
use aya::maps::HashMap;
use gpuwho_common::nccl::{LOST_THREAD, PLACE_THREAD, STRANGERS_ROOM, Thread};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{BudgetDecision, Severity};

/// All budget decisions that were reported.
fn reported(source: &Source) -> Vec<(Severity, BudgetDecision)> {
    let events = source.aggregator.drain().into_iter().map(|event| event.what);
    let events = events.filter(|what| what.kind == EventKind::ProbeLevelChange);
    events.map(|what| (what.severity, *what.decision.unwrap())).collect()
}

/// Attached and wanted seconds so far, and the counted calls.
fn sums(source: &mut Source, rank: &Rank) -> (f64, f64, f64) {
    let reported = source.read();
    let seconds = |metric: &str, dims: &str| match reported.all(metric).get(&(
        0,
        "-".to_owned(),
        dims.to_owned(),
    )) {
        Some(Value::Double(seconds)) => *seconds,
        other => panic!("{metric}: {other:?}"),
    };
    let calls = reported.int("nccl.collective.calls", rank, "all_reduce lt_4KiB").unwrap_or(0);
    (
        seconds("nccl.probe.attached_time", "entry"),
        seconds("nccl.probe.wanted_time", ""),
        calls as f64,
    )
}

#[test]
fn each_budget_change_is_an_event_with_library_rate_and_budget() {
    use ProbeLevel::{Detached, Entries, Full};
    let recovery = RecoveryTiming { rest: Duration::from_secs(1), calm_looks: 1 };
    let Some(mut source) = Source::patient(Duration::from_mins(1), 500, recovery) else {
        return;
    };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    source.read();
    until_level(&mut source, &mut ranks, "pace 100 400 ncclAllReduce world 16 7", Entries);
    until_level(&mut source, &mut ranks, "storm 200 ncclAllReduce world 16 7", Detached);
    until_level(&mut source, &mut ranks, "pace 20 50 ncclAllReduce world 16 7", Full);
    let reported = reported(&source);
    // Near the budget a level may repeat; each starts where the previous one ended.
    assert!(reported.windows(2).all(|pair| pair[0].1.level == pair[1].1.before), "{reported:?}");
    for level in [Entries, Detached, Full] {
        assert!(reported.iter().any(|(_, one)| one.level == level), "{level:?} in {reported:?}");
    }
    for (severity, one) in &reported {
        assert_eq!(&*one.libraries, scene.library().to_str().unwrap());
        assert_eq!((&*one.versions, one.budget), ("2.29.7+cuda13.0", 500));
        if matches!((one.before, one.level), (Full, Entries) | (Entries, Detached)) {
            assert_eq!(*severity, Severity::Warning);
            assert!(one.rate > one.budget, "{one:?}");
        }
    }
}

#[test]
fn scaled_counts_are_the_calls_made_while_probes_come_and_go() {
    use ProbeLevel::Detached;
    // Short pauses, so that there are some of each.
    let recovery = RecoveryTiming { rest: Duration::from_secs(2), calm_looks: 30 };
    let Some(mut source) = Source::patient(Duration::from_mins(1), 1_000, recovery) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 1);
    source.read();
    until_level(&mut source, &mut ranks, "pace 2000 4000 ncclAllReduce world 16 7", Detached);
    let before = sums(&mut source, &ranks[0]);
    // Phases of one second; the load's own variation is excluded.
    let (mut made, end) = (0.0, Instant::now() + DEADLINE);
    loop {
        ranks[0].order("pace 20000 4000 ncclAllReduce world 16 7");
        made += 20_000.0;
        let after = sums(&mut source, &ranks[0]);
        let covered = (after.0 - before.0) / (after.1 - before.1);
        let counted = after.2 - before.2;
        let found = counted / covered / made;
        println!("{counted} of {made} counted, {covered:.4} covered: {found:.3} of the calls made");
        if covered < 0.9 && counted < 0.9 * made && (found - 1.0).abs() < 0.1 {
            break;
        }
        assert!(Instant::now() < end, "{found}");
    }
}

/// Detaches the probes once the programs have seen the start.
fn let_go_when(bare: &mut Bare, has_begun: impl Fn(&Bare) -> bool) {
    let end = Instant::now() + DEADLINE;
    while !has_begun(bare) {
        assert!(Instant::now() < end, "it does not begin");
    }
    bare.allow(Attach::Nothing);
    drop(std::mem::take(&mut bare.attached).into_holds());
}

/// A gate for a rank's next call, however long detaching takes.
struct Gate {
    folder: tempfile::TempDir,
}

impl Gate {
    fn before(rank: &mut Rank) -> Self {
        let gate = Self { folder: tempfile::tempdir().unwrap() };
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, gate.path(), fifo, 0o600.into(), 0).unwrap();
        assert_eq!(rank.order(&format!("wait {}", gate.path().display())), "ok");
        gate
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("gate")
    }

    /// Opens the gate once the call has reached it.
    fn open(self) {
        File::options().write(true).open(self.path()).unwrap();
    }
}

fn attach_again(bare: &mut Bare, rank: &Rank) {
    let libraries = scanned(&Paths::default(), &[rank.process()]);
    let library = libraries.in_use().next().unwrap().1;
    let target = Target { file: &library.place(), exports: &library.exports, number: 1 };
    bare.attached = bare.probes.attach(&target, true).unwrap();
    bare.allow(Attach::Full);
}

#[test]
fn a_call_whose_return_was_not_seen_hides_no_later_one() {
    let Some((_scene, mut rank, mut bare)) = alone(Way::Session, 0) else { return };
    let gate = Gate::before(&mut rank);
    rank.begin("call 1 ncclAllReduce world 16 7");
    let pid = rank.child.id();
    let is_open = |bare: &Bare| bare.read().threads.iter().any(|(_, one)| one.open.since_ns != 0);
    let_go_when(&mut bare, is_open);
    gate.open();
    assert_eq!(rank.answer(), "0");
    assert!(is_open(&bare), "its return was seen");
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
    let gate = Gate::before(&mut rank);
    rank.begin("group 2 ncclAllReduce world 16 7");
    let depth = |bare: &Bare| bare.read().threads.iter().any(|(_, one)| one.group.depth == 1);
    let_go_when(&mut bare, depth);
    gate.open();
    rank.answer();
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
fn refused_entries_are_counted_by_kind() {
    let Some(mut source) = Source::default() else { return };
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
    // 450 of ten kinds each, where one owner may have half of 8,192; one exists already without
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
fn a_refused_thread_is_counted_and_its_calls_are_not() {
    let Some((_scene, mut rank, mut bare)) = alone(Way::Session, 0) else { return };
    let me = bare.read().threads[0];
    let mut threads = HashMap::<_, u64, Thread>::try_from(&mut bare.maps.threads).unwrap();
    threads.remove(&me.0).unwrap();
    // As many of unattributed processes as allowed.
    let taken = bare.quotas.taken();
    let held = [0, 0, STRANGERS_ROOM[PLACE_THREAD], 0];
    bare.quotas.apply(&taken, &[(STRANGERS, held)].into());
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
