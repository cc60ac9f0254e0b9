//! Tests with several libraries and processes: attribution and weight of hits, and the uptime of
//! each library.

use super::*;
use crate::probe::budget::uptime::{EachCovered, UptimeByUse};
use crate::probe::libraries::elf::exports;
use gpuwho_owners::host::boot_time_ns;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// The start of a fake operation: `push %rbx`, `pop %rbx`, and a jump.
const BEGINS: [u8; 3] = [0x53, 0x5b, 0xe9];
/// `mov %eax,%eax`, as long as the first two, which the kernel must single-step and which changes
/// nothing that a call needs.
const STEPPED: [u8; 2] = [0x89, 0xc0];

impl Scene {
    /// A library whose operations the kernel must single-step; `None` if they start differently.
    fn stepped() -> Option<Self> {
        let scene = Self::new();
        let file = File::options().read(true).write(true).open(scene.library()).unwrap();
        if cfg!(not(target_arch = "x86_64")) {
            println!("skipped: needs operations that begin with push and pop (x86-64)");
            return None;
        }
        let before = exports(&file).unwrap().unwrap();
        for (_, offset) in &before.entries {
            let mut begins = [0; 3];
            file.read_exact_at(&mut begins, *offset).unwrap();
            if begins == BEGINS {
                file.write_all_at(&STEPPED, *offset).unwrap();
            }
        }
        let after = exports(&file).unwrap().unwrap();
        assert_eq!(after.entries, before.entries);
        let all_reduce = SYMBOLS.iter().position(|symbol| symbol.name == "AllReduce").unwrap();
        assert!(!before.stepped.contains(&all_reduce));
        assert!(after.stepped.contains(&all_reduce));
        Some(scene)
    }
}

/// Loads a library in a process that may have another one already, and creates a communicator
/// there: the next orders are for this library.
fn init_in(rank: &mut Rank, scene: &Scene, name: &str) -> String {
    assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
    let id = rank.order("id");
    assert_eq!(rank.order(&format!("init {name} 1 0 {id}")), "0");
    format!("{:#x}", hash(&id))
}

#[test]
fn a_process_with_two_copies_of_the_library_has_each_communicators_file_and_coverage() {
    let Some(mut source) = Source::default() else { return };
    let scenes = [Scene::new(), Scene::new()];
    let mut rank = Rank::with(&scenes[0].library());
    source.hold(rank.process());
    source.until_ready(1);
    let first = init_in(&mut rank, &scenes[0], "first");
    assert_eq!(rank.order("call 3 ncclAllReduce first 16 7"), "0");
    assert_eq!(rank.order(&format!("load {}", scenes[1].library().display())), "ok");
    source.waker.request(rank.process());
    source.until_ready(2);
    let second = init_in(&mut rank, &scenes[1], "second");
    assert_eq!(rank.order("call 5 ncclAllReduce second 16 7"), "0");
    let reported = source.read();
    let pid = rank.child.id();
    let files = |reported: &MemberSamples| {
        let members = reported.members(pid).into_iter();
        members
            .map(|facts| (facts.hash.unwrap().to_string(), facts.library.clone().unwrap()))
            .collect::<BTreeMap<_, _>>()
    };
    let [one, other] = scenes.each_ref().map(|scene| scene.library().display().to_string());
    let wanted = [(first.clone(), one.into()), (second.clone(), other.into())];
    assert_eq!(files(&reported), BTreeMap::from(wanted.clone()));
    let coverage = reported.all("nccl.communicator.coverage");
    let of = |hash: &str, part: &str| match &coverage[&(pid, hash.to_owned(), part.to_owned())] {
        Value::Double(part) => *part,
        other => panic!("{other:?}"),
    };
    for (hash, part) in [(&first, "entry"), (&first, "return"), (&second, "entry")] {
        assert!((of(hash, part) - 1.0).abs() < 0.05, "{hash} {part}: {coverage:?}");
    }
    let counted = reported.all("nccl.collective.calls");
    let calls =
        |hash: &String| counted[&(pid, hash.clone(), "all_reduce lt_4KiB".to_owned())].clone();
    assert_eq!((calls(&first), calls(&second)), (Value::Int(3), Value::Int(5)));
    // The last reading after the process ended has its names as well.
    drop(rank);
    source.waker.wake();
    source.until("let go", |source| source.nccl.shared.with(|known| known.files == 0));
    let reported = source.read();
    assert_eq!(reported.members(pid).len(), 2);
    assert_eq!(reported.all("nccl.communicator.coverage").len(), 4);
}

