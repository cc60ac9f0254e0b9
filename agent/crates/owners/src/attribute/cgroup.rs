//! The cgroup path parser: from a path to the units of work in it.
//!
//! Reads nothing but its argument. It walks a path once, component by component, through the
//! ordered table [`RULES`]; time is linear in the length, and no input makes it fail.
//! `docs/decisions/0003-nested-pods.md` decides which of several nested names counts: the host
//! wrote the outer name, the workload may have written the inner one.

mod precedence;
mod schedulers;
mod shapes;
pub(super) mod slurm;

use super::{Pod, Workload};
use gpuwho_model::ids::{ContainerId, PodUid};
use precedence::{contradicts, specificity};
use shapes::{is_container_id, number, pod_uid, unescape};
use std::sync::Arc;

/// The result of all cgroup lines of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The most specific line.
    Known {
        /// The path, without the kernel's ` (deleted)`.
        path: Arc<str>,
        /// The workload; empty for a plain host process.
        workload: Box<Workload>,
    },
    /// Paths are relative to another cgroup namespace (`/..`) and identify nothing here.
    WrongNamespace,
    /// Two hierarchies name different pods, containers or jobs: the process is being moved, or a
    /// name is forged. Neither counts.
    Disagree,
    /// There is no line.
    Nothing,
}

/// Parses `/proc/PID/cgroup` (`id:controllers:path` lines) into the most specific placement.
///
/// Lines of one process may differ: v1 hierarchies that do not constrain a job stay at `/`, and a
/// systemd-driven v1 host shows only the pod's slice in `devices` (runc 1.1, systemd 252).
pub fn parse_proc_cgroup(text: &str) -> Placement {
    most_specific(&text.lines().filter_map(line_path).collect::<Vec<_>>())
}

/// Parses several paths of one process into the most specific placement.
pub fn most_specific(paths: &[&str]) -> Placement {
    let mut seen: Vec<(&str, Workload)> = Vec::new();
    for path in paths {
        let path = path.strip_suffix(DELETED).unwrap_or(path);
        if is_outside(path) {
            return Placement::WrongNamespace;
        }
        seen.push((path, parse_path(path)));
    }
    // The first of equals: `max_by_key` alone would return the last.
    let best = seen.iter().rev().max_by_key(|(_, workload)| specificity(workload));
    let Some((path, workload)) = best else { return Placement::Nothing };
    if seen.iter().any(|(_, other)| contradicts(workload, other)) {
        return Placement::Disagree;
    }
    Placement::Known { path: Arc::from(*path), workload: Box::new(workload.clone()) }
}

/// Parses one path.
pub fn parse_path(path: &str) -> Workload {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    let mut walk = Walk::default();
    for component in path.split('/').filter(|component| !component.is_empty()) {
        if walk.sealed {
            break;
        }
        for (_, rule) in RULES {
            if rule(&mut walk, component) {
                break;
            }
        }
        walk.previous = component;
    }
    walk.found
}

/// Appended by the kernel to the path of a process whose cgroup was removed (`proc_cgroup_show`).
const DELETED: &str = " (deleted)";

/// Handles a component if it recognises it; the first rule that does ends the search.
type Rule = for<'a> fn(&mut Walk<'a>, &'a str) -> bool;

/// All rules in order of precedence, with their names in documents and test output.
const RULES: &[(&str, Rule)] = &[
    ("slice:prefix:id", triple),
    ("monitor", monitor),
    ("pod slice", pod_slice),
    ("pod directory", pod_directory),
    ("slurm", slurm::slurm),
    ("container", container),
    ("machine", machine),
    ("scheduler", scheduler),
    ("user slice", user_slice),
    ("unit", unit),
];

/// Prefixes that runtimes put before a container's id in a component.
const RUNTIME_PREFIXES: &[&str] =
    &["cri-containerd-", "crio-", "docker-", "libpod-payload-", "libpod-", "nerdctl-"];

/// Prefixes of processes that watch a container from outside it.
const MONITOR_PREFIXES: &[&str] = &["crio-conmon-", "libpod-conmon-", "lxc.monitor."];

/// Directories directly above a machine's.
const MACHINE_PARENTS: &[&str] = &["lxc", "lxc.payload"];

/// The kubelet's quality-of-service directories; a guaranteed pod is in none of them.
const QOS: &[&str] = &["burstable", "besteffort"];

