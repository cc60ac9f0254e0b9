//! Tests of communicator names and of growing, as read from the programs' arguments.

use super::*;
use gpuwho_common::nccl::{CONFIG_MAGIC, LOST_UNREADABLE};
use gpuwho_owners::communicators::{MAX_NAME_LEN, name_of};
use std::fmt::Write as _;

/// The order for a configuration with this name.
fn config(name: &[u8]) -> String {
    let mut order = "config name ".to_owned();
    for byte in name {
        write!(order, "{byte:02x}").unwrap();
    }
    order
}

/// The names of a process's communicators, in order of creation.
fn names(bare: &Bare, rank: &Rank) -> Vec<Option<String>> {
    let snapshot = bare.read();
    let mut made = of_pid(&snapshot, rank.child.id());
    made.sort_by_key(|(number, _)| *number);
    let text = |number: &u64| {
        let name = snapshot.names.get(number)?;
        name_of(name.text.split(|byte| *byte == 0).next()?).as_deref().map(str::to_owned)
    };
    made.iter().map(|(number, _)| text(number)).collect()
}

fn unreadable(bare: &Bare) -> u64 {
    bare.probes.counts.get(&LOST_UNREADABLE, 0).unwrap().iter().sum()
}

#[test]
fn a_name_is_read_wherever_a_configuration_is_in_a_session() {
    names_are_read(Way::Session);
}

#[test]
fn a_name_is_read_wherever_a_configuration_is_with_a_link_for_many() {
    names_are_read(Way::Multi);
}

#[test]
fn a_name_is_read_wherever_a_configuration_is_with_a_probe_a_function() {
    names_are_read(Way::Each);
}

fn names_are_read(way: Way) {
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    let Some(bare) = Bare::on(&rank, way) else { return };
    let id = rank.order("id");
    let mut made = |orders: &[&str]| {
        for order in orders {
            let answer = rank.order(order);
            assert!(answer == "0" || answer == "ok", "{order}: {answer}");
        }
    };
    made(&[&config(b"data"), &format!("init a 2 0 {id} config")]);
    made(&[&config(b"tensor"), &format!("init b 2 0 {id} scalable")]);
    // Without a configuration a child has its parent's name; with one, that of the configuration.
    made(&["config none", "split a 0 0 c", "shrink a d 1", "grow a e 3", "split c 0 0 f"]);
    made(&["config name -", "split a 0 0 g"]);
    made(&[&config(b"half"), "split a 0 0 h", "shrink a i 1", "grow a j 3"]);
    made(&[&format!("join k 3 2 {id}")]);
    // An added rank has no parent; a function without configuration gives no name.
    made(&["config none", &format!("join l 3 2 {id}"), &format!("init m 2 0 {id}")]);
    made(&[&config(b"none of these"), &format!("init n 2 0 {id}"), "all o 1"]);
    let wanted = [
        ["data", "tensor", "data", "data", "data", "data"].map(Some).to_vec(),
        vec![None, Some("half"), Some("half"), Some("half"), Some("half")],
        vec![None, None, None, None],
    ]
    .concat();
    let wanted: Vec<Option<String>> =
        wanted.into_iter().map(|name| name.map(str::to_owned)).collect();
    assert_eq!(names(&bare, &rank), wanted);
    assert_eq!((unreadable(&bare), bare.read().coming.len()), (0, 0));
}

