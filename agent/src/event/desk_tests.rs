use super::*;
use crate::attribute::{Evidence, KernelCgroups, Opened};
use crate::event::Named;
use crate::event::Severity;
use crate::event::record::records;
use crate::ids::GpuUuid;
use crate::inventory::facts::Facts;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

struct Room {
    desk: Desk,
    gpu: GpuId,
    wakes: Arc<AtomicU64>,
    start: Instant,
}

const SECOND: u64 = 1_000_000_000;

/// A desk in front of one device on which two processes of one user and one of another are.
fn room() -> Room {
    let inventory = Arc::new(Inventory::default());
    let gpu = inventory.put(GpuInfo {
        uuid: GpuUuid::new("GPU-0"),
        vendor: "nvidia".into(),
        index: 0,
        minor: Some(3),
        model: Some("H100".into()),
        pci_address: Some("00000000:17:00.0".into()),
        serial: None,
        driver_version: None,
        cuda_version: None,
        mig: None,
        facts: Facts::default(),
    });
    let paths = Paths::under(Path::new("/nonexistent"));
    let ownership = Ownership::with_clock(&paths, || 100 * SECOND);
    for (pid, uid, node) in
        [(10, 7, "/dev/nvidia3"), (11, 7, "/dev/nvidia3"), (12, 8, "/dev/nvidia1")]
    {
        ownership.observe(Evidence::Opened(Opened {
            process: ProcKey { pid, start_ticks: 100 },
            uid,
            comm: Arc::from("train"),
            cgroups: KernelCgroups::default(),
            node: Arc::from(node),
            at_ns: 2 * SECOND,
        }));
    }
    let wakes = Arc::new(AtomicU64::new(0));
    let woken = Arc::clone(&wakes);
    let desk = Desk::new(Sources {
        inventory,
        ownership,
        listed: Box::new(|_| Vec::new()),
        paths,
        wake: Box::new(move || {
            woken.fetch_add(1, Ordering::Relaxed);
        }),
        make_way: Box::new(|| {}),
    });
    Room { desk, gpu, wakes, start: Instant::now() }
}

impl Room {
    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn take(&self, what: Happening, witness: Witness, seconds: u64) {
        let at = Moment { time: SystemTime::UNIX_EPOCH, boot_ns: 50 * SECOND };
        self.desk.take(what, at, witness, self.at(seconds));
    }

    fn xids(&self) -> Vec<(u16, u64)> {
        self.desk.tally().xids.into_iter().map(|(_, code, count)| (code, count)).collect()
    }
}

fn xid(code: u32) -> Happening {
    Happening {
        kind: EventKind::Xid,
        place: Place::Pci(PciAddress::parse("0000:17:00").unwrap()),
        code: Some(code),
        severity: Severity::Critical,
        process: None,
        gpu_instance: None,
        peer: None,
        stuck: None,
        message: "NVRM: Xid".into(),
    }
}

fn pids(event: &Event) -> Vec<(u32, u64)> {
    event.victims.iter().map(|victim| (victim.owner.process.pid, victim.processes)).collect()
}

#[test]
fn an_xid_without_a_process_strikes_everybody_on_the_device_and_nobody_else() {
    let room = room();
    room.take(xid(79), Witness::Kmsg, 0);
    let told = room.desk.drain();
    let [event] = &told[..] else { panic!("one event: {told:?}") };
    assert_eq!(event.what.place, Place::Gpu(room.gpu));
    assert_eq!(pids(event), [(10, 2)], "one owner's two processes");
    assert_eq!(room.wakes.load(Ordering::Relaxed), 1);
    assert_eq!(room.xids(), [(79, 1)]);
}

#[test]
fn an_xid_of_one_process_strikes_that_one() {
    let room = room();
    let process = Some(Named { pid: 11, comm: None });
    room.take(Happening { process, ..xid(31) }, Witness::Kmsg, 0);
    assert_eq!(pids(&room.desk.drain()[0]), [(11, 1)]);
}

#[test]
fn a_process_that_ended_before_is_no_victim() {
    let room = room();
    let ended = |pid, at_ns| Evidence::Exited { process: ProcKey { pid, start_ticks: 100 }, at_ns };
    room.desk.sources.ownership.observe(ended(10, 49 * SECOND));
    room.desk.sources.ownership.observe(ended(11, 51 * SECOND));
    room.take(xid(79), Witness::Kmsg, 0);
    assert_eq!(pids(&room.desk.drain()[0]), [(11, 1)], "it ended a second after the XID");
}

#[test]
fn a_process_that_started_after_an_old_record_is_no_victim() {
    let room = room();
    let at = Moment { time: SystemTime::UNIX_EPOCH, boot_ns: SECOND / 2 };
    room.desk.take(xid(79), at, Witness::Kmsg, room.at(0));
    assert_eq!(pids(&room.desk.drain()[0]), []);
}

