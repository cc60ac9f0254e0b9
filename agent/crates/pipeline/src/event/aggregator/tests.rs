use super::waiting::{MAX_HELD, MAX_QUEUED};
use super::*;
use crate::event::Severity;
use crate::event::record::records;
use crate::event::{Named, Peer};
use gpuwho_model::ids::{CgroupId, GpuUuid, Hierarchy};
use gpuwho_owners::attribute::fake::FakeHost;
use gpuwho_owners::attribute::{Evidence, KernelCgroups, Opened};
use gpuwho_owners::inventory::facts::Facts;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct Room {
    aggregator: EventAggregator,
    gpu: GpuId,
    wakes: Arc<AtomicU64>,
    start: Instant,
}

const SECOND: u64 = 1_000_000_000;

/// An aggregator with one device on which two processes of one user and one of another run.
fn room() -> Room {
    let inventory = Arc::new(Inventory::default());
    let gpu = inventory.put(GpuInfo {
        uuid: GpuUuid::new("GPU-0"),
        placed: None,
        vendor: "nvidia".into(),
        index: 0,
        minor: Some(3),
        nodes: vec!["nvidia3".to_owned()],
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
    let aggregator = EventAggregator::new(Sources {
        inventory,
        ownership,
        listed: Box::new(|_| Vec::new()),
        paths,
        wake: Box::new(move || {
            woken.fetch_add(1, Ordering::Relaxed);
        }),
        make_way: Box::new(|| {}),
    });
    Room { aggregator, gpu, wakes, start: Instant::now() }
}

impl Room {
    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn take(&self, what: Observation, event_source: EventSource, seconds: u64) {
        let at = Moment { time: SystemTime::UNIX_EPOCH, boot_ns: 50 * SECOND };
        self.aggregator.take(what, at, event_source, self.at(seconds));
    }

    fn xids(&self) -> Vec<(u16, u64)> {
        self.aggregator.tally().xids.into_iter().map(|(_, code, _, count)| (code, count)).collect()
    }
}

fn xid(code: u32) -> Observation {
    let place = Place::Pci(PciAddress::parse("0000:17:00").unwrap());
    let seen = Observation::new(EventKind::Xid, place, Severity::Critical, "NVRM: Xid");
    Observation { code: Some(code), ..seen }
}

fn pids(event: &Event) -> Vec<(u32, u64)> {
    event
        .affected_owners
        .iter()
        .map(|affected_owner| (affected_owner.owner.process.pid, affected_owner.processes))
        .collect()
}

#[test]
fn an_xid_without_a_process_affects_every_owner_on_the_device_and_no_other() {
    let room = room();
    room.take(xid(79), EventSource::Kmsg, 0);
    let reported = room.aggregator.drain();
    let [event] = &reported[..] else { panic!("one event: {reported:?}") };
    assert_eq!(event.what.place, Place::Gpu(room.gpu));
    assert_eq!(pids(event), [(10, 2)], "one owner's two processes");
    assert_eq!(room.wakes.load(Ordering::Relaxed), 1);
    assert_eq!(room.xids(), [(79, 1)]);
}

#[test]
fn an_xid_of_a_mig_instance_affects_the_owners_in_it_only() {
    let mut room = room();
    let known = room.aggregator.sources.inventory.get(room.gpu).unwrap();
    room.aggregator.sources.inventory.put(GpuInfo { mig: Some(true), ..(*known).clone() });
    let key = |pid| ProcKey { pid, start_ticks: 100 };
    room.aggregator.sources.listed =
        Box::new(move |_| vec![(key(10), Some(1)), (key(12), Some(2)), (key(11), None)]);
    let in_instance = |gpu_instance| Observation { gpu_instance: Some(gpu_instance), ..xid(79) };
    for gpu_instance in [1, 2, 3] {
        room.take(in_instance(gpu_instance), EventSource::Nvml, 0);
    }
    let reported = room.aggregator.drain();
    let with_affected: Vec<_> = reported.iter().map(pids).collect();
    assert_eq!(with_affected, [vec![(10, 1)], vec![(12, 1)], vec![]]);
}

#[test]
fn an_xid_of_one_process_affects_that_process() {
    let room = room();
    let process = Some(Named::pid(11));
    room.take(Observation { process, ..xid(31) }, EventSource::Kmsg, 0);
    assert_eq!(pids(&room.aggregator.drain()[0]), [(11, 1)]);
}

#[test]
fn instance_0_of_a_device_without_mig_is_the_device() {
    let room = room();
    room.take(Observation { gpu_instance: Some(0), ..xid(48) }, EventSource::Nvml, 0);
    let event = room.aggregator.drain().remove(0);
    assert_eq!((pids(&event), event.what.gpu_instance), (vec![(10, 2)], None));
}

/// One process of each of some owners.
type AffectedProcesses = Vec<(u32, &'static str)>;

/// The processes that an XID affects and why, with an aggregator on which processes 10 and 11 of
/// user 7 and 20 of user 9 are on the device and 12 of user 8 is on another, when the log names a
/// process.
fn affected(
    code: u32,
    message: &str,
    named: Option<u32>,
    listed: &'static [u32],
) -> AffectedProcesses {
    affected_of("train", code, message, named, listed)
}

fn affected_of(
    comm: &str,
    code: u32,
    message: &str,
    named: Option<u32>,
    listed: &'static [u32],
) -> AffectedProcesses {
    let mut room = room();
    opens(&room, 20, 9, comm);
    let key = |pid: &u32| (ProcKey { pid: *pid, start_ticks: 100 }, None);
    room.aggregator.sources.listed = Box::new(move |_| listed.iter().map(key).collect());
    let process = named.map(Named::pid);
    room.take(Observation { process, message: message.into(), ..xid(code) }, EventSource::Kmsg, 0);
    let event = room.aggregator.drain().remove(0);
    let reported = event.affected_owners.iter();
    reported
        .map(|affected_owner| {
            (affected_owner.owner.process.pid, affected_owner.affected.unwrap().as_str())
        })
        .collect()
}

/// A process that opened the device at two seconds, in a container of its own.
fn opens(room: &Room, pid: u32, uid: u32, comm: &str) {
    let ownership = &room.aggregator.sources.ownership;
    let id = CgroupId { hierarchy: Hierarchy::V2, id: u64::from(pid) };
    ownership.observe(Evidence::CgroupMade { id, path: container('c').into() });
    ownership.observe(Evidence::Opened(Opened {
        process: ProcKey { pid, start_ticks: 100 },
        uid,
        comm: Arc::from(comm),
        cgroups: KernelCgroups(vec![id]),
        node: Arc::from("/dev/nvidia3"),
        at_ns: 2 * SECOND,
    }));
}

#[test]
fn a_fault_of_the_device_affects_every_owner_on_it_and_marks_the_named_process() {
    const FATAL: &str = "NVRM: Xid (PCI:0000:17:00): 145, pid=11, name=a, RLW_REMAP Fatal XC0 i0 Link 10 (0x00000004 0x00000040)";
    for (code, text) in [(79, ""), (95, ""), (119, ""), (74, ""), (145, FATAL)] {
        let every_owner = |first| vec![(first, "device"), (20, "device")];
        assert_eq!(affected(code, text, None, &[]), every_owner(10), "{code}");
        assert_eq!(affected(code, text, Some(11), &[]), [(11, "named"), (20, "device")], "{code}");
        // Process 12 is on another device, and 999 does not exist.
        assert_eq!(affected(code, text, Some(12), &[]), every_owner(10), "{code}");
        assert_eq!(affected(code, text, Some(999), &[]), every_owner(10), "{code}");
    }
}

#[test]
fn a_fault_of_a_program_affects_the_named_process_that_held_the_device() {
    const NONFATAL: &str = "NVRM: Xid (PCI:0000:17:00): 145, pid=11, name=a, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000004)";
    for (code, text) in [(13, ""), (31, ""), (43, ""), (45, ""), (94, ""), (145, NONFATAL)] {
        assert_eq!(affected(code, text, Some(11), &[]), [(11, "named")], "{code}");
        assert_eq!(affected(code, text, Some(12), &[]), [], "{code}: on another device");
        assert_eq!(affected(code, text, Some(12), &[12]), [(12, "named")], "{code}: listed");
        assert_eq!(affected(code, text, Some(999), &[]), [], "{code}: no such process");
        let all = [(10, "candidate"), (20, "candidate")];
        assert_eq!(affected(code, text, None, &[]), all, "{code}: no name");
    }
}

#[test]
fn a_monitor_is_not_affected_by_faults_of_the_device() {
    for comm in ["nv-hostengine", "dcgm-exporter", "nvidia-smi", "gpud", "gpuwho"] {
        let poller = |code, named, listed| affected_of(comm, code, "", named, listed);
        assert_eq!(poller(119, Some(20), &[]), [(10, "device")], "{comm}");
        assert_eq!(poller(79, None, &[]), [(10, "device")], "{comm}");
        assert_eq!(poller(43, Some(20), &[]), [], "{comm}");
        // With that name, but with a context on the device.
        let all = [(20, "named"), (10, "device")];
        assert_eq!(poller(119, Some(20), &[20]), all, "{comm}");
        assert_eq!(poller(31, Some(20), &[20]), [(20, "named")], "{comm}");
    }
}

#[test]
fn the_agents_own_processes_are_not_affected_whatever_they_are_called() {
    let room = room();
    let own = std::process::id();
    opens(&room, own, 0, "reader");
    room.take(Observation { process: Some(Named::pid(own)), ..xid(74) }, EventSource::Kmsg, 0);
    let event = room.aggregator.drain().remove(0);
    assert_eq!(pids(&event), [(10, 2)]);
    room.take(Observation { process: Some(Named::pid(own)), ..xid(31) }, EventSource::Kmsg, 0);
    let event = room.aggregator.drain().remove(0);
    assert_eq!(pids(&event), []);
    let reported = records(&event);
    let pid = reported[0].attributes.iter().find(|(key, _)| key.name.starts_with("process."));
    assert_eq!(pid, None, "the line alone names it");
}

#[test]
fn a_nonfatal_link_error_is_not_critical_even_if_the_library_reports_it_first() {
    const LINE: &str = "NVRM: Xid (PCI:0000:17:00): 145, RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000004)";
    const FATAL: &str =
        "NVRM: Xid (PCI:0000:17:00): 145, RLW_REMAP Fatal XC1 i0 Link 10 (0x00000004 0x00000040)";
    for (line, severity) in [(LINE, Severity::Warning), (FATAL, Severity::Critical)] {
        let room = room();
        room.aggregator.pair(true);
        let library =
            Observation { severity: Severity::Warning, message: "XID 145".into(), ..xid(145) };
        room.take(library, EventSource::Nvml, 0);
        room.take(Observation { severity, message: line.into(), ..xid(145) }, EventSource::Kmsg, 0);
        room.aggregator.apply_due(room.at(2));
        let event = room.aggregator.drain().remove(0);
        assert_eq!((event.source, event.what.severity), (EventSource::Both, severity));
        assert_eq!(room.aggregator.tally().xids, [(room.gpu, 145, severity, 1)]);
        let reported = records(&event).remove(0);
        let text = |name: &str| {
            let mut all = reported.attributes.iter();
            all.find_map(|(key, value)| (key.name == name).then(|| value.to_string()))
        };
        assert_eq!(text("gpu.xid.unit").as_deref(), Some("RLW_REMAP"));
        assert!(text("gpu.xid.status").is_some_and(|status| status.starts_with("0x000000")));
    }
}

#[test]
fn a_fatal_error_is_reported_after_a_burst_of_others_of_its_code() {
    let room = room();
    let of = |severity| Observation { severity, ..xid(145) };
    (0..500).for_each(|_| room.take(of(Severity::Warning), EventSource::Kmsg, 0));
    room.take(of(Severity::Critical), EventSource::Kmsg, 0);
    let reported = room.aggregator.drain();
    assert_eq!((reported.len(), reported[10].what.severity), (11, Severity::Critical));
}

#[test]
fn a_burst_of_one_owner_hides_no_event_of_another() {
    let room = room();
    opens(&room, 20, 9, "train");
    let of = |pid| Observation { process: Some(Named::pid(pid)), ..xid(31) };
    (0..500).for_each(|_| room.take(of(20), EventSource::Kmsg, 0));
    room.take(of(11), EventSource::Kmsg, 0);
    let reported = room.aggregator.drain();
    assert_eq!((reported.len(), pids(&reported[10])), (11, vec![(11, 1)]));
    // The tick does it where no kernel log is read.
    assert!(room.aggregator.release_due(room.at(60)));
    let summed = room.aggregator.drain();
    assert_eq!((summed.len(), summed[0].count, pids(&summed[0])), (1, 490, vec![(20, 1)]));
}

#[test]
fn only_so_many_events_wait_for_the_other_source() {
    let room = room();
    room.aggregator.pair(true);
    (0..MAX_HELD + 5).for_each(|_| room.take(xid(31), EventSource::Kmsg, 0));
    assert_eq!(room.aggregator.drain().len(), 5);
    room.aggregator.apply_due(room.at(2));
    assert_eq!(room.xids(), [(31, MAX_HELD as u64 + 5)]);
}

#[test]
fn a_process_that_ended_before_is_not_affected() {
    let room = room();
    let ended = |pid, at_ns| Evidence::Exited { process: ProcKey { pid, start_ticks: 100 }, at_ns };
    room.aggregator.sources.ownership.observe(ended(10, 49 * SECOND));
    room.aggregator.sources.ownership.observe(ended(11, 51 * SECOND));
    room.take(xid(79), EventSource::Kmsg, 0);
    assert_eq!(pids(&room.aggregator.drain()[0]), [(11, 1)], "it ended a second after the XID");
}

#[test]
fn a_process_that_started_after_an_old_record_is_not_affected() {
    let room = room();
    let at = Moment { time: SystemTime::UNIX_EPOCH, boot_ns: SECOND / 2 };
    room.aggregator.take(xid(79), at, EventSource::Kmsg, room.at(0));
    assert_eq!(pids(&room.aggregator.drain()[0]), []);
}

#[test]
fn a_killed_process_that_held_no_device_is_not_reported() {
    let room = room();
    let killed = |pid| Observation {
        kind: EventKind::OomKill,
        place: Place::Host,
        code: None,
        process: Some(Named::pid(pid)),
        ..xid(0)
    };
    room.take(killed(999), EventSource::Kmsg, 0);
    assert_eq!(room.aggregator.drain(), []);
    room.take(killed(12), EventSource::Kmsg, 0);
    assert_eq!(pids(&room.aggregator.drain()[0]), [(12, 1)]);
}

#[test]
fn a_process_that_still_runs_was_not_killed() {
    let host = FakeHost::new();
    let mut room = room();
    room.aggregator.sources.ownership = Ownership::with_clock(&host.paths, || 100 * SECOND);
    let process = ProcKey { pid: 12, start_ticks: 100 };
    host.start(process, "train", "0::/\n");
    opens(&room, 12, 8, "train");
    let killed = Observation {
        kind: EventKind::OomKill,
        place: Place::Host,
        code: None,
        process: Some(Named::pid(12)),
        ..xid(0)
    };
    let reported = |change: &dyn Fn()| {
        change();
        room.take(killed.clone(), EventSource::Kmsg, 0);
        room.aggregator.drain().iter().map(pids).collect::<Vec<_>>()
    };
    let none: Vec<Vec<(u32, u64)>> = Vec::new();
    assert_eq!(reported(&|| {}), none);
    let pending = "Tgid:\t12\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
    assert_eq!(reported(&|| host.write(process, "status", pending)), [[(12, 1)]], "not yet begun");
    host.start(process, "train", "0::/\n");
    assert_eq!(reported(&|| host.rewrite_stat(process, 'S', 4)), [[(12, 1)]], "it is exiting");
    assert_eq!(reported(&|| host.end(process)), [[(12, 1)]], "it has ended");
    let later = ProcKey { pid: 12, start_ticks: 5100 };
    assert_eq!(
        reported(&|| host.start(later, "other", "0::/\n")),
        [[(12, 1)]],
        "another has its number"
    );
}

/// A process that opened a device at two seconds, of pod `uid`, in a container's cgroup.
fn in_pod(room: &Room, pid: u32, cgroup: &str, node: &str) {
    let ownership = &room.aggregator.sources.ownership;
    let id = CgroupId { hierarchy: Hierarchy::V2, id: u64::from(pid) };
    ownership.observe(Evidence::CgroupMade { id, path: cgroup.into() });
    ownership.observe(Evidence::Opened(Opened {
        process: ProcKey { pid, start_ticks: 100 },
        uid: 7,
        comm: Arc::from("train"),
        cgroups: KernelCgroups(vec![id]),
        node: Arc::from(node),
        at_ns: 2 * SECOND,
    }));
}

const POD: &str = "/kubepods.slice/kubepods-pod0f0e0d0c_0b0a_4908_8706_050403020100.slice";

fn container(digit: char) -> String {
    format!("{POD}/cri-containerd-{}.scope", digit.to_string().repeat(64))
}

fn killed(pid: u32, cgroup: &str, uid: Option<u32>) -> Observation {
    Observation {
        kind: EventKind::OomKill,
        place: Place::Host,
        code: None,
        process: Some(Named { pid, comm: Some("loader".into()), uid }),
        cgroup: Some(cgroup.into()),
        ..xid(0)
    }
}

/// PID, user, pod and container of each affected owner.
fn identities(events: &[Event]) -> Vec<(u32, u32, Option<String>, Option<String>)> {
    let all_affected = events.iter().flat_map(|event| &event.affected_owners);
    let rows = all_affected.map(|AffectedOwner { owner, .. }| {
        let pod = owner.workload.pod.as_ref().map(|pod| pod.uid.to_string());
        let container = owner.workload.container.as_ref().map(ToString::to_string);
        (owner.process.pid, owner.uid, pod, container)
    });
    rows.collect()
}

#[test]
fn an_unknown_killed_process_is_reported_by_the_cgroup_of_processes_on_a_device() {
    let room = room();
    in_pod(&room, 20, &container('a'), "/dev/nvidia3");
    room.take(killed(999, &container('a'), Some(1000)), EventSource::Kmsg, 0);
    let reported = room.aggregator.drain();
    let pod = Some("0f0e0d0c-0b0a-4908-8706-050403020100".to_owned());
    assert_eq!(identities(&reported), [(999, 1000, pod, Some("a".repeat(64)))]);
    let neighbour =
        room.aggregator.sources.ownership.attribution(ProcKey { pid: 20, start_ticks: 100 });
    assert_eq!(reported[0].affected_owners[0].owner.owner, neighbour.unwrap().owner, "one account");
    let counted = room.aggregator.tally().kinds;
    assert!(counted.contains(&(EventKind::OomKill, 1)), "{counted:?}");
}

#[test]
fn a_killed_process_of_a_cgroup_without_a_device_is_not_reported() {
    let room = room();
    in_pod(&room, 20, &container('a'), "/dev/nvidia3");
    let other = POD.replace("0f0e", "1f0e");
    for cgroup in [container('b').as_str(), &other, "/", "/system.slice/cron.service"] {
        room.take(killed(999, cgroup, Some(1000)), EventSource::Kmsg, 0);
    }
    assert_eq!(room.aggregator.drain(), []);
}

#[test]
fn a_killed_process_is_reported_by_its_cgroup_after_all_of_it_have_ended() {
    let room = room();
    in_pod(&room, 20, "/slurm/uid_7/job_5/step_0", "/dev/nvidia3");
    let process = ProcKey { pid: 20, start_ticks: 100 };
    room.aggregator.sources.ownership.observe(Evidence::Exited { process, at_ns: 49 * SECOND });
    // An old kernel does not log the user.
    room.take(killed(999, "/slurm/uid_7/job_5/step_1", None), EventSource::Kmsg, 0);
    let reported = room.aggregator.drain();
    assert_eq!(identities(&reported), [(999, 7, None, None)]);
    let job = reported[0].affected_owners[0]
        .owner
        .workload
        .slurm
        .as_ref()
        .map(|task| task.job.to_string());
    assert_eq!(job.as_deref(), Some("5"));
}

#[test]
fn two_reports_of_one_fault_are_one_event_and_one_count() {
    let room = room();
    room.aggregator.pair(true);
    room.take(Observation { message: "event".into(), ..xid(79) }, EventSource::Nvml, 0);
    room.take(xid(79), EventSource::Kmsg, 1);
    assert_eq!(room.aggregator.drain(), [], "the other may still come");
    room.aggregator.apply_due(room.at(2));
    let reported = room.aggregator.drain();
    let [event] = &reported[..] else { panic!("one event: {reported:?}") };
    assert_eq!((event.source, &*event.what.message), (EventSource::Both, "NVRM: Xid"));
    assert_eq!(room.xids(), [(79, 1)]);
}

#[test]
fn only_the_process_that_the_log_names_is_affected_whichever_source_reports_first() {
    for library_first in [true, false] {
        let room = room();
        room.aggregator.pair(true);
        let library = (xid(31), EventSource::Nvml);
        let log = (Observation { process: Some(Named::pid(11)), ..xid(31) }, EventSource::Kmsg);
        let reports = if library_first { [library, log] } else { [log, library] };
        for (what, event_source) in reports {
            room.take(what, event_source, 0);
        }
        room.aggregator.apply_due(room.at(2));
        let reported = room.aggregator.drain();
        let [event] = &reported[..] else { panic!("one event: {reported:?}") };
        assert_eq!(
            (event.source, pids(event)),
            (EventSource::Both, vec![(11, 1)]),
            "{library_first}"
        );
    }
}

#[test]
fn an_unbinding_that_the_library_reports_seconds_after_the_log_is_one_event_and_closes_devices_once()
 {
    let mut room = room();
    let ways = Arc::new(AtomicU64::new(0));
    let made = Arc::clone(&ways);
    room.aggregator.sources.make_way = Box::new(move || {
        made.fetch_add(1, Ordering::Relaxed);
    });
    room.aggregator.pair(true);
    let unbind = || Observation { kind: EventKind::DriverUnbind, code: None, ..xid(0) };
    room.take(unbind(), EventSource::Kmsg, 0);
    room.aggregator.apply_due(room.at(5));
    room.take(unbind(), EventSource::Nvml, 6);
    room.aggregator.apply_due(room.at(7));
    let reported: Vec<EventSource> =
        room.aggregator.drain().iter().map(|event| event.source).collect();
    assert_eq!((reported, ways.load(Ordering::Relaxed)), (vec![EventSource::Both], 1));
}

#[test]
fn two_reports_of_one_source_are_two_events() {
    let room = room();
    room.aggregator.pair(true);
    room.take(xid(31), EventSource::Kmsg, 0);
    room.take(xid(31), EventSource::Kmsg, 1);
    room.aggregator.apply_due(room.at(4));
    assert_eq!(room.aggregator.drain().len(), 2);
    assert_eq!(room.xids(), [(31, 2)]);
}

#[test]
fn a_burst_is_exported_as_ten_events_and_a_summary_and_counted_whole() {
    let room = room();
    for _ in 0..500 {
        room.take(xid(63), EventSource::Kmsg, 0);
    }
    room.take(xid(64), EventSource::Kmsg, 0);
    let counts = |reported: Vec<Event>| {
        reported.iter().map(|event| (event.what.code, event.count)).collect::<Vec<_>>()
    };
    let mut expected = vec![(Some(63), 1); 10];
    expected.push((Some(64), 1));
    assert_eq!(counts(room.aggregator.drain()), expected);
    room.aggregator.apply_due(room.at(59));
    assert_eq!(counts(room.aggregator.drain()), []);
    room.aggregator.apply_due(room.at(60));
    assert_eq!(counts(room.aggregator.drain()), [(Some(63), 490)]);
    assert_eq!(room.xids(), [(63, 500), (64, 1)]);
    assert!(matches!(room.aggregator.tally().last_xids[..], [(_, 63 | 64)]));
    room.take(xid(63), EventSource::Kmsg, 61);
    assert_eq!(counts(room.aggregator.drain()), [(Some(63), 1)], "the next minute begins anew");
}

#[test]
fn what_the_pipeline_does_not_take_is_counted_as_lost() {
    let room = room();
    for code in 0..300 {
        room.take(xid(code), EventSource::Kmsg, 0);
    }
    // They are of one owner's device: the other half of the queue is for others.
    let one_owners = MAX_QUEUED / 2;
    assert_eq!(room.aggregator.drain().len(), one_owners);
    assert_eq!(room.aggregator.tally().lost, 300 - one_owners as u64);
    let elsewhere = |code| Observation { place: Place::Host, ..xid(code) };
    (0..300).for_each(|code| room.take(elsewhere(code), EventSource::Kmsg, 0));
    assert_eq!(room.aggregator.drain().len(), MAX_QUEUED);
}

#[test]
fn counts_of_an_unknown_device_wait_until_it_is_known() {
    let room = room();
    let place = Place::Pci(PciAddress::parse("0000:18:00").unwrap());
    room.take(Observation { place, ..xid(79) }, EventSource::Kmsg, 0);
    assert_eq!(room.xids(), []);
    let inventory = &room.aggregator.sources.inventory;
    let known = inventory.get(room.gpu).unwrap();
    let pci_address = Some("00000000:18:00.0".into());
    inventory.put(GpuInfo { uuid: GpuUuid::new("GPU-1"), pci_address, ..(*known).clone() });
    assert_eq!(room.xids(), [(79, 1)]);
}

#[test]
fn an_error_at_a_port_is_of_the_device_below_that_port_and_not_below_the_one_beside() {
    let folder = tempfile::tempdir().unwrap();
    let mut room = room();
    room.aggregator.sources.paths = Paths::under(folder.path());
    let devices = room.aggregator.sources.paths.sys.join("bus/pci/devices");
    std::fs::create_dir_all(&devices).unwrap();
    let way = "../../../devices/pci0000:00/0000:00:03.1/0000:17:00.0";
    std::os::unix::fs::symlink(way, devices.join("0000:17:00.0")).unwrap();
    let aer = |port| {
        let place = Place::Port(PciAddress::parse(port).unwrap());
        Observation { kind: EventKind::PcieError, place, code: None, ..xid(0) }
    };
    room.take(aer("0000:00:03.1"), EventSource::Kmsg, 0);
    room.take(aer("0000:00:03.2"), EventSource::Kmsg, 0);
    let reported = room.aggregator.drain();
    let gpus = reported.iter().map(|event| (event.gpu.is_some(), pids(event)));
    assert_eq!(gpus.collect::<Vec<_>>(), [(true, vec![(10, 2)]), (false, vec![])]);
    let address = records(&reported[1])[0]
        .attributes
        .iter()
        .find_map(|(key, value)| (key.name == "gpu.pci.address").then(|| value.to_string()));
    assert_eq!(address.as_deref(), Some("0000:00:03.2"));
}

#[test]
fn a_record_has_meaning_action_and_owner() {
    let room = room();
    room.take(xid(79), EventSource::Kmsg, 0);
    let event = room.aggregator.drain().remove(0);
    let reported = records(&event);
    let [record] = &reported[..] else { panic!("one owner, one record: {reported:?}") };
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
        ("gpuwho.event.affected", "device"),
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

#[test]
fn a_record_of_the_probe_budget_has_the_new_level_and_the_reason() {
    use crate::event::BudgetDecision;
    use gpuwho_model::catalog::nccl::ProbeLevel;
    let room = room();
    let decision = BudgetDecision {
        before: ProbeLevel::Full,
        level: ProbeLevel::Entries,
        rate: 40_000,
        budget: 14_114,
        libraries: "/usr/lib/libnccl.so.2".into(),
        versions: "2.29.7".into(),
    };
    let what = Observation {
        kind: EventKind::ProbeLevelChange,
        place: Place::Host,
        code: None,
        severity: Severity::Warning,
        decision: Some(Box::new(decision)),
        message: "calls are counted, durations are not seen".into(),
        ..xid(0)
    };
    room.take(what, EventSource::ProbeBudget, 0);
    let event = room.aggregator.drain().remove(0);
    let reported = records(&event);
    let [record] = &reported[..] else { panic!("one record: {reported:?}") };
    assert_eq!((record.name, record.severity), ("nccl.probe.level.change", 13));
    let attributes: BTreeMap<_, _> = record
        .attributes
        .iter()
        .filter(|(key, _)| key.name.starts_with("nccl"))
        .map(|(key, value)| (key.name, value.to_string()))
        .collect();
    let expected = [
        ("nccl.probe.hits_allowed", "14114"),
        ("nccl.probe.hit_rate", "40000"),
        ("nccl.probe.level", "entries"),
        ("nccl.probe.level.before", "full"),
        ("nccl.library", "/usr/lib/libnccl.so.2"),
        ("nccl.version", "2.29.7"),
    ];
    let expected = expected.map(|(key, value)| (key, value.to_owned())).into_iter().collect();
    assert_eq!(attributes, expected);
}

#[test]
fn a_concurrent_report_of_the_second_source_makes_no_second_event() {
    let Room { mut aggregator, start, .. } = room();
    let (asked, second) =
        (AtomicU64::new(0), Arc::new(std::sync::OnceLock::<Arc<EventAggregator>>::new()));
    let at = Moment { time: SystemTime::UNIX_EPOCH, boot_ns: 50 * SECOND };
    let unbound = || Observation { kind: EventKind::DriverUnbind, code: None, ..xid(0) };
    let other = Arc::clone(&second);
    aggregator.sources.make_way = Box::new(move || {
        if asked.fetch_add(1, Ordering::Relaxed) == 0 {
            other.get().unwrap().take(unbound(), at, EventSource::Nvml, start);
        }
    });
    aggregator.pair(true);
    let aggregator = second.get_or_init(|| Arc::new(aggregator));
    aggregator.take(unbound(), at, EventSource::Kmsg, start);
    let reported = aggregator.finish();
    let event_sources: Vec<_> = reported.iter().map(|event| event.source).collect();
    assert_eq!(event_sources, [EventSource::Both]);
}

/// An observation about a process.
fn of_process(kind: EventKind, pid: u32) -> Observation {
    let seen = Observation::new(kind, Place::Host, Severity::Warning, "of a process");
    Observation { process: Some(Named::pid(pid)), ..seen }
}

#[test]
fn one_owners_burst_does_not_displace_anothers_event() {
    let room = room();
    for _ in 0..300 {
        room.take(of_process(EventKind::OomKill, 10), EventSource::Kmsg, 0);
    }
    room.take(of_process(EventKind::OomKill, 12), EventSource::Kmsg, 0);
    let reported: Vec<_> = room.aggregator.drain().iter().flat_map(pids).collect();
    let expected = [vec![(10, 1); 10], vec![(12, 1)]].concat();
    assert_eq!(reported, expected);
    room.aggregator.apply_due(room.at(61));
    let sums = room.aggregator.drain();
    let sums: Vec<_> = sums.iter().map(|event| (pids(event), event.count)).collect();
    assert_eq!(sums, [(vec![(10, 1)], 290)]);
    let refused = room.aggregator.sources.ownership.refused();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!((refused[0].1, refused[0].2), (OwnerLimit::Events, 290));
}

#[test]
fn an_owner_with_endless_process_ends_leaves_room_in_the_queue() {
    let room = room();
    for _ in 0..500 {
        room.take(of_process(EventKind::ProcessEnded, 10), EventSource::Nvml, 0);
    }
    room.take(of_process(EventKind::ProcessEnded, 12), EventSource::Nvml, 0);
    let reported: Vec<_> = room.aggregator.drain().iter().flat_map(pids).collect();
    assert_eq!(reported, [vec![(10, 1); MAX_QUEUED / 2], vec![(12, 1)]].concat());
    // Also where the pipeline takes each at once, the receiver gets some hundred a minute.
    let mut taken = 0;
    for _ in 0..500 {
        room.take(of_process(EventKind::ProcessEnded, 10), EventSource::Nvml, 70);
        taken += room.aggregator.drain().len();
    }
    assert!(taken <= 240, "{taken}");
}

#[test]
fn the_containers_of_one_pod_share_its_part() {
    let room = room();
    for (pid, digit) in [(20, 'a'), (21, 'b')] {
        in_pod(&room, pid, &container(digit), "/dev/nvidia3");
        for number in 0..8 {
            let pid = 1000 + 10 * pid + number;
            room.take(killed(pid, &container(digit), Some(1000)), EventSource::Kmsg, 0);
        }
    }
    assert_eq!(room.aggregator.drain().len(), 10, "of sixteen");
}

#[test]
fn the_thread_that_applies_what_waits_is_woken_for_it_and_for_nothing_else() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let room = room();
    let is_woken = || {
        let waits = room.aggregator.waits().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(waits, PollFlags::IN)], Some(&now)).unwrap() > 0
    };
    room.aggregator.pair(true);
    assert_eq!((room.aggregator.due(), is_woken()), (None, false));
    room.take(xid(79), EventSource::Kmsg, 0);
    assert_eq!((room.aggregator.due(), is_woken()), (Some(room.at(2)), true));
    // The other source had its time; one event leaves no summary.
    room.aggregator.apply_due(room.at(2));
    assert_eq!((room.aggregator.due(), is_woken()), (None, false));
    (0..12).for_each(|_| room.take(xid(79), EventSource::Kmsg, 3));
    room.aggregator.apply_due(room.at(5));
    assert_eq!((room.aggregator.due(), is_woken()), (Some(room.at(62)), false));
    room.aggregator.apply_due(room.at(62));
    assert_eq!(room.aggregator.due(), None);
}

#[test]
fn the_end_of_a_peer_is_one_event_whichever_source_tells_first() {
    let room = room();
    let beside = vec![ProcKey { pid: 12, start_ticks: 100 }];
    let dead = |pid: Option<u32>| {
        let process = pid.map(|pid| ProcKey { pid, start_ticks: 100 });
        let what =
            Observation::new(EventKind::PeerDead, Place::Host, Severity::Warning, "a peer is dead");
        Observation {
            peer: Some(Box::new(Peer { process, beside: beside.clone(), ..Peer::default() })),
            ..what
        }
    };
    let count = |pid, source, seconds| {
        room.take(dead(pid), source, seconds);
        room.aggregator.drain().len()
    };
    assert_eq!(count(Some(10), EventSource::Probes, 0), 1);
    assert_eq!(count(Some(10), EventSource::Ras, 70), 0, "NCCL gives it up a minute later");
    assert_eq!(count(Some(11), EventSource::Ras, 70), 1, "another one");
    assert_eq!(count(Some(11), EventSource::Probes, 71), 0);
    // In another communicator.
    assert_eq!(count(Some(10), EventSource::Probes, 72), 1);
    // Processes elsewhere have no number here.
    assert_eq!(count(None, EventSource::Ras, 73) + count(None, EventSource::Ras, 74), 2);
    // Two that end at once are two, though the agent waits for another source's reports.
    room.aggregator.pair(true);
    for (pid, source) in [(12, EventSource::Probes), (13, EventSource::Ras)] {
        room.take(dead(Some(pid)), source, 80);
    }
    room.aggregator.release_due(room.at(90));
    assert_eq!(room.aggregator.drain().len(), 2);
}
