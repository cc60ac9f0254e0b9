//! Shared by the vendors that read the kernel's files: the devices of a driver, the frame of a
//! reading, and the files that every driver has alike (the PCI link, `hwmon`, node numbers).

use super::cached::Cached;
use super::files::{Files, numbered};
use super::wire::{OpenErrorKind, Outcome, Reading, WireValue, push};
use super::{DeviceRead, OpenError, OpenLibrary};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::{MetricDef, link, process, wear};
use gpuwho_model::ids::PciAddress;
use gpuwho_model::paths::Paths;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::inventory::GpuInfo;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// No host has more devices; a longer listing is not the kernel's.
pub(super) const MAX_DEVICES: usize = 256;
/// Divisors for files in millionths and thousandths.
pub(super) const MICRO: f64 = 1e6;
pub(super) const MILLI: f64 = 1e3;
/// Hertz of a megahertz.
pub(super) const MEGA: f64 = 1e6;
/// Percent of a whole.
pub(super) const PERCENT: f64 = 100.0;
/// Largest number of lanes of a PCIe link.
const MAX_LANES: u64 = 32;
/// Generations of PCIe by their speed, as the kernel prints it (`pci_speed_string`).
const GENERATIONS: &[(&str, i64)] = &[
    ("2.5 GT/s", 1),
    ("5.0 GT/s", 2),
    ("8.0 GT/s", 3),
    ("16.0 GT/s", 4),
    ("32.0 GT/s", 5),
    ("64.0 GT/s", 6),
];

