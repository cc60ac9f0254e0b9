use super::Amount;
use super::fixture::{Read, Reported, Rig, rows};
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::{ContainerId, PodUid, ProcKey};
use gpuwho_model::sample::{Batch, Subject, Value};
use gpuwho_owners::attribute::names::{ContainerFacts, Provider};
use gpuwho_owners::attribute::owner::Owner;
use gpuwho_owners::inventory::DeviceName;

pub(super) const BUSY: &str = "gpu.owner.busy.time";
pub(super) const MEMORY: &str = "gpu.owner.memory.byte_seconds";
pub(super) const ENERGY: &str = "gpu.owner.energy";

/// The values that one 10 s interval, ending with `read`, adds to a metric.
pub(super) fn interval(rig: &mut Rig, read: &Read, metric: &str) -> Reported {
    rig.read(0, &Read { joules: read.joules.map(|joules| joules - 1000.0), ..read.clone() });
    let batch = rig.read(10, read);
    let mut reported = rig.reported(&batch, metric);
    reported.retain(|_, value| *value != 0.0);
    reported
}

pub(super) fn read(processes: &[(ProcKey, i64, f64)]) -> Read {
    let reported = |(process, memory, sampled): &(ProcKey, i64, f64)| {
        (*process, Some(*memory), Some(*sampled).filter(|sampled| *sampled > 0.0))
    };
    Read {
        busy: Some(0.5),
        used: Some(1000),
        joules: Some(2000.0),
        processes: processes.iter().map(reported).collect(),
        ..Read::default()
    }
}

#[test]
fn the_only_owner_has_all_but_the_memory_that_the_driver_reserves() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 7));
    let read = read(&[(a, 600, 0.1), (b, 300, 0.0)]);
    assert_eq!(interval(&mut rig, &read, BUSY), rows([("job 7", "exclusive", 5.0)]));
    let mut rig = Rig::new();
    rig.process(1, 7);
    rig.process(2, 7);
    let expected = rows([("job 7", "exclusive", 9000.0), ("unattributed", "none", 1000.0)]);
    assert_eq!(interval(&mut rig, &read, MEMORY), expected);
    let mut rig = Rig::new();
    rig.process(1, 7);
    rig.process(2, 7);
    assert_eq!(interval(&mut rig, &read, ENERGY), rows([("job 7", "exclusive", 1000.0)]));
}

/// NVIDIA's GB10 (nvitop #208): the driver refuses the device's memory and has that of processes. An
/// integrated GPU and Linux's xe are alike.
#[test]
fn what_processes_hold_is_charged_where_the_device_has_no_memory_of_its_own() {
    let unified = |processes: &[(ProcKey, i64, f64)]| Read { used: None, ..read(processes) };
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 8));
    let two = unified(&[(a, 20_064_501_760, 0.6), (b, 5_368_709_120, 0.3)]);
    rig.read(0, &two);
    let batch = rig.read(10, &two);
    let expected =
        rows([("job 7", "sampled", 200_645_017_600.0), ("job 8", "sampled", 53_687_091_200.0)]);
    assert_eq!(rig.reported(&batch, MEMORY), expected);
    let all = rows([("", "", 254_332_108_800.0)]);
    assert_eq!(rig.reported(&batch, "gpu.memory.byte_seconds"), all);
    let job = rig.job(7);
    let held = rig.accounting.increments().iter().find_map(|increment| match increment.what {
        Amount::Memory { bytes, .. } if increment.owner == job => Some(bytes),
        _ => None,
    });
    assert_eq!(held, Some(20_064_501_760), "for its receipt");
    let mut rig = Rig::new();
    let a = rig.process(1, 7);
    let one = unified(&[(a, 600, 0.1)]);
    assert_eq!(interval(&mut rig, &one, MEMORY), rows([("job 7", "exclusive", 6000.0)]));
    let mut rig = Rig::new();
    rig.process(1, 7);
    let hidden = Read { processes: vec![(a, None, Some(0.1))], ..one };
    assert_eq!(interval(&mut rig, &hidden, MEMORY), rows([]), "nobody knows");
}

