//! Reads AMD devices from the kernel driver's files (`amdgpu`, KFD), without a library.
//!
//! A device is a PCI device bound to `amdgpu`. A reading is about twenty-five small sysfs files
//! and, for each process with a KFD context, one for each partition of the device; for processes
//! without a KFD context, the `fdinfo` files of those that have a render node open. Files that
//! block (`pcie_bw`) are never read, and no file of a suspended device is: reading it would wake
//! the device. Units are converted to base units here.

mod kfd;
mod sources;

use super::fdinfo::Clients;
use super::files::{Files, numbered};
use super::wire::{
    InstanceIdentity, InstanceReading, OpenErrorKind, Outcome, Place, Reading, WireValue, push,
};
use super::{DeviceRead, OpenError, OpenLibrary, OpenOptions, Vendor};
use crate::catalog::device::{self as metric, Clock, Limit, MemoryState, Sensor, Task};
use crate::catalog::{instance, wear};
use crate::host::boot_time_ns;
use crate::ids::{GpuUuid, PciAddress};
use crate::inventory::facts::Fact;
use crate::inventory::{GpuInfo, InstanceExtent};
use crate::paths::Paths;
use kfd::Part;
use rustix::thread::CapabilitySet;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const SAMPLE: &str = r#"#: enabled = true
# There is no library to name. The process that reads the driver's files (amdgpu, KFD) keeps
# CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, for the memory of graphics processes (/proc/PID/fdinfo).
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "amd",
    library: None,
    drivers: &[DRIVER],
    nodes: &["/dev/kfd", "/dev/dri/renderD*"],
    node_drivers: &["kfd", "drm"],
    sample: SAMPLE,
    switches: &[],
    // To read `fdinfo` of other users' processes.
    keeps: CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH),
    listed,
    is_device_node: |node| node.starts_with("dri/renderD") || node.starts_with("226:"),
    partition_nodes: kfd::partition_nodes,
    events: None,
    source: sources::of,
    function: |file| file,
    lists_processes: true,
    served: None,
    is_through_vfio: None,
    open,
};

/// The driver's name on the PCI bus.
const DRIVER: &str = "amdgpu";
/// No host has more devices; a longer listing is not the kernel's.
const MAX_DEVICES: usize = 256;
/// Product names by PCI device id, used if the board's own data has none (`amdgpu_drv.c`, AMD's
/// `amdgpu.ids`).
const MODELS: &[(&str, &str)] = &[
    ("0x738c", "AMD Instinct MI100"),
    ("0x7408", "AMD Instinct MI250X"),
    ("0x740c", "AMD Instinct MI250X / MI250"),
    ("0x740f", "AMD Instinct MI210"),
    ("0x74a0", "AMD Instinct MI300A"),
    ("0x74a1", "AMD Instinct MI300X"),
    ("0x74a5", "AMD Instinct MI325X"),
    ("0x75a0", "AMD Instinct MI350X"),
    ("0x75a3", "AMD Instinct MI355X"),
];
/// Offset of the energy counter by revision of `gpu_metrics` 1.x (`kgd_pp_interface.h`). It is
/// elsewhere in 1.5 and in 1.9.
const ENERGY_AT: &[(u8, usize)] = &[(3, 24), (4, 24), (6, 16), (7, 24), (8, 24)];
/// Joules per step of that counter: 2^-16.
const ENERGY_STEP: f64 = 1.0 / 65536.0;
/// Divisors for files in millionths, thousandths and hundredths.
const MICRO: f64 = 1e6;
const MILLI: f64 = 1e3;
const PERCENT: f64 = 100.0;

/// The driver's devices by their PCI addresses.
fn listed(paths: &Paths) -> BTreeSet<OsString> {
    let entries = fs::read_dir(paths.sys.join("bus/pci/drivers").join(DRIVER));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_device = |name: &OsString| name.to_str().and_then(PciAddress::parse).is_some();
    names.filter(is_device).take(MAX_DEVICES).collect()
}

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let addresses = listed(&paths);
    if addresses.is_empty() {
        let text = format!("no device is bound to {DRIVER}");
        return Err(OpenError { refusal: OpenErrorKind::Absent, text });
    }
    let clients = Arc::new(Clients::default());
    let devices = (0..).zip(&addresses).map(|(index, address)| {
        let address = address.to_string_lossy().into_owned();
        let folder = paths.sys.join("bus/pci/devices").join(&address);
        let (paths, clients) = (paths.clone(), Arc::clone(&clients));
        let files = Files::default();
        let device = AmdDevice { paths, folder, address, index, files, known: None, clients };
        Box::new(device) as Box<dyn DeviceRead>
    });
    let devices = devices.collect();
    let count = Box::new(move || u32::try_from(listed(&paths).len()).ok());
    let events = Box::new(|| Err("the driver's files have no events".to_owned()));
    Ok(OpenLibrary { devices, count, events, close: Box::new(|| {}) })
}

