//! A host made of files, for the tests of this module: the contents of `/proc`, the cgroup mounts
//! and the pod logs, in the kernel's formats.

use super::{CgroupId, KernelCgroups, Opened, Workload};
use gpuwho_model::ids::{Hierarchy, ProcKey};
use gpuwho_model::paths::Paths;
use std::fs;
use std::sync::Arc;
use tempfile::TempDir;

/// Removed when dropped.
pub struct FakeHost {
    pub paths: Paths,
    _dir: TempDir,
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHost {
    /// A host with one unified hierarchy and one user, without processes and pods.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        fs::create_dir_all(paths.proc.join("self")).unwrap();
        fs::create_dir_all(&paths.cgroup).unwrap();
        fs::create_dir_all(&paths.pod_logs).unwrap();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        fs::write(&paths.passwd, "root:x:0:0::/:/bin/sh\nada:x:1000:1000::/:/bin/sh\n").unwrap();
        let at = paths.cgroup.display();
        let mountinfo = format!("31 23 0:28 / {at} rw,relatime - cgroup2 cgroup2 rw\n");
        fs::write(paths.proc.join("self/mountinfo"), mountinfo).unwrap();
        Self { paths, _dir: dir }
    }

    /// Starts or changes a process.
    pub fn start(&self, process: ProcKey, comm: &str, cgroup: &str) {
        let dir = self.paths.proc.join(process.pid.to_string());
        fs::create_dir_all(&dir).unwrap();
        let pid = process.pid;
        fs::write(dir.join("comm"), comm).unwrap();
        fs::write(dir.join("stat"), stat(process, comm, 'S', 0)).unwrap();
        fs::write(dir.join("status"), format!("Name:\t-\nTgid:\t{pid}\nUid:\t1000\t0\t0\t0\n"))
            .unwrap();
        fs::write(dir.join("cgroup"), cgroup).unwrap();
    }

    /// Adds a thread.
    pub fn thread(&self, process: ProcKey, thread: u32, state: char, cgroup: &str) {
        let task = self.paths.proc.join(format!("{}/task/{thread}", process.pid));
        fs::create_dir_all(&task).unwrap();
        let (pid, key) = (process.pid, ProcKey { pid: thread, ..process });
        fs::write(task.join("stat"), stat(key, "worker", state, 0)).unwrap();
        fs::write(task.join("status"), format!("Name:\t-\nTgid:\t{pid}\nUid:\t1000\t0\t0\t0\n"))
            .unwrap();
        fs::write(task.join("cgroup"), cgroup).unwrap();
    }

    /// Opens a file in a process or one of its threads (`task/TID`).
    pub fn hold(&self, process: ProcKey, thread: &str, file: &str) {
        let files = self.paths.proc.join(process.pid.to_string()).join(thread).join("fd");
        fs::create_dir_all(&files).unwrap();
        std::os::unix::fs::symlink(file, files.join("3")).unwrap();
    }

    /// Sets the state and the kernel flags.
    pub fn rewrite_stat(&self, process: ProcKey, state: char, flags: u32) {
        let dir = self.paths.proc.join(process.pid.to_string());
        let comm = fs::read_to_string(dir.join("comm")).unwrap();
        fs::write(dir.join("stat"), stat(process, &comm, state, flags)).unwrap();
    }

    /// Overwrites one of its files.
    pub fn write(&self, process: ProcKey, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.paths.proc.join(process.pid.to_string()).join(file), bytes).unwrap();
    }

    /// Sets its parent.
    pub fn set_parent(&self, process: ProcKey, parent: u32) {
        let file = self.paths.proc.join(process.pid.to_string()).join("stat");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(file, text.replacen(" S 1 ", &format!(" S {parent} "), 1)).unwrap();
    }

    /// Removes a process.
    pub fn end(&self, process: ProcKey) {
        fs::remove_dir_all(self.paths.proc.join(process.pid.to_string())).unwrap();
    }

    /// Adds a pod's log directory.
    pub fn pod(&self, namespace: &str, name: &str, uid: &str, containers: &[&str]) {
        let dir = self.paths.pod_logs.join(format!("{namespace}_{name}_{uid}"));
        fs::create_dir_all(&dir).unwrap();
        for container in containers {
            fs::create_dir_all(dir.join(container)).unwrap();
        }
    }
}

/// The cgroup path's workload, without facts read of the job.
pub fn of_path(workload: &Workload) -> Workload {
    let mut workload = workload.clone();
    if let Some(task) = &mut workload.slurm {
        (task.facts, task.rank) = (None, None);
    }
    workload
}

/// Builds the 52 fields, as Linux 6.18 writes them.
fn stat(process: ProcKey, comm: &str, state: char, flags: u32) -> String {
    let ProcKey { pid, start_ticks } = process;
    format!(
        "{pid} ({comm}) {state} 1 {pid} {pid} 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start_ticks} \
         1000 100 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    )
}

/// Ids of a cgroup in the unified hierarchy.
pub fn v2(id: u64) -> CgroupId {
    CgroupId { hierarchy: Hierarchy::V2, id }
}

/// A process that opened a device, as the kernel reports it.
pub fn opened(process: ProcKey, cgroup: u64, at_ns: u64) -> Opened {
    Opened {
        process,
        uid: 1000,
        comm: Arc::from("python"),
        cgroups: KernelCgroups(vec![v2(cgroup)]),
        node: Arc::from("/dev/nvidia0"),
        at_ns,
    }
}
