//! Several libraries, and several processes: whose hits are whose, what each costs, and for how long
//! each library was probed.

use super::super::cover::{Covers, EachCovered};
use super::super::elf::exports;
use super::super::price::USUAL;
use super::*;
use crate::host::boot_time_ns;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Where a fake operation begins: `push %rbx`, `pop %rbx`, and a jump.
const BEGINS: [u8; 3] = [0x53, 0x5b, 0xe9];
/// `mov %eax,%eax`, as long as the first two, which the kernel has to step through and which changes
/// nothing that a call needs.
const STEPPED: [u8; 2] = [0x89, 0xc0];

impl Scene {
    /// A library whose operations the kernel has to step through; `None` where they begin in
    /// another way.
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

/// Loads a library in a process that may have another one already, and makes a communicator there:
/// the next orders are for this library.
fn init_in(rank: &mut Rank, scene: &Scene, name: &str) -> String {
    assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
    let id = rank.order("id");
    assert_eq!(rank.order(&format!("init {name} 1 0 {id}")), "0");
    format!("{:#x}", hash(&id))
}

#[test]
fn a_process_with_two_copies_of_the_library_has_each_communicators_file_and_coverage() {
    let Some(mut source) = Source::usual() else { return };
    let scenes = [Scene::new(), Scene::new()];
    let mut rank = Rank::with(&scenes[0].library());
    source.hold(rank.process());
    source.until_ready(1);
    let first = init_in(&mut rank, &scenes[0], "first");
    assert_eq!(rank.order("call 3 ncclAllReduce first 16 7"), "0");
    assert_eq!(rank.order(&format!("load {}", scenes[1].library().display())), "ok");
    source.waker.stir(rank.process());
    source.until_ready(2);
    let second = init_in(&mut rank, &scenes[1], "second");
    assert_eq!(rank.order("call 5 ncclAllReduce second 16 7"), "0");
    let told = source.read();
    let pid = rank.child.id();
    let files = |told: &Told| {
        let members = told.members(pid).into_iter();
        members
            .map(|facts| (facts.hash.unwrap().to_string(), facts.library.clone().unwrap()))
            .collect::<BTreeMap<_, _>>()
    };
    let [one, other] = scenes.each_ref().map(|scene| scene.library().display().to_string());
    let wanted = [(first.clone(), one.into()), (second.clone(), other.into())];
    assert_eq!(files(&told), BTreeMap::from(wanted.clone()));
    let coverage = told.all("nccl.communicator.coverage");
    let of = |hash: &str, part: &str| match &coverage[&(pid, hash.to_owned(), part.to_owned())] {
        Value::Double(part) => *part,
        other => panic!("{other:?}"),
    };
    for (hash, part) in [(&first, "entry"), (&first, "return"), (&second, "entry")] {
        assert!((of(hash, part) - 1.0).abs() < 0.05, "{hash} {part}: {coverage:?}");
    }
    let counted = told.all("nccl.collective.calls");
    let calls =
        |hash: &String| counted[&(pid, hash.clone(), "all_reduce lt_4KiB".to_owned())].clone();
    assert_eq!((calls(&first), calls(&second)), (Value::Int(3), Value::Int(5)));
    // What the last reading says when the process is gone has its names as well.
    drop(rank);
    source.waker.wake();
    source.until("let go", |source| source.nccl.shared.with(|known| known.files == 0));
    let told = source.read();
    assert_eq!(told.members(pid).len(), 2);
    assert_eq!(told.all("nccl.communicator.coverage").len(), 4);
}

/// Two processes with a library each, one of which somebody else keeps locked for a while.
#[test]
fn what_is_counted_of_a_library_that_is_attached_later_is_divided_by_its_own_coverage() {
    if Source::usual().is_none() {
        return;
    }
    let scenes = [Scene::new(), Scene::new()];
    let mut ranks = scenes.each_ref().map(|scene| Rank::with(&scene.library()));
    for (rank, scene) in ranks.iter_mut().zip(&scenes) {
        init_in(rank, scene, "world");
    }
    let folder = tempfile::tempdir().unwrap();
    let paths = proc_of(&folder, &ranks, &scenes);
    let mut libraries = looked_at(&paths, &ranks.each_ref().map(Rank::process));
    let stuck = Stuck::on(&folder, &scenes[0]);
    let (mut attaching, shared, mut covers) =
        (Attaching::new(0), Shared::default(), Covers::default());
    let mut at = Instant::now();
    let mut note = |attaching: &Attaching, libraries: &Libraries, at| {
        covers.note(at, boot_time_ns(), &attaching.present(libraries, &Quotas::default()));
        covers.read(at)
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

/// What the governor told when it first gave something up.
fn first_step(source: &Source) -> crate::event::Happening {
    let events = source.desk.drain().into_iter().map(|event| event.what);
    let mut events = events.filter(|what| what.governed.is_some());
    events.next().unwrap_or_else(|| panic!("nothing was told"))
}

#[test]
fn the_process_that_pays_most_decides_and_not_the_mean_of_all() {
    use GovernorLevel::Cycled;
    let Some(mut source) = Source::start(Duration::from_mins(1), 500) else { return };
    let scene = Scene::new();
    let (mut ranks, _) = world(&mut source, &scene, 12);
    source.read();
    // Four times the budget of one, and a third of that of all.
    let load = "pace 1000 2000 ncclAllReduce world 16 7";
    until_level(&mut source, &mut ranks[..1], load, Cycled);
    let told = first_step(&source);
    assert_eq!(told.process.map(|process| process.pid), Some(ranks[0].child.id()));
    let governed = told.governed.unwrap();
    assert!(governed.rate > 500, "{governed:?}");
}

#[test]
fn the_budget_of_a_process_is_for_all_its_libraries_together() {
    use GovernorLevel::Full;
    let budget = 200;
    let Some(mut source) = Source::start(Duration::from_mins(1), budget) else { return };
    let scenes = [Scene::new(), Scene::new(), Scene::new()];
    let mut rank = Rank::with(&scenes[0].library());
    source.hold(rank.process());
    let worlds = ["first", "second", "third"];
    for (scene, name) in scenes.iter().zip(worlds) {
        init_in(&mut rank, scene, name);
    }
    source.waker.stir(rank.process());
    source.until_ready(3);
    // 250 calls a second in turns of a tenth of one: of each library 83 a second, which with their
    // returns are less than the budget, and of all, without any return, more.
    let end = Instant::now() + DEADLINE;
    while source.nccl.shared.with(|known| known.level) == Full {
        assert!(Instant::now() < end, "{:?}", source.nccl.report());
        for (scene, name) in scenes.iter().zip(worlds) {
            assert_eq!(rank.order(&format!("load {}", scene.library().display())), "ok");
            rank.order(&format!("pace 25 250 ncclAllReduce {name} 16 7"));
        }
    }
    let governed = first_step(&source).governed.unwrap();
    assert!((budget..4 * budget).contains(&governed.rate), "{governed:?}");
}

/// Calls until the governor gives something up or so many looks are over; gives the hits that it took
/// and what they have cost.
fn called(source: &mut Source, rank: &mut Rank, rate: u64, looks: u32) -> (u64, Duration) {
    let sums = |source: &Source| {
        source.nccl.shared.with(|known| {
            let hits = super::super::price::Hits::of(&known.counts);
            (hits.entries() + hits.returns, known.paid_ns, known.level)
        })
    };
    let (before, paid_before, _) = sums(source);
    let begun = Instant::now();
    loop {
        rank.order(&format!("pace {} {rate} ncclAllReduce world 16 7", rate / 10));
        let (hits, paid_ns, level) = sums(source);
        if level != GovernorLevel::Full || begun.elapsed() > looks * Duration::from_secs(1) {
            let paid = u64::try_from(paid_ns - paid_before).unwrap();
            return (hits - before, Duration::from_nanos(paid));
        }
    }
}

#[test]
fn hits_that_the_kernel_steps_through_are_paid_at_their_price_and_only_they() {
    use GovernorLevel::Full;
    let budget = 2_000;
    let Some(dear) = Scene::stepped() else { return };
    let Some(mut source) = Source::start(Duration::from_mins(1), budget) else { return };
    let cheap = Scene::new();
    let mut ranks = [Rank::with(&cheap.library()), Rank::with(&dear.library())];
    for rank in &ranks {
        source.hold(rank.process());
    }
    source.until_ready(2);
    for (rank, scene) in ranks.iter_mut().zip([&cheap, &dear]) {
        init_in(rank, scene, "world");
    }
    source.until("tried", |source| source.nccl.shared.with(|known| known.price != USUAL));
    let price = source.nccl.shared.with(|known| known.price);
    let most = (price.stepped + price.program).as_secs_f64() / price.plain().as_secs_f64();
    if most < 5.0 {
        println!("skipped: needs a kernel that steps dearly: {price:?}");
        return;
    }
    // A quarter of the budget in calls is half of it in hits, and stepped through more than all.
    let rate = budget / 4;
    let [cheap_rank, dear_rank] = &mut ranks;
    let (hits, paid) = called(&mut source, cheap_rank, rate, 4);
    let level = source.nccl.shared.with(|known| known.level);
    println!("plain: {hits} hits, {paid:?}, {level:?}");
    assert_eq!(level, Full, "one library's price is not another's");
    assert!(hits > 2 * rate && paid < u32::try_from(hits).unwrap() * 2 * price.plain(), "{paid:?}");
    let (hits, paid) = called(&mut source, dear_rank, rate, 20);
    let level = source.nccl.shared.with(|known| known.level);
    println!("stepped: {hits} hits, {paid:?}, {level:?}, at {price:?}");
    assert_ne!(level, Full);
    // At least half of them were entries.
    assert!(paid >= u32::try_from(hits / 2).unwrap() * price.stepped, "{paid:?}");
    let told = first_step(&source);
    assert_eq!(told.process.map(|process| process.pid), Some(dear_rank.child.id()));
    let governed = told.governed.unwrap();
    // So few hits were made: the budget is what they cost.
    assert!(governed.rate > budget && rate * 2 < budget + 1, "{governed:?}");
}
