//! Reads AMD devices from the kernel driver's files (`amdgpu`, KFD); names that no file has
//! come from `libamd_smi.so`, where it is installed ([`supplement`]).
//!
//! A device is a PCI device bound to `amdgpu`. A reading is about twenty-five small sysfs files
//! and those of the processes with a KFD context ([`processes`]); for processes without one, the
//! `fdinfo` files of those that have a render node open. Files that block (`pcie_bw`) are never
//! read, and no file of a suspended device is: reading it would wake the device. Units are converted
//! to base units here.

pub(super) mod gpu_metrics;
mod kfd;
mod links;
mod processes;
mod ras;
mod readings;
pub(super) mod smi;
mod sources;
mod supplement;
mod throttle;

use super::fdinfo::Clients;
use super::files::Files;
use super::sysfs;
use super::wire::{InstanceIdentity, InstanceReading, Outcome, Reading, WireValue, push};
use super::{DeviceRead, OpenError, OpenLibrary, OpenOptions, Supplement, Vendor};
use gpu_metrics::Table;
use gpuwho_model::catalog::device::{self as metric, MemoryState};
use gpuwho_model::catalog::instance;
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::ids::Place;
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::facts::Fact;
use gpuwho_owners::inventory::{GpuInfo, InstanceExtent};
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use kfd::Part;
use processes::{Asked, ProcessList, Processes};
use readings::{Board, Pass, mean};
use rustix::thread::CapabilitySet;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SAMPLE: &str = r#"#: enabled = true
# The devices are read from the driver's files (amdgpu, KFD). The library adds names and numbers that a
# board has in no file: a process of its own asks it once and ends. A path, or a name to search for
# where distributions and ROCm put libraries.
#: library = "libamd_smi.so"
# The process that reads the files keeps CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, for the memory of graphics
# processes (/proc/PID/fdinfo); that of the library keeps no capability, and starts no program.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for.
#: retry = "30s"
"#;

pub(super) use throttle::BITS as THROTTLE_BITS;

pub(super) const VENDOR: Vendor = Vendor {
    name: "amd",
    supplement: Some(Supplement { library: smi::LIBRARY, start: supplement::start }),
    remedy: "load the kernel driver: modprobe amdgpu",
    nodes: VendorNodes {
        nodes: &["/dev/kfd", "/dev/dri/renderD*"],
        node_drivers: &["kfd", "drm"],
        drivers: &[DRIVER],
        is_device_node: |node| node.starts_with("dri/renderD") || node.starts_with("226:"),
        partition_nodes: kfd::partition_nodes,
        resources: &[("amd.com/", IdForm::Amd)],
        claims: &[("gpu.amd.com/", IdForm::DrmNodes)],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    // To read `fdinfo` of other users' processes.
    keeps: CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH),
    listed: |paths| sysfs::bound(paths, &[DRIVER]),
    source: sources::of,
    lists_processes: true,
    open,
    ..Vendor::DEFAULT
};

/// The driver's name on the PCI bus.
const DRIVER: &str = "amdgpu";
/// How a model begins whose name no file and no table has; its number follows.
const UNNAMED: &str = "AMD 0x";
/// Product names by PCI device id, used if the board's own data has none (`amdgpu_drv.c`, AMD's
/// `amdgpu.ids`).
const MODELS: &[(&str, &str)] = &[
    ("0x738c", "AMD Instinct MI100"),
    ("0x7408", "AMD Instinct MI250X"),
    ("0x740c", "AMD Instinct MI250X / MI250"),
    ("0x740f", "AMD Instinct MI210"),
    ("0x74a0", "AMD Instinct MI300A"),
    ("0x74a1", "AMD Instinct MI300X"),
    ("0x74a2", "AMD Instinct MI308X"),
    ("0x74a5", "AMD Instinct MI325X"),
    ("0x74a8", "AMD Instinct MI308X"),
    ("0x75a0", "AMD Instinct MI350X"),
    ("0x75a3", "AMD Instinct MI355X"),
];

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let (clients, list) = (Arc::new(Clients::default()), Arc::new(ProcessList::default()));
    let device = |(index, address, folder)| {
        let (paths, clients, list) = (paths.clone(), Arc::clone(&clients), Arc::clone(&list));
        let (files, board, known, had_any) = (Files::default(), Board::default(), None, false);
        let device = AmdDevice {
            paths,
            folder,
            address,
            index,
            files,
            known,
            board,
            had_any,
            clients,
            list,
        };
        Box::new(device) as Box<dyn DeviceRead>
    };
    let devices = sysfs::bound_devices(&paths, &[DRIVER]).map(device).collect();
    sysfs::library(devices, &paths, VENDOR.listed, &sysfs::unbound(&[DRIVER]))
}