/// One device.
struct AmdDevice {
    paths: Paths,
    folder: PathBuf,
    address: String,
    index: u32,
    files: Files,
    /// The topology generation, the device and its partitions as read at it.
    known: Option<(Option<String>, GpuInfo, Vec<Part>)>,
    /// Shared by all devices.
    clients: Arc<Clients>,
}

impl DeviceRead for AmdDevice {
    fn read(&mut self, openers: &[u32]) -> Reading {
        let mut reading = Reading { asked_ns: boot_time_ns(), ..Reading::default() };
        self.files.begin();
        reading.outcome = self.read_into(openers, &mut reading);
        if reading.outcome != Outcome::Ok {
            self.known = None;
            reading.values.clear();
            reading.instances.clear();
            reading.processes.clear();
        }
        reading.cost = self.files.cost();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        reading.time_ns = u64::try_from(now.as_nanos()).unwrap_or_default();
        reading
    }
}

impl AmdDevice {
    fn read_into(&mut self, openers: &[u32], reading: &mut Reading) -> Outcome {
        let driver = fs::read_link(self.folder.join("driver"));
        if !driver.is_ok_and(|driver| driver.ends_with(DRIVER)) {
            return Outcome::Lost(format!("nothing at {} is bound to {DRIVER}", self.address));
        }
        let generation = self.files.text(&kfd::generation(&self.paths));
        let is_new = generation.is_none()
            || self.known.as_ref().is_none_or(|(known, ..)| *known != generation);
        if is_new {
            let parts = kfd::parts(&self.paths, &self.folder, &self.address);
            let info = self.identity(&parts);
            reading.identity = Some(info.clone());
            self.known = Some((generation, info, parts));
        }
        let parts = self.known.as_ref().map_or_else(Vec::new, |(.., parts)| parts.clone());
        let out = &mut reading.values;
        push(out, &metric::INFO, (), Some(1));
        // Reading this file does not wake the device.
        let power = self.files.text(&self.folder.join("power/runtime_status"));
        if power.as_deref() == Some("suspended") {
            return Outcome::Ok;
        }
        self.load(out);
        self.board(out);
        let read_any = out.len() > 1;
        if let [_, _, ..] = parts.as_slice() {
            reading.instances = self.partitions(&parts, is_new);
        }
        self.processes(&parts, openers, reading);
        if read_any {
            Outcome::Ok
        } else {
            Outcome::Failing(self.files.why().unwrap_or("no file can be read").to_owned())
        }
    }

    /// Utilisation and memory.
    fn load(&mut self, out: &mut Vec<WireValue>) {
        let busy = self.ratio("gpu_busy_percent");
        push(out, &metric::UTILIZATION, Task::General, busy);
        let busy = self.ratio("mem_busy_percent");
        push(out, &metric::MEMORY_BANDWIDTH_UTILIZATION, (), busy);
        let total = self.number("mem_info_vram_total").filter(|total| *total > 0);
        let used = self.number("mem_info_vram_used");
        let bytes = |count: u64| i64::try_from(count).ok();
        push(out, &metric::MEMORY_LIMIT, (), total.and_then(bytes));
        if let (Some(total), Some(used)) = (total, used) {
            let free = self.files.count_implausible(total.checked_sub(used));
            let used = free.and(bytes(used));
            push(out, &metric::MEMORY_USAGE, MemoryState::Used, used);
            push(out, &metric::MEMORY_USAGE, MemoryState::Free, free.and_then(bytes));
        }
        for (file, metric) in
            [("current_link_width", &wear::PCIE_WIDTH), ("max_link_width", &wear::PCIE_WIDTH_LIMIT)]
        {
            let lanes = self.number(file).filter(|lanes| (1..=32).contains(lanes));
            push(out, metric, (), lanes.and_then(bytes));
        }
        push(out, &wear::PCIE_REPLAYS, (), self.number("pcie_replay_count").and_then(bytes));
    }