#[test]
fn an_owner_s_processes_are_one_increment_of_a_resource() {
    let mut rig = Rig::new();
    let all = [(1, 7, 300), (2, 8, 50), (3, 7, 200), (4, 7, 100)];
    let all = all.map(|(pid, job, bytes)| (rig.process(pid, job), bytes, 0.1));
    let reading = read(&all);
    interval(&mut rig, &reading, MEMORY);
    let job = rig.job(7);
    let of_job = rig.accounting.increments().iter().filter(|increment| increment.owner == job);
    let bytes: Vec<u64> = of_job
        .filter_map(|increment| match increment.what {
            Amount::Memory { bytes, .. } => Some(bytes),
            _ => None,
        })
        .collect();
    assert_eq!(bytes, [600]);
}

#[test]
fn several_owners_have_what_the_driver_sampled_scaled_to_the_device() {
    for metric in [BUSY, ENERGY] {
        let all = if metric == BUSY { 5.0 } else { 1000.0 };
        // Their sum is less than the device's value, or more: the periods differ.
        for scale in [0.1, 1.0] {
            let mut rig = Rig::new();
            let (a, b) = (rig.process(1, 7), rig.process(2, 8));
            let read = read(&[(a, 1, 0.75 * scale), (b, 1, 0.25 * scale)]);
            let expected =
                rows([("job 7", "sampled", 0.75 * all), ("job 8", "sampled", 0.25 * all)]);
            assert_eq!(interval(&mut rig, &read, metric), expected, "{metric} {scale}");
        }
    }
}

/// The gauges of the owners in a batch: utilisation, memory and power.
fn levels(rig: &Rig, batch: &Batch) -> [Reported; 3] {
    ["gpu.owner.utilization", "gpu.owner.memory.usage", "gpu.owner.power"]
        .map(|metric| rig.reported(batch, metric))
}

#[test]
fn what_owners_have_now_adds_up_to_the_device_and_ends_with_their_processes() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 8));
    let both = Read { watts: Some(300.0), joules: None, ..read(&[(a, 600, 0.3), (b, 300, 0.1)]) };
    let batch = rig.read(0, &both);
    let expected = [
        rows([("job 7", "", 0.375), ("job 8", "", 0.125)]),
        rows([("job 7", "", 600.0), ("job 8", "", 300.0), ("unattributed", "", 100.0)]),
        rows([("job 7", "", 225.0), ("job 8", "", 75.0)]),
    ];
    assert_eq!(
        levels(&rig, &batch),
        expected,
        "from the first reading on, without an energy counter"
    );
    let one = Read { processes: vec![(a, Some(600), Some(0.3))], busy: Some(0.0), ..both.clone() };
    let batch = rig.read(10, &one);
    let expected = [
        rows([("job 7", "", 0.0)]),
        rows([("job 7", "", 600.0), ("unattributed", "", 400.0)]),
        rows([("job 7", "", 300.0)]),
    ];
    assert_eq!(
        levels(&rig, &batch),
        expected,
        "an owner that does nothing has 0, one that left nothing"
    );
    let nobody = Read { processes: Vec::new(), ..both };
    let batch = rig.read(20, &nobody);
    let expected = [
        rows([("unattributed", "", 0.5)]),
        rows([("unattributed", "", 1000.0)]),
        rows([("unattributed", "", 300.0)]),
    ];
    assert_eq!(levels(&rig, &batch), expected);
    let batch = rig.read(30, &Read { used: Some(900), ..one });
    let [utilization, .., power] = levels(&rig, &batch);
    assert_eq!(
        utilization,
        rows([("job 7", "", 0.0), ("unattributed", "", 0.0)]),
        "the rest stays"
    );
    assert_eq!(power, rows([("job 7", "", 300.0), ("unattributed", "", 0.0)]));
    let batch = rig.miss(40);
    assert!(levels(&rig, &batch).iter().all(Reported::is_empty), "not read, not known");
}