/// The devices bound to one of the drivers, by PCI address.
pub(super) fn bound(paths: &Paths, drivers: &[&str]) -> BTreeSet<OsString> {
    let of = |driver: &&str| fs::read_dir(paths.sys.join("bus/pci/drivers").join(driver));
    let entries = drivers.iter().filter_map(|driver| of(driver).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let is_device = |name: &OsString| name.to_str().and_then(PciAddress::parse).is_some();
    names.filter(is_device).take(MAX_DEVICES).collect()
}

/// The bound devices in the order of their addresses: index, address and folder.
pub(super) fn bound_devices(
    paths: &Paths,
    drivers: &[&str],
) -> impl Iterator<Item = (u32, String, PathBuf)> {
    let addresses = bound(paths, drivers).into_iter();
    let addresses: Vec<_> =
        addresses.map(|address| address.to_string_lossy().into_owned()).collect();
    let paths = paths.clone();
    (0..).zip(addresses).map(move |(index, address)| {
        let folder = pci_folder(&paths, &address);
        (index, address, folder)
    })
}

/// Why there is nothing to open.
pub(super) fn unbound(drivers: &[&str]) -> String {
    format!("no device is bound to {}", drivers.join(" or "))
}

/// Why a device is gone: none of the drivers has it.
pub(super) fn lost(folder: &Path, address: &str, drivers: &[&str]) -> Option<String> {
    let is_here = driver(folder).is_some_and(|driver| drivers.contains(&driver.as_str()));
    (!is_here).then(|| format!("nothing at {address} is bound to {}", drivers.join(" or ")))
}

/// The devices as an open library without events and without anything to close; an error if there is
/// none. `listed` counts them later.
pub(super) fn library(
    devices: Vec<Box<dyn DeviceRead>>,
    paths: &Paths,
    listed: fn(&Paths) -> BTreeSet<OsString>,
    why_none: &str,
) -> Result<OpenLibrary, OpenError> {
    if devices.is_empty() {
        return Err(OpenError { refusal: OpenErrorKind::Absent, text: why_none.to_owned() });
    }
    let paths = paths.clone();
    let count = Box::new(move || u32::try_from(listed(&paths).len()).ok());
    let events = Box::new(|| Err("the driver's files have no events".to_owned()));
    Ok(OpenLibrary { devices, count, events, close: Box::new(|| {}) })
}

/// The folder of a PCI device.
pub(super) fn pci_folder(paths: &Paths, address: &str) -> PathBuf {
    paths.sys.join("bus/pci/devices").join(address)
}

/// The name of a device by its number on the PCI bus; the number where the vendor's table has none.
pub(super) fn model(vendor: &str, models: &[(&str, &str)], id: &str) -> String {
    let known = models.iter().find(|(known, _)| *known == id);
    known.map_or_else(|| format!("{vendor} {id}"), |(_, name)| (*name).to_owned())
}

/// The name of the driver that a PCI device is bound to.
pub(super) fn driver(folder: &Path) -> Option<String> {
    let link = fs::read_link(folder.join("driver")).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

/// The drivers' version: the module's own, else the kernel's release.
pub(super) fn version(paths: &Paths, module: &str, files: &mut Files) -> Option<String> {
    let own = files.text(&paths.sys.join(format!("module/{module}/version")));
    own.or_else(|| files.text(&paths.proc.join("sys/kernel/osrelease")))
}

/// The names of a device node: below `/dev`, and by the number in its folder of a class.
pub(super) fn nodes(name: String, class: &Path, files: &mut Files) -> Vec<String> {
    let number = files.text(&class.join("dev"));
    let is_number = |text: &String| {
        text.split_once(':').is_some_and(|(major, minor)| {
            major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok()
        })
    };
    [Some(name), number.filter(is_number)].into_iter().flatten().collect()
}

/// One device as a vendor reads it.
pub(super) trait ReadFiles: Send {
    /// The identity; read once, and again after a reading that failed.
    fn identity(&mut self, files: &mut Files) -> GpuInfo;

    /// Why the device is gone, if it is.
    fn is_lost(&mut self, files: &mut Files) -> Option<String>;

    /// Reads the values. `Ok` if any value was read or there is none to read now.
    fn values(&mut self, files: &mut Files, openers: &[u32], reading: &mut Reading) -> Outcome;
}

/// A device that is read by files.
pub(super) struct FileDevice<R> {
    reader: R,
    files: Files,
    is_identified: bool,
    had_telemetry: bool,
}

impl<R: ReadFiles + 'static> FileDevice<R> {
    pub(super) fn boxed(reader: R) -> Box<dyn DeviceRead> {
        let files = Files::default();
        Box::new(Self { reader, files, is_identified: false, had_telemetry: false })
    }
}

impl<R: ReadFiles> DeviceRead for FileDevice<R> {
    fn read(&mut self, openers: &[u32]) -> Reading {
        let mut reading = begin(&mut self.files);
        reading.outcome = if let Some(why) = self.reader.is_lost(&mut self.files) {
            Outcome::Lost(why)
        } else {
            if !std::mem::replace(&mut self.is_identified, true) {
                reading.identity = Some(self.reader.identity(&mut self.files));
            }
            self.reader.values(&mut self.files, openers, &mut reading)
        };
        check_telemetry(&mut reading, &mut self.had_telemetry);
        self.is_identified &= reading.outcome == Outcome::Ok;
        end(&self.files, reading)
    }
}

/// Begins a reading.
pub(super) fn begin(files: &mut Files) -> Reading {
    files.begin();
    Reading { asked_ns: boot_time_ns(), ..Reading::default() }
}

/// Ends a reading: adds its cost and its time, and drops the values of one that failed.
pub(super) fn end(files: &Files, mut reading: Reading) -> Reading {
    if reading.outcome != Outcome::Ok {
        reading.values.clear();
        reading.instances.clear();
        reading.processes.clear();
    }
    reading.cost = files.cost();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    reading.time_ns = u64::try_from(now.as_nanos()).unwrap_or_default();
    reading
}

/// What is said of a device that its driver has, but of which it has no reading: firmware without
/// telemetry, a driver in a guest, a part of the CPU.
pub(super) const UNREAD: &str = "it is there, but its driver has no reading of it";

/// The outcome of a reading whose first value says only that there is a device. Files that are not there are
/// no failure; one that is there and cannot be read is.
pub(super) fn outcome(reading: &mut Reading, files: &Files) -> Outcome {
    if reading.values.len() > 1 {
        return Outcome::Ok;
    }
    if let Some(why) = files.why() {
        return Outcome::Failing(why.to_owned());
    }
    if reading.note.is_empty() {
        UNREAD.clone_into(&mut reading.note);
    }
    Outcome::Ok
}

/// A device without telemetry is well; one whose telemetry has gone is not.
pub(super) fn check_telemetry(reading: &mut Reading, had_any: &mut bool) {
    let is_unread = reading.outcome == Outcome::Ok && reading.note.starts_with(UNREAD);
    if is_unread && *had_any {
        reading.outcome = Outcome::Failing("the readings that it had are gone".to_owned());
    }
    *had_any |= !is_unread && reading.values.len() > 1;
}

/// Whether the device is suspended, or about to be: reading its files would wake it. Reading this one
/// does not.
pub(super) fn is_suspended(folder: &Path, files: &mut Files) -> bool {
    let status = files.text(&folder.join("power/runtime_status"));
    matches!(status.as_deref(), Some("suspended" | "suspending"))
}

/// The PCIe link of a card: the files that the kernel has for every PCI device, of the port that leaves the
/// card. What it can have is read every thirtieth time; so that comes after [`outcome`], for which it counts
/// as nothing.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// The port that leaves the card, once it was looked for.
    port: OnceCell<Option<PathBuf>>,
    limits: Cached<30>,
}