#[test]
fn a_killed_process_that_held_no_device_is_not_told() {
    let room = room();
    let killed = |pid| Happening {
        kind: EventKind::OomKill,
        place: Place::Host,
        code: None,
        process: Some(Named { pid, comm: None }),
        ..xid(0)
    };
    room.take(killed(999), Witness::Kmsg, 0);
    assert_eq!(room.desk.drain(), []);
    room.take(killed(12), Witness::Kmsg, 0);
    assert_eq!(pids(&room.desk.drain()[0]), [(12, 1)]);
}

#[test]
fn two_tellings_are_one_event_and_one_count() {
    let room = room();
    room.desk.pair(true);
    room.take(Happening { message: "event".into(), ..xid(79) }, Witness::Nvml, 0);
    room.take(xid(79), Witness::Kmsg, 1);
    assert_eq!(room.desk.drain(), [], "the other may still come");
    room.desk.settle(room.at(2));
    let told = room.desk.drain();
    let [event] = &told[..] else { panic!("one event: {told:?}") };
    assert_eq!((event.witness, &*event.what.message), (Witness::Both, "NVRM: Xid"));
    assert_eq!(room.xids(), [(79, 1)]);
}

#[test]
fn one_source_telling_twice_is_two_events() {
    let room = room();
    room.desk.pair(true);
    room.take(xid(31), Witness::Kmsg, 0);
    room.take(xid(31), Witness::Kmsg, 1);
    room.desk.settle(room.at(4));
    assert_eq!(room.desk.drain().len(), 2);
    assert_eq!(room.xids(), [(31, 2)]);
}

#[test]
fn a_storm_is_told_in_ten_and_a_sum_and_counted_whole() {
    let room = room();
    for _ in 0..500 {
        room.take(xid(63), Witness::Kmsg, 0);
    }
    room.take(xid(64), Witness::Kmsg, 0);
    let counts = |told: Vec<Event>| {
        told.iter().map(|event| (event.what.code, event.count)).collect::<Vec<_>>()
    };
    let mut expected = vec![(Some(63), 1); 10];
    expected.push((Some(64), 1));
    assert_eq!(counts(room.desk.drain()), expected);
    room.desk.settle(room.at(59));
    assert_eq!(counts(room.desk.drain()), []);
    room.desk.settle(room.at(60));
    assert_eq!(counts(room.desk.drain()), [(Some(63), 490)]);
    assert_eq!(room.xids(), [(63, 500), (64, 1)]);
    room.take(xid(63), Witness::Kmsg, 61);
    assert_eq!(counts(room.desk.drain()), [(Some(63), 1)], "the next minute begins anew");
}

#[test]
fn what_the_pipeline_does_not_take_is_counted_as_lost() {
    let room = room();
    for code in 0..300 {
        room.take(xid(code), Witness::Kmsg, 0);
    }
    assert_eq!(room.desk.drain().len(), MOST_WAITING);
    assert_eq!(room.desk.tally().lost, 300 - MOST_WAITING as u64);
}

#[test]
fn counts_of_an_unknown_device_wait_until_it_is_known() {
    let room = room();
    let place = Place::Pci(PciAddress::parse("0000:18:00").unwrap());
    room.take(Happening { place, ..xid(79) }, Witness::Kmsg, 0);
    assert_eq!(room.xids(), []);
    let inventory = &room.desk.sources.inventory;
    let known = inventory.get(room.gpu).unwrap();
    let pci_address = Some("00000000:18:00.0".into());
    inventory.put(GpuInfo { uuid: GpuUuid::new("GPU-1"), pci_address, ..(*known).clone() });
    assert_eq!(room.xids(), [(79, 1)]);
}

#[test]
fn a_record_says_what_it_means_what_to_do_and_whose_it_was() {
    let room = room();
    room.take(xid(79), Witness::Kmsg, 0);
    let event = room.desk.drain().remove(0);
    let told = records(&event);
    let [record] = &told[..] else { panic!("one owner, one record: {told:?}") };
    let attributes: BTreeMap<_, _> = record
        .attributes
        .iter()
        .filter(|(key, _)| !key.name.ends_with("event.id"))
        .map(|(key, value)| (key.name, value.to_string()))
        .collect();
    let expected = [
        ("gpu.index", "0"),
        ("gpu.model", "H100"),
        ("gpu.pci.address", "00000000:17:00.0"),
        ("gpu.uuid", "GPU-0"),
        ("gpu.vendor", "nvidia"),
        ("gpu.xid.code", "79"),
        ("gpu.xid.name", "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS"),
        ("gpuwho.event.action", "drain the node and restart it; check power, seating and PCIe"),
        ("gpuwho.event.meaning", "the GPU has fallen off the bus: it is not reachable over PCIe"),
        ("gpuwho.event.processes", "2"),
        ("gpuwho.event.source", "kmsg"),
        ("gpuwho.owner.method", "none"),
        ("process.executable.name", "train"),
        ("process.owner", "7"),
        ("process.pid", "10"),
    ];
    let expected = expected.map(|(key, value)| (key, value.to_owned())).into_iter().collect();
    assert_eq!(attributes, expected);
    assert_eq!((record.name, record.severity, record.severity_text), ("gpu.xid", 21, "critical"));
}
