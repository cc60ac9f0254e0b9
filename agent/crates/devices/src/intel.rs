//! Reads Intel GPUs (Arc, Flex, Max) from the files of their kernel drivers, `i915` and `xe`.
//!
//! A reading is about fifteen small files of sysfs and `hwmon`, and the `fdinfo` files of processes
//! that have a render node open, from which come the memory of processes and the busy time of
//! processes and device. No file of a suspended device is read: that would wake it. Files: the kernel's
//! `Documentation/ABI/testing/sysfs-driver-intel-{i915,xe}-hwmon`, `Documentation/gpu/
//! drm-usage-stats.rst`, `xe_gt_freq.c`, `xe_gt_throttle.c`, `i915/gt/intel_gt_sysfs_pm.c`,
//! `i915_hwmon.c` (Linux 6.16); not tried on hardware.

use super::cached::Cached;
use super::fdinfo::{Clients, Times};
use super::files::{Files, named, numbered};
use super::sysfs::{self, FileDevice, Hwmon, Link, MEGA, MICRO, ReadFiles, Source};
use super::wire::{Outcome, ProcessValue, Reading, WireValue, push};
use super::{OpenError, OpenLibrary, OpenOptions, Vendor};
use gpuwho_model::catalog::device::{
    self as metric, Clock, Limit, Sensor, Task, ThrottleReason as Reason,
};
use gpuwho_model::catalog::process::{self, ProcessTask};
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SAMPLE: &str = r#"#: enabled = true
# There is no library to name. The process that reads the driver's files (i915, xe) keeps
# CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, for the memory and the busy time of processes
# (/proc/PID/fdinfo).
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "intel",
    remedy: "load the kernel driver: modprobe xe, or modprobe i915 for older devices",
    nodes: VendorNodes {
        nodes: &["/dev/dri/renderD*"],
        node_drivers: &["drm"],
        drivers: DRIVERS,
        is_device_node: |node| node.starts_with("dri/renderD") || node.starts_with("226:"),
        resources: &[("gpu.intel.com/", IdForm::DrmCard)],
        claims: &[("gpu.intel.com/", IdForm::PciAndModel)],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    // To read `fdinfo` of other users' processes.
    keeps: CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH),
    listed: |paths| sysfs::bound(paths, DRIVERS),
    source: |def| sysfs::source_of(&sources(), &without(), def, "no file of the drivers has it"),
    lists_processes: true,
    open,
    ..Vendor::DEFAULT
};

/// Product names by PCI device id, as `pci.ids` has them; the others have their number.
const MODELS: &[(&str, &str)] = &[
    ("0x0bd5", "Intel Data Center GPU Max 1550"),
    ("0x0bda", "Intel Data Center GPU Max 1100"),
    ("0x56a0", "Intel Arc A770"),
    ("0x56c0", "Intel Data Center GPU Flex 170"),
    ("0x56c1", "Intel Data Center GPU Flex 140"),
    ("0xe20b", "Intel Arc B580"),
    ("0xe211", "Intel Arc Pro B60"),
];

/// The drivers' names on the bus.
const DRIVERS: &[&str] = &["i915", "xe"];
/// Reasons that hold the clocks down, as the files end (`throttle_reason_pl1` of i915, `reason_pl1`
/// of xe). Each file is 1 while its reason holds. The last nine are those that xe has of its newest
/// devices (`xe_gt_throttle.c`, `cri_throttle_attrs`).
pub(super) const THROTTLE: &[(&str, Reason)] = &[
    ("pl1", Reason::PowerCap),
    ("pl2", Reason::PowerCap),
    ("pl4", Reason::PowerCap),
    ("thermal", Reason::Thermal),
    ("prochot", Reason::HardwareThermal),
    ("ratl", Reason::Reliability),
    ("vr_thermalert", Reason::RegulatorThermal),
    ("vr_tdc", Reason::CurrentLimit),
    ("soc_thermal", Reason::Thermal),
    ("soc_avg_thermal", Reason::Thermal),
    ("mem_thermal", Reason::MemoryThermal),
    ("vr_thermal", Reason::RegulatorThermal),
    ("iccmax", Reason::CurrentLimit),
    ("fastvmode", Reason::CurrentLimit),
    ("psys_pl1", Reason::BoardLimit),
    ("psys_pl2", Reason::BoardLimit),
    ("psys_crit", Reason::BoardLimit),
];
/// Files of the same form that are no reason: whether there is any.
const NO_REASON: &str = "status";
/// Files by which the sensors' folder is found; i915 can make one with energy alone (`hwm_gt_is_visible`).
const SENSORS: &[&str] =
    &["energy1_input", "energy2_input", "power1_max", "power2_max", "temp1_input", "temp2_input"];
