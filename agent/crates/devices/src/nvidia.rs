//! Reads NVIDIA devices through `libnvidia-ml.so.1`.
//!
//! Reads each device's identity once and its state at every request: about twenty calls, of which
//! the two process lists (milliseconds each under the driver's lock; a third with MPS) are the
//! expensive ones. With MIG enabled there are eight more calls and three for each instance. The
//! performance counters of Hopper and later ([`gpm`]) take three calls, and two for each instance.
//! Units are converted to base units here, where the vendor's call is made.

mod accounts;
mod cached;
mod caller;
mod capabilities;
mod events;
mod fabric;
mod fields;
mod functions;
mod gpm;
mod identity;
mod instances;
mod links;
mod pcie_sampler;
mod processes;
pub(super) mod readings;
mod sources;
mod static_info;

use super::library::{Library, Substitute};
use super::wire::{OpenErrorKind, Outcome, Reading};
use super::{
    CallTimes, DeviceRead, EventStream, OpenError, OpenLibrary, OpenOptions, Switch, Vendor,
};
use accounts::Accounts;
use caller::{Call, NvmlCaller};
use fields::Fields;
use gpm::Gpm;
use gpuwho_model::paths::Paths;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use gpuwho_pipeline::event::EventSource;
use gpuwho_sys as sys;
use instances::Instances;
use links::Links;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use pcie_sampler::{PcieSampler, PcieThroughput};
use processes::ProcessLists;
use readings::Readings;
use static_info::{Board, StaticInfo};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use sys::nvml::board::Confidential;

const SAMPLE: &str = r#"#: enabled = true
# A path, or a name to search for where distributions, the vendor's operator and managed clusters put
# the library.
#: library = "libnvidia-ml.so.1"
# Read the performance counters of Hopper and later (GPM): multiprocessors, tensor cores, memory and
# link traffic, of each device and MIG instance. They do not conflict with profilers; false disables
# them all the same.
#: gpm = true
# Export the traffic and the errors of each NVLink: up to 20 series a link. false exports only the sums
# over all links of a device, errors included.
#: by_link = true
# Sample the PCIe throughput of boards without performance counters (before Hopper). The driver's call
# blocks for 20 ms in each direction; a thread of its own makes it, so that no reading waits.
#: pcie_sampling = false
# The process that loads the driver's library gives up every capability, and the system calls that
# reach into other processes, load kernel code, change mounts or start programs. Its calls should need
# none of them, which was not tried on every driver: set false where a value is missing that nvidia-smi
# shows to root.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for, and whether the driver still lists as many
# devices.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "nvidia",
    library: Some(Library {
        name: "libnvidia-ml.so.1",
        places: &[
            "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
            "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
            "/run/nvidia/driver/usr/lib64",
            "/home/kubernetes/bin/nvidia/lib64",
            "/usr/lib/wsl/lib",
        ],
        node: "nvidiactl",
        substitute: Substitute::None,
    }),
    remedy: "install the driver, or name the library in the configuration",
    nodes: VendorNodes {
        nodes: &["/dev/nvidia*", "/dev/nvidia-caps/*"],
        node_drivers: &["nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps"],
        drivers: &["nvidia"],
        is_device_node: |node| minor(node).is_some(),
        partition_nodes: capabilities::partition_nodes,
        resources: &[("nvidia.com/", IdForm::Nvidia)],
        claims: &[("gpu.nvidia.com/", IdForm::NvidiaClaim)],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    switches: &[
        Switch { key: GPM, default: true },
        Switch { key: BY_LINK, default: true },
        Switch { key: PCIE_SAMPLING, default: false },
    ],
    listed,
    events: Some(EventStream { name: "nvml_events", source: EventSource::Nvml }),
    source: sources::of,
    function: functions::name,
    lists_processes: true,
    open,
    ..Vendor::DEFAULT
};

/// Switch: read the devices' performance counters.
const GPM: &str = "gpm";
/// Switch: export each link, and not only the sum of all links of a device.
const BY_LINK: &str = "by_link";
/// Switch: sample the PCIe throughput of devices without performance counters.
const PCIE_SAMPLING: &str = "pcie_sampling";
/// A device node's name before the minor number.
const NODE: &str = "nvidia";
/// Its number before the minor.
const MAJOR: u32 = 195;
/// Minors of the driver's own nodes: mode setting and control (`nv-linux.h`).
const OWN_MINORS: [u32; 2] = [254, 255];

