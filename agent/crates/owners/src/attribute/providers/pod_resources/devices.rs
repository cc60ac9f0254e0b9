//! Translates the device names of device plugins and of dynamic resource allocation drivers into
//! the inventory's names. Each has its own form, and the same text has different meanings: each
//! vendor says which form is whose ([`IdForm`]). A name of unknown form is not guessed.

use crate::attribute::allocations::{AllocationDetails, DraDevice};
use crate::inventory::DeviceName;
use crate::nodes::{IdForm, Vendors};
use crate::partitions::PartitionNodes;
use gpuwho_kubernetes::pod_resources::{ClaimResource, ContainerDevices, TopologyInfo};
use gpuwho_model::catalog::share::GrantKind;
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::paths::Paths;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

/// An allocated accelerator, as its name identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AllocatedDevice {
    /// The device, or why its name does not identify it.
    pub(super) device: Result<DeviceName, Unnamed>,
    pub(super) kind: GrantKind,
    pub(super) details: AllocationDetails,
    /// NUMA nodes of the device.
    pub(super) numa: BTreeSet<i64>,
    /// The kubelet's name: equal ones are the same allocation.
    pub(super) id: String,
    /// Whether another claim may have the device as well: the driver divides it into shares.
    pub(super) is_shared: bool,
}

/// Why an allocated device cannot be identified by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unnamed {
    /// A position for a MIG instance, by numbers that nothing else tells.
    MigPlace,
    /// Handed to a virtual machine.
    Passthrough,
    /// A part of a device without its own PCI address.
    Partition,
    /// Its CDI names are those of the claim's earlier devices, or of several.
    Cdi,
    /// An unknown form.
    Form,
}

impl Unnamed {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::MigPlace => "named by their place on the device",
            Self::Passthrough => "passed to a virtual machine",
            Self::Partition => "partitions",
            Self::Cdi => "not told apart by their CDI names",
            Self::Form => "of an unknown form",
        }
    }
}

/// The numbers of the NUMA nodes.
pub(super) fn node_ids(topology: &TopologyInfo) -> BTreeSet<i64> {
    topology.nodes.iter().map(|node| node.id).collect()
}

/// A device, and whether it is a part of it.
type Named = (Result<DeviceName, Unnamed>, GrantKind);

/// What the parsing of one answer's names uses.
pub(super) struct NameContext<'a> {
    paths: &'a Paths,
    vendors: Vendors,
    /// Further resources that are accelerators by configuration; a `*` at the end matches any
    /// suffix.
    extra: &'a [String],
    /// Read when the first name may be a partition's.
    partitions: OnceCell<PartitionNodes>,
}

impl<'a> NameContext<'a> {
    pub(super) fn new(paths: &'a Paths, vendors: Vendors, extra: &'a [String]) -> Self {
        Self { paths, vendors, extra, partitions: OnceCell::new() }
    }

    /// The devices that a plugin allocated; empty for a resource that is not an accelerator.
    pub(super) fn plugin(&self, devices: &ContainerDevices) -> Vec<AllocatedDevice> {
        let resource = devices.resource_name.as_str();
        let mut rows = self.vendors.iter().flat_map(|vendor| vendor.resources);
        let known = rows.find(|(start, _)| resource.starts_with(start));
        let Some(form) = known.map(|(_, form)| *form).or_else(|| self.extra(resource)) else {
            return Vec::new();
        };
        let resource: Arc<str> = resource.into();
        let allocated = |id: &String| {
            let (device, kind) = self.named(form, id);
            let resource = Some(Arc::clone(&resource));
            let details = AllocationDetails { resource, ..AllocationDetails::default() };
            let numa = devices.topology.as_ref().map(node_ids).unwrap_or_default();
            let is_shared = kind == GrantKind::Replica;
            AllocatedDevice { device, kind, details, numa, id: id.clone(), is_shared }
        };
        devices.device_ids.iter().map(allocated).collect()
    }

