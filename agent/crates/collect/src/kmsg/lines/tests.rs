//! Lines recorded from drivers and kernels, or derived from their sources; the latter name their
//! release.

use super::*;
use gpuwho_model::ids::PciAddress;

fn pci(text: &str) -> Place {
    Place::Pci(PciAddress::parse(text).unwrap())
}

/// Kind, place, code, severity, process and MIG instance.
type Read = (EventKind, Place, Option<u32>, Severity, Option<(u32, Option<String>)>, Option<u32>);

fn reported(text: &str) -> Option<Read> {
    let what = read(text)?;
    assert_eq!(&*what.message, text);
    let process = what.process.map(|named| (named.pid, named.comm.map(String::from)));
    Some((what.kind, what.place, what.code, what.severity, process, what.gpu_instance))
}

fn xid_of(
    address: &str,
    code: u32,
    severity: Severity,
    process: Option<(u32, Option<&str>)>,
) -> Read {
    let process = process.map(|(pid, comm)| (pid, comm.map(str::to_owned)));
    (EventKind::Xid, pci(address), Some(code), severity, process, None)
}

#[test]
fn an_xid_with_its_process() {
    for (text, read) in [
        (
            "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
            xid_of("0000:17:00", 79, Severity::Critical, Some((1234, Some("python")))),
        ),
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=4071838, name=python, Timeout after 45s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
            xid_of("0000:9b:00", 119, Severity::Critical, Some((4_071_838, Some("python")))),
        ),
        (
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
            xid_of("0000:10:1c", 63, Severity::Info, Some((1896, None))),
        ),
    ] {
        assert_eq!(reported(text), Some(read), "{text}");
    }
}

#[test]
fn an_xid_without_a_process() {
    for (text, read) in [
        (
            "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.",
            xid_of("0000:44:00", 79, Severity::Critical, None),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>, Ch 00000000, intr 00000000. MMU Fault: ENGINE HOST6",
            xid_of("0000:3b:00", 31, Severity::Warning, None),
        ),
        // A driver of 2013, which writes no `PCI:`.
        (
            "NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000",
            xid_of("0000:01:00", 31, Severity::Warning, None),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 10 (0x004505c6 0x00000000)",
            xid_of("0018:01:00", 149, Severity::Critical, None),
        ),
        ("NVRM: Xid (PCI:0000:17:00): 999", xid_of("0000:17:00", 999, Severity::Critical, None)),
    ] {
        assert_eq!(reported(text), Some(read), "{text}");
    }
}

#[test]
fn an_xid_in_a_mig_instance_names_it() {
    // 515.43 to 595.45: the number is decimal, `%02u`.
    for (text, gpu_instance) in [
        ("NVRM: Xid (PCI:0000:87:00 GPU-I:05): 94, pid=7, name=train, Contained: SM (0x1).", 5),
        (
            "NVRM: Xid (PCI:0000:87:00 GPU-I:13 GPU-CI:00): 94, pid=7, name=train, Contained: SM.",
            13,
        ),
    ] {
        let process = Some((7, Some("train".to_owned())));
        let place = pci("0000:87:00");
        let read =
            (EventKind::Xid, place, Some(94), Severity::Warning, process, Some(gpu_instance));
        assert_eq!(reported(text), Some(read), "{text}");
    }
}

#[test]
fn an_xid_of_a_switch_is_not_one_of_a_gpu() {
    let text = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)";
    let read = (EventKind::Sxid, pci("0000:c1:00"), Some(12028), Severity::Warning, None, None);
    assert_eq!(reported(text), Some(read));
}

#[test]
fn three_lines_of_a_switch_fault_are_one_event() {
    let line = |words: &str| format!("nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, {words}");
    let found = [
        "Fatal, Link 62 LTSSM Fault Up",
        "Severity 1 Engine instance 62 Sub-engine instance 00",
        "Data {0x50610002, 0x10100030, 0x00000000, 0x10100030, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000}",
    ]
    .map(|words| reported(&line(words)));
    let fatal = (EventKind::Sxid, pci("0000:85:00"), Some(20034), Severity::Critical, None, None);
    assert_eq!(found, [Some(fatal), None, None]);
    // A fault without a link: `NVSWITCH_PRINT_SXID` of `cci_common.c`.
    let module = severity_of(&line("Module 3 failed initialization"));
    assert_eq!(module, Some(Severity::Warning));
}

fn severity_of(text: &str) -> Option<Severity> {
    reported(text).map(|(_, _, _, severity, _, _)| severity)
}

#[test]
fn a_device_off_the_bus_is_one_event_with_or_without_an_xid() {
    let alone = "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.";
    let lost = (EventKind::Lost, pci("0000:c1:00"), None, Severity::Critical, None, None);
    assert_eq!(reported(alone), Some(lost));
    let xid = "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
    let other = "NVRM: GPU 0000:c2:00.0: GPU has fallen off the bus.";
    let kinds = |lines: &[(u64, &str)]| {
        let mut reports = Reports::default();
        let found =
            lines.iter().filter_map(|(at, text)| read_at(&mut reports, text, at * 1_000_000));
        found.map(|what| what.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&[(0, xid), (0, alone), (0, other)]), [EventKind::Xid, EventKind::Lost]);
    assert_eq!(kinds(&[(0, xid), (9, alone)]), [EventKind::Xid, EventKind::Lost], "another time");
}

