//! What an installation leaves on a node, and what it asked of the API server: nothing.

use super::collectors;
use super::installed::{Installed, NAMESPACE};
use super::{HOLDERS, Scene};
use gpuwho_tests::cluster::{Cluster, NODE};
use gpuwho_tests::sys::{BpfObject, bpf_object_exists};
use gpuwho_tests::until::until;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel frees a program a moment after its last descriptor is closed.
const FREED_WITHIN: Duration = Duration::from_secs(30);

/// What stays on the node is in the folders of the chart's volumes, and small: what a next installation goes
/// on with.
const STAYS: [&str; 2] = ["/run/gpuwho", "/var/lib/gpuwho"];

/// What the kubelet makes for volumes that the node does not have, and stays empty
/// (deploy/kubernetes/README.md).
const EMPTY: [&str; 3] = ["/run/crio", "/run/k3s", "/run/k3s/containerd"];

/// Where the chart shows the runtime's folder to the agent.
const SHOWN: &str = "/host";
const RUNTIME: &str = "/run/containerd/";

/// Of the mounts below the runtime's folder (containers' roots, pods' /dev/shm) the agent's pod has those that
/// the host has, and copies of its own container's, which go with it.
pub(super) fn no_mount_of_another_pod_is_kept(scene: &Scene) {
    let agent = *agents(&scene.cluster).first().unwrap();
    let cgroup = fs::read_to_string(format!("/proc/{agent}/cgroup")).unwrap();
    let own = cgroup.trim().rsplit('/').next().unwrap();
    let hosts = mounts(std::process::id(), RUNTIME);
    let kept: Vec<_> = mounts(agent, &format!("{SHOWN}{RUNTIME}"))
        .into_iter()
        .filter(|mount| !hosts.contains(&mount[SHOWN.len()..]) && !mount.contains(own))
        .collect();
    assert!(own.len() == 64 && hosts.len() > HOLDERS.len(), "{own} {hosts:?}");
    assert!(kept.is_empty(), "the agent's pod keeps {kept:#?} of {} mounts", hosts.len());
    println!("  the agent's pod keeps none of {} mounts of the runtime", hosts.len());
}

/// The mounts of a process whose places begin so.
fn mounts(pid: u32, start: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let places = text.lines().filter_map(|line| line.split(' ').nth(4));
    places.filter(|place| place.starts_with(start)).map(str::to_owned).collect()
}

/// The node's folders in the places that the chart's volumes are in.
pub(super) fn folders() -> BTreeSet<PathBuf> {
    let below = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.is_dir() && !path.is_symlink()).collect()
    };
    let tops = ["/run", "/var/lib"].map(|top| below(Path::new(top))).concat();
    let within: Vec<_> = tops.iter().flat_map(|top| below(top)).collect();
    tops.into_iter().chain(within).collect()
}

/// Uninstalls it and looks for programs, maps, pins, processes, files, and folders that the node did not
/// have before.
pub(super) fn nothing_is_left_by(scene: &Scene, before: &BTreeSet<PathBuf>) {
    let pids = agents(&scene.cluster);
    let objects = bpf_objects(&pids);
    assert!(!pids.is_empty());
    let programs = programs(&pids);
    println!(
        "  {} processes with {programs} BPF programs, {} maps",
        pids.len(),
        objects.len() - programs
    );
    assert!(programs > 0, "the agent has no BPF programs");
    Installed::uninstall(scene);
    let left = until(FREED_WITHIN, || left(&objects).is_empty().then_some(()));
    assert_eq!(left, Some(()), "BPF objects stay: {:?}", self::left(&objects));
    assert_eq!(agents(&scene.cluster), BTreeSet::new());
    let pins = files(Path::new("/sys/fs/bpf"));
    assert!(pins.iter().all(|pin| !pin.to_string_lossy().contains("gpuwho")), "{pins:?}");
    let files: Vec<_> = STAYS.iter().flat_map(|folder| files(Path::new(folder))).collect();
    println!("  files that stay: {files:?}");
    let size: u64 = files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(size < 1 << 20, "{size} bytes in {files:?}");
    let is_socket = |file: &&PathBuf| file.extension().is_some_and(|extension| extension == "sock");
    assert_eq!(files.iter().find(is_socket), None);
    let is_new = |path: &PathBuf| {
        !before.contains(path) && !STAYS.iter().any(|known| path.starts_with(known))
    };
    let new: BTreeSet<_> = folders().into_iter().filter(is_new).collect();
    assert_eq!(new, EMPTY.map(PathBuf::from).into());
    assert!(new.iter().all(|folder| self::files(folder).is_empty()), "{new:?}");
    let all = scene.cluster.kubectl(&["get", "all,configmaps,secrets", "--namespace", NAMESPACE]);
    assert!(!all.as_ref().unwrap().contains("gpuwho"), "{all:?}");
}

/// No request came from the agent: not as a service account, not from a pod, not by its name.
pub(super) fn nothing_was_asked_of_the_server(cluster: &Cluster) {
    let all = cluster.audited().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_agents = |request: &Value| {
        let addresses = request["sourceIPs"].as_array().cloned().unwrap_or_default();
        let user = text(&request["user"]["username"]);
        // The controllers of the control plane have accounts in kube-system.
        let of_controller = user.starts_with("system:serviceaccount:kube-system:");
        let of_collector = user == collectors::USER;
        (user.starts_with("system:serviceaccount:") && !of_controller && !of_collector)
            || text(&request["userAgent"]).contains("gpuwho")
            || addresses.iter().any(|address| text(address).starts_with("10.88."))
    };
    let of_agent: Vec<_> = all.iter().filter(|request| is_agents(request)).collect();
    assert!(of_agent.is_empty(), "{of_agent:#?}");
    let users: BTreeSet<_> = all.iter().map(|request| text(&request["user"]["username"])).collect();
    for user in ["admin".to_owned(), format!("system:node:{NODE}")] {
        assert!(users.contains(&user), "{users:?}");
    }
    println!("  {} audited requests of {users:?}", all.len());
}

/// The agent's processes in the cluster's pods.
pub(super) fn agents(cluster: &Cluster) -> BTreeSet<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        read("cgroup").contains(cluster.pods()) && read("comm").starts_with("gpuwho")
    })
    .collect()
}

/// The BPF programs that these processes hold.
pub(super) fn programs(pids: &BTreeSet<u32>) -> usize {
    let objects = bpf_objects(pids);
    objects.iter().filter(|(kind, _)| *kind == BpfObject::Program).count()
}

fn bpf_objects(pids: &BTreeSet<u32>) -> BTreeSet<(BpfObject, u32)> {
    let infos = pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/fdinfo")));
    let texts = infos.flatten().flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
    let mut found = BTreeSet::new();
    for line in texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()) {
        let id = |key: &str| line.strip_prefix(key)?.trim().parse().ok();
        found.extend(id("prog_id:").map(|id| (BpfObject::Program, id)));
        found.extend(id("map_id:").map(|id| (BpfObject::Map, id)));
    }
    found
}

fn left(objects: &BTreeSet<(BpfObject, u32)>) -> Vec<(BpfObject, u32)> {
    objects.iter().copied().filter(|(kind, id)| bpf_object_exists(*kind, *id).unwrap()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}
