//! Translates the device names of device plugins and of dynamic resource allocation drivers into
//! the inventory's names. Each has its own form, and the same text has different meanings: a table
//! by resource and by driver. A name of unknown form is not guessed.

use crate::attribute::allocations::{AllocationDetails, DeviceName, DraDevice};
use crate::nodes::Vendors;
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
}

/// Why an allocated device cannot be identified by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unnamed {
    /// A position for a MIG instance, named by profile and start.
    MigPlace,
    /// Handed to a virtual machine.
    Passthrough,
    /// A part of a device without its own PCI address.
    Partition,
    /// An unknown form.
    Form,
}

impl Unnamed {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::MigPlace => "named by their place on the device",
            Self::Passthrough => "passed to a virtual machine",
            Self::Partition => "partitions",
            Self::Form => "of an unknown form",
        }
    }
}

/// The numbers of the NUMA nodes.
pub(super) fn node_ids(topology: &TopologyInfo) -> BTreeSet<i64> {
    topology.nodes.iter().map(|node| node.id).collect()
}

/// Parses the ids of a plugin or a driver: from an id to a device and its replica.
type Naming = fn(&NameContext<'_>, &str) -> Named;
type Named = (Result<DeviceName, Unnamed>, GrantKind, Option<Arc<str>>);

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

/// Device plugin resources that are accelerators, by prefix.
const RESOURCES: &[(&str, Naming)] = &[
    // NVIDIA/k8s-device-plugin internal/rm: the UUID of the GPU or MIG device, `::N` for a replica
    // (time slicing and MPS). GKE's (container-engine-accelerators pkg/gpu/nvidia): `nvidiaMINOR`,
    // `/giN` for a MIG instance, `/vgpuN` for a replica.
    ("nvidia.com/", nvidia),
    // ROCm/k8s-device-plugin internal/pkg/amdgpu: the PCI address, which is also that of a device's
    // first partition, or `amdgpu_xcp_N`, the platform device of another one.
    ("amd.com/", amd),
    // HabanaAI/habanalabs-k8s-device-plugin habanalabs.go: the serial number.
    ("habana.ai/", habana),
    // intel-device-plugins-for-kubernetes cmd/gpu_plugin: `cardN-REPLICA`.
    ("gpu.intel.com/", intel),
    // Google's plugin for TPUs and Tenstorrent's count devices.
    ("google.com/tpu", |_, id| counted("tpu", id)),
    ("tenstorrent.com/", |_, id| counted("tenstorrent", id)),
    // AWS's plugin counts devices, or the cores of all devices.
    ("aws.amazon.com/neuroncore", neuron_core),
    ("aws.amazon.com/neuron", |_, id| counted("neuron", id)),
];

/// Dynamic resource allocation drivers with accelerators, by prefix of `DRIVER/DEVICE`.
const DRIVERS: &[(&str, Naming)] = &[
    // NVIDIA/k8s-dra-driver-gpu cmd/gpu-kubelet-plugin/deviceinfo.go CanonicalName: `gpu-MINOR`,
    // `gpu-MINOR-mig-PROFILE-…`, `gpu-vfio-N`.
    ("gpu.nvidia.com/", nvidia_claim),
    // ROCm/k8s-gpu-dra-driver cmd/gpu-kubeletplugin/deviceinfo.go: `gpu-CARD-RENDER`.
    ("gpu.amd.com/", amd_claim),
    // intel/intel-resource-drivers-for-kubernetes: `0000-0f-00-0-0x56c0`, PCI address and model.
    ("gpu.intel.com/", intel_claim),
    ("gaudi.intel.com/", intel_claim),
];

impl<'a> NameContext<'a> {
    pub(super) fn new(paths: &'a Paths, vendors: Vendors, extra: &'a [String]) -> Self {
        Self { paths, vendors, extra, partitions: OnceCell::new() }
    }

    /// The devices that a plugin allocated; empty for a resource that is not an accelerator.
    pub(super) fn plugin(&self, devices: &ContainerDevices) -> Vec<AllocatedDevice> {
        let resource = devices.resource_name.as_str();
        let known = RESOURCES.iter().find(|(start, _)| resource.starts_with(start));
        let Some(naming) = known.map(|(_, naming)| *naming).or_else(|| self.extra(resource)) else {
            return Vec::new();
        };
        let resource: Arc<str> = resource.into();
        let allocated = |id: &String| {
            let (device, kind, replica) = naming(self, id);
            let resource = Some(Arc::clone(&resource));
            let details = AllocationDetails { resource, replica, ..AllocationDetails::default() };
            let numa = devices.topology.as_ref().map(node_ids).unwrap_or_default();
            AllocatedDevice { device, kind, details, numa, id: id.clone() }
        };
        devices.device_ids.iter().map(allocated).collect()
    }

    /// The device of a claim; `None` if it is not an accelerator.
    pub(super) fn claim(&self, claim: &str, resource: &ClaimResource) -> Option<AllocatedDevice> {
        let driver = resource.driver_name.as_str();
        let id = format!("{driver}/{}", resource.device_name);
        let known = DRIVERS.iter().find(|(start, _)| id.starts_with(start));
        let naming = known.map(|(_, naming)| *naming).or_else(|| self.extra(driver))?;
        let (mut device, _, _) = naming(self, &resource.device_name);
        if device == Err(Unnamed::Form) {
            let cdi = resource.cdi_devices.iter().find_map(|device| by_cdi(&device.name));
            device = cdi.ok_or(Unnamed::Form);
        }
        let claimed = DraDevice {
            driver: resource.driver_name.clone(),
            pool: resource.pool_name.clone(),
            device: resource.device_name.clone(),
            cdi: resource.cdi_devices.iter().map(|device| device.name.clone()).collect(),
        };
        let details = AllocationDetails {
            resource: Some(claim.into()),
            replica: resource.share_id.as_deref().map(Into::into),
            claimed: Some(Arc::new(claimed)),
            ..AllocationDetails::default()
        };
        Some(AllocatedDevice { device, kind: GrantKind::Claim, details, numa: BTreeSet::new(), id })
    }

    fn extra(&self, resource: &str) -> Option<Naming> {
        let matches = |wanted: &String| match wanted.strip_suffix('*') {
            Some(start) => resource.starts_with(start),
            None => resource == wanted,
        };
        self.extra.iter().any(matches).then_some(plain as Naming)
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

fn nvidia(_: &NameContext<'_>, id: &str) -> Named {
    let (id, replica) = match id.split_once("::").or_else(|| id.split_once("/vgpu")) {
        Some((device, replica)) => (device, Some(replica)),
        None => (id, None),
    };
    let device = match id.strip_prefix("nvidia") {
        Some(minor) if minor.contains("/gi") => Err(Unnamed::MigPlace),
        Some(minor) => number(minor).map(DeviceName::Minor).ok_or(Unnamed::Form),
        None => uuid(id).ok_or(Unnamed::Form),
    };
    let kind = match &device {
        _ if replica.is_some() => GrantKind::Replica,
        Ok(DeviceName::Uuid(uuid)) if uuid.as_str().starts_with("MIG-") => GrantKind::Instance,
        Err(Unnamed::MigPlace) => GrantKind::Instance,
        _ => GrantKind::Exclusive,
    };
    (device, kind, replica.map(Into::into))
}

fn amd(names: &NameContext<'_>, id: &str) -> Named {
    let partition = names.partition(id);
    let is_partition = partition.is_some() || id.starts_with("amdgpu_xcp_");
    let (why, kind) = if is_partition {
        (Unnamed::Partition, GrantKind::Instance)
    } else {
        (Unnamed::Form, GrantKind::Exclusive)
    };
    (partition.or_else(|| pci(id)).ok_or(why), kind, None)
}

fn habana(_: &NameContext<'_>, id: &str) -> Named {
    let serial = (!id.is_empty()).then(|| DeviceName::Serial(id.into()));
    (serial.ok_or(Unnamed::Form), GrantKind::Exclusive, None)
}

fn intel(names: &NameContext<'_>, id: &str) -> Named {
    let Some((card, replica)) = id.rsplit_once('-').filter(|(card, _)| is_node("card", card))
    else {
        return (Err(Unnamed::Form), GrantKind::Exclusive, None);
    };
    // The plugin has replicas either of every card or of none; an id does not show their number.
    (names.drm(card), GrantKind::Replica, Some(replica.into()))
}

/// A name with an unambiguous form: a UUID, a PCI address or an index.
fn plain(_: &NameContext<'_>, id: &str) -> Named {
    let counted = || number(id).map(DeviceName::Index);
    let device = uuid(id).or_else(|| pci(id)).or_else(counted);
    (device.ok_or(Unnamed::Form), GrantKind::Exclusive, None)
}

/// A number in the order of a vendor's driver.
fn counted(vendor: &'static str, id: &str) -> Named {
    let device = number(id).map(|number| DeviceName::IndexOf(vendor, number));
    (device.ok_or(Unnamed::Form), GrantKind::Exclusive, None)
}

/// A core of a Neuron device, counted through all devices: the device it is on.
fn neuron_core(names: &NameContext<'_>, id: &str) -> Named {
    let device = number(id).and_then(|core| core.checked_div(names.neuron_cores()?));
    let device = device.map(|index| DeviceName::IndexOf("neuron", index));
    (device.ok_or(Unnamed::Partition), GrantKind::Instance, None)
}

fn nvidia_claim(_: &NameContext<'_>, name: &str) -> Named {
    let device = match name.strip_prefix("gpu-") {
        Some(rest) if rest.starts_with("vfio-") => Err(Unnamed::Passthrough),
        Some(rest) if rest.contains("-mig-") => Err(Unnamed::MigPlace),
        Some(minor) => number(minor).map(DeviceName::Minor).ok_or(Unnamed::Form),
        None => Err(Unnamed::Form),
    };
    (device, GrantKind::Claim, None)
}

fn amd_claim(names: &NameContext<'_>, name: &str) -> Named {
    let render = name.strip_prefix("gpu-").and_then(|rest| rest.split_once('-'));
    let render = render.and_then(|(card, render)| number(card).and(number(render)));
    let render = render.map(|number| format!("renderD{number}")).ok_or(Unnamed::Form);
    let device =
        render.and_then(|node| names.partition_of(&node).map_or_else(|| names.drm(&node), Ok));
    (device, GrantKind::Claim, None)
}

fn intel_claim(_: &NameContext<'_>, name: &str) -> Named {
    let parts: Vec<_> = name.split('-').collect();
    let device = match parts.as_slice() {
        [domain, bus, slot, function, model] if model.starts_with("0x") => {
            pci(&format!("{domain}:{bus}:{slot}.{function}"))
        }
        _ => None,
    };
    (device.ok_or(Unnamed::Form), GrantKind::Claim, None)
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
