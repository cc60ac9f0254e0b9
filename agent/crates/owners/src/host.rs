//! The host: its names, its clock, and its cgroup namespace.

pub mod cloud;
pub mod resource;

use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::paths::Paths;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

/// The UTS namespace in which the kernel started (PROC_UTS_INIT_INO), as its link in /proc reads.
const INIT_UTS: &str = "uts:[4026531838]";

/// Bytes of the machine id's file that are read; an id has 32 digits.
const MAX_MACHINE_ID: u64 = 64;

/// The attributes of this host for the OTLP Resource; `node` is its name in Kubernetes.
pub fn attributes(paths: &Paths, node: Option<&str>) -> AttrSet {
    let mut set = AttrSet::new();
    set.set(&attr::HOST_NAME, name(paths, node).as_str());
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

/// The host's name, which in a container is not its own: the name in PID 1's UTS namespace, where
/// that is the host's; else the node's in Kubernetes; else the agent's own.
pub fn name(paths: &Paths, node: Option<&str>) -> String {
    let of = |process: &str| fs::read_link(paths.proc.join(process).join("ns/uts"));
    let own = of("self").ok();
    let is_own = |namespace: &PathBuf| own.as_ref() == Some(namespace);
    let is_hosts = |namespace: &PathBuf| namespace.as_os_str() == INIT_UTS;
    match of("1").ok().filter(|namespace| !is_own(namespace)) {
        // Of a container of another PID namespace, PID 1 would be in the same UTS namespace.
        Some(_) => name_of_init(paths),
        None if own.as_ref().is_some_and(is_hosts) => Some(own_name()),
        None => None,
    }
    .or_else(|| node.map(str::to_owned))
    .unwrap_or_else(own_name)
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The name in PID 1's UTS namespace, by a thread that enters it; needs CAP_SYS_ADMIN.
fn name_of_init(paths: &Paths) -> Option<String> {
    let namespace = File::open(paths.proc.join("1/ns/uts")).ok()?;
    let enter = move || {
        let kind = LinkNameSpaceType::HostNameAndNISDomainName;
        move_into_link_name_space(namespace.as_fd(), Some(kind)).ok().map(|()| own_name())
    };
    thread::Builder::new().name("host:name".into()).spawn(enter).ok()?.join().ok()?
}

/// The machine id, which OpenTelemetry's `host.id` is for a host that is not a cloud instance.
pub fn machine_id(paths: &Paths) -> Option<String> {
    let mut text = String::new();
    File::open(&paths.machine_id).ok()?.take(MAX_MACHINE_ID).read_to_string(&mut text).ok()?;
    let id = text.trim();
    // `uninitialized` until the first boot is over (machine-id(5)).
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_id.then(|| id.to_owned())
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
        let file = dir.path().join("etc/machine-id");
        fs::write(&file, "0123abc\n").unwrap();
        assert_eq!(machine_id(&paths), Some("0123abc".into()));
        fs::write(&file, "uninitialized\n").unwrap();
        assert_eq!(machine_id(&paths), None);
    }

    fn namespaces(init: &str, own: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (process, namespace) in [("1", init), ("self", own)] {
            let folder = root.path().join("proc").join(process).join("ns");
            fs::create_dir_all(&folder).unwrap();
            std::os::unix::fs::symlink(namespace, folder.join("uts")).unwrap();
        }
        root
    }

    #[test]
    fn a_container_has_the_nodes_name_and_a_host_its_own() {
        let named = |init, own, node| {
            let root = namespaces(init, own);
            name(&Paths::under(root.path()), node)
        };
        let container = "uts:[4026532201]";
        assert_eq!(named(INIT_UTS, INIT_UTS, Some("node-7")), own_name(), "the host itself");
        assert_eq!(named(container, container, Some("node-7")), "node-7", "a PID namespace too");
        assert_eq!(named(container, container, None), own_name());
        // The link cannot be followed here: as without the capability.
        assert_eq!(named(INIT_UTS, container, Some("node-7")), "node-7");
        let bare = tempfile::tempdir().unwrap();
        assert_eq!(name(&Paths::under(bare.path()), Some("node-7")), "node-7");
    }
}