/// Engine classes of work by the drivers' names: i915's, then xe's.
const VIDEO: &[&str] = &["video", "video-enhance", "vcs", "vecs"];

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let clients = Arc::new(Clients::default());
    let device = |(index, address, folder)| {
        let (paths, clients) = (paths.clone(), Arc::clone(&clients));
        let (last, link, memory) = (None, Link::default(), Cached::default());
        FileDevice::boxed(Gpu { paths, folder, address, index, clients, last, link, memory })
    };
    let devices = sysfs::bound_devices(&paths, DRIVERS).map(device).collect();
    sysfs::library(devices, &paths, VENDOR.listed, &sysfs::unbound(DRIVERS))
}

/// One device.
struct Gpu {
    paths: Paths,
    folder: PathBuf,
    address: String,
    index: u32,
    /// Shared by all devices.
    clients: Arc<Clients>,
    /// The engines' times as last read, and when, in nanoseconds of the boot clock.
    last: Option<(u64, Times)>,
    link: Link,
    memory: Cached<30>,
}

impl Gpu {
    /// The folders with the files of each part of the device that has clocks of its own.
    fn parts(&self) -> Vec<Part> {
        let tiles = numbered(&self.folder, "tile").into_iter();
        let of_xe = tiles.flat_map(|(_, tile)| numbered(&tile, "gt")).map(|(_, gt)| Part {
            clock: gt.join("freq0/act_freq"),
            limit: gt.join("freq0/rp0_freq"),
            reasons: named(&gt.join("freq0/throttle"), "reason_"),
        });
        let cards = || numbered(&self.folder.join("drm"), "card").into_iter();
        let of_i915 =
            cards().flat_map(|(_, card)| numbered(&card.join("gt"), "gt")).map(|(_, gt)| Part {
                clock: gt.join("rps_act_freq_mhz"),
                limit: gt.join("rps_RP0_freq_mhz"),
                reasons: named(&gt, "throttle_reason_"),
            });
        let mut parts: Vec<_> = of_xe.chain(of_i915).take(MAX_PARTS).collect();
        if parts.is_empty() {
            // Before Linux 5.18 the card has the files of its only unit (`i915_sysfs.c`).
            parts.extend(cards().take(1).map(|(_, card)| Part {
                clock: card.join("gt_act_freq_mhz"),
                limit: card.join("gt_RP0_freq_mhz"),
                reasons: Vec::new(),
            }));
        }
        parts
    }

    /// Clocks of the fastest part, and the reasons of any.
    fn clocks(&self, files: &mut Files, out: &mut Vec<WireValue>) {
        let parts = self.parts();
        let mut fastest = |file: fn(&Part) -> &Path| {
            let all = parts.iter().filter_map(|part| files.number(file(part)));
            #[expect(clippy::cast_precision_loss, reason = "megahertz")]
            all.max().map(|mhz| mhz as f64 * MEGA)
        };
        let [now, limit] = [fastest(|part| &part.clock), fastest(|part| &part.limit)];
        push(out, &metric::CLOCK_SPEED, Clock::Graphics, now);
        push(out, &metric::CLOCK_LIMIT, Clock::Graphics, limit);
        let mut reasons: BTreeMap<&str, (Reason, bool)> = BTreeMap::new();
        let all = parts.iter().flat_map(|part| &part.reasons);
        for (name, file) in all.filter(|(name, _)| name != NO_REASON) {
            let Some(active) = files.number(file) else { continue };
            let known = THROTTLE.iter().find(|(known, _)| known == name);
            let reason = known.map_or(Reason::Other, |(_, reason)| *reason);
            reasons.entry(reason.as_str()).or_insert((reason, false)).1 |= active != 0;
        }
        for (reason, active) in reasons.into_values() {
            push(out, &metric::THROTTLE_ACTIVE, reason, Some(i64::from(active)));
        }
    }

