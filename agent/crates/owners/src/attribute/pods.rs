//! Looks up a pod by its name, and a pod's quality-of-service class by its cgroup. The cgroup is
//! found by the UID and proves that the pod exists.
//!
//! Searches where a kubelet without its own `cgroupRoot` puts the cgroup: three directories for
//! each of its two cgroup drivers in each hierarchy. Only the host's root can make them.

use super::Host;
use super::names::PodFacts;
use super::ownership::Ownership;
use gpuwho_model::ids::PodUid;
use std::path::Path;
use std::sync::Arc;

/// The classes, with their directories below `kubepods` and their slices below `kubepods.slice`.
const CLASSES: &[(&str, &str, &str)] = &[
    ("guaranteed", "", "kubepods"),
    ("burstable", "burstable/", "kubepods-burstable"),
    ("besteffort", "besteffort/", "kubepods-besteffort"),
];

impl Ownership {
    /// The pod that has a name now. If no provider describes pods, the only pod of that name with a
    /// log directory.
    pub(crate) fn pod_named(&self, namespace: &str, name: &str) -> Option<Arc<PodFacts>> {
        let Host { names, podlogs, .. } = self.host();
        let by_logs = || {
            let uid = podlogs.named(namespace, name).filter(|_| names.has_no_pods())?;
            Some(Arc::new(PodFacts::named(uid, namespace, name)))
        };
        names.pod_named(namespace, name).or_else(by_logs)
    }

    /// The class of a pod with a cgroup; `None` if no cgroup is found.
    pub(crate) fn pod_class(&self, uid: &PodUid) -> Option<&'static str> {
        self.host().hierarchies.mounts().iter().find_map(|(_, mount)| class(mount, uid.as_str()))
    }
}

fn class(mount: &Path, uid: &str) -> Option<&'static str> {
    // Only a UID goes into a path, so that it leads nowhere else.
    if uid.is_empty() || !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return None;
    }
    let slice_uid = uid.replace('-', "_");
    CLASSES.iter().find_map(|(class, folder, slice)| {
        let below = if *slice == "kubepods" { String::new() } else { format!("{slice}.slice/") };
        let places = [
            format!("kubepods/{folder}pod{uid}"),
            format!("kubepods.slice/{below}{slice}-pod{slice_uid}.slice"),
        ];
        places.iter().any(|place| mount.join(place).is_dir()).then_some(*class)
    })
}

#[cfg(test)]
mod tests {
    use super::class;
    use std::fs;

    #[test]
    fn a_pod_s_class_is_where_either_driver_of_the_kubelet_puts_its_group() {
        let (uid, other) =
            ("7d2c7f6a-3b0e-4c3e-9a51-0d6b9f0f5a11", "11111111222222223333333344444444");
        for (place, found) in [
            (format!("kubepods/pod{uid}"), "guaranteed"),
            (format!("kubepods/besteffort/pod{uid}/abc"), "besteffort"),
            (
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
                    uid.replace('-', "_")
                ),
                "burstable",
            ),
            (format!("kubepods.slice/kubepods-pod{}.slice", uid.replace('-', "_")), "guaranteed"),
        ] {
            let mount = tempfile::tempdir().unwrap();
            fs::create_dir_all(mount.path().join(&place)).unwrap();
            assert_eq!(class(mount.path(), uid), Some(found), "{place}");
            assert_eq!(class(mount.path(), other), None);
            assert_eq!(class(mount.path(), "/../.."), None);
        }
    }
}
