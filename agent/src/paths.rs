//! The places of the host's files, which differ in a container that mounts the host, and in tests.

use std::path::{Path, PathBuf};

/// The host's directories as this process sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// procfs in the host's PID namespace.
    pub proc: PathBuf,
    /// sysfs.
    pub sys: PathBuf,
    /// The mount point of the cgroup hierarchies.
    pub cgroup: PathBuf,
    /// Device nodes.
    pub dev: PathBuf,
    /// The kubelet's pod-log directory.
    pub pod_logs: PathBuf,
    /// The host's user database.
    pub passwd: PathBuf,
    /// The host's machine id.
    pub machine_id: PathBuf,
    /// The kernel log, one record a line as `/dev/kmsg` writes them.
    pub kmsg: PathBuf,
    /// The directory of the agent's own sockets.
    pub run: PathBuf,
    /// The directory of the agent's state that outlives a boot.
    pub state: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Paths {
    /// The default places below `root`.
    pub fn under(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            sys: root.join("sys"),
            cgroup: root.join("sys/fs/cgroup"),
            dev: root.join("dev"),
            pod_logs: root.join("var/log/pods"),
            passwd: root.join("etc/passwd"),
            machine_id: root.join("etc/machine-id"),
            kmsg: root.join("dev/kmsg"),
            run: root.join("run/gpuwho"),
            state: root.join("var/lib/gpuwho"),
        }
    }
}
