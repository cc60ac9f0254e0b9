//! Real processes in real cgroups of this host, shaped like pods and Slurm jobs. Needs root and
//! writable cgroup mounts; skipped with the reason without them.

use super::*;
use crate::attribute::fake::of_path;
use crate::attribute::hierarchies::Hierarchies;
use crate::attribute::{KernelCgroups, Method, cgroup};
use crate::nodes::{self, Nodes};
use crate::proc_scan::Tracker;
use gpuwho_model::ids::{CgroupId, Hierarchy};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const UID: &str = "cccccccc-0000-4000-8000-00000000000c";

/// One directory in every mounted hierarchy; removed when dropped.
struct Group {
    dirs: Vec<(Hierarchy, PathBuf)>,
    name: String,
    root: String,
}

impl Group {
    /// `name` below a root that no other test uses; `None` if this host does not allow it.
    fn make(test: &str, name: &str) -> Option<Self> {
        let mounts = [
            (Hierarchy::V2, "/sys/fs/cgroup"),
            (Hierarchy::V2, "/sys/fs/cgroup/unified"),
            (Hierarchy::Memory, "/sys/fs/cgroup/memory"),
            (Hierarchy::Devices, "/sys/fs/cgroup/devices"),
            (Hierarchy::Freezer, "/sys/fs/cgroup/freezer"),
        ];
        let root = format!("gpuwho-test-{test}-{}", std::process::id());
        let mut group = Self { dirs: Vec::new(), name: format!("/{root}{name}"), root };
        for (hierarchy, mount) in mounts {
            if !PathBuf::from(mount).join("cgroup.procs").exists() {
                continue;
            }
            let dir = PathBuf::from(format!("{mount}{}", group.name));
            if fs::create_dir_all(&dir).is_ok() {
                group.dirs.push((hierarchy, dir));
            }
        }
        if group.dirs.is_empty() {
            eprintln!("skipped: needs root and a writable cgroup mount");
            return None;
        }
        Some(group)
    }

    fn ids(&self) -> KernelCgroups {
        let id = |(hierarchy, dir): &(Hierarchy, PathBuf)| CgroupId {
            hierarchy: *hierarchy,
            id: fs::metadata(dir).unwrap().ino(),
        };
        KernelCgroups(self.dirs.iter().map(id).collect())
    }

