//! Reads Intel Gaudi devices: by `libhlml.so` where it is installed, else by `hl-smi`, and what the
//! driver's files have in any case.
//!
//! A device is a PCI device bound to `habanalabs`. By the library a reading is about twelve calls,
//! and twenty more every sixth time. `hl-smi` takes a second or more and runs beside the readings on
//! a schedule of its own ([`tool`]). The library's ABI is that of `hlml.h` (HabanaAI/gohlml) and
//! habana-pyhlml 1.24; the files are those of `drivers/accel/habanalabs/common/sysfs.c` (Linux 6.16)
//! and of the older class `habanalabs`. Not tried on hardware.

mod calls;
mod library;
mod ports;
mod sources;
mod tool;

use super::files::{Files, numbered};
use super::library::{Library, Substitute};
use super::sysfs::{self, FileDevice, Link, MEGA, MILLI, ReadFiles};
use super::wire::{OpenErrorKind, Outcome, Reading, WireValue, push};
use super::{OpenError, OpenLibrary, OpenOptions, Vendor};
use gpuwho_model::catalog::device::{self as metric, Clock, Limit};
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::inventory::facts::Fact;
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use gpuwho_sys::hlml::{Hlml, LoadError};
use library::ByLibrary;
pub(super) use library::REASONS as THROTTLE_BITS;
use ports::Ports;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tool::Tool;

const SAMPLE: &str = r#"#: enabled = true
# A path, or a name to search for where distributions and Intel's packages put the library. A path of
# hl-smi runs that instead, every half minute. Without both, only what the driver's files have is read:
# clocks, the power limit and the PCIe link.
#: library = "libhlml.so"
# The process that loads the library gives up every capability, and the system calls that reach into
# other processes, load kernel code or change mounts; it starts no program, except to run hl-smi.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for, and whether the driver still lists as many
# devices.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "gaudi",
    library: Some(Library {
        name: "libhlml.so",
        places: &["/usr/lib/habanalabs", "/opt/habanalabs/lib"],
        node: "accel/accel0",
        substitute: Substitute::Program(&[
            "/usr/bin/hl-smi",
            "/usr/local/bin/hl-smi",
            "/usr/lib/habanalabs/hl-smi",
            "/opt/habanalabs/bin/hl-smi",
        ]),
    }),
    remedy: "load the kernel driver: modprobe habanalabs",
    nodes: VendorNodes {
        nodes: &["/dev/accel/accel*", "/dev/hl*"],
        node_drivers: &["habanalabs"],
        drivers: &[DRIVER],
        is_device_node: |node| {
            let is_number = |rest: &str| rest.parse::<u32>().is_ok();
            node.strip_prefix("accel/accel").is_some_and(is_number)
                || node.strip_prefix("261:").is_some_and(is_number)
                || node.strip_prefix("hl").is_some_and(is_number)
        },
        resources: &[("habana.ai/", IdForm::Serial)],
        claims: &[("gaudi.intel.com/", IdForm::PciAndModel)],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    listed: |paths| sysfs::bound(paths, &[DRIVER]),
    source: sources::of,
    open,
    ..Vendor::DEFAULT
};

/// The driver's name on the bus.
const DRIVER: &str = "habanalabs";
/// `status` while the device works, and while the driver cleans up after a process.
const WORKING: [&str; 2] = ["Operational", "In reset after device release"];
/// `status` that an operator must end.
const BROKEN: [&str; 3] = ["Malfunction", "Disabled", "Needs reset"];
/// What is missing, for the status.
const NO_READER: &str = "no utilisation, memory, power, temperature or ECC: install libhlml.so or hl-smi, \
     or name either as gaudi.library";

/// What reads the devices besides files.
#[derive(Clone)]
enum Reader {
    Library(&'static Hlml, Arc<Ports>),
    Tool(Arc<Tool>),
    None(String),
}

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let bound: Vec<_> = sysfs::bound_devices(&paths, &[DRIVER]).collect();
    let why_none = sysfs::unbound(&[DRIVER]);
    if bound.is_empty() {
        return sysfs::library(Vec::new(), &paths, VENDOR.listed, &why_none);
    }
    let addresses = bound.iter().map(|(_, address, _)| address.clone());
    let reader = reader(opening.library, addresses.collect())?;
    let devices = bound.into_iter().map(|(index, address, folder)| {
        let by = match &reader {
            Reader::Library(hlml, ports) => {
                By::Library(ByLibrary::new(hlml, Arc::clone(ports), index))
            }
            Reader::Tool(tool) => By::Tool(Arc::clone(tool)),
            Reader::None(why) => By::Files(why.clone()),
        };
        let (paths, link) = (paths.clone(), Link::default());
        FileDevice::boxed(Gaudi { paths, folder, address, index, by, link })
    });
    // The process exits next, and the kernel closes what the library holds: shutting it down could
    // wait for a call that hangs.
    sysfs::library(devices.collect(), &paths, VENDOR.listed, &why_none)
}