/// The kernel driver supports at most 32 devices (`NV_MAX_DEVICES`). A higher count is invalid, and
/// the child allocates memory for each device.
const MAX_DEVICES: u32 = 256;

/// The name of a device's node.
fn node(minor: u32) -> String {
    format!("{NODE}{minor}")
}

/// The minor number of a device's node; `None` if the node does not belong to one device.
fn minor(node: &str) -> Option<u32> {
    let number = match node.split_once(':') {
        Some((major, minor)) => (major.parse() == Ok(MAJOR)).then_some(minor)?,
        None => node.strip_prefix(NODE)?,
    };
    number.parse().ok().filter(|minor| !OWN_MINORS.contains(minor))
}

/// The kernel driver's directories, one for each device.
fn listed(paths: &Paths) -> BTreeSet<OsString> {
    let entries = fs::read_dir(paths.proc.join("driver/nvidia/gpus"));
    entries.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

/// Properties that all devices of a driver share.
#[derive(Debug, Default)]
struct Versions {
    driver: Option<String>,
    cuda: Option<String>,
    /// Confidential computing; changes only with a reboot.
    confidential: Option<Confidential>,
}

/// One device.
struct NvidiaDevice {
    nvml: &'static Nvml,
    versions: Arc<Versions>,
    index: u32,
    /// `None` before the first reading and while the device is lost.
    device: Option<Device<'static>>,
    /// The identity as last sent.
    identity: Option<GpuInfo>,
    instances: Instances,
    caller: NvmlCaller,
    fields: Fields,
    readings: Readings,
    links: Links,
    board: StaticInfo,
    processes: ProcessLists,
    gpm: Gpm,
    pcie: PcieThroughput,
    accounts: Accounts,
}

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let (gpm, by_link) = (opening.is_on(GPM), opening.is_on(BY_LINK));
    let nvml = Nvml::builder().lib_path(opening.library.as_os_str()).init();
    let nvml = nvml.map_err(|error| refusal(&error))?;
    // Never freed: devices borrow it on threads that may hang for ever.
    let nvml: &'static Nvml = Box::leak(Box::new(nvml));
    let count = nvml.device_count().map_err(|error| refusal(&error))?;
    if count > MAX_DEVICES {
        let text = format!("the library counts {count} devices, more than there can be");
        return Err(OpenError { refusal: OpenErrorKind::Failed, text });
    }
    let sampler = opening.is_on(PCIE_SAMPLING).then(|| PcieSampler::start(nvml, count));
    let sampler = sampler.transpose().map_err(|error| OpenError {
        refusal: OpenErrorKind::Failed,
        text: format!("cannot start the thread that samples PCIe: {error}"),
    })?;
    let versions = Arc::new(identity::versions(nvml));
    let devices = (0..count).map(|index| {
        let versions = Arc::clone(&versions);
        let fields = Fields::new(versions.driver.as_deref());
        Box::new(NvidiaDevice {
            nvml,
            versions,
            index,
            device: None,
            identity: None,
            instances: Instances::default(),
            caller: NvmlCaller::of(index),
            fields,
            readings: Readings::default(),
            links: Links::new(by_link),
            board: StaticInfo::default(),
            processes: ProcessLists::default(),
            gpm: Gpm::new(nvml, gpm),
            pcie: PcieThroughput::new(sampler.clone()),
            accounts: Accounts::default(),
        }) as Box<dyn DeviceRead>
    });
    let close = Box::new(|| {
        // The process exits next, and the kernel closes what the library did not.
        let _ = sys::nvml::shutdown(nvml);
    });
    let events = Box::new(move || events::watch(nvml, count));
    let count = Box::new(|| nvml.device_count().ok().filter(|count| *count <= MAX_DEVICES));
    Ok(OpenLibrary { devices: devices.collect(), count, events, close })
}

fn refusal(error: &NvmlError) -> OpenError {
    let refusal = match error {
        NvmlError::LibloadingError(_) => OpenErrorKind::Unloadable,
        NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => OpenErrorKind::Absent,
        NvmlError::LibRmVersionMismatch => OpenErrorKind::Mismatch,
        NvmlError::NoPermission | NvmlError::OperatingSystem => OpenErrorKind::Forbidden,
        _ => OpenErrorKind::Failed,
    };
    OpenError { refusal, text: error.to_string() }
}

