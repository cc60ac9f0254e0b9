//! Tests of the probe against real processes, devices and cgroups of this machine. Every test needs
//! root and BPF, and prints so if it is skipped.

use super::device_users::{Handle, OpenHook, Settings, start};
use super::self_test::self_test;
use gpuwho_common::device_users::HOLDERS;
use gpuwho_model::catalog::agent::DropReason;
use gpuwho_model::ids::Hierarchy;
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::{Evidence, Opened};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::nodes;
use gpuwho_owners::proc_scan::{is_alive, unified_root};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const HOOKS: [OpenHook; 3] = [OpenHook::Fexit, OpenHook::Cgroup, OpenHook::Syscall];
const DEADLINE: Duration = Duration::from_secs(20);

/// All tests open the same device, and each expects events of its own processes only.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A device node of this test.
struct Node {
    _folder: tempfile::TempDir,
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// Not used by a kernel driver: an open is permitted but finds no driver.
const UNUSED_MAJOR: u32 = 240;
/// `/dev/full`.
const MEM_MAJOR: u32 = 1;
const FULL_MINOR: u32 = 7;

impl Node {
    fn make(major: u32, minor: u32) -> Option<Self> {
        let alone = ONE_AT_A_TIME.lock();
        let folder = tempfile::Builder::new().prefix("gpuwho-live-").tempdir_in("/dev").ok()?;
        // Others than root open it, too.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).ok()?;
        let path = folder.path().join("node");
        let mode = Mode::RUSR | Mode::WUSR | Mode::ROTH;
        mknodat(CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor)).ok()?;
        // Whatever the umask.
        fs::set_permissions(&path, Permissions::from_mode(0o666)).ok()?;
        Some(Self { _folder: folder, path, _alone: alone })
    }

    fn watched(&self) -> nodes::Settings {
        let nodes = vec![self.path.to_string_lossy().into_owned()];
        nodes::Settings { nodes, drivers: Vec::new(), vendors: &[] }
    }
}

struct Probe {
    handle: Handle,
    reported: Receiver<Evidence>,
    past: Vec<Evidence>,
}

impl Probe {
    /// `None` if this kernel refuses the hook.
    fn start(node: &Node, hook: OpenHook) -> Option<Self> {
        Self::start_behind(node, hook, None)
    }

    /// The same; the ring is not read while the gate is locked.
    fn start_behind(node: &Node, hook: OpenHook, gate: Option<Arc<Mutex<()>>>) -> Option<Self> {
        let (sender, evidence) = channel();
        let emit = move |evidence| {
            let _open = gate.as_ref().map(|gate| gate.lock());
            let _ = sender.send(evidence);
        };
        let settings = Settings { open_hook: hook, ..Settings::default() };
        let handle = start(settings, node.watched(), &Paths::default(), emit).unwrap();
        if handle.hook().is_none() {
            println!("not on this kernel: {}", handle.report().reason);
            return None;
        }
        Some(Self { handle, reported: evidence, past: Vec::new() })
    }