#[test]
fn what_nothing_splits_is_unattributed() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 8));
    let unsampled = read(&[(a, 1, 0.0), (b, 1, 0.0)]);
    let expected = rows([("unattributed", "unsplittable", 5.0)]);
    assert_eq!(interval(&mut rig, &unsampled, BUSY), expected);
    let batch = rig.read(20, &unsampled);
    assert_eq!(rig.reported(&batch, "gpu.unattributed.time"), rows([("", "", 10.0)]));
    assert_eq!(rig.reported(&batch, "gpu.busy.time"), rows([("", "", 10.0)]));
}

#[test]
fn the_last_samples_stay_valid_where_ticks_are_shorter_than_the_driver_s_period() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 8));
    let (sampled, bare) = (read(&[(a, 1, 0.3), (b, 1, 0.1)]), read(&[(a, 1, 0.0), (b, 1, 0.0)]));
    rig.read(0, &sampled);
    let mut reported = rows([]);
    for at in [1, 2, 3, 4] {
        let batch = rig.read(at, &bare);
        reported = rig.reported(&batch, BUSY);
    }
    let expected = rows([
        ("job 7", "sampled", 1.125),
        ("job 8", "sampled", 0.375),
        ("unattributed", "unsplittable", 0.5),
    ]);
    assert_eq!(reported, expected);
}

#[test]
fn an_unidentified_process_has_what_the_known_ones_leave() {
    let mut rig = Rig::new();
    let a = rig.process(1, 7);
    let read = Read { unidentified: 1, ..read(&[(a, 400, 0.2)]) };
    let expected = rows([("job 7", "sampled", 2.0), ("unattributed", "none", 3.0)]);
    assert_eq!(interval(&mut rig, &read, BUSY), expected);

    let mut rig = Rig::new();
    let unidentified = Read { processes: vec![], ..read };
    assert_eq!(interval(&mut rig, &unidentified, BUSY), rows([("unattributed", "none", 5.0)]));
}

#[test]
fn a_process_without_an_owner_is_unattributed_however_its_share_was_found() {
    let mut rig = Rig::new();
    let a = rig.process(1, 7);
    let unattributed = ProcKey { pid: 99, start_ticks: 1 };
    let both = read(&[(a, 400, 0.3), (unattributed, 400, 0.1)]);
    let expected = rows([("job 7", "sampled", 3.75), ("unattributed", "none", 1.25)]);
    assert_eq!(interval(&mut rig, &both, BUSY), expected);

    let mut rig = Rig::new();
    let alone = read(&[(unattributed, 400, 0.1)]);
    assert_eq!(interval(&mut rig, &alone, BUSY), rows([("unattributed", "none", 5.0)]));
}

#[test]
fn memory_that_processes_share_is_scaled_to_what_is_used() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 8));
    let read = read(&[(a, 1500, 0.0), (b, 500, 0.0)]);
    let expected = rows([("job 7", "sampled", 7500.0), ("job 8", "sampled", 2500.0)]);
    assert_eq!(interval(&mut rig, &read, MEMORY), expected);
}

#[test]
fn memory_that_the_driver_does_not_report_is_the_only_owner_s_or_unattributed() {
    let mut rig = Rig::new();
    let (a, b) = (rig.process(1, 7), rig.process(2, 8));
    let undecided = |processes| Read { processes, unidentified: 0, ..read(&[]) };
    let alone = Read { unidentified: 1, ..undecided(vec![(a, None, None)]) };
    assert_eq!(interval(&mut rig, &alone, MEMORY), rows([("job 7", "exclusive", 10_000.0)]));
    let mut rig = Rig::new();
    rig.process(1, 7);
    rig.process(2, 8);
    let both = Read { unidentified: 2, ..undecided(vec![(a, None, None), (b, None, None)]) };
    let expected = rows([("unattributed", "unsplittable", 10_000.0)]);
    assert_eq!(interval(&mut rig, &both, MEMORY), expected);
}

