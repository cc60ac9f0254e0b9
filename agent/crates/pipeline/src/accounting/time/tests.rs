//! Each test: what an owner had in one interval of ten seconds.

use super::*;
use crate::accounting::fixture::{Read, Rig};
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::inventory::DeviceName;
use std::collections::BTreeMap;

/// Seconds by owner and use; `granted` is a use of its own.
type Had = BTreeMap<(String, &'static str), f64>;

fn had(rig: &Rig) -> Had {
    let mut had = Had::new();
    for increment in rig.accounting.increments() {
        let (what, ns) = match increment.what {
            Amount::Time(state, ns) => (state.as_str(), ns),
            Amount::Granted(ns) => ("granted", ns),
            _ => continue,
        };
        let name = match &rig.ownership.owner(increment.owner).unwrap().owner {
            Owner::Job(job) => format!("job {job}"),
            _ => "none".to_owned(),
        };
        *had.entry((name, what)).or_default() += ns as f64 / 1e9;
    }
    had.retain(|_, seconds| *seconds > 0.0);
    had
}

fn seconds<const N: usize>(rows: [(&str, &'static str, f64); N]) -> Had {
    rows.into_iter().map(|(name, what, seconds)| ((name.to_owned(), what), seconds)).collect()
}

fn close(had: &Had, expected: &Had) {
    let is_close = had.len() == expected.len()
        && had.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6);
    assert!(is_close, "{had:#?} is not {expected:#?}");
}

/// Two readings, ten seconds apart.
fn interval(rig: &mut Rig, read: &Read) -> Had {
    rig.read(0, read);
    rig.read(10, read);
    had(rig)
}

#[test]
fn an_allocated_device_is_used_or_idle() {
    let mut rig = Rig::new();
    let process = rig.process(1, 7);
    rig.allocation(&[(DeviceName::Index(0), 7)]);
    let read = Read {
        busy: Some(0.25),
        processes: vec![(process, Some(1 << 30), Some(0.3))],
        ..Read::default()
    };
    let expected = [("job 7", "granted", 10.0), ("job 7", "used", 2.5), ("job 7", "idle", 7.5)];
    close(&interval(&mut rig, &read), &seconds(expected));
}

#[test]
fn idle_time_of_a_shared_device_goes_to_those_that_used_less_than_their_part() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 1), rig.process(2, 2));
    rig.allocation(&[(DeviceName::Index(0), 1), (DeviceName::Index(0), 2)]);
    let processes = vec![(a, Some(1 << 30), Some(0.8)), (b, Some(1 << 30), Some(0.0))];
    let read = Read { busy: Some(0.8), processes, ..Read::default() };
    let expected = [
        ("job 1", "granted", 5.0),
        ("job 2", "granted", 5.0),
        ("job 1", "used", 8.0),
        ("job 2", "idle", 2.0),
    ];
    close(&interval(&mut rig, &read), &seconds(expected));
}

#[test]
fn a_device_of_nobody_is_idle_without_an_owner_and_one_that_is_held_with_it() {
    let mut rig = Rig::new();
    let free = Read { busy: Some(0.0), ..Read::default() };
    close(&interval(&mut rig, &free), &seconds([("none", "idle", 10.0)]));
    let process = rig.process(1, 3);
    let processes = vec![(process, Some(1 << 30), None)];
    let read = Read { busy: Some(0.5), processes, ..Read::default() };
    rig.read(20, &read);
    close(&had(&rig), &seconds([("job 3", "used", 5.0), ("job 3", "idle", 5.0)]));
}

#[test]
fn without_a_reading_allocated_time_is_known_and_its_use_is_not() {
    let mut rig = Rig::new();
    rig.allocation(&[(DeviceName::Index(0), 7)]);
    rig.read(0, &Read { busy: Some(1.0), ..Read::default() });
    rig.miss(10);
    let expected = [("job 7", "granted", 10.0), ("job 7", "unknown", 10.0)];
    close(&had(&rig), &seconds(expected));
}

#[test]
fn a_mig_instance_is_its_slices_of_the_device() {
    let mut rig = Rig::new();
    let gpu = rig.gpu(0);
    let instances = [rig.instance("MIG-a", gpu, 4), rig.instance("MIG-b", gpu, 2)];
    let process = rig.process(1, 1);
    rig.allocation(&[(DeviceName::Uuid(gpuwho_model::ids::GpuUuid::new("MIG-b")), 2)]);
    let read = Read {
        processes: vec![(process, Some(1 << 30), None)],
        inside: vec![instances[0]],
        instances: instances.to_vec(),
        counted: vec![(instances[0], 0.5), (instances[1], 0.0)],
        ..Read::default()
    };
    let seventh = 10.0 / 7.0;
    let expected = [
        ("job 1", "used", 2.0 * seventh),
        ("job 1", "idle", 2.0 * seventh),
        ("job 2", "granted", 2.0 * seventh),
        ("job 2", "idle", 2.0 * seventh),
        ("none", "idle", seventh),
    ];
    close(&interval(&mut rig, &read), &seconds(expected));
}

#[test]
fn without_a_reading_a_mig_instance_is_its_slices_of_the_device_too() {
    let mut rig = Rig::new();
    let gpu = rig.gpu(0);
    let instances = [rig.instance("MIG-a", gpu, 4), rig.instance("MIG-b", gpu, 2)];
    rig.allocation(&[(DeviceName::Uuid(gpuwho_model::ids::GpuUuid::new("MIG-b")), 2)]);
    rig.read(0, &Read { instances: instances.to_vec(), ..Read::default() });
    rig.miss(10);
    let seventh = 10.0 / 7.0;
    let expected = [
        ("job 2", "granted", 2.0 * seventh),
        ("job 2", "unknown", 2.0 * seventh),
        ("none", "unknown", 5.0 * seventh),
    ];
    close(&had(&rig), &seconds(expected));
}