    fn expect<T>(&mut self, what: &str, wanted: impl Fn(&Evidence) -> Option<T>) -> T {
        if let Some(found) = self.past.iter().find_map(&wanted) {
            return found;
        }
        let end = Instant::now() + DEADLINE;
        while let Ok(evidence) =
            self.reported.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            let found = wanted(&evidence);
            self.past.push(evidence);
            if let Some(found) = found {
                return found;
            }
        }
        panic!("not reported: {what}; reported {:?}", self.past);
    }

    fn expect_opened(&mut self, pid: u32) -> Opened {
        self.expect("the opening", |evidence| match evidence {
            Evidence::Opened(opened) if opened.process.pid == pid => Some(opened.clone()),
            _ => None,
        })
    }

    fn expect_exited(&mut self, pid: u32) {
        self.expect("the end", |evidence| {
            matches!(evidence, Evidence::Exited { process, .. } if process.pid == pid).then_some(())
        });
    }

    /// All evidence until a marker process that opens the node has ended.
    fn until_marker(&mut self, node: &Node) -> Vec<Evidence> {
        let mut marker = sh("exec 3<\"$0\"", node);
        let pid = marker.id();
        marker.wait().unwrap();
        self.expect_exited(pid);
        self.past
            .iter()
            .filter(|evidence| !matches!(evidence, Evidence::Opened(opened) if opened.process.pid == pid))
            .filter(|evidence| !matches!(evidence, Evidence::Exited { process, .. } if process.pid == pid))
            .cloned()
            .collect()
    }

    /// Runs marker processes until one was told by both, and one more: the first comes after everything
    /// in the ring, the second after attempts that waited for confirmation.
    fn drain(&mut self, node: &Node, other: &mut Self) {
        let mut reported = 0;
        while reported < 2 {
            let mut marker = sh("exec 3<\"$0\"", node);
            let pid = marker.id();
            marker.wait().unwrap();
            other.expect_exited(pid);
            reported += u32::from(self.wait_for_end(pid));
        }
    }

    /// Whether the end of a process is told soon.
    fn wait_for_end(&mut self, pid: u32) -> bool {
        let end = Instant::now() + Duration::from_secs(1);
        while let Ok(evidence) =
            self.reported.recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            let is_it = matches!(&evidence, Evidence::Exited { process, .. } if process.pid == pid);
            self.past.push(evidence);
            if is_it {
                return true;
            }
        }
        false
    }

    fn lost(&self) -> u64 {
        self.handle.report().dropped.iter().map(|(_, count)| count).sum()
    }
}

/// An event without its time, which differs between probes.
fn event(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Opened(opened) => format!("opened {} {}", opened.process, opened.node),
        Evidence::Exited { process, .. } => format!("exited {process}"),
        Evidence::Forked { child, .. } => format!("forked {}", child.process),
        other => format!("{other:?}"),
    }
}

/// A user who attacks.
const NOBODY: u32 = 65_534;

/// So many processes of nobody's, one after the other, which open the node and end.
fn storm(count: u32, node: &Node) {
    let storm = format!("i=0; while [ $i -lt {count} ]; do (: <\"$0\"); i=$((i+1)); done");
    let mut storm =
        Command::new("sh").args(["-c", &storm]).arg(&node.path).uid(NOBODY).spawn().unwrap();
    assert!(storm.wait().unwrap().success());
}

fn sh(script: &str, node: &Node) -> Child {
    Command::new("sh").args(["-c", script]).arg(&node.path).stdin(Stdio::piped()).spawn().unwrap()
}

/// The hooks of this kernel; the others are tested in the kernel matrix (`cargo xtask vm`).
fn hooks(node: &Node) -> &'static [OpenHook] {
    static FOUND: OnceLock<Vec<OpenHook>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        HOOKS.into_iter().filter(|hook| Probe::start(node, *hook).is_some()).collect()
    });
    if found.is_empty() {
        println!("skipped: needs BPF and one of its hooks");
    }
    found
}

fn full() -> Option<Node> {
    let node = Node::make(MEM_MAJOR, FULL_MINOR);
    if node.is_none() {
        println!("skipped: needs root, to make a device node");
    }
    node
}

#[test]
fn open_fork_move_exec_and_exit_are_reported_with_every_supported_hook() {
    let Some(node) = full() else { return };
    let mut works = Vec::new();
    for &hook in hooks(&node) {
        match self_test(Some(hook)) {
            Ok(line) => works.push(line),
            Err(wrong) => panic!("{hook}: {wrong}"),
        }
    }
    println!("{}", works.join("\n"));
}