/// Services of root with the work of others below them: runtimes with another cgroup driver than
/// the kubelet's, and schedulers that make their slots there. Any other service may let a user make
/// its directories (`Delegate=yes`).
const RUNTIME_UNITS: &[&str] = &[
    "condor.service",
    "containerd.service",
    "cri-docker.service",
    "crio.service",
    "docker.service",
    "kubelet.service",
    "k3s.service",
    "k3s-agent.service",
    "k0scontroller.service",
    "k0sworker.service",
    "nomad.service",
    "rke2-server.service",
    "rke2-agent.service",
    "snap.microk8s.daemon-containerd.service",
];

/// The state of a walk along a path.
#[derive(Default)]
struct Walk<'a> {
    found: Workload,
    previous: &'a str,
    kube: Kube,
    slurm: slurm::State,
    /// Whether the remaining names are the workload's own.
    sealed: bool,
}

/// The position in a kubelet's tree (cgroupfs driver).
#[derive(Clone, Copy, Default, PartialEq)]
enum Kube {
    #[default]
    Outside,
    Root(Option<&'static str>),
}

impl Workload {
    /// Whether the unit's own user may have made the names below the unit.
    pub(super) fn is_in_unit(&self) -> bool {
        let is_runtime = |unit: &str| {
            // `containerd@second.service`: an instance counts as its template.
            let template = unit.split_once('@').map(|(name, _)| format!("{name}.service"));
            RUNTIME_UNITS.contains(&template.as_deref().unwrap_or(unit))
        };
        self.unit.as_deref().is_some_and(|unit| !is_runtime(unit))
    }
}

impl Walk<'_> {
    /// Whether someone other than the host's root may have written the following names.
    fn is_delegated(&self) -> bool {
        self.is_guests() || self.found.is_in_unit()
    }

    fn is_guests(&self) -> bool {
        self.found.container.is_some() || self.found.machine.is_some() || self.found.user_slice
    }

    fn take_pod(&mut self, uid: PodUid, qos: Option<&'static str>) {
        if self.found.slurm.is_some() || self.found.pod.is_some() {
            return;
        }
        self.found.nested = self.is_delegated();
        self.found.node = self.found.container.take();
        self.found.pod = Some(Pod { qos, ..Pod::unnamed(uid) });
    }

    fn take_container(&mut self, id: &str) {
        self.found.container = Some(ContainerId::new(id));
        self.sealed = self.found.pod.is_some() || self.found.slurm.is_some();
    }
}

/// `SLICE:PREFIX:ID` as one component: runc's systemd triple taken literally by a cgroupfs driver.
fn triple<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let Some((slice, rest)) = component.split_once(':') else { return false };
    let Some((_, id)) = rest.split_once(':') else { return false };
    if !is_container_id(id) {
        return false;
    }
    pod_slice(walk, slice);
    take_outermost(walk, id);
    true
}

/// `crio-conmon-ID.scope`, `conmon`: next to a container, not in it.
fn monitor<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let watches = MONITOR_PREFIXES.iter().any(|prefix| component.starts_with(prefix));
    if watches {
        unit(walk, component);
    }
    watches
}

/// `[…-]kubepods[-QOS][-podUID].slice`: the kubelet's systemd driver, dashes of the UID as `_`.
fn pod_slice<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let Some(name) = component.strip_suffix(".slice") else { return false };
    let Some(tail) = after_kubepods(name) else { return false };
    let (qos, tail) = split_qos(tail);
    if let Some(uid) = tail.strip_prefix("-pod").and_then(pod_uid) {
        walk.take_pod(uid, Some(qos));
    }
    true
}

fn after_kubepods(name: &str) -> Option<&str> {
    match name.strip_prefix("kubepods") {
        Some(tail) => Some(tail),
        None => name.split_once("-kubepods").map(|(_, tail)| tail),
    }
}

fn split_qos(tail: &str) -> (&'static str, &str) {
    for qos in QOS {
        if let Some(rest) = tail.strip_prefix('-').and_then(|tail| tail.strip_prefix(qos)) {
            return (qos, rest);
        }
    }
    ("guaranteed", tail)
}

