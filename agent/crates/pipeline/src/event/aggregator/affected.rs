//! Finds the owners that an event affects: all owners on the device, or the owner of the process
//! that the source names.
//!
//! A process that the kernel log names counts only if it held the device at that moment or had just
//! ended. Monitoring processes are never affected: the agent's own processes, and known monitors
//! that the driver does not list with a context on the device. A tenant that uses a monitor's name
//! hides only its own process, and only until that process has a context on the device.

use super::{EventAggregator, Sources};
use crate::event::xid::{self, Affects};
use crate::event::{Affected, AffectedOwner, Moment, Named, Observation, Peer, Place};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::ids::{GpuId, ProcKey};
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::ownership::killed::Killed;
use gpuwho_owners::inventory::node_name;
use std::sync::Arc;

/// Command names (15 bytes at most) of programs that open devices to monitor them.
const MONITORS: &[&str] = &[
    "amd-smi",
    "dcgm-exporter",
    "device-metrics-",
    "gpu-feature-dis",
    "gpud",
    "gpuwho",
    "nv-fabricmanage",
    "nv-hostengine",
    "nvidia-device-p",
    "nvidia-persiste",
    "nvidia-smi",
    "nvidia_gpu_expo",
    "nvitop",
    "nvtop",
    "rocm-smi",
];

impl EventAggregator {
    /// The affected owners, each once; `None` when the event concerns no process that uses a
    /// device.
    pub(super) fn affected_owners(
        &self,
        what: &Observation,
        at: Moment,
    ) -> Option<Vec<AffectedOwner>> {
        let ownership = &self.sources.ownership;
        if what.kind == EventKind::OomKill {
            return self.killed(what, at).map(|owner| by_owner(vec![owner], None));
        }
        let is_of_process =
            matches!(what.kind, EventKind::ProcessEnded | EventKind::ProbeLevelChange);
        if let (true, Some(Named { pid, .. })) = (is_of_process, &what.process) {
            let owner = ownership.known(*pid, at.boot_ns);
            return Some(by_owner(owner.into_iter().collect(), None));
        }
        if let Some(stuck) = &what.stuck {
            return Some(by_owner(self.owner(stuck.process).into_iter().collect(), None));
        } else if let Some(peer) = &what.peer {
            return Some(self.peers(peer));
        }
        if what.kind == EventKind::HealthEnded {
            return Some(Vec::new());
        }
        let Place::Gpu(gpu) = what.place else { return Some(Vec::new()) };
        Some(self.on_device(what, gpu, at))
    }

    fn on_device(&self, what: &Observation, gpu: GpuId, at: Moment) -> Vec<AffectedOwner> {
        let processes = DeviceProcesses::of(&self.sources, gpu);
        let named = what.process.as_ref().map(|named| processes.named(named.pid, at));
        let code = what.code.filter(|_| what.kind == EventKind::Xid);
        let by_kind =
            if what.kind == EventKind::MemoryFault { Affects::Process } else { Affects::Device };
        let affects = code.map_or(by_kind, |code| xid::verdict(code, &what.message).affects);
        match (affects, named) {
            (Affects::Process, Some(owner)) => {
                by_owner(owner.into_iter().collect(), Some(Affected::Named))
            }
            (Affects::Process, None) => {
                by_owner(processes.at(what.gpu_instance, at), Some(Affected::Candidate))
            }
            (Affects::Device, named) => {
                let mut on = processes.at(what.gpu_instance, at);
                let named = named.flatten();
                if let Some(named) = &named {
                    // First, so that it represents its owner.
                    on.retain(|owner| owner.process != named.process);
                    on.insert(0, Arc::clone(named));
                }
                let mut all_affected = by_owner(on, Some(Affected::Device));
                if let Some(affected_owner) = all_affected.first_mut().filter(|_| named.is_some()) {
                    affected_owner.affected = Some(Affected::Named);
                }
                all_affected
            }
        }
    }

    /// The attribution of the process that the kernel killed. Most killed processes never used a
    /// device. A process that still runs was not killed, whatever the log says.
    fn killed(&self, what: &Observation, at: Moment) -> Option<Arc<ProcessAttribution>> {
        let ownership = &self.sources.ownership;
        let Named { pid, comm, uid } = what.process.as_ref()?;
        let by_cgroup = || {
            let (cgroup, comm) = (what.cgroup.as_deref()?, comm.as_deref()?);
            ownership.killed(&Killed { cgroup, pid: *pid, comm, uid: *uid })
        };
        let owner = ownership.known(*pid, at.boot_ns).or_else(by_cgroup)?;
        (!ownership.goes_on(*pid, at.boot_ns)).then_some(owner)
    }