impl DeviceRead for NvidiaDevice {
    fn read(&mut self, _openers: &[u32]) -> Reading {
        let mut reading = Reading { asked_ns: boot_time_ns(), ..Reading::default() };
        self.read_into(&mut reading);
        reading.outcome = self.caller.outcome();
        if matches!(reading.outcome, Outcome::Lost(_) | Outcome::DriverGone(_)) {
            // A device that comes back has a new handle, and may have other capabilities.
            self.device = None;
            self.gpm.forget();
        }
        if reading.outcome != Outcome::Ok {
            reading.values.clear();
            reading.processes.clear();
            reading.instances.clear();
            // Their identity was not sent with this reading.
            self.instances = Instances::default();
        }
        reading.cost = self.caller.cost();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        reading.time_ns = u64::try_from(now.as_nanos()).unwrap_or_default();
        reading
    }

    fn time_calls(&mut self) {
        self.caller.time_calls();
    }

    fn times(&self) -> Vec<CallTimes> {
        self.caller.times().to_vec()
    }
}

impl NvidiaDevice {
    fn read_into(&mut self, reading: &mut Reading) {
        self.caller.begin(self.device.is_none());
        let (nvml, index) = (self.nvml, self.index);
        if self.device.is_none() {
            self.device = self.caller.call(Call::Handle, || nvml.device_by_index(index));
            self.identity = None;
        }
        let Some(device) = &self.device else { return };
        if self.identity.is_none() {
            self.identity = identity::read(device, index, &mut self.caller, &self.versions);
            reading.identity.clone_from(&self.identity);
            // The new handle's instances are identified again.
            self.instances = Instances::default();
            self.gpm.forget();
        }
        if let Some(identity) = &mut self.identity
            && identity::complete(device, &mut self.caller, identity)
        {
            reading.identity = Some(identity.clone());
        }
        let mode =
            self.caller.call(Call::MigMode, || device.mig_mode()).map(|mode| mode.current != 0);
        if let Some(identity) = &mut self.identity
            && mode.is_some()
            && mode != identity.mig
        {
            identity.mig = mode;
            self.caller.forget();
            self.instances = Instances::default();
            self.gpm.forget();
            reading.identity = Some(identity.clone());
        }
        self.fields.read(device, &mut self.caller);
        self.readings.read((device, &self.fields), &mut self.caller, &mut reading.values);
        self.links.read(&mut self.fields, &self.caller, &mut reading.values);
        let about = Board { device, fields: &self.fields, versions: &self.versions };
        self.board.read(about, &mut self.caller, &mut reading.values);
        if let Some(identity) = &mut self.identity
            && self.board.update(about, &mut self.caller, &mut identity.facts)
        {
            reading.identity = Some(identity.clone());
        }
        let mut instances = Vec::new();
        if self.identity.as_ref().is_some_and(|identity| identity.mig == Some(true)) {
            instances = self.instances.read(device, &mut self.caller, &mut reading.instances);
        }
        self.processes.read(device, &instances, &mut self.caller, reading);
        self.gpm.read(device, &instances, &mut self.caller, reading);
        if !self.gpm.is_supported() {
            self.pcie.read(index, &mut self.caller, &mut reading.values);
        }
        if self.board.has_accounting() {
            self.accounts.read(device, &mut self.caller, reading);
        } else {
            self.accounts.forget();
        }
        if self.caller.is_silent() {
            // It supports nothing that is read: querying its UUID shows whether it is still there.
            self.caller.call(Call::Uuid, || device.uuid());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::minor;

    #[test]
    fn only_a_device_s_own_node_has_its_minor() {
        for (node, expected) in [
            ("nvidia0", Some(0)),
            ("nvidia12", Some(12)),
            ("195:3", Some(3)),
            ("195:255", None),
            ("nvidiactl", None),
            ("nvidia-uvm", None),
            ("nvidia-caps/nvidia-cap1", None),
            ("235:3", None),
            ("dri/renderD128", None),
        ] {
            assert_eq!(minor(node), expected, "{node}");
        }
    }
}