#[test]
fn other_driver_faults() {
    let lost = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.";
    for (text, kind, place, severity) in [
        (lost, EventKind::Lost, pci("0000:b3:00"), Severity::Critical),
        (
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:1436)",
            EventKind::InitFailed,
            pci("0000:01:00"),
            Severity::Critical,
        ),
        // `Bumblebee-Project/Bumblebee` 677, a driver of 2015.
        (
            "NVRM: RmInitAdapter failed! (0x30:0xffffffff:762)",
            EventKind::InitFailed,
            Place::Host,
            Severity::Critical,
        ),
        (
            "NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************************",
            EventKind::DriverTimeout,
            Place::Host,
            Severity::Critical,
        ),
        // 525 to 545.
        (
            "NVRM: GPU6 _kgspLogXid119: ********************************* GSP Failure **********************************",
            EventKind::DriverTimeout,
            Place::Host,
            Severity::Critical,
        ),
        // 595.
        (
            "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482 heartbeatWithOffsetMs 812745879 diff 6070 timeout 5200",
            EventKind::DriverTimeout,
            Place::Host,
            Severity::Critical,
        ),
    ] {
        assert_eq!(reported(text), Some((kind, place, None, severity, None, None)), "{text}");
    }
}

#[test]
fn driver_loads_and_unloads() {
    for (text, kind, place, severity) in [
        (
            "NVRM: Attempting to remove device 0000:17:00.0 with non-zero usage count!",
            EventKind::DriverUnbind,
            pci("0000:17:00"),
            Severity::Warning,
        ),
        // 515.43 to 515.57.
        (
            "NVRM: Attempting to remove minor device 3 with non-zero usage count!",
            EventKind::DriverUnbind,
            Place::Host,
            Severity::Warning,
        ),
        // 515.43 to 595.45, `nv-procfs.c`.
        (
            "NVRM: GPU 0000:17:00.0: Could not acquire UnbindLock",
            EventKind::DriverUnbind,
            pci("0000:17:00"),
            Severity::Warning,
        ),
        (
            "NVRM: GPU 0000:17:00.0: UnbindLock acquired",
            EventKind::DriverUnbind,
            pci("0000:17:00"),
            Severity::Warning,
        ),
        // 515.
        (
            "nvidia-nvlink: Unregistered the Nvlink Core, major device number 511",
            EventKind::DriverUnloaded,
            Place::Host,
            Severity::Info,
        ),
        (
            "nvidia-nvlink: Unregistered Nvlink Core, major device number 511",
            EventKind::DriverUnloaded,
            Place::Host,
            Severity::Info,
        ),
        (
            "nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
            EventKind::DriverLoaded,
            Place::Host,
            Severity::Info,
        ),
    ] {
        assert_eq!(reported(text), Some((kind, place, None, severity, None, None)), "{text}");
    }
}

#[test]
fn a_pcie_error_is_one_event_with_its_place() {
    let port = |address| Place::Port(PciAddress::parse(address).unwrap());
    for (text, place, severity) in [
        // Linux 6.1 and before.
        (
            "pcieport 0000:00:03.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
            port("0000:00:03.1"),
            Severity::Critical,
        ),
        (
            "pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
            port("0000:00:1c.0"),
            Severity::Info,
        ),
        // Linux 6.12.
        (
            "pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
            port("0000:00:1c.0"),
            Severity::Info,
        ),
        (
            "nvidia 0000:03:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
            pci("0000:03:00"),
            Severity::Warning,
        ),
        (
            "nvidia 0000:03:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)",
            pci("0000:03:00"),
            Severity::Critical,
        ),
        // Linux 6.1 and 6.12, `pci_print_aer`: firmware handles the errors first.
        (
            "nvidia 0000:03:00.0: AER: aer_status: 0x00100000, aer_mask: 0x00000000",
            pci("0000:03:00"),
            Severity::Warning,
        ),
        // Linux 6.1 and 6.12, `dpc_process_error`.
        (
            "pcieport 0000:00:03.1: DPC: containment event, status:0x1f01 source:0x0000",
            port("0000:00:03.1"),
            Severity::Critical,
        ),
        (
            "pcieport 0000:00:03.1: DPC: containment event, status:0x1f05, ERR_FATAL received from 0000:03:00.0",
            port("0000:00:03.1"),
            Severity::Critical,
        ),
    ] {
        let read = (EventKind::PcieError, place, None, severity, None, None);
        assert_eq!(reported(text), Some(read), "{text}");
    }
    for text in [
        "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
        "pcieport 0000:00:03.0:   device [8086:6f08] error status/mask=00004020/00000000",
        "nvidia 0000:03:00.0: AER:    [20] UnsupReq               (First)",
        "nvidia 0000:03:00.0: AER: aer_layer=Transaction Layer, aer_agent=Requester ID",
        "nvidia 0000:03:00.0: AER: aer_uncor_severity: 0x004ef030",
        "pcieport 0000:00:03.1: DPC: unmasked uncorrectable error detected",
        "pcieport 0000:00:03.1: DPC: enabled with IRQ 27",
        "nvme 0000:05:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    ] {
        assert_eq!(reported(text), None, "{text}");
    }
}

