//! Lines as drivers and kernels in the field wrote them.

use super::*;

fn pci(text: &str) -> Place {
    Place::Pci(PciAddress::parse(text).unwrap())
}

/// Kind, place, code, severity, process and MIG instance.
type Read = (EventKind, Place, Option<u32>, Severity, Option<(u32, Option<String>)>, Option<u32>);

fn told(text: &str) -> Option<Read> {
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
        assert_eq!(told(text), Some(read), "{text}");
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
        assert_eq!(told(text), Some(read), "{text}");
    }
}

#[test]
fn an_xid_in_a_mig_instance_names_it() {
    let text = "NVRM: Xid (PCI:0000:87:00 GPU-I:0d): 94, pid=7, name=train, Contained: SM (0x1).";
    let process = Some((7, Some("train".to_owned())));
    let read = (EventKind::Xid, pci("0000:87:00"), Some(94), Severity::Warning, process, Some(13));
    assert_eq!(told(text), Some(read));
}

#[test]
fn an_xid_of_a_switch_is_not_one_of_a_gpu() {
    let text = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)";
    let read = (EventKind::Sxid, pci("0000:c1:00"), Some(12028), Severity::Warning, None, None);
    assert_eq!(told(text), Some(read));
}

#[test]
fn the_drivers_other_words() {
    let lost = "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus and is not responding to commands.";
    for (text, kind, place, severity) in [
        (lost, EventKind::Lost, pci("0000:b3:00"), Severity::Critical),
        (
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0x65:1436)",
            EventKind::InitFailed,
            pci("0000:01:00"),
            Severity::Critical,
        ),
        (
            "NVRM: GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************************",
            EventKind::DriverTimeout,
            Place::Host,
            Severity::Critical,
        ),
        (
            "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482 heartbeatWithOffsetMs 812745879 diff 6070 timeout 5200",
            EventKind::DriverTimeout,
            Place::Host,
            Severity::Critical,
        ),
        (
            "NVRM: Attempting to remove device 0000:17:00.0 with non-zero usage count!",
            EventKind::DriverUnbind,
            pci("0000:17:00"),
            Severity::Warning,
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
        assert_eq!(told(text), Some((kind, place, None, severity, None, None)), "{text}");
    }
}

#[test]
fn a_pcie_error_is_told_once_and_where_it_was() {
    let aer = |text, address, severity| {
        let read = (EventKind::PcieError, pci(address), None, severity, None, None);
        assert_eq!(told(text), Some(read), "{text}");
    };
    aer(
        "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        "0000:00:03",
        Severity::Critical,
    );
    aer(
        "pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
        "0000:00:1c",
        Severity::Info,
    );
    aer(
        "nvidia 0000:03:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
        "0000:03:00",
        Severity::Warning,
    );
    for text in [
        "pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0",
        "pcieport 0000:00:03.0:   device [8086:6f08] error status/mask=00004020/00000000",
        "nvme 0000:05:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    ] {
        assert_eq!(told(text), None, "{text}");
    }
}

#[test]
fn amds_words_and_not_its_totals() {
    for (text, kind, severity) in [
        (
            "amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block",
            EventKind::Ecc,
            Severity::Critical,
        ),
        (
            "amdgpu 0000:83:00.0: amdgpu: 4 correctable hardware errors detected in gfx block",
            EventKind::Ecc,
            Severity::Info,
        ),
        (
            "amdgpu 0000:83:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            EventKind::Ecc,
            Severity::Critical,
        ),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset begin!", EventKind::Reset, Severity::Critical),
        (
            "amdgpu 0000:83:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=12, emitted seq=14",
            EventKind::DriverTimeout,
            Severity::Warning,
        ),
    ] {
        let read = (kind, pci("0000:83:00"), None, severity, None, None);
        assert_eq!(told(text), Some(read), "{text}");
    }
    let total = "amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 0, 3 uncorrectable hardware errors detected in total in umc block";
    assert_eq!(told(total), None);
}

#[test]
fn a_killed_process_is_named_whatever_it_calls_itself() {
    for (text, pid, comm) in [
        (
            "Out of memory: Killed process 4321 (python) total-vm:33554432kB, anon-rss:31457280kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:61440kB oom_score_adj:0",
            4321,
            "python",
        ),
        (
            "Memory cgroup out of memory: Killed process 77 (a) total-vm:(b) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
            77,
            "a) total-vm:(b",
        ),
        (
            "Killed process 5 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB",
            5,
            "python",
        ),
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=cri-containerd-0a.scope,mems_allowed=0-1,oom_memcg=/kubepods.slice/a,task_memcg=/kubepods.slice/a/b,task=python,pid=4321,uid=1000",
            4321,
            "python",
        ),
        (
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/slurm/uid_7/job_5,task=a,pid=1,uid=2,pid=88,uid=0",
            88,
            "a,pid=1,uid=2",
        ),
    ] {
        let process = Some((pid, Some(comm.to_owned())));
        let read = (EventKind::OomKill, Place::Host, None, Severity::Warning, process, None);
        assert_eq!(told(text), Some(read), "{text}");
    }
}

#[test]
fn two_lines_about_one_kill_are_one_event() {
    let kill = |pid| {
        read(&format!("Out of memory: Killed process {pid} (a) total-vm:1kB, anon-rss:1kB"))
            .unwrap()
    };
    let mut last = LastKill::default();
    let told = [(7, 0), (7, 900), (8, 1_000), (8, 2_001_000), (8, 4_001_001)]
        .map(|(pid, at_us)| last.is_told(&kill(pid), at_us));
    assert_eq!(told, [false, true, false, true, false]);
}

#[test]
fn everything_else_is_nobodys_business_here() {
    for text in [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "NVRM: Xid (PCI:0000:17:00)",
        "NVRM: Xid (PCI:0000:17:00): many",
        "oom_reaper: reaped process 4321 (python), now anon-rss:0kB",
        "Killed process 12",
        "amdgpu 0000:83:00.0: amdgpu: ring gfx uses VM inv eng 0 on hub 0",
        "usb 1-1: new high-speed USB device",
        "amdgpu nowhere: amdgpu: GPU reset begin!",
    ] {
        assert_eq!(told(text), None, "{text}");
    }
}