    /// Memory of all tiles. The file is of xe before it came to Linux and of Intel's own builds of it
    /// (`physical_vram_size_bytes_show`); Linux 6.8 and later have none.
    fn memory(&mut self, files: &mut Files, out: &mut Vec<WireValue>) {
        let folder = &self.folder;
        self.memory.read(out, |out| {
            let tiles = numbered(folder, "tile").into_iter().take(MAX_PARTS);
            let bytes = tiles.map(|(_, tile)| files.number(&tile.join("physical_vram_size_bytes")));
            // A sum without one tile is another sum.
            let bytes: Option<Vec<u64>> = bytes.collect();
            let bytes = bytes.map(|tiles| tiles.into_iter().fold(0, u64::saturating_add));
            let bytes = bytes.filter(|bytes| *bytes > 0).and_then(|sum| i64::try_from(sum).ok());
            push(out, &metric::MEMORY_LIMIT, (), bytes);
        });
    }

    /// Busy time since the last reading, of the device and of each process: over the engine class that
    /// was busiest.
    fn utilization(&mut self, reading: &mut Reading) {
        let (now_ns, now) = self.clients.engines(&self.address);
        let Some((then_ns, then)) = self.last.replace((now_ns, now.clone())) else { return };
        let passed = now_ns.saturating_sub(then_ns);
        if passed == 0 {
            return;
        }
        let busy = Busy::since(&now, &then, passed);
        let (out, video) = (&mut reading.values, busy.most(true));
        push(out, &metric::UTILIZATION, Task::General, Some(busy.most(false).max(video)));
        push(out, &metric::UTILIZATION, Task::Video, Some(video));
        reading.processes.extend(busy.processes.into_iter().filter_map(|(pid, busy)| {
            let value = WireValue::new(&process::UTILIZATION, ProcessTask::Sm, busy)?;
            Some(ProcessValue { pid, place: None, value })
        }));
    }
}

/// Busy fractions since an earlier reading.
struct Busy<'a> {
    /// Of the device's engines, by class.
    engines: BTreeMap<&'a str, f64>,
    /// Of processes, over the class of engines that each kept busiest.
    processes: BTreeMap<u32, f64>,
}

impl<'a> Busy<'a> {
    /// `passed`: nanoseconds since then.
    fn since(now: &'a Times, then: &Times, passed: u64) -> Self {
        let mut engines: BTreeMap<&str, f64> = BTreeMap::new();
        let mut of: BTreeMap<(u32, &str), f64> = BTreeMap::new();
        for (client, (pid, time)) in now {
            // What a new client did before it was first read may be older.
            let Some((_, before)) = then.get(client) else { continue };
            let (engine, more) = (client.1.as_str(), time.busy_since(before, passed));
            *engines.entry(engine).or_default() += more;
            *of.entry((*pid, engine)).or_default() += more;
        }
        let mut processes: BTreeMap<u32, f64> = BTreeMap::new();
        for ((pid, _), busy) in of {
            let most = processes.entry(pid).or_default();
            *most = most.max(busy.min(1.0));
        }
        Self { engines, processes }
    }

    /// Of the busiest class of the engines that are for video, or that are not.
    fn most(&self, is_video: bool) -> f64 {
        let of = self.engines.iter().filter(|(engine, _)| VIDEO.contains(engine) == is_video);
        of.map(|(_, busy)| busy.min(1.0)).fold(0.0, f64::max)
    }
}

/// More than the tiles and engines' groups of any device.
const MAX_PARTS: usize = 16;

/// The files of one part of a device.
struct Part {
    clock: PathBuf,
    limit: PathBuf,
    /// The files of the reasons, by name.
    reasons: Vec<(String, PathBuf)>,
}

impl ReadFiles for Gpu {
    fn identity(&mut self, files: &mut Files) -> GpuInfo {
        let render = numbered(&self.folder.join("drm"), "renderD").into_iter().next();
        let nodes = render.map_or_else(Vec::new, |(minor, folder)| {
            sysfs::nodes(format!("dri/renderD{minor}"), &folder, files)
        });
        let id = files.text(&self.folder.join("device"));
        let driver = sysfs::driver(&self.folder).unwrap_or_default();
        GpuInfo {
            nodes,
            model: Some(
                id.map_or_else(|| "Intel".to_owned(), |id| sysfs::model("Intel", MODELS, &id)),
            ),
            pci_address: Some(self.address.to_ascii_lowercase()),
            driver_version: sysfs::version(&self.paths, &driver, files),
            ..GpuInfo::new(GpuUuid::new(&format!("GPU-{}", self.address)), VENDOR.name, self.index)
        }
    }