#[test]
fn amd_faults() {
    const ECC: EventKind = EventKind::Ecc;
    const HANG: EventKind = EventKind::DriverTimeout;
    for (words, kind, severity) in [
        // Linux 6.12: with the event's number, and errors since the last poll.
        (
            "{7}socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block",
            ECC,
            Severity::Critical,
        ),
        (
            "{8}socket: 0, die: 0, 3 new deferred hardware errors detected in umc block",
            ECC,
            Severity::Warning,
        ),
        (
            "{9}socket: 0, die: 1, 4 new correctable hardware errors detected in umc block",
            ECC,
            Severity::Info,
        ),
        ("{9}GPU reset for gfx RAS poison consumption is issued!", ECC, Severity::Warning),
        ("RAS records:33 exceed threshold:32", ECC, Severity::Critical),
        ("RAS records:30 exceeds 90% of threshold:32", ECC, Severity::Warning),
        ("ring comp_1.0.0 timeout, signaled seq=12, emitted seq=14", HANG, Severity::Warning),
        // The RAS module of the newest kernels, 2025.
        (
            "{9} socket: 0, die: 1, 1 new poison consumption detected in gfx block",
            ECC,
            Severity::Warning,
        ),
        // Linux 6.1.
        (
            "socket: 0, die: 0 2 uncorrectable hardware errors detected in umc block",
            ECC,
            Severity::Critical,
        ),
        (
            "4 correctable hardware errors detected in gfx block, no user action is needed.",
            ECC,
            Severity::Info,
        ),
        (
            "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            ECC,
            Severity::Critical,
        ),
        ("Saved bad pages 33 reaches threshold value 32", ECC, Severity::Critical),
        ("GPU reset begin!", EventKind::Reset, Severity::Critical),
        // The first kernels with RAS, 2019.
        ("2 uncorrectable errors detected in umc block", ECC, Severity::Critical),
        ("2 correctable errors detected in umc block", ECC, Severity::Info),
    ] {
        let text = format!("amdgpu 0000:83:00.0: amdgpu: {words}");
        let read = (kind, pci("0000:83:00"), None, severity, None, None);
        assert_eq!(reported(&text), Some(read), "{text}");
    }
}

#[test]
fn amd_resets_heat_and_page_faults() {
    const HANG: EventKind = EventKind::DriverTimeout;
    for (words, kind, severity) in [
        ("GPU reset(3) failed", EventKind::Unavailable, Severity::Critical),
        (
            "ERROR: GPU over temperature range(SW CTF) detected!",
            EventKind::Unavailable,
            Severity::Critical,
        ),
        ("device lost from bus!", EventKind::Lost, Severity::Critical),
        (
            "WARN: GPU is throttled, expect performance decrease. \n",
            EventKind::ClockChange,
            Severity::Warning,
        ),
        ("MES(1) failed to respond to msg=REMOVE_QUEUE", HANG, Severity::Warning),
        ("MES failed to respond to msg=3", HANG, Severity::Warning),
        (
            "The cp might be in an unrecoverable state due to an unsuccessful queues preemption",
            HANG,
            Severity::Warning,
        ),
        (
            "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32772)",
            EventKind::MemoryFault,
            Severity::Warning,
        ),
        (
            "[gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:32791)",
            EventKind::MemoryFault,
            Severity::Warning,
        ),
    ] {
        let text = format!("amdgpu 0000:83:00.0: amdgpu: {words}");
        let read = (kind, pci("0000:83:00"), None, severity, None, None);
        assert_eq!(reported(&text), Some(read), "{text}");
    }
}

#[test]
fn a_hang_whose_line_does_not_say_of_which_device() {
    // Linux 6.1 prints it without the device.
    let hang = "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3";
    let read = (EventKind::DriverTimeout, Place::Host, None, Severity::Warning, None, None);
    assert_eq!(reported(hang), Some(read));
}

#[test]
fn amd_totals_and_recoveries_are_not_events() {
    for words in [
        "socket: 0, die: 0, 3 uncorrectable hardware errors detected in total in umc block",
        "{7}socket: 0, die: 0, 3 deferred hardware errors detected in total in umc block",
        "ring gfx_0.0.0 timeout, but soft recovered",
        "GPU jobs stop begin!",
        "GPU reset(3) succeeded!",
        "MES ring buffer is full.",
        "[gfxhub0]  page fault in page starting at address 0x00007f0000000000",
    ] {
        assert_eq!(reported(&format!("amdgpu 0000:83:00.0: amdgpu: {words}")), None, "{words}");
    }
    let recovered =
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, but soft recovered";
    assert_eq!(reported(recovered), None);
}

/// PID, name, user and cgroup.
type KilledAs<'a> = (u32, &'a str, Option<u32>, Option<&'a str>);

