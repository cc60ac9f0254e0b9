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
}

impl<R: ReadFiles + 'static> FileDevice<R> {
    pub(super) fn boxed(reader: R) -> Box<dyn DeviceRead> {
        Box::new(Self { reader, files: Files::default(), is_identified: false })
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

/// The outcome of a reading with these values, of which the first says only that there is a device.
pub(super) fn outcome(values: &[WireValue], files: &Files) -> Outcome {
    if values.len() > 1 {
        return Outcome::Ok;
    }
    Outcome::Failing(files.why().unwrap_or("no file can be read").to_owned())
}

/// Whether the device is suspended, or about to be: reading its files would wake it. Reading this one
/// does not.
pub(super) fn is_suspended(folder: &Path, files: &mut Files) -> bool {
    let status = files.text(&folder.join("power/runtime_status"));
    matches!(status.as_deref(), Some("suspended" | "suspending"))
}

/// The PCIe link as it is, from the files that the kernel has for every PCI device.
pub(super) fn link(folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    push(out, &wear::PCIE_WIDTH, (), lanes(files, &folder.join("current_link_width")));
    let speed = generation(files, &folder.join("current_link_speed"));
    push(out, &wear::PCIE_GENERATION, (), speed);
}

/// What the PCIe link can have: read every thirtieth time. So it comes after [`outcome`], for which it
/// counts as nothing.
#[derive(Debug, Default)]
pub(super) struct LinkLimits(Cached<30>);

impl LinkLimits {
    /// Adds the limits.
    pub(super) fn read(&mut self, folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
        self.0.read(out, |out| limits(folder, files, out));
    }
}

/// What both ends of the link can have.
fn limits(folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    // The slot is the end of the link at the parent of the device. The path names the folder itself:
    // a folder of the bus is a link to it.
    let slot = folder.canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned()));
    let ends = [Some(folder.to_owned()), slot];
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    let width = ends.iter().filter_map(|end| lanes(files, &end.join("max_link_width"))).min();
    push(out, &wear::PCIE_WIDTH_LIMIT, (), width);
    let speed = ends.iter().filter_map(|end| generation(files, &end.join("max_link_speed"))).min();
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

/// What [`link`] and [`LinkLimits`] read.
pub(super) fn link_sources() -> [Source; 4] {
    [
        (wear::PCIE_GENERATION.def(), "`current_link_speed`"),
        (wear::PCIE_WIDTH.def(), "`current_link_width`"),
        (wear::PCIE_GENERATION_LIMIT.def(), "`max_link_speed` of the device and of its slot"),
        (wear::PCIE_WIDTH_LIMIT.def(), "`max_link_width` of the device and of its slot"),
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
    use super::{Files, LinkLimits, is_suspended};
    use crate::wire::WireValue;

    fn link(limits: &mut LinkLimits, tree: &Tree, folder: &str) -> Vec<(String, f64)> {
        let mut out: Vec<WireValue> = Vec::new();
        let (folder, mut files) = (tree.at(folder), Files::default());
        super::link(&folder, &mut files, &mut out);
        limits.read(&folder, &mut files, &mut out);
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
        let mut reader = LinkLimits::default();
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