    fn is_lost(&mut self, _: &mut Files) -> Option<String> {
        sysfs::lost(&self.folder, &self.address, DRIVERS)
    }

    fn values(&mut self, files: &mut Files, openers: &[u32], reading: &mut Reading) -> Outcome {
        let out = &mut reading.values;
        push(out, &metric::INFO, (), Some(1));
        if sysfs::is_suspended(&self.folder, files) {
            self.last = None;
            return Outcome::Ok;
        }
        self.clocks(files, out);
        let mut hwmon = Hwmon::of(&self.folder, SENSORS, files);
        // The card's where it has both: the package's are part of it.
        let first = |hwmon: &mut Hwmon<'_>, names: [&str; 2]| {
            names.into_iter().find_map(|name| hwmon.scaled(name, MICRO))
        };
        let energy = first(&mut hwmon, ["energy1_input", "energy2_input"]);
        push(out, &metric::ENERGY, (), energy);
        // 0: the limit is off.
        let limit = first(&mut hwmon, ["power1_max", "power2_max"]).filter(|watts| *watts > 0.0);
        push(out, &metric::POWER_LIMIT, Limit::Management, limit);
        let rated = first(&mut hwmon, ["power1_rated_max", "power2_rated_max"]);
        push(out, &metric::POWER_LIMIT, Limit::Default, rated.filter(|watts| *watts > 0.0));
        // i915 has the package's first, xe second.
        let package = ["temp2_input", "temp1_input"];
        let package = package.into_iter().find_map(|name| hwmon.degrees(name));
        push(out, &metric::TEMPERATURE, Sensor::Gpu, package);
        push(out, &metric::TEMPERATURE, Sensor::Memory, hwmon.degrees("temp3_input"));
        self.link.read(&self.folder, files, out);
        let mut count = None;
        if self.clients.refresh(&self.paths, openers, reading.asked_ns, files) {
            // Before their busy time: what is listed already has no memory here.
            self.clients.on(&self.address, false, &mut reading.processes);
            self.utilization(reading);
            count = i64::try_from(self.clients.processes(&self.address)).ok();
        }
        let outcome = sysfs::outcome(reading, files);
        self.link.limits(&self.folder, files, &mut reading.values);
        self.memory(files, &mut reading.values);
        push(&mut reading.values, &metric::PROCESS_COUNT, (), count);
        outcome
    }
}

/// The file behind each metric.
fn sources() -> Vec<Source> {
    let own = [
        (metric::INFO.def(), "PCI address, `device`"),
        (metric::STATE.def(), "the link `driver`, the reader's deadline"),
        (
            metric::UTILIZATION.def(),
            "`drm-engine-*`, or `drm-cycles-*` of `drm-total-cycles-*`, of the openers' `fdinfo`, since the last reading: the busiest class of engines",
        ),
        (
            metric::TEMPERATURE.def(),
            "hwmon `temp2_input`, memory `temp3_input` (xe); `temp1_input` (i915; m°C)",
        ),
        (
            metric::MEMORY_LIMIT.def(),
            "`tileN/physical_vram_size_bytes`, in sum: only Intel's own builds of xe, not Linux's",
        ),
        (metric::POWER_LIMIT.def(), "hwmon `power1_max`, `power1_rated_max` (µW), else `power2_*`"),
        (metric::ENERGY.def(), "hwmon `energy1_input`, else `energy2_input` (µJ)"),
        (
            metric::THROTTLE_ACTIVE.def(),
            "`gt/gtN/throttle_reason_*` (i915), `tileN/gtN/freq0/throttle/reason_*` (xe)",
        ),
        (
            metric::CLOCK_SPEED.def(),
            "`gt/gtN/rps_act_freq_mhz` (i915; `gt_act_freq_mhz` before Linux 5.18), `tileN/gtN/freq0/act_freq` \
             (xe)",
        ),
        (
            metric::CLOCK_LIMIT.def(),
            "`rps_RP0_freq_mhz` (i915; `gt_RP0_freq_mhz` before Linux 5.18), `rp0_freq` (xe)",
        ),
        (metric::PROCESS_COUNT.def(), "the clients of its render node"),
        (process::INFO.def(), "the openers of its render node, the ownership table"),
        (
            process::MEMORY_USAGE.def(),
            "`drm-resident-vram*`, `drm-resident-local*` of `fdinfo`, of integrated devices its other regions; \
             `compute` if the engines for that have worked most for it",
        ),
        (
            process::UTILIZATION.def(),
            "its part of the same times of `fdinfo`, as `sm`: the class of engines, of any kind, that it kept busiest",
        ),
    ];
    own.into_iter().chain(sysfs::link_sources()).collect()
}