    /// A child that waits in this group, reported as the kernel reports its open.
    fn child(&self) -> (Child, Opened) {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        for (_, dir) in &self.dirs {
            fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let living = Living::find(&Paths::default(), child.id()).unwrap();
        let opened = Opened {
            process: living.key,
            uid: 0,
            comm: Arc::from("early"),
            cgroups: self.ids(),
            node: Arc::from("/dev/nvidia0"),
            at_ns: boot_time_ns(),
        };
        (child, opened)
    }

    /// Whether every directory of the group is gone.
    fn remove(&self) {
        for (_, dir) in &self.dirs {
            let mut dir = dir.clone();
            // The group, then its parents up to the test's own root.
            while dir.iter().any(|part| *part == *self.root) {
                if fs::remove_dir(&dir).is_err() {
                    break;
                }
                dir.pop();
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.remove();
    }
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn pod_name() -> String {
    format!("/kubepods/burstable/pod{UID}/{}", "c".repeat(64))
}

#[test]
fn a_real_process_in_a_pods_cgroup_is_owned_alive_and_dead() {
    let Some(group) = Group::make("pod", &pod_name()) else { return };
    let (child, opened) = group.child();
    let process = opened.process;
    let alive = Ownership::new(&Paths::default());
    alive.observe(Evidence::Opened(opened.clone()));
    let by_driver = Ownership::new(&Paths::default());
    assert_eq!(by_driver.process(process.pid, boot_time_ns()), Some(process));
    end(child);
    // Reported only after the exit; the cgroup was never announced.
    let dead = Ownership::new(&Paths::default());
    dead.observe(Evidence::Opened(opened));

    let expected = cgroup::parse_path(&group.name);
    assert!(expected.pod.is_some() && expected.container.is_some());
    for (table, method, comm) in [
        (&alive, Method::Proc, "sleep"),
        (&by_driver, Method::Proc, "sleep"),
        (&dead, Method::Kernel, "early"),
    ] {
        let owner = table.attribution(process).unwrap();
        assert_eq!((&owner.workload, owner.method, &*owner.comm), (&expected, method, comm));
        assert_eq!(owner.cgroup.as_deref(), Some(group.name.as_str()));
    }
    assert_eq!((alive.latency().count(), dead.latency().count()), (1, 1));
    let mean_ms = alive.latency().sum * 1e3;
    eprintln!("from open to owner: {mean_ms:.3} ms alive, {:.3} ms dead", dead.latency().sum * 1e3);
}

#[test]
fn a_real_zombie_is_owned_by_its_jobs_cgroup() {
    let Some(group) = Group::make("job", "/slurm/uid_0/job_77/step_batch/task_3") else { return };
    let (mut child, opened) = group.child();
    let process = opened.process;
    child.kill().unwrap();
    // An exited process that was not waited for: its PID is still in /proc.
    while !fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let table = Ownership::new(&Paths::default());
    table.observe(Evidence::Opened(opened));
    let owner = table.attribution(process).unwrap();
    child.wait().unwrap();

    let expected = (cgroup::parse_path(&group.name), Method::Kernel);
    assert_eq!((of_path(&owner.workload), owner.method), expected);
    assert_eq!(owner.workload.slurm.as_ref().unwrap().job.as_str(), "77");
}

/// Holds `/dev/zero`; its first thread exits when a line arrives, another never does.
const HALF_ENDED: &str = r#"
    #include <fcntl.h>
    #include <pthread.h>
    #include <stdio.h>
    #include <unistd.h>
    static void *wait_for_ever(void *unused) { for (;;) pause(); return unused; }
    int main(void) {
        pthread_t other;
        open("/dev/zero", O_RDONLY);
        pthread_create(&other, 0, wait_for_ever, 0);
        getchar();
        pthread_exit(0);
    }
"#;

/// Compiles the program, or returns the reason why not.
fn half_ended(folder: &Path) -> Option<Child> {
    let (source, program) = (folder.join("half.c"), folder.join("half"));
    fs::write(&source, HALF_ENDED).unwrap();
    let built = Command::new("cc").arg("-pthread").arg("-o").arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: needs a C compiler (cc)");
        return None;
    }
    Some(Command::new(program).stdin(Stdio::piped()).spawn().unwrap())
}

/// The results of a scan for one process.
fn reported(tracker: &mut Tracker, pid: u32) -> Vec<Evidence> {
    let settings =
        nodes::Settings { nodes: vec!["/dev/zero".to_owned()], drivers: Vec::new(), vendors: &[] };
    let paths = Paths::default();
    let found = tracker.scan(&paths, &Nodes::read(&settings, &paths));
    let is_of = |evidence: &Evidence| match evidence {
        Evidence::Opened(opened) => opened.process.pid == pid,
        Evidence::Moved { process, .. } | Evidence::Exited { process, .. } => process.pid == pid,
        _ => false,
    };
    found.into_iter().filter(is_of).collect()
}

#[test]
fn a_jobs_process_with_an_exited_first_thread_stays_the_jobs() {
    let Some(group) = Group::make("half", "/slurm/uid_0/job_78/step_0") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(mut child) = half_ended(folder.path()) else { return };
    for (_, dir) in &group.dirs {
        fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    }
    let (paths, pid) = (Paths::default(), child.id());
    let mut tracker = Tracker::default();
    let table = Ownership::new(&paths);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut first = Vec::new();
    while first.is_empty() && Instant::now() < deadline {
        first = reported(&mut tracker, pid);
    }
    let [Evidence::Opened(opened)] = first.as_slice() else { panic!("{first:?}") };
    let process = opened.process;
    table.observe(first[0].clone());

    drop(child.stdin.take());
    while !fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap().contains(") Z ") {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let later = reported(&mut tracker, pid);
    // Unknown until now: found by the scan, and by its PID alone.
    let (scanned, listed) = (Ownership::new(&paths), Ownership::new(&paths));
    for evidence in reported(&mut Tracker::default(), pid) {
        scanned.observe(evidence);
    }
    let by_number = listed.process(process.pid, boot_time_ns());
    let owners = [&table, &scanned, &listed].map(|table| table.attribution(process));
    end(child);

    assert_eq!((later, by_number), (Vec::new(), Some(process)));
    let expected = Some((cgroup::parse_path(&group.name), Method::Proc));
    for owner in owners {
        assert_eq!(owner.map(|owner| (of_path(&owner.workload), owner.method)), expected);
    }
}

#[test]
fn a_real_process_that_moves_changes_its_owner() {
    let Some(first) = Group::make("move1", "/slurm/uid_0/job_1/step_0") else { return };
    let Some(second) = Group::make("move2", "/slurm/uid_0/job_2/step_0") else { return };
    let (child, opened) = first.child();
    let process = opened.process;
    let table = Ownership::new(&Paths::default());
    table.observe(Evidence::Opened(opened));
    for (_, dir) in &second.dirs {
        fs::write(dir.join("cgroup.procs"), process.pid.to_string()).unwrap();
    }
    table.observe(Evidence::Moved { process, cgroups: second.ids() });
    let owner = table.attribution(process).unwrap();
    end(child);
    assert_eq!(of_path(&owner.workload), cgroup::parse_path(&second.name));
}

#[test]
fn the_kernel_gives_the_path_of_every_number_until_the_cgroup_is_gone() {
    let Some(group) = Group::make("ids", "/odd name:with \\x2d and (brackets)") else { return };
    let hierarchies = Hierarchies::new(&Paths::default());
    let ids = group.ids();
    for id in &ids.0 {
        assert_eq!(hierarchies.path(*id).as_deref(), Some(group.name.as_str()), "{id:?}");
    }
    group.remove();
    let fresh = Hierarchies::new(&Paths::default());
    for id in &ids.0 {
        assert_eq!(hierarchies.path(*id).as_deref(), Some(group.name.as_str()), "{id:?}");
        assert_eq!(fresh.path(*id), None, "{id:?}");
    }
}

#[test]
fn odd_directory_names_come_through_proc_unescaped() {
    let Some(group) = Group::make("odd", "/a b:c\\x2d (deleted)x") else { return };
    let (child, opened) = group.child();
    let table = Ownership::new(&Paths::default());
    let process = opened.process;
    table.observe(Evidence::Opened(opened));
    let owner = table.attribution(process).unwrap();
    end(child);
    // No owner is named in it; all lines are equal, so the first counts.
    assert_eq!((owner.method, owner.workload.container.as_ref()), (Method::Proc, None));
    let text = format!("0::{}\n", group.name);
    let cgroup::Placement::Known { path, .. } = cgroup::parse_proc_cgroup(&text) else {
        panic!("{text}")
    };
    assert_eq!(&*path, group.name);
}