#[test]
fn process_that_opens_and_ends_at_once_is_reported_with_its_cgroups() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        let groups = Groups::make();
        let script = format!("{}exec 3<\"$0\"", groups.enter());
        let began = Instant::now();
        let mut child = sh(&script, &node);
        child.wait().unwrap();
        let took = began.elapsed();
        let opened = probe.expect_opened(child.id());
        probe.expect_exited(child.id());
        println!("{hook}: lived {took:?}");
        for (hierarchy, folder) in &groups.0 {
            let id = fs::metadata(folder).unwrap().ino();
            assert_eq!(opened.cgroups.get(*hierarchy), Some(id), "{hook} {opened:?}");
        }
        assert_eq!((opened.uid, &*opened.comm), (0, "sh"));
    }
}

/// Cgroups of this test, in the writable hierarchies.
struct Groups(Vec<(Hierarchy, PathBuf)>);

impl Groups {
    fn make() -> Self {
        let paths = Paths::default();
        let v1 = |name: &str| Some(paths.cgroup.join(name)).filter(|root| root.is_dir());
        let roots = [
            (Hierarchy::V2, unified_root(&paths)),
            (Hierarchy::Devices, v1("devices")),
            (Hierarchy::Memory, v1("memory")),
        ];
        let made = roots.into_iter().filter_map(|(hierarchy, root)| {
            let folder = root?.join(format!("gpuwho-live-{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            Some((hierarchy, folder))
        });
        Self(made.collect())
    }

    fn enter(&self) -> String {
        self.0.iter().fold(String::new(), |script, (_, folder)| {
            script + &format!("echo $$ >{}/cgroup.procs;", folder.display())
        })
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for (_, folder) in &self.0 {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[test]
fn processes_that_touch_no_device_cause_no_event() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        let storm = "i=0; while [ $i -lt 2000 ]; do (: </etc/passwd); i=$((i+1)); done";
        assert!(sh(storm, &node).wait().unwrap().success());
        // Other tests' cgroups are ignored.
        let evidence: Vec<Evidence> = probe
            .until_marker(&node)
            .into_iter()
            .filter(|evidence| {
                !matches!(evidence, Evidence::CgroupMade { .. } | Evidence::CgroupRemoved { .. })
            })
            .collect();
        assert_eq!(evidence, Vec::new());
    }
}

#[test]
fn every_lost_opener_of_500_is_counted() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        storm(500, &node);
        let evidence = probe.until_marker(&node);
        let openers: BTreeSet<u32> = evidence
            .iter()
            .filter_map(|evidence| match evidence {
                Evidence::Opened(opened) => Some(opened.process.pid),
                _ => None,
            })
            .collect();
        let (evidence, lost) = (openers.len(), probe.lost());
        println!("{hook}: {evidence} evidence, {lost} records lost");
        // Of ends, too, no more are told than one owner's share.
        assert!(lost >= (500 - evidence) as u64, "{hook}");
    }
}

#[test]
fn process_with_an_open_device_is_found_and_followed() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let mut child = sh("exec 3<\"$0\"; echo ready; read go; exec sleep 0", &node);
        let pid = child.id();
        // The shell opens the node before `holds_node` sees it; wait for that.
        let end = Instant::now() + DEADLINE;
        while !holds_node(pid) && Instant::now() < end {
            std::thread::yield_now();
        }
        let Some(mut probe) = Probe::start(&node, hook) else {
            child.kill().unwrap();
            child.wait().unwrap();
            continue;
        };
        let opened = probe.expect_opened(pid);
        assert!(is_alive(&Paths::default(), opened.process));
        drop(child.stdin.take());
        child.wait().unwrap();
        let comm = probe.expect("the new program", |evidence| match evidence {
            Evidence::Execed { process, comm } if *process == opened.process => {
                Some(comm.to_string())
            }
            _ => None,
        });
        assert_eq!(comm, "sleep");
        probe.expect_exited(pid);
    }
}

fn holds_node(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}/fd/3"))
        .is_ok_and(|file| file.rdev() == makedev(MEM_MAJOR, FULL_MINOR))
}