#[test]
fn a_killed_process_is_named_whatever_it_calls_itself() {
    let rows: [(&str, KilledAs<'_>); 4] = [
        // Linux 6.1 and 6.12.
        (
            "Out of memory: Killed process 4321 (python) total-vm:33554432kB, anon-rss:31457280kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:61440kB oom_score_adj:0",
            (4321, "python", Some(1000), None),
        ),
        (
            "Out of memory (oom_kill_allocating_task): Killed process 9 (a) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:4kB oom_score_adj:0",
            (9, "a", Some(0), None),
        ),
        // Before the kernel printed the user.
        (
            "Memory cgroup out of memory: Killed process 77 (a) total-vm:(b) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
            (77, "a) total-vm:(b", None, None),
        ),
        // Linux 4.18 to 5.0.
        (
            "Killed process 5 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
            (5, "python", None, None),
        ),
    ];
    for (text, (pid, comm, uid, cgroup)) in rows {
        let expected = Observation {
            process: Some(Named { pid, comm: Some(comm.into()), uid }),
            cgroup: cgroup.map(Box::from),
            ..Observation::new(EventKind::OomKill, Place::Host, Severity::Warning, text)
        };
        assert_eq!(read(text), Some(expected));
    }
}

fn read_at(reports: &mut Reports, text: &str, at_us: u64) -> Option<Observation> {
    read_of(reports, (text, None), at_us)
}

fn read_of(reports: &mut Reports, line: (&str, Option<&str>), at_us: u64) -> Option<Observation> {
    let record = Record { sequence: 0, at_us, caller: line.1, text: line.0.into() };
    reports.scan(&record);
    reports.read(&record)
}

/// The killed PIDs with their cgroups, from lines at times in seconds.
fn report(lines: &[(u64, &str)]) -> Vec<(u32, Option<String>)> {
    let mut reports = Reports::default();
    let found = lines.iter().filter_map(|(second, text)| {
        let what = read_at(&mut reports, text, second * 1_000_000)?;
        Some((what.process?.pid, what.cgroup.map(String::from)))
    });
    found.collect()
}

const SUMMARY: &str = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=b,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=python,pid=7,uid=0";
const KILLED: &str = "Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB";
const KILLED_TOO: &str = "Memory cgroup out of memory: Killed process 8 (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:1kB";

#[test]
fn two_lines_about_one_kill_are_one_event() {
    let b = || Some("/a/b".to_owned());
    assert_eq!(report(&[(0, SUMMARY), (1, KILLED), (2, KILLED_TOO)]), [(7, b()), (8, None)]);
    assert_eq!(report(&[(0, SUMMARY), (3, KILLED)]), [(7, None)], "seconds apart");
    assert_eq!(report(&[(0, SUMMARY)]), [], "nobody has been killed yet");
}

#[test]
fn an_ambiguous_cgroup_is_none() {
    let summary = |oom_memcg: &str, task_memcg: &str, task: &str| {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
             oom_memcg={oom_memcg},task_memcg={task_memcg},task={task},pid=7,uid=1000"
        )
    };
    let group = |cgroup: &str| summary(cgroup, cgroup, "python");
    let pod = "/kubepods/pod1/2";
    for (line, cgroup) in [
        (group(pod), Some(pod)),
        (summary("/a", "/a/b", "a,pid=1,uid=2"), Some("/a/b")),
        // Directories that a user creates below their own group.
        (group(&format!("/user.slice/x,task_memcg={pod},task=python")), None),
        (group(&format!("/user.slice/x,task={pod}")), None),
        (summary(&format!("/user.slice/x,task_memcg={pod}"), "/user.slice/x", "python"), None),
        (summary("/user.slice/x", "/user.slice/x", ",task=python"), None),
        (group("user.slice"), None),
    ] {
        assert_eq!(report(&[(0, &line), (0, KILLED)]), [(7, cgroup.map(str::to_owned))], "{line}");
    }
    let crash = "Tasks in /kubepo[7]: segfault at 0 ip 0 sp 0 error 6 in  are going to be killed due to memory.oom.group set[400000+1000]";
    assert_eq!(report(&[(0, crash), (0, KILLED)]), [(7, None)]);
}

#[test]
fn every_process_of_a_group_kill_has_its_cgroup() {
    // Linux 6.1 and 6.12, with `memory.oom.group`.
    let group = "Tasks in /a/b are going to be killed due to memory.oom.group set";
    let found = report(&[(0, SUMMARY), (0, KILLED), (0, group), (0, KILLED_TOO), (9, KILLED)]);
    let b = || Some("/a/b".to_owned());
    assert_eq!(found, [(7, b()), (8, b()), (7, None)]);
}

#[test]
fn a_kill_of_a_report_without_a_summary_has_no_cgroup_of_the_report_before() {
    let group = "Tasks in /a/b are going to be killed due to memory.oom.group set";
    let cgroup_of = |caller, summaries: u64, is_lost: bool| {
        let mut reports = Reports::default();
        for number in 0..summaries {
            read_of(&mut reports, (SUMMARY, Some("T1")), number * 100_000);
        }
        let at_us = summaries * 100_000;
        if is_lost {
            reports.lost();
        }
        read_of(&mut reports, (group, Some("T1")), at_us);
        read_of(&mut reports, (KILLED_TOO, caller), at_us + 10).unwrap().cgroup
    };
    assert_eq!(cgroup_of(Some("T1"), 1, false).as_deref(), Some("/a/b"));
    assert_eq!(cgroup_of(None, 1, false).as_deref(), Some("/a/b"), "the kernel does not say whose");
    assert_eq!(cgroup_of(Some("T2"), 1, false), None, "another thread's report");
    // From the tenth in five seconds on, a report may have no summary.
    assert_eq!(cgroup_of(Some("T1"), 9, false).as_deref(), Some("/a/b"));
    assert_eq!(cgroup_of(Some("T1"), 10, false), None);
    assert_eq!(cgroup_of(Some("T1"), 1, true), None, "lines were lost");
}

#[test]
fn an_old_kernels_heading_is_of_one_kill() {
    let heading = "Task in /a/b killed as a result of limit of /a";
    let killed = |pid: u32| format!("Killed process {pid} (python) total-vm:1kB, anon-rss:1kB");
    let found = report(&[(0, heading), (0, &killed(7)), (0, &killed(8))]);
    assert_eq!(found, [(7, Some("/a/b".to_owned())), (8, None)]);
}