/// Processes with their bytes, owners of allocations, and the owners of the energy.
type Case<'a> = (&'a [(u32, i64)], &'a [u32], Reported);

#[test]
fn idle_energy_is_divided_by_memory_held_or_by_allocation() {
    let index = DeviceName::Index(0);
    let cases: [Case<'_>; 6] = [
        (&[(7, 300)], &[8], rows([("job 7", "exclusive", 1000.0)])),
        (
            &[(7, 300), (8, 100)],
            &[],
            rows([("job 7", "allocated", 750.0), ("job 8", "allocated", 250.0)]),
        ),
        (&[], &[8], rows([("job 8", "allocated", 1000.0)])),
        (&[], &[8, 9], rows([("job 8", "allocated", 500.0), ("job 9", "allocated", 500.0)])),
        (&[], &[], rows([("unattributed", "none", 1000.0)])),
        (&[(7, 0), (8, 0)], &[], rows([("unattributed", "unsplittable", 1000.0)])),
    ];
    for (holders, allocated_to, expected) in cases {
        let mut rig = Rig::new();
        let holders: Vec<_> =
            holders.iter().map(|(job, bytes)| (rig.process(*job, *job), *bytes, 0.0)).collect();
        let allocations: Vec<_> = allocated_to.iter().map(|job| (index.clone(), *job)).collect();
        rig.allocation(&allocations);
        let idle = Read { busy: Some(0.0), ..read(&holders) };
        assert_eq!(interval(&mut rig, &idle, ENERGY), expected, "{holders:?} {allocated_to:?}");
    }
}

#[test]
fn mps_clients_have_their_own_samples_and_the_server_s_are_unattributed() {
    let server = "/system.slice/mps.service";
    for (samples, expected) in [
        ([0.0, 0.3, 0.1], rows([("job 7", "sampled", 3.75), ("job 8", "sampled", 1.25)])),
        ([0.4, 0.0, 0.0], rows([("unattributed", "unsplittable", 5.0)])),
    ] {
        let mut rig = Rig::new();
        let server = rig.process_at(1, server);
        let (a, b) = (rig.process(2, 7), rig.process(3, 8));
        let [of_server, of_a, of_b] = samples;
        let processes = [(server, 30, of_server), (a, 400, of_a), (b, 400, of_b)];
        let read = Read { servers: vec![server], ..read(&processes) };
        assert_eq!(interval(&mut rig, &read, BUSY), expected);
    }
    // A job that runs its own MPS server is the only owner.
    let mut rig = Rig::new();
    let (server, a) = (rig.process(1, 7), rig.process(2, 7));
    let read = Read { servers: vec![server], ..read(&[(server, 30, 0.4), (a, 400, 0.0)]) };
    assert_eq!(interval(&mut rig, &read, BUSY), rows([("job 7", "exclusive", 5.0)]));
}

/// Busy seconds, accounted seconds and joules: the device's and the unattributed.
fn totals(rig: &mut Rig, steps: &[(u64, Option<f64>)]) -> [f64; 4] {
    let job = rig.process(1, 7);
    let mut last = None;
    for (seconds, joules) in steps {
        let batch = match joules {
            Some(joules) => {
                rig.read(*seconds, &Read { joules: Some(*joules), ..read(&[(job, 1, 0.5)]) })
            }
            None => rig.miss(*seconds),
        };
        last = Some(batch);
    }
    let batch = last.unwrap();
    let only = |metric: &str| rig.reported(&batch, metric).values().copied().sum::<f64>();
    let unattributed = rig.reported(&batch, ENERGY);
    let unattributed = unattributed.get(&("unattributed".to_owned(), "none".to_owned())).copied();
    [
        only("gpu.busy.time"),
        only("gpu.accounted.time"),
        only("gpu.accounted.energy"),
        unattributed.unwrap_or(0.0),
    ]
}

