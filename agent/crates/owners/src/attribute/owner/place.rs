//! Where in the cgroup tree an owner begins: the directory whose resources are the owner's.

use super::Owner;
use crate::attribute::Workload;
use crate::attribute::cgroup::parse_path;

/// Components of a path that are looked at: a pod of a cluster in a container of a pod is some 12
/// deep. A tenant can nest cgroups deeper, but only below the directory that names it.
pub const MAX_DEPTH: usize = 32;

impl Owner {
    /// The shortest part of the path of one of its processes that names the owner: what is further
    /// down, the owner may have made itself. `None` where no directory is this owner's own: a user's
    /// processes outside of the user's slice, a whole pod of which the path names no more.
    pub fn cgroup<'a>(&self, path: &'a str) -> Option<&'a str> {
        let path = path.trim_end_matches('/');
        let slashes = path.match_indices('/').map(|(at, _)| at).skip(1);
        let ends = slashes.chain([path.len()]).take(MAX_DEPTH);
        ends.filter_map(|end| path.get(..end)).find(|part| self.is_named_by(&parse_path(part)))
    }

    fn is_named_by(&self, part: &Workload) -> bool {
        match self {
            Self::Pod { uid, container, .. } => {
                let is_pod = part.pod.as_ref().is_some_and(|pod| pod.uid == *uid);
                is_pod && (container.is_none() || part.container.is_some())
            }
            Self::Job(job) => part.slurm.as_ref().is_some_and(|task| task.job == *job),
            Self::Allocation { scheduler, id } => part
                .allocation
                .as_ref()
                .is_some_and(|unit| unit.scheduler == *scheduler && unit.id == *id),
            Self::Container(id) => part.pod.is_none() && part.container.as_ref() == Some(id),
            Self::Machine(name) => part.machine.as_ref() == Some(name),
            Self::Service(unit) => part.unit.as_ref() == Some(unit),
            Self::User(uid) => part.uid == Some(*uid),
            Self::Other | Self::Unattributed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::{Method, ProcessAttribution};
    use gpuwho_model::ids::OwnerId;
    use gpuwho_model::ids::ProcKey;
    use std::sync::Arc;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "11111111-2222-3333-4444-555555555555";

    fn owner(path: &str, container: Option<&str>) -> Owner {
        let mut workload = parse_path(path);
        if let Some(pod) = &mut workload.pod {
            pod.container = container.map(Arc::from);
        }
        Owner::of(&ProcessAttribution {
            process: ProcKey { pid: 7, start_ticks: 1 },
            comm: Arc::from("x"),
            uid: 1000,
            user: None,
            cgroup: None,
            workload,
            method: Method::Proc,
            nodes: Vec::new(),
            exited_ns: None,
            owner: OwnerId::UNATTRIBUTED,
        })
    }

    #[test]
    fn an_owner_begins_where_the_path_first_names_it() {
        let other = ID.replace('0', "f");
        let slice = format!("kubepods-burstable-pod{}.slice", POD.replace('-', "_"));
        for (begins, below) in [
            (format!("/kubepods/burstable/pod{POD}/{ID}"), "/init.scope".to_owned()),
            (format!("/kubepods.slice/{slice}/cri-containerd-{ID}.scope"), format!("/{other}")),
            ("/slurm/uid_1000/job_5".into(), "/step_0/task_3".into()),
            ("/system.slice/slurmstepd.scope/job_5".into(), "/step_batch/user/task_0".into()),
            (format!("/docker/{ID}"), format!("/docker/{other}/x")),
            (format!("/system.slice/docker-{ID}.scope"), String::new()),
            ("/machine.slice/machine-guest.scope".into(), "/system.slice/a.service".into()),
            ("/system.slice/inference.service".into(), format!("/docker/{ID}")),
            ("/user.slice/user-1000.slice".into(), "/user@1000.service/app.slice/job_5".into()),
        ] {
            let path = format!("{begins}{below}");
            let owner = owner(&path, Some("main"));
            assert_eq!(owner.cgroup(&path), Some(begins.as_str()), "{owner:?}");
        }
    }

    #[test]
    fn a_pod_whose_containers_are_not_known_is_the_whole_pod() {
        let path = format!("/kubepods/burstable/pod{POD}/{ID}");
        let whole = format!("/kubepods/burstable/pod{POD}");
        assert_eq!(owner(&path, None).cgroup(&path), Some(whole.as_str()));
    }

    #[test]
    fn what_no_directory_names_has_none() {
        assert_eq!(owner("/", None).cgroup("/"), None);
        assert_eq!(owner("/a/b", None).cgroup("/a/b"), None, "a user's, outside of any slice");
        let job = owner("/slurm/uid_1000/job_5", None);
        assert_eq!(job.cgroup("/slurm/uid_1000/job_6/step_0"), None, "another job's");
        let deep = format!("{}/slurm/uid_1000/job_5", "/x".repeat(MAX_DEPTH));
        assert_eq!(job.cgroup(&deep), None);
    }
}