#[test]
fn an_old_kernels_line_before_the_kill_has_its_cgroup() {
    // Linux 4.18 to 4.20.
    let found = report(&[
        (0, "Task in /a/c killed as a result of limit of /a"),
        (0, "Memory cgroup out of memory: Kill process 7 (python) score 1000 or sacrifice child"),
        (0, "Killed process 7 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"),
        (1, SUMMARY),
    ]);
    assert_eq!(found, [(7, Some("/a/c".to_owned()))]);
}

#[test]
fn intel_faults() {
    const HANG: EventKind = EventKind::DriverTimeout;
    let process = |pid: u32, comm: &str| Some((pid, Some(comm.to_owned())));
    let job = "Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=2, flags=0x0";
    for (driver, words, kind, severity, process) in [
        // Linux 6.1 and 6.12, `error_msg` and `intel_gt_reset`.
        (
            "i915",
            "GPU HANG: ecode 12:1:85dffffb, in py [7] x [4242]",
            HANG,
            Severity::Warning,
            process(4242, "py [7] x"),
        ),
        ("i915", "GPU HANG: ecode 9:0:00000000", HANG, Severity::Warning, None),
        (
            "i915",
            "Resetting chip for stopped heartbeat on rcs0",
            EventKind::Reset,
            Severity::Critical,
            None,
        ),
        ("i915", "*ERROR* Failed to reset chip", EventKind::Unavailable, Severity::Critical, None),
        // Linux 6.12 (without the process), 6.13 and 6.17.
        ("xe", &format!("GT0: {job}"), HANG, Severity::Warning, None),
        (
            "xe",
            &format!("GT1: {job} in python3 [4242]"),
            HANG,
            Severity::Warning,
            process(4242, "python3"),
        ),
        ("xe", &format!("Tile0: GT0: {job} in no process [-1]"), HANG, Severity::Warning, None),
        ("xe", "GT0: reset started", EventKind::Reset, Severity::Critical, None),
        ("xe", "Tile0: GT0: reset started", EventKind::Reset, Severity::Critical, None),
        (
            "xe",
            "*ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.\nIOCTLs and executions are blocked.",
            EventKind::Unavailable,
            Severity::Critical,
            None,
        ),
    ] {
        let text = format!("{driver} 0000:03:00.0: [drm] {words}");
        let read = (kind, pci("0000:03:00"), None, severity, process, None);
        assert_eq!(reported(&text), Some(read), "{text}");
    }
    for text in [
        "xe 0000:03:00.0: [drm] GT0: reset done",
        "xe 0000:03:00.0: [drm] GT0: Engine reset: engine_class=rcs, logical_mask: 0x1, guc_id=2",
        "xe 0000:03:00.0: [drm] reset started",
        "xe 0000:03:00.0: [drm] GT0: Timedout job: seqno=1, lrc_seqno=1, guc_id=2, flags=0x0 in x",
        "xe 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb",
        "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in x [1] y",
        "i915 0000:03:00.0: [drm] Resetting rcs0 for preemption time out",
        "i915 0000:03:00.0: GPU HANG: ecode 12:1:85dffffb",
    ] {
        assert_eq!(reported(text), None, "{text}");
    }
}

#[test]
fn faults_of_gaudi_and_tenstorrent() {
    let gaudi = Place::Accel(3);
    for (text, kind, place) in [
        // Linux 6.8 and later name the PCI device; others the node.
        ("habanalabs 0000:19:00.0: Going to reset device", EventKind::Reset, pci("0000:19:00")),
        ("accel accel3: Going to reset device", EventKind::Reset, gaudi),
        ("habanalabs hl3: Device heartbeat failed!", EventKind::DriverTimeout, gaudi),
        (
            "accel accel3: Device heartbeat failed! PCI link is broken",
            EventKind::DriverTimeout,
            gaudi,
        ),
        ("accel accel3: PCI failure state error detected", EventKind::Lost, gaudi),
        (
            "accel accel3: 0000:19:00.0 Failed to reset! Device is NOT usable",
            EventKind::Unavailable,
            pci("0000:19:00"),
        ),
        (
            "tenstorrent 0000:01:00.0: Device is unresponsive, cannot reset.",
            EventKind::Unavailable,
            pci("0000:01:00"),
        ),
        (
            "tenstorrent 0000:01:00.0: Timeout waiting for ARC response",
            EventKind::DriverTimeout,
            pci("0000:01:00"),
        ),
        (
            "tenstorrent 0000:01:00.0: Device initialization failed",
            EventKind::InitFailed,
            pci("0000:01:00"),
        ),
        (
            "vfio-pci 0000:00:04.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)",
            EventKind::PcieError,
            pci("0000:00:04"),
        ),
    ] {
        let read = (kind, place, None, Severity::Critical, None, None);
        assert_eq!(reported(text), Some(read), "{text}");
    }
    for text in [
        "accel accel3: Successfully finished resetting the 0000:19:00.0 device",
        "accel accel: Going to reset device",
        "accel accel3: Going to reset device now",
        "nvme 0000:19:00.0: Going to reset device",
        "vfio-pci 0000:00:04.0: resetting",
        // Whoever has a node of Neuron's open makes its driver print this.
        "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-172-31-61-252 nd-id=0 nc-id=0 serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE",
        "neuron:nr_start_ncs: nd0: initiating device reset request 7",
    ] {
        assert_eq!(reported(text), None, "{text}");
    }
}