/// Loads the library, or runs the tool once.
fn reader(path: &Path, addresses: Vec<String>) -> Result<Reader, OpenError> {
    if path == Path::new("") {
        return Ok(Reader::None(NO_READER.to_owned()));
    }
    if tool::is_tool(path) {
        return Ok(Reader::Tool(Tool::start(path)));
    }
    let loaded = Hlml::load(path).map_err(|error| {
        let refusal = match &error {
            LoadError::Link(_) => OpenErrorKind::Unloadable,
            LoadError::Init(gpuwho_sys::hlml::HlmlError::DriverGone) => OpenErrorKind::Absent,
            LoadError::Init(_) => OpenErrorKind::Failed,
        };
        OpenError { refusal, text: error.to_string() }
    })?;
    // Never freed: devices use it on threads that may hang for ever.
    let hlml: &'static Hlml = Box::leak(Box::new(loaded));
    Ok(Reader::Library(hlml, Ports::start(hlml, addresses)))
}

/// How a device is read besides files.
enum By {
    Library(ByLibrary),
    Tool(Arc<Tool>),
    /// Not at all; why.
    Files(String),
}

/// One device.
struct Gaudi {
    paths: Paths,
    folder: PathBuf,
    address: String,
    index: u32,
    by: By,
    link: Link,
}

impl Gaudi {
    /// Its node's name and its folder in the class `accel`, or in the older class.
    fn class(&self) -> Option<(String, PathBuf)> {
        let in_class = |class: &str, prefix: &str| {
            numbered(&self.folder.join(class), prefix).into_iter().next()
        };
        let accel = in_class("accel", "accel");
        let accel = accel.map(|(number, folder)| (format!("accel/accel{number}"), folder));
        accel.or_else(|| {
            let old = in_class("habanalabs", "hl");
            old.map(|(number, folder)| (format!("hl{number}"), folder))
        })
    }

    /// A file of the driver: in the device's folder, or in that of the older class.
    fn text(&self, name: &str, files: &mut Files) -> Option<String> {
        let of_class = || Some(self.class()?.1.join(name));
        files.text(&self.folder.join(name)).or_else(|| files.text(&of_class()?))
    }

    /// Clocks and the power limit; those of the library replace them.
    fn by_files(&self, files: &mut Files, out: &mut Vec<WireValue>) {
        let number = |text: Option<String>| text?.parse::<u32>().ok().map(f64::from);
        let mhz = |text| number(text).map(|mhz| mhz * MEGA);
        let now = mhz(self.text("clk_cur_freq_mhz", files));
        push(out, &metric::CLOCK_SPEED, Clock::Graphics, now);
        let most = mhz(self.text("clk_max_freq_mhz", files));
        push(out, &metric::CLOCK_LIMIT, Clock::Graphics, most);
        let limit = number(self.text("max_power", files)).map(|milliwatts| milliwatts / MILLI);
        push(out, &metric::POWER_LIMIT, Limit::Management, limit);
    }
}

impl ReadFiles for Gaudi {
    fn identity(&mut self, files: &mut Files) -> GpuInfo {
        let about = match &mut self.by {
            By::Library(library) => library.identity(&self.address, files),
            By::Tool(tool) => tool.identity(&self.address),
            By::Files(_) => Identity::default(),
        };
        let placed = format!("GAUDI-{}", self.address);
        let id = about.uuid.unwrap_or_else(|| placed.clone());
        let chip = self.text("device_type", files);
        let nodes =
            self.class().map_or_else(Vec::new, |(name, folder)| sysfs::nodes(name, &folder, files));
        let driver = about.driver.or_else(|| sysfs::version(&self.paths, DRIVER, files));
        let model = about.model.or(chip).map(|name| format!("Intel Gaudi {name}"));
        let mut info = GpuInfo {
            nodes,
            placed: Some(GpuUuid::new(&placed)),
            model: model.or_else(|| Some("Intel Gaudi".to_owned())),
            pci_address: Some(self.address.to_ascii_lowercase()),
            serial: about.serial,
            driver_version: driver,
            ..GpuInfo::new(GpuUuid::new(&id), VENDOR.name, self.index)
        };
        info.facts.set(Fact::Module, self.text("module_id", files));
        info
    }

    fn is_lost(&mut self, files: &mut Files) -> Option<String> {
        if let Some(why) = sysfs::lost(&self.folder, &self.address, &[DRIVER]) {
            return Some(why);
        }
        let status = self.text("status", files)?;
        BROKEN.contains(&status.as_str()).then(|| format!("the driver's status is: {status}"))
    }

    fn values(&mut self, files: &mut Files, _: &[u32], reading: &mut Reading) -> Outcome {
        let out = &mut reading.values;
        push(out, &metric::INFO, (), Some(1));
        let status = self.text("status", files);
        if let Some(status) = status.filter(|status| !WORKING.contains(&status.as_str())) {
            return Outcome::Failing(format!("the driver's status is: {status}"));
        }
        let mut end = None;
        match &mut self.by {
            By::Library(library) => end = library.values(&self.address, files, out),
            By::Tool(tool) => reading.note = tool.values(&self.address, out),
            By::Files(why) => reading.note.clone_from(why),
        }
        if let Some(end) = end {
            return end;
        }
        if !matches!(self.by, By::Library(_)) {
            self.by_files(files, out);
        }
        self.link.read(&self.folder, files, out);
        let outcome = sysfs::outcome(reading, files);
        self.link.limits(&self.folder, files, &mut reading.values);
        outcome
    }
}

/// What library or tool say of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Identity {
    uuid: Option<String>,
    model: Option<String>,
    serial: Option<String>,
    driver: Option<String>,
}

#[cfg(test)]
mod tests;
