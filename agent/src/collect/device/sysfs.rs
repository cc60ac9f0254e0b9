//! Shared by the vendors that read the kernel's files: the devices of a driver, the frame of a
//! reading, and the files that every driver has alike (the PCI link, `hwmon`, node numbers).

use super::DeviceRead;
use super::files::{Files, numbered};
use super::wire::{Outcome, Reading, WireValue, push};
use crate::catalog::{MetricDef, wear};
use crate::host::boot_time_ns;
use crate::ids::PciAddress;
use crate::inventory::GpuInfo;
use crate::paths::Paths;
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
/// Transfers a second of a lane by PCIe generation, as `current_link_speed` begins.
const SPEEDS: [(&str, i64); 7] =
    [("2.5", 1), ("5.0", 2), ("5", 2), ("8.0", 3), ("16.0", 4), ("32.0", 5), ("64.0", 6)];

/// The devices bound to one of the drivers, by PCI address.
pub(super) fn bound(paths: &Paths, drivers: &[&str]) -> BTreeSet<OsString> {
    let of = |driver: &&str| fs::read_dir(paths.sys.join("bus/pci/drivers").join(driver));
    let entries = drivers.iter().filter_map(|driver| of(driver).ok()).flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let is_device = |name: &OsString| name.to_str().and_then(PciAddress::parse).is_some();
    names.filter(is_device).take(MAX_DEVICES).collect()
}

/// The folder of a PCI device.
pub(super) fn pci_folder(paths: &Paths, address: &str) -> PathBuf {
    paths.sys.join("bus/pci/devices").join(address)
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
        let mut reading = Reading { asked_ns: boot_time_ns(), ..Reading::default() };
        self.files.begin();
        reading.outcome = if let Some(why) = self.reader.is_lost(&mut self.files) {
            Outcome::Lost(why)
        } else {
            if !std::mem::replace(&mut self.is_identified, true) {
                reading.identity = Some(self.reader.identity(&mut self.files));
            }
            self.reader.values(&mut self.files, openers, &mut reading)
        };
        if reading.outcome != Outcome::Ok {
            self.is_identified = false;
            reading.values.clear();
            reading.processes.clear();
        }
        reading.cost = self.files.cost();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        reading.time_ns = u64::try_from(now.as_nanos()).unwrap_or_default();
        reading
    }
}

/// The outcome of a reading with these values, of which the first says only that there is a device.
pub(super) fn outcome(values: &[WireValue], files: &Files) -> Outcome {
    if values.len() > 1 {
        return Outcome::Ok;
    }
    Outcome::Failing(files.why().unwrap_or("no file can be read").to_owned())
}

/// Whether the device is suspended: reading its files would wake it. Reading this one does not.
pub(super) fn is_suspended(folder: &Path, files: &mut Files) -> bool {
    files.text(&folder.join("power/runtime_status")).as_deref() == Some("suspended")
}

/// The PCIe link, from the files that the kernel has for every PCI device.
pub(super) fn pcie(folder: &Path, files: &mut Files, out: &mut Vec<WireValue>) {
    for (file, metric) in
        [("current_link_width", &wear::PCIE_WIDTH), ("max_link_width", &wear::PCIE_WIDTH_LIMIT)]
    {
        let lanes = files.number(&folder.join(file)).filter(|lanes| (1..=32).contains(lanes));
        push(out, metric, (), lanes.and_then(|lanes| i64::try_from(lanes).ok()));
    }
    for (file, metric) in [
        ("current_link_speed", &wear::PCIE_GENERATION),
        ("max_link_speed", &wear::PCIE_GENERATION_LIMIT),
    ] {
        // `16.0 GT/s PCIe`; `Unknown` where the link is down.
        let speed = files.text(&folder.join(file));
        let speed = speed.as_deref().and_then(|text| text.split(' ').next());
        let generation = SPEEDS.iter().find(|(known, _)| speed == Some(known));
        push(out, metric, (), generation.map(|(_, generation)| *generation));
    }
}