#[test]
fn everything_else_is_ignored() {
    for text in [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "NVRM: Xid (PCI:0000:17:00)",
        "NVRM: Xid (PCI:0000:17:00): many",
        "oom_reaper: reaped process 4321 (python), now anon-rss:0kB",
        "Killed process 12",
        "Memory cgroup out of memory: Kill process 7 (python) score 1000 or sacrifice child",
        "NVRM: GPU 0000:c1:00.0: GPU serial number is 1654924000123.",
        "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:c1:00 (printing 1 of every 30).  The GPU likely needs to be reset.",
        "NVRM: Xid (PCI:0000:17): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:17:00 GPU-X:1): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:17:00): 79x",
        "amdgpu 0000:83:00.0: amdgpu: ring gfx uses VM inv eng 0 on hub 0",
        "usb 1-1: new high-speed USB device",
        "amdgpu nowhere: amdgpu: GPU reset begin!",
    ] {
        assert_eq!(reported(text), None, "{text}");
    }
}

/// Texts that a tenant would like to forge, split into two names: of a process, truncated to 15
/// bytes, and of a file. Each is also tried whole in both.
const WANTED: &[&str] = &[
    "NVRM: Xid (PCI:0000:10:00): 79, pid=77, name=z, GPU has fallen off the bus.",
    "NVRM: Xid (0000:10:00): 79, pid=77, name=z, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:y): 79, pid=77, name=z",
    "NVRM: The NVIDIA GPU 0000:10:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.",
    "NVRM: GPU 0000:10:00.0: GPU has fallen off the bus.",
    "NVRM: GPU 0000:10:00.0: RmInitAdapter failed! (0x62:0x65:1436)",
    "NVRM: RmInitAdapter failed! (0x62:0x65:1436)",
    "NVRM: x RmInitAdapter failed",
    "NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************************",
    "NVRM: x* GSP Timeout *",
    "NVRM: Attempting to remove device 0000:10:00.0 with non-zero usage count!",
    "nvidia-nvswitch0: SXid (PCI:0000:10:00.0): 12028, Fatal, Link 32",
    "nvidia-nvswitchSXid (PCI:0000:1a:00.0): 12028, Fatal, Link 32",
    "nvidia-nvlink: Unregistered Nvlink Core, major device number 511",
    "Out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:4kB",
    "Out of memory: x: Killed process 77 (python) total-vm:1kB",
    "Killed process 77 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
    "oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/kubepods/pod1/2,task=a,pid=77,uid=0",
    "Tasks in /kubepods/pod1/2 are going to be killed due to memory.oom.group set",
    "xe 0000:03:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
    "pcieport 0000:00:03.1: DPC: containment event, status:0x1f01 source:0x0000",
    "amdgpu 0000:83:00.0: amdgpu: GPU reset begin!",
    "amdgpu 0000:83:00.0: amdgpu: device lost from bus!",
    "amdgpu 0000:83:00.0: amdgpu: [gfxhub0] page fault (src_id:0 ring:24 vmid:8 pasid:1)",
    "amdgpu 0000:83:00.0: amdgpu: Saved bad pages 33 reaches threshold value 32",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in python [77]",
    "i915 0000:03:00.0: [drm] Resetting chip for preemption time out",
    "xe 0000:03:00.0: [drm] GT0: reset started",
    "xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.",
    "accel accel0: Going to reset device",
    "habanalabs 0000:19:00.0: Going to reset device",
    "tenstorrent 0000:01:00.0: Device is unresponsive, cannot reset.",
];

