//! Many short processes at once: those that touch no device cost no event, of those that do none
//! is lost without being counted.

use crate::fixture::{
    SEEN_WITHIN, TRAINER, counted_loss, holder, owner, wait_for_holder, watch, without_kernel,
};
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::worker::Worker;
use gpuwho_tests::worker::script::{Hold, Script};
use gpuwho_tests::{or_skip, skip};
use std::collections::BTreeSet;
use std::time::Duration;

/// A build machine at its busiest starts about so many processes a second.
const PER_SECOND: u32 = 2000;

fn storm(pod: &Group, count: u32, gpus: &[u32]) -> Worker {
    let hold = Hold::Storm { count, per_second: PER_SECOND };
    let script = Script { gpus: gpus.to_vec(), hold, ..Script::default() };
    Worker::start(Some(pod), &script).unwrap()
}

#[test]
fn a_storm_that_touches_no_device_leaves_no_holder_and_loses_nothing() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    let storm = storm(&pod, 2000, &[]);
    let pids: BTreeSet<_> = storm.children().iter().copied().collect();
    assert_eq!(pids.len(), 2000);
    // Evidence comes in order: when this one is there, so is all that came before.
    let last = Worker::on(&pod, &[0]).unwrap();
    wait_for_holder(&agent, last.pid());
    let who = agent.who().unwrap();
    let seen: Vec<_> = pids.iter().filter(|pid| holder(&who, **pid).is_some()).collect();
    assert_eq!(seen, Vec::<&u32>::new());
    assert_eq!(counted_loss(&who), 0);
}

#[test]
fn of_500_short_processes_that_open_a_device_none_is_lost_uncounted() {
    let mut stage = or_skip!(Stage::new());
    let pod = stage.pod(&TRAINER).unwrap();
    let agent = watch(&stage);
    if let Some(reason) = without_kernel(&agent) {
        skip!("{reason}");
    }
    let storm = storm(&pod, 500, &[0]);
    let pids: BTreeSet<_> = storm.children().iter().copied().collect();
    assert_eq!(pids.len(), 500);
    let last = Worker::on(&pod, &[0]).unwrap();
    wait_for_holder(&agent, last.pid());
    let all = agent.wait_for("500 owners", SEEN_WITHIN.max(Duration::from_secs(20)), |who| {
        let owners: Vec<_> = pids.iter().filter_map(|pid| holder(who, *pid)).map(owner).collect();
        let missing = 500 - u64::try_from(owners.len()).unwrap();
        // One that is missing may have lost more than one of its events.
        let complete = missing == 0 || missing <= counted_loss(who);
        complete.then_some((owners, missing))
    });
    let (owners, missing) = all.unwrap();
    let wrong: Vec<_> = owners.iter().filter(|owner| **owner != pod.expected).collect();
    assert!(wrong.is_empty(), "{} of {} wrong: {wrong:#?}", wrong.len(), owners.len());
    println!("500 opened a device, {missing} lost and counted");
}