#[test]
fn no_time_is_accounted_in_which_the_device_was_not_read() {
    for (name, steps, expected) in [
        ("one reading is no interval", &[(0, Some(5e6))][..], [0.0, 0.0, 0.0, 0.0]),
        ("two are", &[(0, Some(500.0)), (10, Some(700.0))], [5.0, 10.0, 200.0, 0.0]),
        (
            "a missed reading leaves a gap; its energy is unattributed",
            &[(0, Some(500.0)), (10, None), (20, Some(700.0)), (30, Some(800.0))],
            [5.0, 10.0, 300.0, 200.0],
        ),
        (
            "so does a long pause",
            &[(0, Some(500.0)), (31, Some(700.0)), (41, Some(800.0))],
            [5.0, 10.0, 300.0, 200.0],
        ),
        (
            "a driver loaded anew has used nothing yet",
            &[(0, Some(500.0)), (10, Some(3.0)), (20, Some(4.0))],
            [10.0, 20.0, 1.0, 0.0],
        ),
        (
            "a clock set back makes no time",
            &[(100, Some(500.0)), (50, Some(700.0)), (60, Some(800.0))],
            [5.0, 10.0, 300.0, 0.0],
        ),
        (
            "the same reading twice counts once",
            &[(0, Some(500.0)), (10, Some(700.0)), (10, Some(700.0))],
            [5.0, 10.0, 200.0, 0.0],
        ),
    ] {
        assert_eq!(totals(&mut Rig::new(), steps), expected, "{name}");
    }
}

#[test]
fn a_value_that_is_not_a_number_is_not_read() {
    let mut rig = Rig::new();
    let job = rig.process(1, 7);
    let good = read(&[(job, 1, 0.5)]);
    rig.read(0, &good);
    for (at, bad) in [(10_u32, f64::NAN), (20, f64::INFINITY), (30, -1.0)] {
        let bad = Read { busy: Some(bad), used: Some(-1), joules: Some(bad), ..good.clone() };
        // Above 100 % counts as 100 %.
        let batch = rig.read(at.into(), &bad);
        let whole = if at >= 20 { 10.0 } else { 0.0 };
        assert_eq!(rig.reported(&batch, "gpu.busy.time"), rows([("", "", whole)]), "at {at}");
        // The byte that the process holds.
        let held = rows([("", "", at.into())]);
        assert_eq!(rig.reported(&batch, "gpu.memory.byte_seconds"), held);
        assert_eq!(rig.reported(&batch, "gpu.accounted.energy"), rows([("", "", 0.0)]));
    }
    let batch = rig.read(40, &Read { joules: Some(2500.0), ..good });
    let expected = rows([("job 7", "exclusive", 0.0), ("unattributed", "none", 500.0)]);
    assert_eq!(rig.reported(&batch, ENERGY), expected);
}

#[test]
fn a_batch_of_another_source_stays_as_it_is() {
    let mut rig = Rig::new();
    let batch = Batch::new("host", super::fixture::time(0));
    assert!(rig.account(batch).samples.is_empty());
}

#[test]
fn owners_beyond_the_limit_are_other_and_nothing_is_lost() {
    let mut rig = Rig::new();
    let many: Vec<_> = (1..=70).map(|job| (rig.process(job, job), 10, 0.01)).collect();
    let all = read(&many);
    rig.read(0, &all);
    let batch = rig.read(10, &all);
    let reported = rig.reported(&batch, BUSY);
    assert_eq!(reported.len(), 65);
    let other = reported[&("other".to_owned(), "sampled".to_owned())];
    assert!((other - 5.0 * 6.0 / 70.0).abs() < 1e-6, "{other}");
    assert!((reported.values().sum::<f64>() - 5.0).abs() < 1e-9, "{reported:?}");
    // Two readings of six owners, each with shares of three resources.
    assert_eq!(rig.reported(&batch, "gpuwho.shares.folded_into_other"), rows([("", "", 36.0)]));

    // An owner that is absent the longest makes room.
    let last = read(&many[65..]);
    rig.read(20, &last);
    let batch = rig.read(30, &last);
    assert!(rig.reported(&batch, BUSY).contains_key(&("job 70".to_owned(), "sampled".to_owned())));
}