/// Lines of Linux (6.18 and before) that contain a command name, a file name or the name of a
/// cgroup or an interface, most of them at the start.
fn lines_of(comm: &str, file: &str) -> Vec<String> {
    let interface = |name: &str| {
        // `dev_valid_name`.
        let valid = name.chars().filter(|c| !(c.is_whitespace() || "/:".contains(*c)));
        valid.take(15).collect::<String>()
    };
    let (one, other) = (interface(comm), interface(file));
    vec![
        format!(
            "{comm}[4242]: segfault at 0 ip 0000561d5a sp 00007ffc48 error 6 in {file}[4f06,561d+1000] likely on CPU 1 (core 1, socket 0)"
        ),
        format!(
            "{comm}[4242]: segfault at 0 ip 0000561d5a sp 00007ffc48 error 6 in {file}[561d+1000]"
        ),
        format!("{comm}[4242]: unhandled signal 11 in {file}[561d+1000]"),
        format!(
            "traps: {comm}[4242] trap invalid opcode ip:561d5a sp:7ffc48 error:0 in {file}[561d+1000]"
        ),
        format!(
            "{comm}[4242] bad frame in rt_sigreturn frame:000000 ip:561d sp:7ffc orax:ffff in {file}[561d+1000]"
        ),
        format!(
            "{comm}[4242] vsyscall attempted with vsyscall=none ip:ffff cs:33 sp:7ffc ax:0 si:0 di:0"
        ),
        format!("{comm}/4242: potentially unexpected fatal signal 11."),
        format!("{comm} (4242): drop_caches: 3"),
        format!("{comm} (4242): Using mlock ulimits for SHM_HUGETLB is obsolete"),
        format!(
            "{comm} (4242): attempted to duplicate a private mapping with mremap. This is not supported."
        ),
        format!("{comm} (4242) used greatest stack depth: 11000 bytes left"),
        format!("{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
        format!("{comm} uses obsolete (PF_INET,SOCK_PACKET)"),
        format!(
            "{comm}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL), nodemask=(null),cpuset={file},mems_allowed=0"
        ),
        format!(
            "{comm}: attempt to access beyond end of device\nloop0: rw=0, sector=2, nr_sectors = 2 limit=0"
        ),
        format!("{one}: renamed from {other}"),
        format!("{one}: port 1({other}) entered blocking state"),
        format!("{one}: entered promiscuous mode"),
        format!("process '{file}' started with executable stack"),
        format!("program {comm} is using a deprecated SCSI ioctl, please convert it to SG_IO"),
        format!("warning: `{comm}' uses 32-bit capabilities (legacy support in use)"),
        format!(
            "audit: type=1326 audit(1.2:3): auid=0 uid=0 comm=\"{comm}\" exe=\"/{file}\" sig=31"
        ),
        format!("Out of memory: Killed process 77x ({comm}) total-vm:1kB, anon-rss:1kB"),
        format!("INFO: task {comm}:4242 blocked for more than 120 seconds."),
        format!("i915 0000:03:00.0: [drm] {comm}[4242] context reset due to GPU hang"),
        format!("amdgpu 0000:83:00.0: amdgpu: Process {comm} pid 4242 thread {comm} pid 4242"),
        format!("amdgpu 0000:83:00.0: amdgpu: {{9}}process {comm} pid 4242"),
        format!(
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* Process information: process {comm} pid 4242"
        ),
        format!("{file} IN=lo OUT= MAC=00:00 SRC=127.0.0.1 DST=127.0.0.1 LEN=40"),
        format!("{file}IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=40"),
    ]
}

#[test]
fn no_line_with_a_tenants_names_is_an_event() {
    let mut names: Vec<(String, String)> = Vec::new();
    for wanted in WANTED {
        for other in WANTED {
            // A process's name has at most 15 bytes, a file's 255 and no slash.
            for cut in 0..=15.min(wanted.len()) {
                let (comm, rest) = wanted.split_at(cut);
                names.push((comm.to_owned(), rest.replace('/', "")));
                names.push((comm.to_owned(), other.replace('/', "")));
            }
        }
    }
    names.sort();
    names.dedup();
    let kill =
        "Out of memory: Killed process 4242 (a) total-vm:1kB, anon-rss:1kB, UID:0 pgtables:4kB";
    for (comm, file) in &names {
        for line in lines_of(comm, file) {
            let mut reports = Reports::default();
            assert_eq!(read_at(&mut reports, &line, 0), None, "{line}");
            let cgroup = read_at(&mut reports, kill, 0).and_then(|what| what.cgroup);
            assert_eq!(cgroup, None, "{line}");
        }
    }
    assert!(names.len() > 5_000, "{}", names.len());
    // The same text is an event if the driver writes it.
    let found = WANTED.iter().filter(|wanted| read(wanted).is_some()).count();
    assert_eq!(found, WANTED.len() - 7, "all but the broken ones and what only precedes a kill");
}

/// A random number generator (xorshift64) with a fixed seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }
}

/// Lines of every parser of a driver's lines, each of another pattern.
const OF_DRIVERS: &[&str] = &[
    "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:3b:00): 31, pid='4242', name=python3, Ch 00000000, intr 00000000.",
    "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 10 (0x004505c6 0x00000000)",
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 10 (0x00000004 0x00000300)",
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_REMAP Fatal XC0 i1 Link 10 (0x00000004 0x00000300)",
    "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "NVRM: Xid (PCI:0000:87:00 GPU-I:13 GPU-CI:00): 94, pid=7, name=train, Contained: SM.",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress (First)",
    "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 62 LTSSM Fault Up",
    "nvidia-nvlink: Unregistered the Nvlink Core, major device number 511",
    "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.",
    "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:1436)",
    "NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************************",
    "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482",
    "NVRM: Attempting to remove device 0000:17:00.0 with non-zero usage count!",
    "NVRM: GPU 0000:17:00.0: Could not acquire UnbindLock",
    "pcieport 0000:00:03.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    "nvidia 0000:03:00.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "nvidia 0000:03:00.0: AER: aer_status: 0x00100000, aer_mask: 0x00000000",
    "pcieport 0000:00:03.1: DPC: containment event, status:0x1f01 source:0x0000",
    "amdgpu 0000:83:00.0: amdgpu: {7}socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:83:00.0: amdgpu: {9}GPU reset for gfx RAS poison consumption is issued!",
    "amdgpu 0000:83:00.0: amdgpu: RAS records:33 exceed threshold:32",
    "amdgpu 0000:83:00.0: amdgpu: Saved bad pages 33 reaches threshold value 32",
    "amdgpu 0000:83:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=12, emitted seq=14",
    "amdgpu 0000:83:00.0: amdgpu: GPU reset(3) failed",
    "amdgpu 0000:83:00.0: amdgpu: device lost from bus!",
    "amdgpu 0000:83:00.0: amdgpu: ERROR: GPU over temperature range(SW CTF) detected!",
    "amdgpu 0000:83:00.0: amdgpu: WARN: GPU is throttled, expect performance decrease.",
    "amdgpu 0000:83:00.0: amdgpu: MES(1) failed to respond to msg=REMOVE_QUEUE",
    "amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32772)",
    "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx_0.0.0 timeout, signaled seq=1, emitted seq=3",
    "i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:85dffffb, in python3 [4242]",
    "i915 0000:03:00.0: [drm] *ERROR* Failed to reset chip",
    "xe 0000:03:00.0: [drm] GT1: Timedout job: seqno=12, lrc_seqno=12, guc_id=2, flags=0x0 in python3 [4242]",
    "xe 0000:03:00.0: [drm] Tile0: GT0: reset started",
    "xe 0000:03:00.0: [drm] *ERROR* CRITICAL: Xe has declared device 0000:03:00.0 as wedged.",
    "accel accel3: Going to reset device",
    "accel accel3: 0000:19:00.0 Failed to reset! Device is NOT usable",
    "habanalabs hl3: Device heartbeat failed!",
    "tenstorrent 0000:01:00.0: Device is unresponsive, cannot reset.",
];