impl Link {
    /// Adds the link as it is.
    pub(super) fn read(&mut self, folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
        let Some(port) = self.port.get_or_init(|| leaving(folder, files)) else { return };
        push(out, &wear::PCIE_WIDTH, (), lanes(files, &port.join("current_link_width")));
        let speed = generation(files, &port.join("current_link_speed"));
        push(out, &wear::PCIE_GENERATION, (), speed);
    }

    /// Adds what both ends of it can have.
    pub(super) fn limits(&mut self, folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
        let Some(port) = self.port.get_or_init(|| leaving(folder, files)) else { return };
        self.limits.read(out, |out| limits(port, files, out));
    }
}

/// The port that leaves the card. A card with a switch of its own shows at the device the link behind that
/// switch: 2.5 GT/s of one lane on Intel's (`8086:4fa0` and `e2ff` are the ports to the slot), the full link
/// on AMD's whatever the slot has. Its ports have the device's vendor, as `amdgpu_device_gpu_bandwidth` takes
/// it (Linux 6.10); an Intel host's root port has it, too, and is the slot. In a guest an Intel card's switch
/// is hidden: one lane of 2.5 GT/s at most is no slot's link.
fn leaving(folder: &Path, files: &mut Files) -> Option<PathBuf> {
    let mut port = folder.canonicalize().ok()?;
    let own = files.text(&port.join("vendor"));
    let is_device = |at: &Path| {
        let name = at.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| PciAddress::parse(name).is_some())
    };
    while let Some(parent) = port.parent().filter(|parent| is_device(parent)) {
        let is_root = !parent.parent().is_some_and(is_device);
        if is_root || own.is_none() || files.text(&parent.join("vendor")) != own {
            break;
        }
        port.pop();
    }
    let most = lanes(files, &port.join("max_link_width"));
    let is_inner = most == Some(1) && generation(files, &port.join("max_link_speed")) == Some(1);
    (!is_inner).then_some(port)
}

/// What both ends of the link at a port can have.
fn limits(port: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    // The slot is the end of the link at the parent of the port. The path names the folder itself: a folder
    // of the bus is a link to it.
    let ends: Vec<_> = [Some(port), port.parent()].into_iter().flatten().collect();
    let width = ends.iter().filter_map(|end| lanes(files, &end.join("max_link_width"))).min();
    let speed = ends.iter().filter_map(|end| generation(files, &end.join("max_link_speed"))).min();
    push(out, &wear::PCIE_WIDTH_LIMIT, (), width);
    push(out, &wear::PCIE_GENERATION_LIMIT, (), speed);
}

fn lanes(files: &mut Files, path: &Path) -> Option<i64> {
    let lanes = files.number(path).filter(|lanes| (1..=MAX_LANES).contains(lanes));
    lanes.and_then(|lanes| i64::try_from(lanes).ok())
}

/// Parses `16.0 GT/s PCIe`; older kernels write `16 GT/s`.
fn generation(files: &mut Files, path: &Path) -> Option<i64> {
    let text = files.text(path)?;
    let speed = text.trim_end_matches(" PCIe");
    let is_same = |known: &str| speed == known || speed == known.replacen(".0", "", 1);
    let found = GENERATIONS.iter().find(|(known, _)| is_same(known)).map(|(_, number)| *number);
    // A link that is down has an unknown speed.
    found.or_else(|| (text != "Unknown").then(|| files.count_implausible(None))?)
}