/// `kubepods[/QOS]/podUID`: the kubelet's cgroupfs driver.
fn pod_directory<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    if component == "kubepods" {
        walk.kube = Kube::Root(None);
        return true;
    }
    let Kube::Root(qos) = walk.kube else { return false };
    if qos.is_none()
        && let Some(qos) = QOS.iter().find(|qos| **qos == component)
    {
        walk.kube = Kube::Root(Some(qos));
        return true;
    }
    walk.kube = Kube::Outside;
    let Some(uid) = component.strip_prefix("pod").and_then(pod_uid) else { return false };
    walk.take_pod(uid, Some(qos.unwrap_or("guaranteed")));
    true
}

/// `PREFIX-ID.scope`, `PREFIX-ID`, `ID`.
fn container<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let name = component.strip_suffix(".scope").unwrap_or(component);
    let id = RUNTIME_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    if !is_container_id(id) {
        return false;
    }
    take_outermost(walk, id);
    true
}

/// A container inside a container belongs to the outer one: the first id counts.
fn take_outermost(walk: &mut Walk<'_>, id: &str) {
    if walk.found.container.is_none() {
        walk.take_container(id);
    }
}

/// LXC (`lxc.payload.NAME`, `lxc/NAME`), nspawn and libvirt (`machine-NAME.scope`).
fn machine<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    if walk.is_delegated() || walk.found.pod.is_some() || walk.found.slurm.is_some() {
        return false;
    }
    let scope = component.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope"));
    let nspawn =
        component.strip_prefix("systemd-nspawn@").and_then(|name| name.strip_suffix(".service"));
    if scope.is_some() || nspawn.is_some() {
        unit(walk, component);
    }
    let lxc = component
        .strip_prefix("lxc.payload.")
        .or_else(|| MACHINE_PARENTS.contains(&walk.previous).then_some(component));
    let Some(name) = lxc.or(scope).or(nspawn).filter(|name| !name.is_empty()) else { return false };
    walk.found.machine = Some(unescape(name));
    true
}

/// Nomad, HTCondor and ECS put their own unit of work in the path.
fn scheduler<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    if walk.is_delegated() || walk.found.pod.is_some() || walk.found.allocation.is_some() {
        return false;
    }
    let found = schedulers::allocation(walk.previous, component);
    let taken = found.is_some();
    walk.found.allocation = found;
    taken
}

/// `user-N.slice`: the user can name everything below.
fn user_slice<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let uid = component.strip_prefix("user-").and_then(|rest| rest.strip_suffix(".slice"));
    let Some(uid) = uid.and_then(number) else { return false };
    // Below a pod or a job, the workload made this name.
    let is_inside = walk.is_delegated() || walk.found.pod.is_some() || walk.found.slurm.is_some();
    if walk.previous != "user.slice" || is_inside {
        return false;
    }
    walk.found.uid = Some(uid);
    walk.found.user_slice = true;
    true
}

/// The first `.service` or `.scope` above the first container that is not a container's. Only the
/// first counts, because the unit may have made the names below it. A unit named by a machine's or
/// a user's own service manager is a claim: in a user's slice, the first unit is the login session
/// or that manager itself.
fn unit<'a>(walk: &mut Walk<'a>, component: &'a str) -> bool {
    let is_unit = |kind| component.strip_suffix(kind).is_some_and(|name| !name.is_empty());
    // `init.scope` contains only systemd itself.
    if !(is_unit(".service") || is_unit(".scope"))
        || component == "init.scope"
        || walk.found.container.is_some()
    {
        return false;
    }
    let is_claimed =
        walk.found.machine.is_some() || (walk.found.user_slice && walk.found.unit.is_some());
    if is_claimed {
        walk.found.claimed.unit = Some(Arc::from(component));
        return true;
    }
    if walk.found.unit.is_some() {
        return false;
    }
    walk.found.unit = Some(Arc::from(component));
    true
}

/// The path of a `/proc/PID/cgroup` line. The kernel writes it unescaped: a directory name cannot
/// contain a newline (`cgroup_mkdir` refuses it).
fn line_path(line: &str) -> Option<&str> {
    let (_id, rest) = line.split_once(':')?;
    let (_controllers, path) = rest.split_once(':')?;
    path.starts_with('/').then_some(path)
}

/// Whether a path leaves the reader's cgroup namespace.
fn is_outside(path: &str) -> bool {
    path == "/.." || path.starts_with("/../")
}

#[cfg(test)]
mod tests;