    /// The device of a claim; `None` if it is not an accelerator. `cdi` are the CDI names that no
    /// earlier device of the claim has.
    pub(super) fn claim(
        &self,
        claim: &str,
        resource: &ClaimResource,
        cdi: Vec<String>,
    ) -> Option<AllocatedDevice> {
        let driver = resource.driver_name.as_str();
        let id = format!("{driver}/{}", resource.device_name);
        let mut rows = self.vendors.iter().flat_map(|vendor| vendor.claims);
        let known = rows.find(|(start, _)| id.starts_with(start));
        let form = known.map(|(_, form)| *form).or_else(|| self.extra(driver))?;
        let (mut device, _) = self.named(form, &resource.device_name);
        if device == Err(Unnamed::Form) {
            let named: BTreeSet<_> = cdi.iter().filter_map(|name| by_cdi(name)).collect();
            let mut all = resource.cdi_devices.iter().filter_map(|device| by_cdi(&device.name));
            device = match (named.len(), named.into_iter().next()) {
                (1, Some(only)) => Ok(only),
                _ => Err(all.next().map_or(Unnamed::Form, |_| Unnamed::Cdi)),
            };
        }
        let share = resource.share_id.clone().filter(|share| !share.is_empty());
        let is_shared = share.is_some();
        let claimed = DraDevice {
            driver: resource.driver_name.clone(),
            pool: resource.pool_name.clone(),
            device: resource.device_name.clone(),
            share,
            cdi,
        };
        let details = AllocationDetails {
            resource: Some(claim.into()),
            claimed: Some(Arc::new(claimed)),
            ..AllocationDetails::default()
        };
        let (kind, numa) = (GrantKind::Claim, BTreeSet::new());
        Some(AllocatedDevice { device, kind, details, numa, id, is_shared })
    }

    fn extra(&self, resource: &str) -> Option<IdForm> {
        let matches = |wanted: &String| match wanted.strip_suffix('*') {
            Some(start) => resource.starts_with(start),
            None => resource == wanted,
        };
        self.extra.iter().any(matches).then_some(IdForm::Plain)
    }

    fn named(&self, form: IdForm, id: &str) -> Named {
        match form {
            IdForm::Plain => exclusive(plain(id)),
            IdForm::Index(vendor) => {
                exclusive(number(id).map(|number| DeviceName::IndexOf(vendor, number)))
            }
            IdForm::Serial => exclusive((!id.is_empty()).then(|| DeviceName::Serial(id.into()))),
            IdForm::DrmCard => drm_card(self, id),
            IdForm::PciAndModel => (pci_and_model(id).ok_or(Unnamed::Form), GrantKind::Claim),
            IdForm::DrmNodes => (drm_nodes(self, id), GrantKind::Claim),
            IdForm::Nvidia => nvidia(id),
            IdForm::NvidiaClaim => (nvidia_claim(id), GrantKind::Claim),
            IdForm::Amd => amd(self, id),
            IdForm::NeuronCore => (neuron_core(self, id), GrantKind::Instance),
        }
    }

    /// The PCI address of a DRM node, if the node belongs to a whole PCI device.
    fn drm(&self, node: &str) -> Result<DeviceName, Unnamed> {
        let device = self.drm_device(node).ok_or(Unnamed::Form)?;
        pci(&device).ok_or(Unnamed::Partition)
    }

    /// The name of the device that a DRM node belongs to.
    fn drm_device(&self, node: &str) -> Option<String> {
        let link = self.paths.sys.join("class/drm").join(node).join("device");
        Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
    }

    /// The partition of an AMD device, by the name that the plugin has for it: its platform device, or
    /// the PCI address, which is the first partition's. `None` for the address of a whole device.
    fn partition(&self, id: &str) -> Option<DeviceName> {
        let (folder, is_pci) = match pci(id) {
            Some(_) => (self.paths.sys.join("bus/pci/devices").join(id).join("drm"), true),
            None => (self.paths.sys.join("class/drm"), false),
        };
        let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
        let mut renders = names.filter_map(|name| name.into_string().ok());
        // Kernels name the platform device `amdgpu_xcp_3` or `amdgpu_xcp.3` (`amdgpu_xcp_drv.c`).
        let is_its = |node: &str| {
            is_pci || self.drm_device(node).is_some_and(|device| device.replace('.', "_") == id)
        };
        self.partition_of(&renders.find(|node| is_node("renderD", node) && is_its(node))?)
    }