/// Drivers pad their columns by version, consoles add `\r` and tabs.
#[test]
fn a_drivers_line_reads_alike_however_its_blanks_and_its_case_are() {
    let what = |text: &str| {
        let (kind, place, code, severity, process, instance) = reported(text)?;
        let process = process.map(|(pid, comm)| (pid, comm.map(|comm| comm.to_lowercase())));
        Some((kind, place, code, severity, process, instance))
    };
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut respelled = |line: &str| {
        let mut text = String::new();
        for c in line.chars() {
            match c {
                ' ' => text.push_str([" ", "  ", "   ", "\t", " \t "][numbers.next(5)]),
                '\n' => text.push_str(["\n", " \n", "\r\n"][numbers.next(3)]),
                // Blanks where columns are aligned; not within numbers, nor before a name.
                ')' | ',' if numbers.next(8) == 0 => text.extend([' ', c]),
                _ if numbers.next(3) == 0 => text.extend(c.to_uppercase()),
                _ if numbers.next(3) == 0 => text.extend(c.to_lowercase()),
                _ => text.push(c),
            }
        }
        text + ["", "\r", " ", " \r", "\t"][numbers.next(5)]
    };
    let mut unlike = Vec::new();
    for line in OF_DRIVERS {
        let plain = what(line);
        assert!(plain.is_some(), "{line}");
        let mut texts = (0..300).map(|_| respelled(line));
        unlike.extend(texts.find(|text| what(text) != plain));
    }
    assert_eq!(unlike, [""; 0]);
}

#[test]
fn an_xid_reads_alike_without_the_words_that_some_versions_leave_out() {
    let read = Some(xid_of("0000:c1:00", 149, Severity::Critical, None));
    for text in [
        "NVRM: Xid (PCI:0000:c1:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)",
        "NVRM: Xid (PCI:0000:c1:00): 149 NETIR_LINK_EVT Fatal",
        "NVRM: Xid (PCI:0000:c1:00.0): 149, Fatal Link 09",
        "nvrm:  xid ( pci:0000:c1:00.0 ) : 149, NETIR_LINK_EVT Fatal XC 1 i 0 Link 01 [0x0000000a]",
        "NVRM: Xid (0000:c1:00): 149, pid='<unknown>', name=<unknown>, NETIR_LINK_EVT Fatal XC0 i0",
    ] {
        assert_eq!(reported(text), read, "{text}");
    }
}

#[test]
fn a_crash_is_never_an_event_whatever_its_names_are() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    // Fragments of the patterns in random order.
    let pieces: Vec<&str> = WANTED
        .iter()
        .flat_map(|text| text.split_inclusive([' ', ':', '(', ')', ',', '.']))
        .collect();
    let mut text = |longest: usize| {
        let mut text = String::new();
        while text.len() < longest && numbers.next(8) != 0 {
            text.push_str(pieces[numbers.next(pieces.len())]);
        }
        text.truncate(text.floor_char_boundary(longest));
        text
    };
    for _ in 0..50_000 {
        let (comm, file) = (text(15), text(255).replace('/', ""));
        let line = format!("{comm}[4242]: segfault at 0 ip 0 sp 0 error 6 in {file}[561d+1000]");
        assert_eq!(read_at(&mut Reports::default(), &line, 0), None, "{line}");
    }
}

#[test]
fn a_name_like_a_packet_line_hides_no_event() {
    for name in ["IN= OUT=", "IN=a OUT=b MAC=", "IN= OUT= SRC="] {
        let line = format!(
            "NVRM: Xid (PCI:0000:17:00): 79, pid=7, name={name}, GPU has fallen off the bus."
        );
        assert_eq!(read(&line).and_then(|what| what.code), Some(79), "{name}");
    }
    let packet = "NVRM: Xid (PCI:0000:17:00): 79, IN= OUT= lost IN=lo OUT= MAC=00:00:aa SRC=::1 DST=::1 LEN=40 DF PROTO=ICMPv6 TYPE=1 INCOMPLETE [4 bytes] UID=0";
    assert_eq!(read(packet), None);
}

#[test]
fn a_name_adds_nothing_to_an_event() {
    let line =
        |name: &str| format!("NVRM: Xid (PCI:0000:17:00): 31, pid=7, name={name}, Ch 00000008");
    for name in ["x, pid=1", "a\nNVRM: Xid (P", "y): 79, pid=1", ", name=b, pid=2"] {
        let what = read(&line(name)).unwrap();
        let pid = what.process.map(|process| process.pid);
        assert_eq!((what.code, pid, what.place), (Some(31), Some(7), pci("0000:17:00")), "{name}");
    }
}