#[test]
fn processes_of_an_owner_are_counted_by_evidence() {
    let mut rig = Rig::new();
    let (a, b, c) = (rig.process(1, 7), rig.process(2, 7), rig.process(3, 8));
    rig.opens(a, "/dev/nvidia7");
    rig.opens(c, "195:7");
    rig.opens(b, "/dev/nvidia0");
    let batch = rig.read(0, &read(&[(a, 1, 0.0), (b, 1, 0.0)]));
    let expected =
        rows([("job 7", "listed", 2.0), ("job 7", "opened", 1.0), ("job 8", "opened", 1.0)]);
    assert_eq!(rig.reported(&batch, "gpu.owner.processes"), expected);
}

/// A pod's accounts: seconds by container name, if known.
fn of_pod(rig: &Rig, batch: &Batch) -> Vec<(Option<String>, f64)> {
    let of = batch.samples.iter().filter_map(|(_, sample)| match (sample.subject, &sample.value) {
        (Subject::GpuOwner(on), Value::Double(seconds))
            if sample.metric.name == "gpu.owner.busy.time" =>
        {
            match &rig.ownership.owner(on.owner).unwrap().owner {
                Owner::Pod { container, .. } => {
                    Some((container.as_deref().map(str::to_owned), *seconds))
                }
                _ => None,
            }
        }
        _ => None,
    });
    let mut all: Vec<_> = of.collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn a_container_name_that_arrives_late_moves_no_second_and_the_pod_s_sum_is_its_use() {
    let mut rig = Rig::new();
    let (uid, id) = ("aaaaaaaa-0000-4000-8000-000000000001", "a".repeat(64));
    let process = rig.process_at(1, &format!("/kubepods/pod{uid}/{id}"));
    let used =
        Read { busy: Some(0.5), processes: vec![(process, Some(10), None)], ..Read::default() };
    rig.read(0, &used);
    let batch = rig.read(10, &used);
    assert_eq!(of_pod(&rig, &batch), [(None, 5.0)]);

    // The runtime did not answer until now.
    rig.ownership.put_container(
        Provider::Cri,
        ContainerFacts {
            id: ContainerId::new(&id),
            name: Some("train".into()),
            image: None,
            runtime: "containerd",
            pod: Some(PodUid::new(uid)),
            cgroup: None,
            details: AttrSet::new(),
        },
    );
    // The amounts recorded for the pod stay there: its container was not known then.
    let batch = rig.read(20, &used);
    let train = || Some("train".to_owned());
    assert_eq!(of_pod(&rig, &batch), [(None, 5.0), (train(), 5.0)]);
    let batch = rig.read(30, &used);
    assert_eq!(of_pod(&rig, &batch), [(None, 5.0), (train(), 10.0)]);
}

#[test]
fn the_steady_tick_allocates_for_its_batch_only() {
    let mut rig = Rig::new();
    let jobs: Vec<_> = (1..=20).map(|job| (rig.process(job, job), 10, 0.01)).collect();
    let steady = read(&jobs);
    for tick in 0..3 {
        rig.read(tick * 10, &steady);
    }
    let mut batch = Batch::new("nvidia", super::fixture::time(30));
    super::fixture::push(&mut batch, rig.gpu(0), super::fixture::time(30), &steady);
    batch.samples.reserve(1000);
    let counted = allocation_counter::measure(|| {
        rig.accounting.account(&mut batch, &rig.ownership, &rig.inventory);
    });
    // The current lists of allocations, devices (twice) and instances.
    assert!(counted.count_total <= 4, "{counted:?}");
}