/// The sensors of a device.
pub(super) struct Hwmon<'a> {
    files: &'a mut Files,
    folder: Option<PathBuf>,
}

impl<'a> Hwmon<'a> {
    /// The first `hwmon` folder of a device.
    pub(super) fn of(device: &Path, files: &'a mut Files) -> Self {
        let folder = numbered(&device.join("hwmon"), "hwmon").into_iter().next();
        Self { files, folder: folder.map(|(_, folder)| folder) }
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

/// A vendor's column of METRICS.md: the file behind a metric, else why it has none.
pub(super) fn source_of(
    rows: &[(&'static MetricDef, &'static str)],
    def: &'static MetricDef,
    otherwise: &'static str,
) -> Result<&'static str, &'static str> {
    let known = rows.iter().find(|(known, _)| std::ptr::eq(*known, def));
    known.map(|(_, file)| *file).ok_or(match def.subject {
        "xid" => "the driver has no such codes",
        "instance" => "the driver has no partitions",
        _ => otherwise,
    })
}

#[cfg(test)]
pub(super) mod fake {
    //! A tree of the kernel's files, and the values of a reading by name.

    use crate::collect::device::wire::{Reading, WireValue};
    use crate::collect::device::{OpenLibrary, OpenOptions, Vendor};
    use crate::paths::Paths;
    use crate::sample::Value;
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    /// A tree below a temporary folder.
    pub(in crate::collect::device) struct Tree {
        pub(in crate::collect::device) root: TempDir,
    }

    impl Tree {
        pub(in crate::collect::device) fn new() -> Self {
            Self { root: tempfile::tempdir().unwrap() }
        }

        pub(in crate::collect::device) fn paths(&self) -> Paths {
            Paths::under(self.root.path())
        }

        pub(in crate::collect::device) fn at(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        /// Writes a file with the line end that sysfs has.
        pub(in crate::collect::device) fn put(&self, path: &str, text: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// A node of the kernel's DRM, if there is none; needs root.
        pub(in crate::collect::device) fn drm_node(&self, path: &str) {
            let path = self.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            if !path.exists() {
                let (kind, number) = (FileType::CharacterDevice, makedev(226, 128));
                mknodat(CWD, &path, kind, Mode::empty(), number).unwrap();
            }
        }

        pub(in crate::collect::device) fn put_all(&self, folder: &str, files: &[(&str, &str)]) {
            for (file, text) in files {
                self.put(&format!("{folder}/{file}"), text);
            }
        }

        /// A PCI device bound to a driver; gives its folder below the root.
        pub(in crate::collect::device) fn pci(&self, address: &str, driver: &str) -> String {
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

        pub(in crate::collect::device) fn link(&self, to: &str, place: &str) {
            let place = self.at(place);
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            symlink(self.at(to), place).unwrap();
        }

        pub(in crate::collect::device) fn open(&self, vendor: &Vendor) -> OpenLibrary {
            let paths = self.paths();
            let opening = OpenOptions { library: Path::new(""), paths: &paths, off: &[] };
            (vendor.open)(&opening).map_err(|error| error.to_string()).unwrap()
        }

        /// Reads the devices once.
        pub(in crate::collect::device) fn read(&self, vendor: &Vendor) -> Vec<Reading> {
            self.open(vendor).devices.iter_mut().map(|device| device.read(&[])).collect()
        }
    }

    /// The link of [`Tree::pci`].
    pub(in crate::collect::device) const LINK: [(&str, f64); 4] = [
        ("gpu.pcie.link.width", 16.0),
        ("gpu.pcie.link.width.limit", 16.0),
        ("gpu.pcie.link.generation", 4.0),
        ("gpu.pcie.link.generation.limit", 5.0),
    ];

    /// The values by `name{dimensions}`.
    pub(in crate::collect::device) fn values(values: &[WireValue]) -> BTreeMap<String, f64> {
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
    pub(in crate::collect::device) fn expected(rows: &[(&str, f64)]) -> BTreeMap<String, f64> {
        let all = rows.iter().chain(&LINK).chain(&[("gpu.info", 1.0)]);
        all.map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }
}
