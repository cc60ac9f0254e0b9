//! The owner of a process that the kernel killed before the table knew it, found by the cgroup in
//! the kernel's log. Scans the table for each such kill; costs nothing otherwise.

use super::Ownership;
use crate::attribute::cgroup::parse_path;
use crate::attribute::delegated;
use crate::attribute::owner::Owner;
use crate::attribute::table::started_ns;
use crate::attribute::{KernelCgroups, Method, NAMES, ProcessAttribution};
use crate::process::Living;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;
use std::sync::Arc;

/// A killed process in the kernel's log.
#[derive(Clone, Copy, Debug)]
pub struct Killed<'a> {
    /// Its cgroup in the memory controller's hierarchy.
    pub cgroup: &'a str,
    /// Its PID on the host.
    pub pid: u32,
    /// Its command name.
    pub comm: &'a str,
    /// Its real user id, if the log has it.
    pub uid: Option<u32>,
}

impl Ownership {
    /// Whether the process that had a PID at a given time still runs and is not about to end.
    pub fn goes_on(&self, pid: u32, at_ns: u64) -> bool {
        Living::find(&self.0.host.paths, pid).is_some_and(|living| {
            started_ns(living.key) <= at_ns
                && !living.status().is_some_and(|status| status.is_killed())
        })
    }

    /// The PID of a process's parent, while both exist.
    pub fn parent(&self, process: ProcKey) -> Option<u32> {
        Living::same(&self.0.host.paths, process)?.parent()
    }

    /// The attribution of a killed process, if a process of the same container, job or cgroup holds
    /// a device or held one within the last minutes. Other kills do not concern a device.
    pub fn killed(&self, killed: &Killed<'_>) -> Option<Arc<ProcessAttribution>> {
        let mut owner = ProcessAttribution {
            // The log has no start time, and it can no longer be read.
            process: ProcKey { pid: killed.pid, start_ticks: 0 },
            comm: Arc::from(killed.comm),
            uid: killed.uid.unwrap_or_default(),
            user: None,
            cgroup: Some(Arc::from(killed.cgroup)),
            workload: parse_path(killed.cgroup),
            method: Method::Kernel,
            nodes: Vec::new(),
            exited_ns: None,
            owner: OwnerId::UNATTRIBUTED,
        };
        delegated::resolve(&self.0.host, &KernelCgroups::default(), &mut owner);
        let neighbours: Vec<Arc<ProcessAttribution>> = {
            let table = self.read();
            let all = table.openers().into_iter().chain(table.ended());
            all.filter(|known| is_beside(&owner, known)).collect()
        };
        let neighbour = neighbours.first()?;
        if killed.uid.is_none() {
            // Old kernels do not log it: use the neighbours' uid, if it is the same for all.
            let same = neighbours.iter().all(|other| other.uid == neighbour.uid);
            owner.uid = Some(neighbour.uid).filter(|_| same)?;
        }
        for (_, source) in NAMES {
            source(&self.0.host, &KernelCgroups::default(), &mut owner);
        }
        owner.workload.keep_names(&neighbour.workload);
        owner.owner = self.0.host.owners.of(&owner, |uid| self.0.host.users.name(uid));
        Some(Arc::new(owner))
    }
}

/// Whether two processes are in one container, job or unit; if none is named, in one cgroup.
fn is_beside(killed: &ProcessAttribution, known: &ProcessAttribution) -> bool {
    match (Owner::of(killed), Owner::of(known)) {
        (
            Owner::Pod { uid, within, .. },
            Owner::Pod { uid: known_uid, within: known_within, .. },
        ) => {
            let containers = (&killed.workload.container, &known.workload.container);
            let apart = matches!(containers, (Some(one), Some(other)) if one != other);
            uid == known_uid && within == known_within && !apart
        }
        (Owner::User(_) | Owner::Unattributed, _) => killed.cgroup == known.cgroup,
        (one, other) => one == other,
    }
}