#[test]
fn open_by_a_thread_is_reported_as_its_process() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        let path = node.path.clone();
        let file = std::thread::spawn(move || fs::File::open(path).unwrap()).join().unwrap();
        let opened = probe.expect_opened(std::process::id());
        assert!(is_alive(&Paths::default(), opened.process), "{hook} {opened:?}");
        drop(file);
    }
}

#[test]
fn open_without_a_driver_is_not_reported_of_a_running_process() {
    let Some(node) = Node::make(UNUSED_MAJOR, 0) else {
        println!("skipped: needs root, to make a device node");
        return;
    };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        let mut living = sh("(: <\"$0\") 2>/dev/null; : 2>/dev/null <\"$0\"; read go", &node);
        assert!(fs::File::open(&node.path).is_err());
        let me = std::process::id();
        let evidence = probe.reported.recv_timeout(Duration::from_millis(300));
        let mine =
            |evidence: &Evidence| matches!(evidence, Evidence::Opened(o) if o.process.pid == me);
        assert!(!evidence.iter().any(mine), "{hook} {evidence:?}");
        probe.past.extend(evidence);
        drop(living.stdin.take());
        living.wait().unwrap();
    }
}

#[test]
fn open_is_reported_while_the_device_is_still_open() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        let mut waits: Vec<u64> = (0..50)
            .map(|_| {
                let mut child = sh("exec 3<\"$0\"; read go", &node);
                let opened = probe.expect_opened(child.id());
                let wait = boot_time_ns() - opened.at_ns;
                assert!(is_alive(&Paths::default(), opened.process), "{hook} {opened:?}");
                drop(child.stdin.take());
                child.wait().unwrap();
                wait
            })
            .collect();
        waits.sort_unstable();
        println!("{hook}: open to evidence {:?} ns, slowest {:?}", waits[25], waits.last());
    }
}

/// A probe whose reader is blocked, next to one that reads: the openings that only the second received
/// are those that the first must have counted.
#[test]
fn full_ring_counts_the_openings_that_it_loses() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let Some(mut full) = Probe::start_behind(&node, hook, Some(Arc::clone(&gate))) else {
            continue;
        };
        let Some(mut control) = Probe::start(&node, hook) else { continue };
        full.handle.allow(|_| [u32::MAX; 3]);
        control.handle.allow(|_| [u32::MAX; 3]);
        storm(4_000, &node);
        drop(shut);
        full.drain(&node, &mut control);
        let lost = full.lost();
        let openings = |probe: &Probe| -> BTreeSet<String> {
            let all = probe.past.iter().filter(|seen| matches!(seen, Evidence::Opened(_)));
            all.map(event).collect()
        };
        let missing = openings(&control).difference(&openings(&full)).count() as u64;
        println!("{hook}: of {} events {lost} lost, {missing} missing", control.past.len());
        assert_eq!(control.lost(), 0, "{hook}");
        // Of what was lost a part may be ends, and cgroups of other tests.
        assert!(
            missing > 1_000 && missing <= lost && lost < missing + 500,
            "{hook} {missing} {lost}"
        );
    }
}

/// Nobody's children take all places that he may have; those of root's holder are followed.
#[test]
fn an_owner_with_all_its_places_leaves_room_for_the_forks_of_others() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        probe.handle.allow(|kind| if kind == HOLDERS { [20, 40, 40] } else { [u32::MAX; 3] });
        let crowd = "exec 3<\"$0\"; for i in $(seq 50); do sleep 1000 & all=\"$all $!\"; done; \
                     echo ready; read go; kill $all; wait";
        let (mut crowd, _) = nobody(crowd, &node);
        let dropped = probe.handle.report().dropped;
        let beyond = dropped.iter().find(|(reason, _)| *reason == DropReason::OwnerShare).unwrap();
        assert!((30..=32).contains(&beyond.1), "{hook} {dropped:?}");
        let forked = |probe: &mut Probe, pid: u32| {
            // Where the parent's opening is not confirmed yet, the child has one, too.
            probe.expect("the child", |evidence| match evidence {
                Evidence::Opened(child) | Evidence::Forked { child, .. }
                    if child.process.pid == pid =>
                {
                    Some(())
                }
                _ => None,
            });
            probe.expect_exited(pid);
        };
        let child = "exec 3<\"$0\"; (exec sleep 0) & echo $!; wait";
        let mut other = Command::new("sh")
            .args(["-c", child])
            .arg(&node.path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = first_line(&mut other).parse().unwrap();
        other.wait().unwrap();
        forked(&mut probe, pid);
        // Places are free again when their processes have ended.
        drop(crowd.stdin.take());
        crowd.wait().unwrap();
        let (mut again, pid) = nobody(child, &node);
        again.wait().unwrap();
        forked(&mut probe, pid.parse().unwrap());
    }
}

