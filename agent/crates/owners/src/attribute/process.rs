//! Where a live process is, by its own cgroup lines: the first resolver.

use super::cgroup::{Placement, parse_proc_cgroup};
use super::{Host, KernelCgroups, Method, ProcessAttribution};
use crate::process::Living;
use gpuwho_model::ids::ContainerId;
use gpuwho_model::paths::Paths;
use std::sync::Arc;

impl Living {
    /// Its placement; `None` if it started to exit before this was read.
    pub(super) fn placement(&self) -> Option<Placement> {
        self.cgroup().map(|text| parse_proc_cgroup(&text))
    }
}

/// A container's cgroup directory, if the host's process with this PID is in it.
pub(crate) fn container_cgroup(paths: &Paths, pid: u32, id: &ContainerId) -> Option<Arc<str>> {
    let living = Living::find(paths, pid)?;
    let Placement::Known { path, workload } = living.placement()? else { return None };
    if workload.container.as_ref() != Some(id) || workload.pod.is_some() {
        return None;
    }
    // An init system in the container moves its processes further down.
    let mut end = 0;
    for component in path.split_inclusive('/') {
        end += component.len();
        if component.contains(id.as_str()) {
            break;
        }
    }
    path.get(..end).map(|path| Arc::from(path.trim_end_matches('/')))
}

/// The first resolver: the live process's own files.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    let Some(living) = Living::same(&host.paths, owner.process) else { return };
    owner.comm = Arc::clone(&living.comm);
    if let Some(uid) = living.uid() {
        owner.uid = uid;
    }
    match living.placement() {
        Some(Placement::Known { path, workload }) => {
            owner.cgroup = Some(path);
            owner.workload = *workload;
            owner.method = Method::Proc;
        }
        Some(Placement::WrongNamespace) => host.hierarchies.note_wrong_namespace(),
        Some(Placement::Disagree | Placement::Nothing) | None => {}
    }
}

#[cfg(test)]
mod tests;