/// The sensors of a device.
pub(super) struct Hwmon<'a> {
    files: &'a mut Files,
    folder: Option<PathBuf>,
}

/// The `hwmon` folder of a device. A driver may have made several (tt-kmd #25): the first of those in which
/// most of these files have a value.
pub(super) fn hwmon(device: &Path, probes: &[&str], files: &mut Files) -> Option<PathBuf> {
    let mut folders: Vec<_> = numbered(&device.join("hwmon"), "hwmon");
    if folders.len() > 1 {
        folders.sort_by_cached_key(|(number, folder)| {
            let has_value = |file: &&&str| files.signed(&folder.join(file)).is_some();
            (Reverse(probes.iter().filter(has_value).count()), *number)
        });
    }
    folders.into_iter().next().map(|(_, folder)| folder)
}

impl<'a> Hwmon<'a> {
    /// The sensors of a device, by files that show where they are.
    pub(super) fn of(device: &Path, probes: &[&str], files: &'a mut Files) -> Self {
        let folder = hwmon(device, probes, files);
        Self { files, folder }
    }

    /// A level or a counter in its base unit.
    pub(super) fn scaled(&mut self, file: &str, divisor: f64) -> Option<f64> {
        let number = self.files.number(&self.folder.as_ref()?.join(file))?;
        #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
        Some(number as f64 / divisor)
    }

    /// A temperature in degrees.
    pub(super) fn degrees(&mut self, file: &str) -> Option<f64> {
        let number = self.files.signed(&self.folder.as_ref()?.join(file))?;
        #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
        Some(number as f64 / MILLI)
    }
}

/// The file behind a metric.
pub(super) type Source = (&'static MetricDef, &'static str);

/// What the agent itself has of every device.
pub(super) fn own_sources() -> [Source; 2] {
    [(metric::UP.def(), "`gpu.status`"), (metric::READ_AGE.def(), "the agent's clock")]
}

/// What [`Link`] reads.
pub(super) fn link_sources() -> [Source; 4] {
    [
        (wear::PCIE_GENERATION.def(), "`current_link_speed` of the port that leaves the card"),
        (wear::PCIE_WIDTH.def(), "`current_link_width` of the port that leaves the card"),
        (wear::PCIE_GENERATION_LIMIT.def(), "`max_link_speed` of that port and of the slot"),
        (wear::PCIE_WIDTH_LIMIT.def(), "`max_link_width` of that port and of the slot"),
    ]
}

/// The processes of a driver that lists none.
pub(super) fn opener_sources() -> [Source; 2] {
    let openers = "the openers of its node";
    [(metric::PROCESS_COUNT.def(), openers), (process::INFO.def(), openers)]
}

/// A vendor's column of METRICS.md: the file behind a metric, else why it has none: for some of their own,
/// for the others the same.
pub(super) fn source_of(
    rows: &[Source],
    without: &[Source],
    def: &'static MetricDef,
    otherwise: &'static str,
) -> Result<&'static str, &'static str> {
    let own = own_sources();
    let find = |rows: &[Source]| {
        rows.iter().find(|(known, _)| std::ptr::eq(*known, def)).map(|(_, text)| *text)
    };
    if let Some(file) = find(rows).or_else(|| find(&own)) {
        return Ok(file);
    }
    Err(find(without).unwrap_or(match def.subject {
        "xid" => "the driver has no such codes",
        "instance" => "the driver has no partitions",
        _ if link::ALL.contains(&def) => "only NVIDIA's devices have such links",
        _ => otherwise,
    }))
}

#[cfg(test)]
pub(super) mod fake {
    //! A tree of the kernel's files, and the values of a reading by name.

    use crate::wire::{Reading, WireValue};
    use crate::{OpenLibrary, OpenOptions, Vendor};
    use gpuwho_model::paths::Paths;
    use gpuwho_model::sample::Value;
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    /// A tree below a temporary folder.
    pub(crate) struct Tree {
        pub(crate) root: TempDir,
    }

    impl Tree {
        pub(crate) fn new() -> Self {
            Self { root: tempfile::tempdir().unwrap() }
        }

        pub(crate) fn paths(&self) -> Paths {
            Paths::under(self.root.path())
        }

