//! Whose a process was that the kernel killed before the table knew it: by the cgroup that the
//! kernel's log names. A look over the table for each such kill, and nothing otherwise.

use super::Ownership;
use crate::attribute::cgroup::parse_path;
use crate::attribute::delegated;
use crate::attribute::owner::{Owner, OwnerId};
use crate::attribute::process::Living;
use crate::attribute::table::started_ns;
use crate::attribute::{KernelCgroups, Method, NAMES, ProcessAttribution};
use crate::ids::ProcKey;
use std::sync::Arc;

/// What the kernel's log says of a process that it killed.
#[derive(Clone, Copy, Debug)]
pub struct Killed<'a> {
    /// Its cgroup in the memory controller's hierarchy.
    pub cgroup: &'a str,
    /// Its number on the host.
    pub pid: u32,
    /// Its command name.
    pub comm: &'a str,
    /// Its real user id, where the log has it.
    pub uid: Option<u32>,
}

impl Ownership {
    /// Whether the process that had a number at a moment still runs, and nothing is about to end it.
    pub fn goes_on(&self, pid: u32, at_ns: u64) -> bool {
        Living::find(&self.0.host.paths, pid).is_some_and(|living| {
            started_ns(living.key) <= at_ns
                && !living.status().is_some_and(|status| status.is_killed())
        })
    }

    /// The process that started this one, while both are there.
    pub fn parent(&self, process: ProcKey) -> Option<u32> {
        Living::same(&self.0.host.paths, process)?.parent()
    }

    /// Whose it was, if a process of the same container, job or cgroup holds a device or held one
    /// within the last minutes: of what the kernel kills, the rest is no business of a device.
    pub fn killed(&self, killed: &Killed<'_>) -> Option<Arc<ProcessAttribution>> {
        let mut owner = ProcessAttribution {
            // When it started nobody has told, and nobody can find out now.
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
            // Old kernels do not tell: then it is that of the others, if they have one.
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

/// Whether two processes are in one container, job or unit; in one cgroup, where nothing is named.
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