    /// Power, energy, temperatures and clocks from `hwmon`.
    fn board(&mut self, out: &mut Vec<WireValue>) {
        let Some((_, hwmon)) = numbered(&self.folder.join("hwmon"), "hwmon").pop() else { return };
        let mut read = |file: &str, divisor: f64| {
            let number = self.files.number(&hwmon.join(file))?;
            #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
            Some(number as f64 / divisor)
        };
        // Newer boards have the current power (MI300), older ones its average (MI200), some both.
        let average = read("power1_average", MICRO);
        let now = read("power1_input", MICRO);
        push(out, &metric::POWER, (), now.or(average));
        push(out, &metric::POWER_AVERAGE, (), average);
        for (file, limit) in [
            ("power1_cap", Limit::Management),
            ("power1_cap_default", Limit::Default),
            ("power1_cap_min", Limit::Minimum),
            ("power1_cap_max", Limit::Maximum),
        ] {
            push(out, &metric::POWER_LIMIT, limit, read(file, MICRO));
        }
        for (file, clock) in [("freq1_input", Clock::Graphics), ("freq2_input", Clock::Memory)] {
            push(out, &metric::CLOCK_SPEED, clock, read(file, 1.0));
        }
        let energy = read("energy1_input", MICRO);
        let mut sensor = |label: &str| {
            let mut labels = (1..=3).map(|n| (n, hwmon.join(format!("temp{n}_label"))));
            let (n, _) =
                labels.find(|(_, file)| self.files.text(file).as_deref() == Some(label))?;
            let number = self.files.signed(&hwmon.join(format!("temp{n}_input")))?;
            #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
            Some(number as f64 / MILLI)
        };
        // MI300 has no edge sensor: its only die temperature is the hotspot.
        let hotspot = sensor("junction");
        let edge = sensor("edge").or(hotspot);
        let memory = sensor("mem");
        push(out, &metric::TEMPERATURE, Sensor::Gpu, edge);
        push(out, &metric::TEMPERATURE, Sensor::Hotspot, hotspot);
        push(out, &metric::TEMPERATURE, Sensor::Memory, memory);
        push(out, &metric::ENERGY, (), energy.or_else(|| self.energy()));
    }

    /// The energy counter in the driver's metrics table, for the revisions known to have it.
    fn energy(&mut self) -> Option<f64> {
        let table = self.files.bytes(&self.folder.join("gpu_metrics"))?;
        let [low, high, format, revision, ..] = *table.as_slice() else { return None };
        let is_whole = usize::from(u16::from_le_bytes([low, high])) == table.len();
        let (_, at) = ENERGY_AT.iter().find(|(known, _)| *known == revision)?;
        let counter = table.get(*at..at + 8).filter(|_| is_whole && format == 1)?;
        let counter = u64::from_le_bytes(counter.try_into().ok()?);
        #[expect(clippy::cast_precision_loss, reason = "a double has the joules of years")]
        (counter != u64::MAX).then_some(counter as f64 * ENERGY_STEP)
    }

    /// The partitions of a partitioned device.
    fn partitions(&mut self, parts: &[Part], is_new: bool) -> Vec<InstanceReading> {
        let Some((_, device, _)) = &self.known else { return Vec::new() };
        let uuid = device.uuid.clone();
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
            InstanceReading { place, identity, values }
        };
        (0..).zip(parts).map(one).collect()
    }

    fn processes(&mut self, parts: &[Part], openers: &[u32], reading: &mut Reading) {
        let out = &mut reading.processes;
        kfd::processes(&self.paths, parts, &mut self.files, out);
        self.clients.refresh(&self.paths, openers, reading.asked_ns, &mut self.files);
        self.clients.on(&self.address, out);
        let pids: BTreeSet<u32> = out.iter().map(|on| on.pid).collect();
        let count = i64::try_from(pids.len()).ok();
        push(&mut reading.values, &metric::PROCESS_COUNT, (), count);
    }

    fn identity(&mut self, parts: &[Part]) -> GpuInfo {
        let mut text = |file: &str| self.files.text(&self.folder.join(file));
        let unique = kfd::unique_id(&self.folder);
        let id =
            unique.map_or_else(|| format!("GPU-{}", self.address), |id| format!("GPU-{id:016x}"));
        let device = text("device");
        let known = |id: &str| MODELS.iter().find(|(known, _)| *known == id).map(|row| row.1);
        let named = device.as_deref().and_then(known).map(str::to_owned);
        let model = text("product_name").or(named).or(device.map(|id| format!("AMD {id}")));
        let mut info = GpuInfo {
            nodes: parts.iter().flat_map(Part::nodes).collect(),
            model,
            pci_address: Some(self.address.to_ascii_lowercase()),
            serial: text("serial_number"),
            ..GpuInfo::new(GpuUuid::new(&id), VENDOR.name, self.index)
        };
        info.facts.set(Fact::Vbios, text("vbios_version"));
        info.facts.set(Fact::Part, text("product_number"));
        // The out-of-tree driver has its own version; otherwise the kernel's release is the
        // version.
        let own = self.files.text(&self.paths.sys.join("module/amdgpu/version"));
        let kernel = || self.files.text(&self.paths.proc.join("sys/kernel/osrelease"));
        info.driver_version = own.or_else(kernel);
        info
    }

    fn number(&mut self, file: &str) -> Option<u64> {
        self.files.number(&self.folder.join(file))
    }

    /// A percentage as a fraction, if it is at most 100.
    fn ratio(&mut self, file: &str) -> Option<f64> {
        let percent = self.number(file)?;
        let percent = self
            .files
            .count_implausible(u8::try_from(percent).ok().filter(|percent| *percent <= 100));
        percent.map(|percent| f64::from(percent) / PERCENT)
    }
}

/// The place of a partition.
fn place(number: u32) -> Place {
    Place { gpu_instance: number, compute_instance: None }
}