/// One device.
struct AmdDevice {
    paths: Paths,
    folder: PathBuf,
    address: String,
    index: u32,
    files: Files,
    /// The device and its partitions as last read.
    known: Option<StaticFacts>,
    board: Board,
    had_any: bool,
    /// Shared by all devices, as is the list of KFD's processes.
    clients: Arc<Clients>,
    list: Arc<ProcessList>,
}

/// What rarely changes about a device.
struct StaticFacts {
    /// The topology's generation at which it was read.
    generation: Option<String>,
    /// The device was suspended, so that some facts are not read yet.
    was_asleep: bool,
    info: GpuInfo,
    parts: Vec<Part>,
    processes: Processes,
}

impl DeviceRead for AmdDevice {
    fn read(&mut self, openers: &[u32]) -> Reading {
        let mut reading = sysfs::begin(&mut self.files);
        reading.outcome = self.read_into(openers, &mut reading);
        sysfs::check_telemetry(&mut reading, &mut self.had_any);
        if reading.outcome != Outcome::Ok {
            self.known = None;
        }
        sysfs::end(&self.files, reading)
    }
}

impl AmdDevice {
    fn read_into(&mut self, openers: &[u32], reading: &mut Reading) -> Outcome {
        if let Some(why) = sysfs::lost(&self.folder, &self.address, &[DRIVER]) {
            return Outcome::Lost(why);
        }
        // The files of KFD and of the identity do not wake the device: the driver has their text.
        let is_asleep = sysfs::is_suspended(&self.folder, &mut self.files);
        let generation = self.files.text(&kfd::generation(&self.paths));
        let is_new = generation.is_none()
            || self.known.as_ref().is_none_or(|known| {
                known.generation != generation || (known.was_asleep && !is_asleep)
            });
        if is_new {
            let parts = kfd::parts(&self.paths, &self.folder, &self.address);
            let info = self.identity(&parts, is_asleep);
            reading.identity = Some(info.clone());
            self.board.renew();
            let processes = Processes::default();
            self.known =
                Some(StaticFacts { generation, was_asleep: is_asleep, info, parts, processes });
        }
        let parts = self.known.as_ref().map_or_else(Vec::new, |known| known.parts.clone());
        push(&mut reading.values, &metric::INFO, (), Some(1));
        if is_asleep {
            return Outcome::Ok;
        }
        let (out, now_ns) = (&mut reading.values, reading.asked_ns);
        let mut pass = Pass { folder: &self.folder, files: &mut self.files, out, now_ns };
        let Ok(table) = self.board.read(&mut pass) else {
            return sysfs::outcome(reading, &self.files);
        };
        if let [_, _, ..] = parts.as_slice() {
            reading.instances = self.partitions(&parts, is_new, table.as_ref());
        }
        self.processes(&parts, openers, reading);
        Outcome::Ok
    }