    /// The partition of an AMD device that a render node opens.
    fn partition_of(&self, render: &str) -> Option<DeviceName> {
        let partitions =
            self.partitions.get_or_init(|| PartitionNodes::of_all(self.vendors, self.paths));
        let opened = partitions.devices_of(&[format!("dri/{render}").into()], self.vendors);
        opened.into_iter().find(DeviceName::is_part)
    }

    /// How many cores each Neuron device has; `None` if they differ, or if each has so many that the
    /// plugin may count pairs of them (logical cores, since Trainium 2 with its eight).
    fn neuron_cores(&self) -> Option<u32> {
        let cores = |folder: fs::DirEntry| {
            let names = fs::read_dir(folder.path()).ok()?.flatten().map(|entry| entry.file_name());
            let cores =
                names.filter(|name| name.to_str().is_some_and(|n| is_node("neuron_core", n)));
            u32::try_from(cores.count()).ok()
        };
        let devices = fs::read_dir(self.paths.sys.join("devices/virtual/neuron_device")).ok()?;
        let devices = devices
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| is_node("neuron", name)));
        let counts: BTreeSet<u32> = devices.filter_map(cores).collect();
        counts.first().copied().filter(|count| counts.len() == 1 && (1..8).contains(count))
    }
}

fn exclusive(device: Option<DeviceName>) -> Named {
    (device.ok_or(Unnamed::Form), GrantKind::Exclusive)
}

// NVIDIA/k8s-device-plugin internal/rm, and GKE's (container-engine-accelerators pkg/gpu/nvidia).
fn nvidia(id: &str) -> Named {
    let (id, is_replica) = match id.split_once("::").or_else(|| id.split_once("/vgpu")) {
        Some((device, _)) => (device, true),
        None => (id, false),
    };
    let device = match id.strip_prefix("nvidia") {
        Some(minor) => gke(minor).ok_or(Unnamed::Form),
        None => uuid(id).ok_or(Unnamed::Form),
    };
    let kind = match &device {
        _ if is_replica => GrantKind::Replica,
        Ok(name) if name.is_part() => GrantKind::Instance,
        _ => GrantKind::Exclusive,
    };
    (device, kind)
}

/// GKE's `0`, a minor number, and `0/gi7`: the first compute instance of that GPU instance, whose nodes
/// the plugin gives the container (`mig.go`).
fn gke(id: &str) -> Option<DeviceName> {
    let Some((minor, instance)) = id.split_once("/gi") else {
        return number(id).map(DeviceName::Minor);
    };
    Some(DeviceName::Instance {
        device: format!("nvidia{}", number(minor)?).into(),
        gpu_instance: number(instance)?,
        compute_instance: Some(0),
    })
}

// ROCm/k8s-device-plugin internal/pkg/amdgpu.
fn amd(names: &NameContext<'_>, id: &str) -> Named {
    let partition = names.partition(id);
    let is_partition = partition.is_some() || id.starts_with("amdgpu_xcp_");
    let (why, kind) = if is_partition {
        (Unnamed::Partition, GrantKind::Instance)
    } else {
        (Unnamed::Form, GrantKind::Exclusive)
    };
    (partition.or_else(|| pci(id)).ok_or(why), kind)
}

// intel-device-plugins-for-kubernetes cmd/gpu_plugin.
fn drm_card(names: &NameContext<'_>, id: &str) -> Named {
    let Some((card, _)) = id.rsplit_once('-').filter(|(card, _)| is_node("card", card)) else {
        return (Err(Unnamed::Form), GrantKind::Exclusive);
    };
    // The plugin has replicas either of every card or of none; an id does not show their number.
    (names.drm(card), GrantKind::Replica)
}

fn plain(id: &str) -> Option<DeviceName> {
    uuid(id).or_else(|| pci(id)).or_else(|| number(id).map(DeviceName::Index))
}

fn neuron_core(names: &NameContext<'_>, id: &str) -> Result<DeviceName, Unnamed> {
    let device = number(id).and_then(|core| core.checked_div(names.neuron_cores()?));
    device.map(|index| DeviceName::IndexOf("neuron", index)).ok_or(Unnamed::Partition)
}

// NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go CanonicalName.
fn nvidia_claim(name: &str) -> Result<DeviceName, Unnamed> {
    let rest = name.strip_prefix("gpu-").ok_or(Unnamed::Form)?;
    if rest.starts_with("vfio-") {
        return Err(Unnamed::Passthrough);
    }
    match rest.split_once("-mig-") {
        Some((minor, place)) => mig_place(minor, place).ok_or(Unnamed::MigPlace),
        None => number(rest).map(DeviceName::Minor).ok_or(Unnamed::Form),
    }
}

/// `1g10gb-19-0`: the profile without its dot, the profile's number, the first memory slice (`mig.go`
/// ToCanonicalName). Older drivers have the profile's number, start and size, and not its name.
fn mig_place(minor: &str, place: &str) -> Option<DeviceName> {
    let (place, start) = place.rsplit_once('-')?;
    let (profile, id) = place.rsplit_once('-')?;
    number(id)?;
    let is_named = profile.contains('g') && profile.bytes().all(|byte| byte != b'.');
    is_named.then_some(())?;
    let (minor, profile, start) = (number(minor)?, profile.into(), number(start)?);
    Some(DeviceName::Placed { minor, profile, start })
}

// ROCm/k8s-gpu-dra-driver cmd/gpu-kubeletplugin/deviceinfo.go.
fn drm_nodes(names: &NameContext<'_>, name: &str) -> Result<DeviceName, Unnamed> {
    let render = name.strip_prefix("gpu-").and_then(|rest| rest.split_once('-'));
    let render = render.and_then(|(card, render)| number(card).and(number(render)));
    let node = render.map(|number| format!("renderD{number}")).ok_or(Unnamed::Form)?;
    names.partition_of(&node).map_or_else(|| names.drm(&node), Ok)
}

// intel/intel-resource-drivers-for-kubernetes.
fn pci_and_model(name: &str) -> Option<DeviceName> {
    let parts: Vec<_> = name.split('-').collect();
    match parts.as_slice() {
        [domain, bus, slot, function, model] if model.starts_with("0x") => {
            pci(&format!("{domain}:{bus}:{slot}.{function}"))
        }
        _ => None,
    }
}

/// The device of a CDI name: a UUID of any kind; NVIDIA's minor numbers in the specifications of
/// its driver, and its indexes in those that nvidia-ctk writes.
fn by_cdi(qualified: &str) -> Option<DeviceName> {
    let (kind, name) = qualified.split_once('=')?;
    let minor = || name.strip_prefix("gpu-").and_then(number).map(DeviceName::Minor);
    uuid(name).or_else(|| match kind {
        "k8s.gpu.nvidia.com/device" => minor(),
        "nvidia.com/gpu" => number(name).map(|number| DeviceName::IndexOf("nvidia", number)),
        _ => None,
    })
}

/// NVIDIA's UUID of a GPU or a MIG device, without anything after it: other plugins (HAMi) append
/// counts of their own shares, and allocate other devices than the kubelet is given.
fn uuid(id: &str) -> Option<DeviceName> {
    let rest = id.strip_prefix("GPU-").or_else(|| id.strip_prefix("MIG-"))?;
    // Drivers before 470 name a MIG device by its GPU and two numbers.
    let (digits, instances) = match rest.strip_prefix("GPU-") {
        Some(old) => old.split_once('/').map(|(uuid, instances)| (uuid, Some(instances)))?,
        None => (rest, None),
    };
    let instances = instances.is_none_or(|text| {
        text.split_once('/').is_some_and(|(gi, ci)| number(gi).and(number(ci)).is_some())
    });
    let shaped = digits.len() == 36
        && digits.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    (shaped && instances).then(|| DeviceName::Uuid(GpuUuid::new(id)))
}

/// `0000:19:00.0`.
fn pci(id: &str) -> Option<DeviceName> {
    let (domain, rest) = id.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (slot, function) = rest.split_once('.')?;
    let hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let shaped =
        (hex(domain, 4) || hex(domain, 8)) && hex(bus, 2) && hex(slot, 2) && hex(function, 1);
    shaped.then(|| DeviceName::Pci(id.to_ascii_lowercase().into()))
}

fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn is_node(kind: &str, node: &str) -> bool {
    node.strip_prefix(kind).and_then(number).is_some()
}

#[cfg(test)]
mod tests;
