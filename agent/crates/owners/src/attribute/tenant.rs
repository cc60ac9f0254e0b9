//! Finds the tenant to which reads of a process are charged, before the process is attributed.
//! Reads two files of the kernel that no tenant can make hang.

use super::Workload;
use super::cgroup::Placement;
use crate::process::Living;
use crate::tenant_files::FileOwner;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;

/// The tenant of exactly this process; `None` if it has ended.
pub fn tenant(paths: &Paths, process: ProcKey) -> Option<FileOwner> {
    let living = Living::same(paths, process)?;
    let uid = living.uid()?;
    Some(FileOwner::named(&match living.placement() {
        Some(Placement::Known { workload, .. }) => name(&workload, uid),
        _ => format!("user {uid}"),
    }))
}

/// The outermost name that the tenant cannot create; otherwise one tenant could count as many.
fn name(workload: &Workload, uid: u32) -> String {
    if let Some(uid) = workload.uid.filter(|_| workload.user_slice) {
        return format!("user {uid}");
    }
    if let Some(pod) = workload.pod.as_ref().filter(|_| !workload.nested) {
        return format!("pod {}", pod.uid);
    }
    if let Some(task) = &workload.slurm {
        return format!("job {}", task.job);
    }
    if let Some(allocation) = &workload.allocation {
        return format!("{} {}", allocation.scheduler, allocation.id);
    }
    if let Some(machine) = &workload.machine {
        return format!("machine {machine}");
    }
    if let Some(unit) = &workload.unit {
        return format!("{unit}, user {uid}");
    }
    match workload.node.as_ref().or(workload.container.as_ref()) {
        Some(container) => format!("container {container}"),
        None => format!("user {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::cgroup::parse_path;

    #[test]
    fn a_tenant_has_a_name_that_it_cannot_create() {
        let pod = "/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/\
            cri-containerd-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.scope";
        let slice = "/user.slice/user-1000.slice/user@1000.service/";
        for (path, wanted) in [
            (pod.to_owned(), "pod 11111111-2222-3333-4444-555555555555".to_owned()),
            (format!("{slice}x/y"), "user 1000".to_owned()),
            (format!("{slice}{pod}"), "user 1000".to_owned()),
            ("/".to_owned(), "user 7".to_owned()),
        ] {
            assert_eq!(name(&parse_path(&path), 7), wanted, "{path}");
        }
    }
}