#[test]
fn a_hostile_configuration_gives_no_name_and_harms_nothing() {
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    let Some(bare) = Bare::on(&rank, Way::Each) else { return };
    let id = rank.order("id");
    // A text that must not be reached through an invalid configuration.
    let there = {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", rank.child.id())).unwrap();
        let library = maps.lines().find(|line| line.ends_with("libnccl.so.2")).unwrap();
        format!("0x{}", library.split('-').next().unwrap())
    };
    let mut make = |order: &str| {
        assert_eq!(rank.order(order), "ok");
        rank.order(&format!("init {} 2 0 {id} config", order.len()))
    };
    let magic = format!("{CONFIG_MAGIC:#x}");
    let bad = |size: u32, magic: &str, at: &str| format!("config bad {size} {magic} {at}");
    // The library itself refuses it.
    assert_eq!(make(&bad(88, "0xcafebeee", &there)), "4");
    assert_eq!(bare.read().coming.len(), 0, "followed without its mark");
    // Too small for a name by one byte; just large enough.
    assert_eq!(make(&bad(55, &magic, &there)), "0");
    assert_eq!(make(&bad(56, &magic, &there)), "0");
    // Not mapped, or not readable by the process.
    assert_eq!(make(&bad(88, &magic, "0x10")), "0");
    assert_eq!(make(&bad(88, &magic, "0xffffffff80000000")), "0");
    assert_eq!(unreadable(&bare), 2);
    // Unterminated, in memory and in the part that is read.
    assert_eq!(make("config endless 656e646c657373"), "0");
    assert_eq!(unreadable(&bare), 3);
    assert_eq!(make(&format!("config endless {}", "78".repeat(200))), "0");
    assert_eq!(make(&config(&[b'x'; MAX_NAME_LEN])), "0");
    assert_eq!(make(&config(b"\xff\x1b[0m\xc3")), "0");
    assert_eq!(make("config name 00"), "0");
    let reported = |name: &str| Some(name.to_owned());
    let wanted = [
        None,
        // The start of an ELF file.
        reported("\u{fffd}ELF\u{fffd}\u{fffd}\u{fffd}"),
        None,
        None,
        None,
        reported(&("x".repeat(MAX_NAME_LEN - 3) + "…")),
        reported(&"x".repeat(MAX_NAME_LEN)),
        reported("\u{fffd}\u{fffd}[0m\u{fffd}"),
        None,
    ];
    assert_eq!(names(&bare, &rank), wanted);
    assert_eq!(unreadable(&bare), 3);
}

#[test]
fn a_name_is_on_the_info_of_every_rank_also_of_those_whose_program_gave_none() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let mut ranks: Vec<Rank> = (0..2).map(|_| Rank::with(&scene.library())).collect();
    for rank in &ranks {
        source.hold(rank.process());
    }
    source.until_ready(1);
    let id = ranks[0].order("id");
    assert_eq!(ranks[0].order(&config(b"data")), "ok");
    for (number, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.order(&format!("init world 2 {number} {id} config")), "0");
    }
    let reported = source.read();
    for rank in &ranks {
        let facts = only(reported.members(rank.child.id()));
        assert_eq!(facts.name.as_deref(), Some("data"));
        let has_name = |set: gpuwho_model::catalog::attributes::AttrSet| {
            set.iter().any(|(key, _)| key.name == "nccl.communicator.name")
        };
        assert_eq!((has_name(facts.attributes()), has_name(facts.details())), (false, true));
    }
    // A name disappears with its communicator.
    for rank in &mut ranks {
        assert_eq!(rank.order("destroy world"), "0");
    }
    source.read();
    source.read();
    let snapshot = source.nccl.maps.as_ref().unwrap().read().unwrap();
    assert_eq!((snapshot.names.len(), snapshot.coming.len()), (0, 0));
}

#[test]
fn names_of_nothing_are_taken_out() {
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    let Some(mut bare) = Bare::on(&rank, Way::Each) else { return };
    let id = rank.order("id");
    assert_eq!(rank.order(&config(b"data")), "ok");
    assert_eq!(rank.order(&format!("init world 2 0 {id} config")), "0");
    let mut snapshot = bare.read();
    bare.maps.forget_names(&snapshot);
    assert_eq!(bare.read().names.len(), 1, "what is named is there");
    snapshot.communicators.clear();
    bare.maps.forget_names(&snapshot);
    assert_eq!(bare.read().names.len(), 0);
}

