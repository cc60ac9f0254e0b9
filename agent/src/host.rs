//! The host: its names, its clock, and its cgroup namespace.

use crate::catalog::attributes::{self as attr, AttrSet};
use crate::paths::Paths;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

/// The attributes of this host for the OTLP Resource; `node` is its name in Kubernetes.
pub fn attributes(paths: &Paths, node: Option<&str>) -> AttrSet {
    let mut set = AttrSet::new();
    set.set(&attr::HOST_NAME, name().as_str());
    set.set_some(&attr::HOST_ID, machine_id(paths).as_deref());
    set.set(&attr::OS_TYPE, "linux");
    set.set_some(&attr::K8S_NODE_NAME, node);
    set
}

/// The cgroup namespace in which this process reads paths.
#[derive(Debug)]
pub enum CgroupNamespace {
    /// The host's: paths are complete.
    Host,
    /// Another one, for this reason: paths outside it cannot be read.
    Foreign(io::Error),
}

/// Moves the calling thread, and those it starts later, into the cgroup namespace of PID 1, unless
/// it is already there. A container runtime gives the agent a namespace of its own, in which the
/// paths of all other cgroups are incomplete.
pub fn enter_cgroup_namespace(paths: &Paths) -> CgroupNamespace {
    let cgroup = fs::read_to_string(paths.proc.join("1/cgroup")).unwrap_or_default();
    if !is_cut_off(&cgroup) {
        return CgroupNamespace::Host;
    }
    let enter = || {
        let namespace = File::open(paths.proc.join("1/ns/cgroup"))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ControlGroup))?;
        Ok(())
    };
    enter().map_or_else(CgroupNamespace::Foreign, |()| CgroupNamespace::Host)
}

/// Whether a process's cgroup is outside the reader's namespace, as that of PID 1 is in every
/// namespace but the host's.
fn is_cut_off(cgroup: &str) -> bool {
    cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| path.starts_with("/.."))
}

/// [`boot_time_ns`], or a clock that a test sets.
#[derive(Clone)]
pub(crate) struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    pub(crate) fn new(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(clock))
    }

    pub(crate) fn now(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Raises the limit of open files to the hard limit: the soft limit is often 1,024, which the links
/// of a few dozen probed libraries use up on kernels before 6.6.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Allowed up to the hard limit; on an error the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The current time in nanoseconds of `CLOCK_BOOTTIME`, the clock of process start times and of the
/// BPF programs' records.
pub fn boot_time_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000) + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// The host's name.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The machine id, which OpenTelemetry's `host.id` is for a host that is not a cloud instance.
pub fn machine_id(paths: &Paths) -> Option<String> {
    let text = fs::read_to_string(paths.passwd.with_file_name("machine-id")).ok()?;
    let id = text.trim();
    (!id.is_empty()).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_outside_the_namespace_shows_a_foreign_namespace() {
        assert!(is_cut_off("4:memory:/\n0::/../../init.scope\n"));
        assert!(!is_cut_off("4:memory:/a/..b\n0::/init.scope\n"));
    }

    #[test]
    fn a_host_without_a_machine_id_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::under(dir.path());
        assert_eq!(machine_id(&paths), None);
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/machine-id"), "0123abc\n").unwrap();
        assert_eq!(machine_id(&paths), Some("0123abc".into()));
    }
}