/// Two processes with a library each, one of which another process keeps locked for a while.
#[test]
fn what_is_counted_of_a_library_that_is_attached_later_is_divided_by_its_own_coverage() {
    if Source::default().is_none() {
        return;
    }
    let scenes = [Scene::new(), Scene::new()];
    let mut ranks = scenes.each_ref().map(|scene| Rank::with(&scene.library()));
    for (rank, scene) in ranks.iter_mut().zip(&scenes) {
        init_in(rank, scene, "world");
    }
    let folder = tempfile::tempdir().unwrap();
    let paths = proc_of(&folder, &ranks, &scenes);
    let mut libraries = scanned(&paths, &ranks.each_ref().map(Rank::process));
    let stuck = Stuck::on(&folder, &scenes[0]);
    let (mut attaching, shared, mut uptime) =
        (Attaching::new(0), Shared::default(), UptimeByUse::default());
    let mut at = Instant::now();
    let mut note = |attaching: &Attaching, libraries: &Libraries, at| {
        uptime.note(at, boot_time_ns(), &attaching.present(libraries, &Quotas::default()));
        uptime.read(at)
    };
    attach_all(&mut attaching, &mut libraries, &shared, at);
    let begun: EachCovered = note(&attaching, &libraries, at);
    let maps = shared.with(|known| known.maps.take()).unwrap();
    // A second of a hundred calls with the other library alone, then one with both.
    let mut call = |times: u32| {
        for rank in &mut ranks {
            rank.order(&format!("call {times} ncclAllReduce world 16 7"));
        }
    };
    call(100);
    at += Duration::from_secs(1);
    note(&attaching, &libraries, at);
    stuck.go_on();
    let due = attaching.due().unwrap();
    attach_all(&mut attaching, &mut libraries, &shared, due);
    assert_eq!(attaching.refused(), None);
    note(&attaching, &libraries, at);
    call(100);
    at += Duration::from_secs(1);
    let ended = note(&attaching, &libraries, at);
    let snapshot = maps.read().unwrap();
    let mut found = Vec::new();
    for rank in &ranks {
        let (number, seen) = only(of_pid(&snapshot, rank.child.id()));
        let (_, counted) = only(calls(&snapshot, number, operation::ALL_REDUCE));
        let [entries, _] = ended.parts_since(&begun, (seen.identity.library, STRANGERS)).unwrap();
        found.push((counted.count, entries, counted.count as f64 / entries));
    }
    assert_eq!(found, [(100, 0.5, 200.0), (200, 1.0, 200.0)]);
}

/// The event of the first reduction.
fn first_step(source: &Source) -> gpuwho_pipeline::event::Observation {
    let events = source.aggregator.drain().into_iter().map(|event| event.what);
    let mut events = events.filter(|what| what.decision.is_some());
    events.next().unwrap_or_else(|| panic!("nothing was told"))
}

#[test]
fn the_costliest_process_decides_and_not_the_mean() {
    use ProbeLevel::Detached;
    let Some(mut source) = Source::start(Duration::from_mins(1), 500) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 12);
    source.read();
    // Four times the budget of one, and a third of that of all.
    let load = "pace 1000 2000 ncclAllReduce world 16 7";
    until_level(&mut source, &mut ranks[..1], load, Detached);
    let reported = first_step(&source);
    assert_eq!(reported.process.map(|process| process.pid), Some(ranks[0].child.id()));
    let decision = reported.decision.unwrap();
    assert!(decision.rate > 500, "{decision:?}");
}

#[test]
fn hits_that_the_kernel_steps_through_count_as_eight_and_only_they() {
    let Some(stepped) = Scene::stepped() else { return };
    for (scene, weight) in [(Scene::new(), 1), (stepped, 8)] {
        let mut rank = Rank::with(&scene.library());
        let Some(mut bare) = Bare::on(&rank, Way::Session) else { return };
        bare.allow(Attach::Entries);
        let id = rank.order("id");
        assert_eq!(rank.order(&format!("init world 1 0 {id}")), "0");
        let cost = |bare: &Bare| {
            let hits = bare.probes.hits().into_iter();
            hits.map(|(_, tally)| tally.cost(0, 1)).sum::<u64>()
        };
        let before = cost(&bare);
        rank.order("call 100 ncclAllReduce world 16 7");
        assert_eq!(cost(&bare) - before, 100 * weight);
    }
}