        pub(crate) fn at(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        /// Writes a file with the line end that sysfs has.
        pub(crate) fn put(&self, path: &str, text: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// A node of the kernel's DRM, if there is none; needs root.
        pub(crate) fn drm_node(&self, path: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if !path.exists() {
                let (kind, number) = (FileType::CharacterDevice, makedev(226, 128));
                mknodat(CWD, &path, kind, Mode::empty(), number).unwrap();
            }
        }

        pub(crate) fn put_all(&self, folder: &str, files: &[(&str, &str)]) {
            for (file, text) in files {
                self.put(&format!("{folder}/{file}"), text);
            }
        }

        /// A PCI device bound to a driver; gives its folder below the root.
        pub(crate) fn pci(&self, address: &str, driver: &str) -> String {
            let folder = format!("sys/devices/pci0000:00/{address}");
            fs::create_dir_all(self.at(&folder)).unwrap();
            for place in ["sys/bus/pci/devices".to_owned(), format!("sys/bus/pci/drivers/{driver}")]
            {
                self.link(&folder, &format!("{place}/{address}"));
            }
            self.link(&format!("sys/bus/pci/drivers/{driver}"), &format!("{folder}/driver"));
            self.put_all(
                &folder,
                &[
                    ("current_link_width", "16"),
                    ("max_link_width", "16"),
                    ("current_link_speed", "16.0 GT/s PCIe"),
                    ("max_link_speed", "32.0 GT/s PCIe"),
                ],
            );
            folder
        }

        pub(crate) fn link(&self, to: &str, place: &str) {
            let place = self.at(place);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            symlink(self.at(to), place).unwrap();
        }

        pub(crate) fn open(&self, vendor: &Vendor) -> OpenLibrary {
            let paths = self.paths();
            let opening = OpenOptions { library: Path::new(""), paths: &paths, off: &[] };
            (vendor.open)(&opening).map_err(|error| error.to_string()).unwrap()
        }

        /// Reads the devices once.
        pub(crate) fn read(&self, vendor: &Vendor) -> Vec<Reading> {
            self.open(vendor).devices.iter_mut().map(|device| device.read(&[])).collect()
        }
    }

    /// The link of [`Tree::pci`].
    pub(crate) const LINK: [(&str, f64); 4] = [
        ("gpu.pcie.link.width", 16.0),
        ("gpu.pcie.link.width.limit", 16.0),
        ("gpu.pcie.link.generation", 4.0),
        ("gpu.pcie.link.generation.limit", 5.0),
    ];

    /// The values by `name{dimensions}`.
    pub(crate) fn values(values: &[WireValue]) -> BTreeMap<String, f64> {
        values.iter().map(named).collect()
    }

    fn named(value: &WireValue) -> (String, f64) {
        let metric = value.metric().unwrap();
        let dims = metric.dims.iter().zip(value.dims());
        let dims: Vec<&str> = dims.map(|(dim, index)| dim.values[usize::from(index)]).collect();
        #[expect(clippy::cast_precision_loss, reason = "values of a test have few digits")]
        let number = match value.value() {
            Value::Int(number) => number as f64,
            Value::Double(number) => number,
            Value::Histogram(_) => panic!("no file has a distribution"),
        };
        let dims = if dims.is_empty() { String::new() } else { format!("{{{}}}", dims.join(",")) };
        (format!("{}{dims}", metric.name), number)
    }

    /// What [`values`] must be, with the link.
    pub(crate) fn expected(rows: &[(&str, f64)]) -> BTreeMap<String, f64> {
        let all = rows.iter().chain(&LINK).chain(&[("gpu.info", 1.0)]);
        all.map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Tree;
    use super::{Files, Link, is_suspended};
    use crate::wire::WireValue;

    fn link(link: &mut Link, tree: &Tree, folder: &str) -> Vec<(String, f64)> {
        let mut out: Vec<WireValue> = Vec::new();
        let (folder, mut files) = (tree.at(folder), Files::default());
        link.read(&folder, &mut files, &mut out);
        link.limits(&folder, &mut files, &mut out);
        super::fake::values(&out).into_iter().collect()
    }

    #[test]
    fn a_links_limit_is_that_of_its_weaker_end_and_is_not_read_every_time() {
        let tree = Tree::new();
        let folder = tree.pci("0000:19:00.0", "xe");
        tree.put_all(
            "sys/devices/pci0000:00",
            &[("max_link_width", "8"), ("max_link_speed", "8 GT/s")],
        );
        tree.put(&format!("{folder}/current_link_speed"), "Unknown");
        // The bus has a link to the folder; the slot is at the folder's own parent.
        let folder = "sys/bus/pci/devices/0000:19:00.0";
        let mut reader = Link::default();
        let expected = [
            ("gpu.pcie.link.generation.limit".to_owned(), 3.0),
            ("gpu.pcie.link.width".to_owned(), 16.0),
            ("gpu.pcie.link.width.limit".to_owned(), 8.0),
        ];
        assert_eq!(link(&mut reader, &tree, folder), expected);
        tree.put("sys/devices/pci0000:00/max_link_width", "4");
        assert_eq!(link(&mut reader, &tree, folder), expected, "as it was read last");
        let later = (0..29).map(|_| link(&mut reader, &tree, folder)).last().unwrap();
        assert_eq!(later.last(), Some(&("gpu.pcie.link.width.limit".to_owned(), 4.0)));
    }

    /// Below an Intel host's root port (`8086:460d`), as `lspci` has it: an Arc B70 or B580 behind `8086:e2ff`
    /// and `e2f0`, an A770 behind `4fa0` and `4fa4` (`geerlingguy/raspberry-pi-pcie-devices` 510, 695), Radeon
    /// and Instinct behind `1002:1478` and `1479` (`ilya-zlobintsev/LACT` 334).
    #[test]
    fn a_card_behind_its_own_switch_has_the_link_of_the_port_that_leaves_it() {
        let files = |lanes: &str, speed: &str, most: [&str; 2], vendor: &str| {
            [
                ("current_link_width", lanes.to_owned()),
                ("current_link_speed", format!("{speed} GT/s PCIe")),
                ("max_link_width", most[0].to_owned()),
                ("max_link_speed", format!("{} GT/s PCIe", most[1])),
                ("vendor", vendor.to_owned()),
            ]
        };
        let inner = |vendor| match vendor {
            "0x8086" => files("1", "2.5", ["1", "2.5"], vendor),
            _ => files("16", "16.0", ["16", "16.0"], vendor),
        };
        for (vendor, lanes, speed, expected) in [
            ("0x8086", "16", "16.0", [16.0, 4.0, 16.0, 4.0]),
            ("0x1002", "1", "8.0", [1.0, 3.0, 16.0, 4.0]),
        ] {
            let tree = Tree::new();
            let root = "sys/devices/pci0000:00/0000:00:01.0".to_owned();
            let up = format!("{root}/0000:01:00.0");
            let down = format!("{up}/0000:02:01.0");
            let device = format!("{down}/0000:03:00.0");
            for (folder, rows) in [
                (&root, files(lanes, speed, ["16", "32.0"], "0x8086")),
                (&up, files(lanes, speed, ["16", "16.0"], vendor)),
                (&down, inner(vendor)),
                (&device, inner(vendor)),
            ] {
                for (file, text) in rows {
                    tree.put(&format!("{folder}/{file}"), &text);
                }
            }
            let read: Vec<_> = link(&mut Link::default(), &tree, &device)
                .into_iter()
                .map(|(_, one)| one)
                .collect();
            // By name: generation, its limit, width, its limit.
            let [lanes, generation, most, best] = expected;
            assert_eq!(read, [generation, best, lanes, most], "{vendor}");
        }
        // In a guest there is only the device.
        let tree = Tree::new();
        let folder = tree.pci("0000:00:05.0", "xe");
        for (file, text) in inner("0x8086") {
            tree.put(&format!("{folder}/{file}"), &text);
        }
        assert_eq!(link(&mut Link::default(), &tree, &folder), []);
    }

    #[test]
    fn a_device_that_is_about_to_be_suspended_counts_as_suspended() {
        let tree = Tree::new();
        let folder = tree.pci("0000:19:00.0", "xe");
        let states = ["active", "resuming", "suspending", "suspended"].map(|state| {
            tree.put(&format!("{folder}/power/runtime_status"), state);
            is_suspended(&tree.at(&folder), &mut Files::default())
        });
        assert_eq!(states, [false, false, true, true]);
    }
}