/// Why there is no file, where it is not the same for all.
fn without() -> Vec<Source> {
    let energy = "the drivers count energy: the rate of `gpu.energy`";
    vec![
        (metric::MEMORY_USAGE.def(), "by process only: `gpu.process.memory.usage`"),
        (metric::POWER.def(), energy),
        (metric::POWER_AVERAGE.def(), energy),
        (
            metric::FAN_SPEED.def(),
            "hwmon `fan1_input` is turns a minute, of a maximum that is not published",
        ),
        (
            metric::UNKNOWN_CODE.def(),
            "its reasons have names and no numbers: one that is not known is `other`",
        ),
        (metric::THROTTLE_TIME.def(), "the files say what is so now, not for how long it was"),
        (process::OCCUPANCY.def(), "its time on the engines: `gpu.process.utilization`"),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Busy, VENDOR};
    use crate::sysfs::fake::{Tree, expected, values};
    use crate::wire::Outcome;
    use std::collections::BTreeMap;
    use std::fs;

    const ADDRESS: &str = "0000:03:00.0";

    fn battlemage(tree: &Tree) -> String {
        let folder = tree.pci(ADDRESS, "xe");
        tree.put_all(
            &folder,
            &[
                ("device", "0xe20b"),
                ("drm/renderD128/dev", "226:128"),
                ("power/runtime_status", "active"),
                ("hwmon/hwmon2/energy1_input", "1234500000"),
                ("hwmon/hwmon2/power1_max", "190000000"),
                ("hwmon/hwmon2/power1_rated_max", "0"),
                ("hwmon/hwmon2/temp2_input", "51000"),
                ("hwmon/hwmon2/temp3_input", "48000"),
                ("tile0/gt0/freq0/act_freq", "2400"),
                ("tile0/gt0/freq0/rp0_freq", "2850"),
                ("tile0/gt0/freq0/throttle/reason_pl1", "1"),
                ("tile0/gt0/freq0/throttle/reason_pl2", "0"),
                ("tile0/gt0/freq0/throttle/reason_thermal", "0"),
                ("tile0/gt0/freq0/throttle/status", "1"),
                ("tile0/gt1/freq0/act_freq", "1200"),
                ("tile0/physical_vram_size_bytes", "12884901888"),
            ],
        );
        folder
    }

    fn client(tree: &Tree, pid: u32, cycles: u64, total: u64) {
        let text = format!(
            "pos:\t0\ndrm-driver:\txe\ndrm-client-id:\t9\ndrm-pdev:\t{ADDRESS}\n\
             drm-resident-system:\t64 KiB\ndrm-resident-vram0:\t2048 KiB\n\
             drm-cycles-rcs:\t0\ndrm-total-cycles-rcs:\t{total}\n\
             drm-cycles-ccs:\t{cycles}\ndrm-total-cycles-ccs:\t{total}\ndrm-engine-capacity-ccs:\t2"
        );
        tree.put(&format!("proc/{pid}/fdinfo/7"), &text);
        tree.drm_node(&format!("proc/{pid}/fd/7"));
    }

    const BOARD: &[(&str, f64)] = &[
        ("gpu.memory.limit", 12_884_901_888.0),
        ("gpu.energy", 1234.5),
        ("gpu.power.limit{management}", 190.0),
        ("gpu.temperature{gpu}", 51.0),
        ("gpu.temperature{memory}", 48.0),
        ("gpu.clock.speed{graphics}", 2.4e9),
        ("gpu.clock.limit{graphics}", 2.85e9),
        ("gpu.throttle.active{power_cap}", 1.0),
        ("gpu.throttle.active{thermal}", 0.0),
    ];

    #[test]
    fn every_value_of_a_battlemage_is_in_its_base_unit() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root to make device nodes");
            return;
        }
        let tree = Tree::new();
        battlemage(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        client(&tree, 7, 100, 1000);
        let reading = device.read(&[7]);
        assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
        let board = expected(&[BOARD, &[("gpu.process.count", 1.0)]].concat());
        assert_eq!(values(&reading.values), board, "no time has passed yet");
        let memory = reading.processes.iter().map(|on| (on.pid, on.value)).collect::<Vec<_>>();
        assert_eq!(memory.len(), 1);
        let bytes = values(&[memory[0].1]);
        assert_eq!(bytes.get("gpu.process.memory.usage{compute}"), Some(&2_097_152.0));
        let info = reading.identity.unwrap();
        assert_eq!(info.nodes, ["dri/renderD128", "226:128"]);
        assert_eq!(info.model.as_deref(), Some("Intel Arc B580"));
    }

    #[test]
    fn each_process_has_its_part_of_the_busy_time() {
        let client = |id: u32, ccs: u64, vcs: u64| {
            format!(
                "drm-client-id:\t{id}\ndrm-pdev:\t{ADDRESS}\ndrm-resident-system:\t64 KiB\n\
                 drm-cycles-ccs:\t{ccs}\ndrm-total-cycles-ccs:\t{}\n\
                 drm-cycles-vcs:\t{vcs}\ndrm-total-cycles-vcs:\t{}",
                if ccs == 0 { 1000 } else { 2000 },
                if ccs == 0 { 1000 } else { 2000 },
            )
        };
        // The first client is shared by two processes; 9 is new.
        let of = |clients: &[(u32, String)]| super::super::fdinfo::fake::times(ADDRESS, clients);
        let then = of(&[
            (7, client(1, 0, 0)),
            (8, client(1, 0, 0)),
            (7, client(2, 0, 0)),
            (8, client(3, 0, 0)),
        ]);
        let now = of(&[
            (7, client(1, 300, 0)),
            (8, client(1, 300, 0)),
            (7, client(2, 200, 50)),
            (8, client(3, 100, 400)),
            (9, client(4, 900, 900)),
        ]);
        let busy = Busy::since(&now, &then, 1);
        assert_eq!((busy.most(false), busy.most(true)), (0.6, 0.45));
        assert_eq!(
            busy.processes,
            BTreeMap::from([(7, 0.5), (8, 0.4)]),
            "each by its busiest engines"
        );
    }

    #[test]
    fn a_reason_without_a_name_is_other() {
        let tree = Tree::new();
        let folder = battlemage(&tree);
        tree.put(&format!("{folder}/tile0/gt1/freq0/throttle/reason_p0_freq"), "1");
        tree.put(&format!("{folder}/tile0/gt1/freq0/throttle/reason_mem_thermal"), "1");
        let read = values(&tree.read(&VENDOR)[0].values);
        let of = |reason: &str| read.get(&format!("gpu.throttle.active{{{reason}}}")).copied();
        let found = ["other", "memory_thermal", "thermal", "power_cap"].map(of);
        assert_eq!(found, [Some(1.0), Some(1.0), Some(0.0), Some(1.0)]);
    }

    /// A part of the CPU, with xe: no `hwmon`, and as an endpoint of the root complex no link.
    #[test]
    fn an_integrated_device_without_sensors_is_well() {
        let tree = Tree::new();
        let folder = tree.pci("0000:00:02.0", "xe");
        for file in ["current_link_width", "max_link_width", "current_link_speed", "max_link_speed"]
        {
            fs::remove_file(tree.at(&format!("{folder}/{file}"))).unwrap();
        }
        let mut device = tree.open(&VENDOR).devices.remove(0);
        let reading = device.read(&[]);
        assert_eq!(reading.outcome, Outcome::Ok, "{reading:?}");
        assert_eq!(device.read(&[]).outcome, Outcome::Ok);
    }

    #[test]
    fn a_tile_without_its_size_leaves_the_sum_out() {
        let tree = Tree::new();
        let folder = battlemage(&tree);
        let limit =
            |tree: &Tree| values(&tree.read(&VENDOR)[0].values).get("gpu.memory.limit").copied();
        tree.put(&format!("{folder}/tile1/physical_vram_size_bytes"), "12884901888");
        assert_eq!(limit(&tree), Some(25_769_803_776.0));
        tree.put(&format!("{folder}/tile1/physical_vram_size_bytes"), "");
        assert_eq!(limit(&tree), None);
    }

    #[test]
    fn a_suspended_device_is_not_woken() {
        let tree = Tree::new();
        let folder = battlemage(&tree);
        tree.put(&format!("{folder}/power/runtime_status"), "suspended");
        let reading = &tree.read(&VENDOR)[0];
        assert_eq!((&reading.outcome, reading.cost.calls), (&Outcome::Ok, 5), "{reading:#?}");
        assert_eq!(values(&reading.values).into_keys().collect::<Vec<_>>(), ["gpu.info"]);
    }

    #[test]
    fn files_that_are_empty_or_nonsense_cost_only_their_own_value() {
        let tree = Tree::new();
        let folder = battlemage(&tree);
        let whole = values(&tree.read(&VENDOR)[0].values);
        for (file, metric, text) in [
            ("hwmon/hwmon2/energy1_input", "gpu.energy", "1234500000"),
            ("hwmon/hwmon2/temp3_input", "gpu.temperature{memory}", "48000"),
            ("hwmon/hwmon2/power1_max", "gpu.power.limit{management}", "190000000"),
            ("tile0/gt0/freq0/throttle/reason_thermal", "gpu.throttle.active{thermal}", "0"),
        ] {
            for bad in ["", "\n", "warm\n", "\u{0}\u{1}\n"] {
                fs::write(tree.at(&format!("{folder}/{file}")), bad).unwrap();
                let mut rest = values(&tree.read(&VENDOR)[0].values);
                assert_eq!(rest.insert(metric.to_owned(), whole[metric]), None, "{file} {bad:?}");
                assert_eq!(rest, whole);
            }
            tree.put(&format!("{folder}/{file}"), text);
        }
    }

    #[test]
    fn a_device_that_is_unbound_is_lost() {
        let tree = Tree::new();
        let folder = battlemage(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        fs::remove_file(tree.at(&format!("{folder}/driver"))).unwrap();
        assert!(matches!(device.read(&[]).outcome, Outcome::Lost(why) if why.contains(ADDRESS)));
    }

    /// The figures of a card under Ubuntu 22.04's Linux 5.15, as recorded.
    #[test]
    fn i915_before_linux_5_18_has_the_clocks_of_the_card() {
        let tree = Tree::new();
        let folder = tree.pci(ADDRESS, "i915");
        let files = [("gt_act_freq_mhz", "350"), ("gt_RP0_freq_mhz", "1150")];
        tree.put_all(&format!("{folder}/drm/card0"), &files);
        let read = values(&tree.read(&VENDOR)[0].values);
        let of = |name: &str| read.get(&format!("gpu.clock.{name}{{graphics}}")).copied();
        assert_eq!(["speed", "limit"].map(of), [Some(350e6), Some(1150e6)]);
        // From 5.18 on these stand beside the unit's own.
        tree.put(&format!("{folder}/drm/card0/gt/gt0/rps_act_freq_mhz"), "400");
        let read = values(&tree.read(&VENDOR)[0].values);
        assert_eq!(read.get("gpu.clock.speed{graphics}"), Some(&400e6));
    }

    #[test]
    fn a_folder_with_the_energy_of_one_unit_is_not_the_card_s() {
        let tree = Tree::new();
        let folder = battlemage(&tree);
        let whole = values(&tree.read(&VENDOR)[0].values);
        tree.put(&format!("{folder}/hwmon/hwmon1/energy1_input"), "7000000");
        assert_eq!(values(&tree.read(&VENDOR)[0].values), whole);
    }

    #[test]
    fn files_of_i915_are_read_where_that_is_the_driver() {
        let tree = Tree::new();
        let folder = tree.pci(ADDRESS, "i915");
        tree.put_all(
            &folder,
            &[
                ("drm/card1/gt/gt0/rps_act_freq_mhz", "1950"),
                ("drm/card1/gt/gt0/throttle_reason_status", "1"),
                ("drm/card1/gt/gt0/throttle_reason_thermal", "1"),
                ("hwmon/hwmon0/power1_max", "18446744073709551615"),
                ("hwmon/hwmon0/temp1_input", "45000"),
            ],
        );
        let reading = &tree.read(&VENDOR)[0];
        let rows = [
            ("gpu.clock.speed{graphics}", 1.95e9),
            ("gpu.throttle.active{thermal}", 1.0),
            ("gpu.temperature{gpu}", 45.0),
            ("gpu.process.count", 0.0),
        ];
        assert_eq!(values(&reading.values), expected(&rows));
        assert_eq!(reading.cost.implausible, 1, "all ones is no limit");
    }
}