#[test]
fn a_communicator_that_is_still_being_made_has_its_name_and_what_grows_its_hash() {
    let Some(mut source) = Source::start(Duration::from_millis(50), 1_000_000) else { return };
    let scene = Scene::new();
    let mut rank = Rank::with(&scene.library());
    source.hold(rank.process());
    source.until_ready(1);
    let id = rank.order("id");
    assert_eq!(rank.order(&config(b"late")), "ok");
    assert_eq!(rank.order("hang"), "ok");
    rank.begin(&format!("join large 3 2 {id}"));
    source.until("the open birth", |source| source.read().state(&rank) == Some("hung"));
    let facts = only(source.read().members(rank.child.id()));
    let hash = Hash::combine(first_word(&id), 3);
    assert_eq!(
        (facts.rank, facts.ranks, facts.hash.map(|hash| hash.0), facts.name.as_deref()),
        (Some(2), Some(3), Some(hash), Some("late"))
    );
}

#[test]
fn what_grew_is_known_from_its_birth_on_all_ranks() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, world) = world(&mut source, &scene, 2);
    ranks.push(Rank::with(&scene.library()));
    source.hold(ranks[2].process());
    source.until("all looked at", |source| {
        source.nccl.shared.with(|known| known.libraries.len()) == 3
    });
    for rank in &mut ranks[..2] {
        assert_eq!(rank.order("split world 0 0 half"), "0");
    }
    // The second child of the world, and the first of its half.
    for (parent, child) in [("world", "large"), ("half", "larger")] {
        let id = ranks[0].order(&format!("grow-id {parent}"));
        for rank in &mut ranks[..2] {
            assert_eq!(rank.order(&format!("grow {parent} {child} 3")), "0");
        }
        assert_eq!(ranks[2].order(&format!("join {child} 3 2 {id}")), "0");
    }
    let reported = source.read();
    let half = Hash::of_child(world, 1, 0);
    let mut all: Vec<Vec<u64>> = Vec::new();
    for rank in &ranks {
        let grown = reported.members(rank.child.id()).into_iter();
        let grown = grown.filter(|facts| facts.origin == Origin::Grow);
        // No call was made on any of them, so nothing was read from memory.
        let known = grown.map(|facts| {
            assert_eq!(facts.known_by, KnownBy::Birth);
            facts.hash.unwrap().0
        });
        let mut known: Vec<u64> = known.collect();
        known.sort_unstable();
        all.push(known);
    }
    assert_eq!(all[0].len(), 2);
    assert!(all[0].contains(&Hash::combine(Hash::combine(half, 1), 3)), "{all:x?}");
    assert_eq!((&all[1], &all[2]), (&all[0], &all[0]));
    // As in the library itself.
    for rank in &mut ranks {
        assert_eq!(rank.order("call 1 ncclAllReduce large 100 7"), "0");
    }
    let reported = source.read().all("nccl.collective.calls");
    assert_eq!(reported.keys().filter(|(_, hash, _)| hash == "-").count(), 0);
}

#[test]
fn children_after_one_that_failed_are_known_from_memory_and_not_by_a_number() {
    let Some(mut source) = Source::default() else { return };
    let scene = Scene::new();
    let (mut ranks, world) = world(&mut source, &scene, 1);
    let rank = &mut ranks[0];
    // The library refuses one before it counts it, and one after.
    assert_eq!(rank.order("grow world none 1"), "4");
    assert_eq!(rank.order("fail 3"), "ok");
    assert_eq!(rank.order("split world 0 0 half"), "3");
    assert_eq!(rank.order("split world 0 0 whole"), "0");
    let child = |reported: &MemberSamples, rank: &Rank| {
        let members = reported.members(rank.child.id());
        let children = members.iter().filter(|facts| facts.hash.map(|hash| hash.0) != Some(world));
        children.map(|facts| (facts.hash.map(|hash| hash.0), facts.known_by)).collect::<Vec<_>>()
    };
    assert_eq!(child(&source.read(), rank), [(None, KnownBy::Unknown)]);
    assert_eq!(rank.order("call 1 ncclAllReduce whole 100 7"), "0");
    let second = Hash::of_child(world, 2, 0);
    assert_eq!(child(&source.read(), rank), [(Some(second), KnownBy::Memory)]);
}
