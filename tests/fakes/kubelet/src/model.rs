//! What a kubelet knows about its node, as tests set it.

use std::collections::BTreeMap;

/// A pod on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// All its containers.
    pub containers: Vec<Container>,
    /// CPUs that are the whole pod's alone; kubelets before v1.37 do not say.
    pub cpus: Vec<i64>,
    /// Memory that is the whole pod's alone; kubelets before v1.37 do not say.
    pub memory: Vec<Memory>,
}

impl Pod {
    /// A running pod without containers.
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..Self::default()
        }
    }
}

/// The list of a pod that a container is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerKind {
    /// One of its containers.
    #[default]
    Regular,
    /// Runs to its end before those.
    Init,
    /// An init container that runs on beside those.
    Sidecar,
    /// Was added by `kubectl debug`.
    Ephemeral,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Name.
    pub name: String,
    /// `containerd://<id>`, say; empty before there is one.
    pub id: String,
    /// Image, as the runtime names it.
    pub image: String,
    /// Which list it is in.
    pub kind: ContainerKind,
    /// What it was granted.
    pub allocation: Allocation,
}

impl Container {
    /// A container that was granted nothing.
    pub fn new(name: &str, id: &str) -> Self {
        Self {
            name: name.to_owned(),
            id: id.to_owned(),
            image: "registry.test/research/trainer:1.4".to_owned(),
            ..Self::default()
        }
    }
}

/// What a container was granted, or what a node has to grant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Devices of device plugins.
    pub devices: Vec<Devices>,
    /// CPUs for it alone.
    pub cpus: Vec<i64>,
    /// Memory for it alone.
    pub memory: Vec<Memory>,
    /// Claims of dynamic resource allocation.
    pub claims: Vec<Claim>,
}

/// Devices of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// `nvidia.com/gpu`, say.
    pub resource: String,
    /// As the device plugin names them: `GPU-…`, `MIG-…`, `GPU-…::3`.
    pub ids: Vec<String>,
    /// NUMA nodes.
    pub numa: Vec<i64>,
}

impl Devices {
    /// Devices that are on no NUMA node.
    pub fn of(resource: &str, ids: &[&str]) -> Self {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        Self { resource: resource.to_owned(), ids, numa: Vec::new() }
    }
}

/// Memory of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// `memory` or `hugepages-2Mi`, say.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// NUMA nodes.
    pub numa: Vec<i64>,
}

/// A claim of dynamic resource allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// What it was given.
    pub devices: Vec<ClaimDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimDevice {
    /// `gpu.nvidia.com`, say.
    pub driver: String,
    /// The node's name, usually.
    pub pool: String,
    /// `gpu-0`, say.
    pub device: String,
    /// Full names of the container device interface: `vendor/class=name`.
    pub cdi: Vec<String>,
    /// The share of a device that several claims have.
    pub share: Option<String>,
}
