//! Kernel log lines that a process writes through its own name, and who is affected by a fault.

use crate::fixture::{TRAINER, wait_for_holder};
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::stage::{Group, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use gpuwho_tests::{attacker, or_skip, program, skip};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The kernel writes some crashes of all that happen within five seconds, and other tests' processes
/// crash as well.
const LOGGED_WITHIN: Duration = Duration::from_mins(1);
/// One pass of the agent, on a machine under load.
const TOLD_WITHIN: Duration = Duration::from_mins(1);
/// Above what the processes of a pod here have, and soon eaten.
const MEMORY: &str = "67108864";

/// What a process calls itself, and what its program's file is called: of the kernel's line about
/// its crash, `COMM[PID]: segfault at … in FILE[…]`, that is all but the fixed words. `{pid}` is the
/// victim's number. The first five were events before the patterns were anchored; the others try
/// them as they are now.
const NAMES: &[(&str, &str)] = &[
    ("NVRM: Xid (PCI:", "y): 79, pid={pid}, name=z"),
    ("nvidia-nvswitch", "SXid (PCI:0000:10:00.0): 12028, Fatal, Link 32"),
    ("NVRM: x", "RmInitAdapter failed"),
    ("NVRM: x", "* GSP Timeout *"),
    ("Out of memory: ", "x: Killed process {pid} (python3) total-vm:1kB"),
    ("NVRM: Xid (PCI:", "0000:10:00): 79, pid={pid}, name=z, GPU has fallen off the bus."),
    ("NVRM: Xid (0000", ":10:00): 79, pid={pid}, name=z, GPU has fallen off the bus."),
    ("x", "y\nNVRM: Xid (PCI:0000:10:00): 79, pid={pid}, name=z\n"),
    ("x\nNVRM: Xid (PC", "I:0000:10:00): 79, pid={pid}, name=z"),
    ("nvidia-nvswitch", "0: SXid (PCI:0000:10:00.0): 12028, Fatal, Link 32"),
    ("NVRM: GPU 0000:", "10:00.0: RmInitAdapter failed! (0x62:0x65:1436)"),
    ("NVRM: GPU 0000:", "10:00.0: GPU has fallen off the bus."),
    ("NVRM: GPU6 _kgs", "pLogRpcTimeout: ************** GSP Timeout **************"),
    ("Out of memory: ", "Killed process {pid} (worker) total-vm:1kB, anon-rss:1kB"),
    ("Killed process ", "{pid} (worker) total-vm:1kB, anon-rss:1kB, file-rss:0kB"),
    ("xe 0000:10:00.0", "AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=x"),
    ("pcieport 0000:0", "0:03.1: DPC: containment event, status:0x1f01"),
    ("amdgpu 0000:83:", "00.0: amdgpu: GPU reset begin!"),
];

/// Events that the names above would like to be.
const FORGED: &[&str] = &[
    "gpu.xid",
    "gpu.nvswitch.sxid",
    "gpu.lost",
    "gpu.init_failed",
    "gpu.driver.timeout",
    "gpu.driver.unbind",
    "gpu.reset",
    "gpu.ecc",
    "pcie.aer",
];

#[test]
fn a_crash_tells_nothing_whatever_its_names_are_and_a_true_kill_is_told() {
    let mut stage = or_skip!(Stage::new());
    let mut log = match Log::open() {
        Ok(log) => log,
        Err(error) => skip!("/dev/kmsg ({error})"),
    };
    if fs::read_to_string("/proc/sys/debug/exception-trace").unwrap_or_default().trim() != "1" {
        skip!("a kernel that logs crashes (debug.exception-trace)");
    }
    let pod = stage.pod(&TRAINER).unwrap();
    if !limit(&pod) {
        skip!("the memory controller");
    }
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap().from_now();
    let victim = Worker::on(&pod, &[0]).unwrap();
    nvml.set_processes(0, &[Some(victim.pid())]).unwrap();
    let reported = stage.folder().join("told.jsonl");
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        file: Some(reported.clone()),
        // The device has conditions of its own, which name who is on it.
        more: "[health]\nenabled = false\n".to_owned(),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    wait_for_holder(&agent, victim.pid());

    for (comm, file) in NAMES {
        let file = file.replace("{pid}", &victim.pid().to_string());
        let crashed = || crash(stage.folder(), comm, &file, &mut log).then_some(());
        until(LOGGED_WITHIN, crashed).unwrap_or_else(|| panic!("{comm} {file} is not in the log"));
    }
    // The kernel says this after all of that: what the agent tells of it comes last.
    let killed = eat(&pod);
    let events = until(TOLD_WITHIN, || {
        let events = events(&reported);
        let is_killed = |event: &Value| {
            event["event"] == "gpu.process.oom_kill" && event["attributes"]["process.pid"] == killed
        };
        events.iter().any(is_killed).then_some(events)
    });
    let events =
        events.unwrap_or_else(|| panic!("no kill of {killed}: {:#?}", self::events(&reported)));
    let forged = events.iter().filter(|event| FORGED.iter().any(|name| event["event"] == *name));
    assert_eq!(forged.collect::<Vec<_>>(), [&Value::Null; 0]);
    let of_victim =
        events.iter().filter(|event| event["attributes"]["process.pid"] == victim.pid());
    assert_eq!(of_victim.collect::<Vec<_>>(), [&Value::Null; 0], "it lives");
    let of_pod = |event: &&Value| {
        event["attributes"]["k8s.pod.uid"] == pod.expected.pod_uid.clone().unwrap()
    };
    assert_eq!(events.iter().filter(of_pod).count(), 1, "{events:#?}");
}

/// What the kernel logs from now on.
struct Log(OwnedFd);

impl Log {
    fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty())?;
        rustix::fs::seek(&log, SeekFrom::End(0))?;
        Ok(Self(log))
    }

    /// Whether there is such a line among those that have come.
    fn has(&mut self, words: &str) -> bool {
        let mut buffer = [0; 8192];
        loop {
            match rustix::io::read(&self.0, &mut buffer) {
                Ok(len) if String::from_utf8_lossy(&buffer[..len]).contains(words) => return true,
                Err(Errno::AGAIN) => return false,
                // Others were overwritten before they were read.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Crashes with these names; whether the kernel has logged it.
fn crash(folder: &Path, comm: &str, file: &str, log: &mut Log) -> bool {
    let program = folder.join(file);
    if !program.exists() {
        fs::copy(program::attacker().unwrap(), &program).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let mut crash = Command::new(program);
    crash.args(["crash", comm]).stdin(Stdio::null()).stdout(Stdio::null());
    // Another test's child may still have the copy open for writing, until it executes.
    let mut crash = until(TOLD_WITHIN, || match crash.spawn() {
        Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
        started => Some(started.unwrap()),
    })
    .unwrap();
    let pid = crash.id();
    let status = crash.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
    log.has(&format!("[{pid}]: segfault at "))
}

/// Lets the processes of a group have only so much memory; whether the host can do that.
fn limit(group: &Group) -> bool {
    let files = group.directories.iter().flat_map(|directory| {
        ["memory.max", "memory.limit_in_bytes"].map(|file| directory.join(file))
    });
    let mut files = files.filter(|file| file.exists());
    files.next().is_some_and(|file| fs::write(file, MEMORY).is_ok())
}

/// A process of the group that the kernel kills for want of memory.
fn eat(group: &Group) -> u32 {
    let directories: Vec<_> =
        group.directories.iter().map(|path| path.display().to_string()).collect();
    let directories: Vec<&str> = directories.iter().map(String::as_str).collect();
    let mut eater = attacker::command("eat", &directories).unwrap().spawn().unwrap();
    let status = eater.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    eater.id()
}

/// The file sink's events so far.
fn events(reported: &Path) -> Vec<Value> {
    let text = fs::read_to_string(reported).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["event"].is_string()).collect()
}