/// A shell of nobody's, and its first line.
fn nobody(script: &str, node: &Node) -> (Child, String) {
    let mut shell = Command::new("sh");
    // It ends with a test that fails, and all that it has started with it.
    let script = format!("trap 'kill $all $! 2>/dev/null' EXIT; {script}");
    shell.args(["-c", &script]).arg(&node.path).uid(NOBODY);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let line = first_line(&mut child);
    (child, line)
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Nobody's forks come to three times what one owner may have; then root's process opens the node.
#[test]
fn a_flood_of_forks_hides_no_opening_of_another_owner() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock();
        let Some(mut probe) = Probe::start_behind(&node, hook, Some(Arc::clone(&gate))) else {
            continue;
        };
        let forks = "exec 3<\"$0\"; i=0; while [ $i -lt 3000 ]; do (:); i=$((i+1)); done";
        let mut forks =
            Command::new("sh").args(["-c", forks]).arg(&node.path).uid(NOBODY).spawn().unwrap();
        assert!(forks.wait().unwrap().success());
        let mut children: Vec<Child> =
            (0..8).map(|_| sh("exec 3<\"$0\"; read go", &node)).collect();
        drop(shut);
        for child in &children {
            probe.expect_opened(child.id());
        }
        let dropped = probe.handle.report().dropped;
        let beyond = dropped.iter().find(|(reason, _)| *reason == DropReason::OwnerShare).unwrap();
        println!("{hook}: {dropped:?}");
        assert!(beyond.1 > 500, "{hook} {dropped:?}");
        let end = Instant::now() + DEADLINE;
        while !probe.handle.report().reason.contains("beyond an owner's share") {
            assert!(Instant::now() < end, "{hook} {:?}", probe.handle.report());
        }
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}

/// A child that nobody told of is found by the scan that the loss starts, and its end is told.
#[test]
fn processes_beyond_an_owners_share_are_found_by_a_scan_within_seconds() {
    let Some(node) = full() else { return };
    for &hook in hooks(&node) {
        let Some(mut probe) = Probe::start(&node, hook) else { continue };
        let forks = "exec 3<\"$0\"; i=0; while [ $i -lt 1500 ]; do (:); i=$((i+1)); done; \
                     sleep 1000 & echo $!; read go; kill $!";
        let (mut forks, line) = nobody(forks, &node);
        let child = line.parse().unwrap();
        probe.expect("the child", |evidence| match evidence {
            Evidence::Opened(Opened { process, .. })
            | Evidence::Forked { child: Opened { process, .. }, .. }
                if process.pid == child =>
            {
                Some(())
            }
            _ => None,
        });
        drop(forks.stdin.take());
        forks.wait().unwrap();
        probe.expect_exited(child);
    }
}

#[test]
fn losses_have_a_reason() {
    let Some(node) = full() else { return };
    let Some(probe) = Probe::start(&node, OpenHook::Auto) else { return };
    let reasons: Vec<DropReason> =
        probe.handle.report().dropped.iter().map(|(reason, _)| *reason).collect();
    assert_eq!(reasons, vec![DropReason::RingFull, DropReason::MapFull, DropReason::OwnerShare]);
}