    /// The owner of the process itself, even if it has ended long before; where the process is not
    /// known on this node, the owners of the other processes of its job.
    fn peers(&self, peer: &Peer) -> Vec<AffectedOwner> {
        let itself = peer.process.and_then(|process| self.owner(process));
        let beside = || peer.beside.iter().filter_map(|process| self.owner(*process)).collect();
        let owners = itself.or(peer.owner.clone()).map_or_else(beside, |owner| vec![owner]);
        by_owner(owners, None)
    }
}

/// The processes on a device, by its open nodes or the driver's list.
struct DeviceProcesses<'a> {
    sources: &'a Sources,
    listed: Vec<(ProcKey, Option<u32>)>,
    nodes: Vec<String>,
}

impl<'a> DeviceProcesses<'a> {
    fn of(sources: &'a Sources, gpu: GpuId) -> Self {
        let nodes = sources.inventory.get(gpu).map_or_else(Vec::new, |info| info.nodes.clone());
        Self { sources, listed: (sources.listed)(gpu), nodes }
    }

    /// The process that had this PID at a moment or had just ended, if it held the device.
    fn named(&self, pid: u32, at: Moment) -> Option<Arc<ProcessAttribution>> {
        let owner = self.sources.ownership.known(pid, at.boot_ns)?;
        let holds = self.lists(owner.process) || self.has_opened(&owner);
        (holds && !self.is_monitor(&owner)).then_some(owner)
    }

    /// Every process on the device at a moment. For a MIG instance only the driver's list counts,
    /// because the device node belongs to the whole device.
    fn at(&self, instance: Option<u32>, at: Moment) -> Vec<Arc<ProcessAttribution>> {
        let is_on = |owner: &Arc<ProcessAttribution>| match instance {
            Some(_) => self.listed.contains(&(owner.process, instance)),
            None => self.lists(owner.process) || self.has_opened(owner),
        };
        let was_there = |owner: &Arc<ProcessAttribution>| {
            owner.started_ns() <= at.boot_ns
                && owner.exited_ns.is_none_or(|ended| ended >= at.boot_ns)
        };
        let ownership = &self.sources.ownership;
        let all = ownership.openers().into_iter().chain(ownership.ended());
        let on = all.filter(|owner| was_there(owner) && is_on(owner));
        let mut on: Vec<_> = on.filter(|owner| !self.is_monitor(owner)).collect();
        // Processes that the driver lists come first, so that the limit does not cut them off.
        on.sort_by_key(|owner| (!self.lists(owner.process), owner.process));
        on.dedup_by_key(|owner| owner.process);
        on
    }

    fn lists(&self, process: ProcKey) -> bool {
        self.listed.iter().any(|(listed, _)| *listed == process)
    }

    fn has_opened(&self, owner: &ProcessAttribution) -> bool {
        owner.nodes.iter().any(|held| self.nodes.iter().any(|node| node == node_name(held)))
    }

    /// Whether a process only monitors the device: the driver lists no context of it.
    fn is_monitor(&self, owner: &ProcessAttribution) -> bool {
        let own = std::process::id();
        // Only processes of the agent's own user are looked up, so other users cannot add cost.
        let is_child = || {
            owner.uid == rustix::process::geteuid().as_raw()
                && self.sources.ownership.parent(owner.process) == Some(own)
        };
        let is_own = || owner.process.pid == own || is_child();
        !self.lists(owner.process) && (MONITORS.contains(&&*owner.comm) || is_own())
    }
}

fn by_owner(
    owners: Vec<Arc<ProcessAttribution>>,
    affected: Option<Affected>,
) -> Vec<AffectedOwner> {
    let mut all_affected: Vec<AffectedOwner> = Vec::new();
    for owner in owners {
        match all_affected
            .iter_mut()
            .find(|affected_owner| affected_owner.owner.owner == owner.owner)
        {
            Some(affected_owner) => affected_owner.processes += 1,
            None => all_affected.push(AffectedOwner { owner, processes: 1, affected }),
        }
    }
    all_affected
}