    /// The partitions of a partitioned device.
    fn partitions(
        &mut self,
        parts: &[Part],
        is_new: bool,
        table: Option<&Table>,
    ) -> Vec<InstanceReading> {
        let Some(known) = &self.known else { return Vec::new() };
        let uuid = known.info.uuid.clone();
        let profile =
            is_new.then(|| self.files.text(&self.folder.join("current_compute_partition")));
        let whole = u32::try_from(parts.len()).ok();
        let one = |(number, part): (u32, &Part)| {
            let place = place(number);
            let identity = profile.clone().map(|profile| InstanceIdentity {
                uuid: GpuUuid::new(&format!("{uuid}-xcp{number}")),
                profile: profile.map(|mode| mode.to_lowercase()),
                extent: InstanceExtent {
                    device_slices: whole,
                    gpu_slices: Some(1),
                    compute_slices: Some(1),
                    multiprocessors: part.units,
                    memory: part.memory,
                },
            });
            let mut values = Vec::new();
            push(&mut values, &instance::INFO, (), Some(1));
            push(&mut values, &instance::UTILIZATION, (), table.and_then(|of| busy(of, number)));
            InstanceReading { place, identity, values }
        };
        (0..).zip(parts).map(one).collect()
    }

    fn processes(&mut self, parts: &[Part], openers: &[u32], reading: &mut Reading) {
        let out = &mut reading.processes;
        if let Some(known) = &mut self.known {
            let (device, at_ns) = (self.index, reading.asked_ns);
            let of = |value: &WireValue| value.int(&metric::MEMORY_USAGE, MemoryState::Used);
            let used = reading.values.iter().find_map(of);
            let asked = Asked { device, at_ns, used, paths: &self.paths, list: &self.list };
            known.processes.read(&asked, parts, &mut self.files, out);
        }
        if self.clients.refresh(&self.paths, openers, reading.asked_ns, &mut self.files) {
            self.clients.on(&self.address, self.board.is_integrated, out);
        }
        let pids: BTreeSet<u32> = out.iter().map(|on| on.pid).collect();
        let count = i64::try_from(pids.len()).ok();
        push(&mut reading.values, &metric::PROCESS_COUNT, (), count);
    }

    fn identity(&mut self, parts: &[Part], is_asleep: bool) -> GpuInfo {
        let mut text = |file: &str| self.files.text(&self.folder.join(file));
        let device = text("device");
        let model = text("product_name");
        let model = model.or_else(|| device.map(|id| sysfs::model("AMD", MODELS, &id)));
        let mut info = GpuInfo {
            nodes: parts.iter().flat_map(Part::nodes).collect(),
            placed: Some(GpuUuid::new(&format!("GPU-{}", self.address))),
            model,
            pci_address: Some(self.address.to_ascii_lowercase()),
            serial: text("serial_number"),
            ..GpuInfo::new(uuid(&self.folder, &self.address), VENDOR.name, self.index)
        };
        info.facts.set(Fact::Vbios, text("vbios_version"));
        info.facts.set(Fact::Part, text("product_number"));
        info.facts.set(Fact::FabricCluster, text("xgmi_hive_info/xgmi_hive_id"));
        if !is_asleep {
            info.facts.set(Fact::ComputePartition, text("current_compute_partition"));
            info.facts.set(Fact::MemoryPartition, text("current_memory_partition"));
        }
        info.driver_version = sysfs::version(&self.paths, DRIVER, &mut self.files);
        info
    }
}

/// The id of a board: its own, else its address.
fn uuid(folder: &Path, address: &str) -> GpuUuid {
    let unique = kfd::unique_id(folder);
    let id = unique.map_or_else(|| format!("GPU-{address}"), |id| format!("GPU-{id:016x}"));
    GpuUuid::new(&id)
}

/// The busy fraction of a partition's engines; `None` if one of them has no percentage.
fn busy(table: &Table, number: u32) -> Option<f64> {
    let engines = table.partition(usize::try_from(number).ok()?);
    let percent = |percent: u64| u8::try_from(percent).ok().filter(|percent| *percent <= 100);
    let engines: Option<Vec<_>> =
        engines.map(|each| percent(each).map(|percent| f64::from(percent) / 100.0)).collect();
    mean(&engines?)
}

/// The place of a partition.
fn place(number: u32) -> Place {
    Place { gpu_instance: number, compute_instance: None }
}
