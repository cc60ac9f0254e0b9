//! Devices of Gaudi, Tenstorrent and Google without any: the trees that their drivers make in sysfs,
//! of a scenario in the language of the fake NVIDIA library, and for Gaudi an `hl-smi`. The layouts are
//! those that the agent's readers name (`drivers/accel/habanalabs`, tt-kmd, tpu-info); the values are
//! the scenario's.
//!
//! A device's node has the device's index in its name; what a worker's script calls it is [`BASES`].

use crate::agent::Config;
use crate::fakes::{Fake, FakeVendor};
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::{Device, Scenario};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// The number of each vendor's first device in a worker's script, and how its node's name begins.
pub const BASES: [(u32, &str); 3] =
    [(1000, "accel/accel"), (2000, "tenstorrent/"), (3000, "vfio/")];

/// The node of a device of these vendors, by its number in a worker's script.
pub fn node_of(number: u32) -> Option<String> {
    let base = BASES.iter().rev().find(|(base, _)| number >= *base);
    base.map(|(base, name)| format!("{name}{}", number - base))
}

/// A row of a vendor: its name, its place in [`BASES`], and what writes a device.
macro_rules! vendor {
    ($name:literal, $place:literal, $write:ident) => {
        FakeVendor {
            name: $name,
            nodes: |scenario| {
                let count = u32::try_from(scenario.devices().count()).unwrap_or(0);
                (0..count).map(|index| format!("{}{index}", BASES[$place].1)).collect()
            },
            install: |root, scenario| {
                let (place, write) = ($place, $write as Write);
                let fake = Files { root: root.to_owned(), scenario, place, write };
                fake.begin()?;
                fake.play(0.0)?;
                Ok(Box::new(fake))
            },
        }
    };
}
/// Intel's Gaudi.
pub const GAUDI: FakeVendor = vendor!("gaudi", 0, gaudi);
/// Tenstorrent.
pub const TENSTORRENT: FakeVendor = vendor!("tenstorrent", 1, tenstorrent);
/// Google's TPU.
pub const TPU: FakeVendor = vendor!("tpu", 2, tpu);

/// Writes the files of a device as they are at a second.
type Write = fn(&Files, &Device<'_>, f64) -> io::Result<()>;

/// The devices of one vendor.
#[derive(Debug)]
struct Files {
    root: PathBuf,
    scenario: Scenario,
    place: usize,
    write: Write,
}

impl Files {
    /// Makes what does not change.
    fn begin(&self) -> io::Result<()> {
        fs::create_dir_all(self.root.join("sys"))?;
        // What else the agent looks for in sysfs is the host's, or another vendor has made it.
        let _exists = symlink("/sys/kernel", self.root.join("sys/kernel"));
        for device in self.scenario.devices() {
            let address = device.text(&device.group.pci);
            let driver = ["habanalabs", "tenstorrent", "vfio-pci"][self.place];
            for folder in ["devices".to_owned(), format!("drivers/{driver}")] {
                let folder = self.root.join("sys/bus/pci").join(folder);
                fs::create_dir_all(&folder)?;
                fs::create_dir_all(self.folder(&device))?;
                symlink(self.folder(&device), folder.join(&address))?;
            }
            let driver = self.root.join("sys/bus/pci/drivers").join(driver);
            symlink(driver, self.folder(&device).join("driver"))?;
            self.put(&device, "current_link_width", "16")?;
            self.put(&device, "current_link_speed", "32.0 GT/s PCIe")?;
        }
        Ok(())
    }

    fn folder(&self, device: &Device<'_>) -> PathBuf {
        self.root.join("sys/devices/pci0000:00").join(device.text(&device.group.pci))
    }

    fn put(&self, device: &Device<'_>, file: &str, text: &str) -> io::Result<()> {
        let path = self.folder(device).join(file);
        fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
        fs::write(path, format!("{text}\n"))
    }

    /// The `hl-smi` of the fake.
    fn program(&self) -> PathBuf {
        self.root.join("hl-smi")
    }
}

impl Fake for Files {
    fn numbers(&self) -> Vec<u32> {
        let (first, _) = BASES[self.place];
        self.scenario.devices().map(|device| first + device.index).collect()
    }

    fn configure(&self, config: &mut Config) {
        config.sys = Some(self.root.join("sys"));
        if self.program().exists() {
            let _ = write!(config.more, "[gaudi]\nlibrary = \"{}\"\n", self.program().display());
        }
    }

    /// Their drivers list no processes: those are on a device that have its node open.
    fn set_processes(&self, _: u32, _: &[u32]) -> io::Result<()> {
        Ok(())
    }

    fn play(&self, seconds: f64) -> io::Result<()> {
        self.scenario.devices().try_for_each(|device| (self.write)(self, &device, seconds))
    }
}

fn whole(device: &Device<'_>, curve: Option<&Curve>, seconds: f64, factor: f64) -> Option<String> {
    curve.map(|curve| format!("{:.0}", device.value(curve, seconds) * factor))
}

/// The driver's files, and a line of `hl-smi`, which answers as recorded from eight Gaudi3.
fn gaudi(files: &Files, device: &Device<'_>, seconds: f64) -> io::Result<()> {
    let group = device.group;
    files.put(device, "status", "Operational")?;
    files.put(device, "device_type", "GAUDI3")?;
    files.put(device, "module_id", &device.index.to_string())?;
    files.put(device, &format!("accel/accel{}/dev", device.index), "261:0")?;
    if let Some(mhz) = whole(device, group.clocks.graphics.as_ref(), seconds, 1.0) {
        files.put(device, "clk_cur_freq_mhz", &mhz)?;
    }
    let number = |curve: &Option<Curve>| {
        whole(device, curve.as_ref(), seconds, 1.0).unwrap_or_else(|| "N/A".to_owned())
    };
    let used = device.value(&group.memory.used, seconds) / 1_048_576.0;
    let serial = group.serial.as_deref().map(|text| device.text(text)).unwrap_or_default();
    let line = format!(
        "{}, {}, {}, {}, {} MiB, {used:.0} MiB, {} C, {} %, {} W, {serial}, 0, 0, 0, 0",
        device.text(&group.pci),
        device.text(&group.uuid),
        device.text(&group.name),
        files.scenario.driver,
        group.memory.total >> 20,
        number(&group.temperature),
        number(&group.utilization),
        number(&group.power),
    );
    fs::write(files.root.join(format!("hl-smi.{}", device.index)), format!("{line}\n"))?;
    if !files.program().exists() {
        fs::write(files.program(), "#!/bin/sh\nexec cat \"$0\".[0-9]*\n")?;
        fs::set_permissions(files.program(), Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn tenstorrent(files: &Files, device: &Device<'_>, seconds: f64) -> io::Result<()> {
    let group = device.group;
    let class = format!("tenstorrent/tenstorrent!{}", device.index);
    let put = |file: &str, text: &str| files.put(device, &format!("{class}/{file}"), text);
    put("dev", "236:0")?;
    put("tt_asic_id", &device.text(&group.uuid))?;
    put("tt_card_type", &device.text(&group.name))?;
    // It beats while the scenario is played.
    if seconds > 0.0 {
        put("tt_heartbeat", &format!("{:.0}", seconds * 10.0))?;
    }
    if let Some(mhz) = whole(device, group.clocks.graphics.as_ref(), seconds, 1.0) {
        put("tt_aiclk", &mhz)?;
    }
    let hwmon = format!("hwmon/hwmon{}", device.index);
    for (file, curve, factor) in
        [("power1_input", &group.power, 1e6), ("temp1_input", &group.temperature, 1e3)]
    {
        if let Some(text) = whole(device, curve.as_ref(), seconds, factor) {
            files.put(device, &format!("{hwmon}/{file}"), &text)?;
        }
    }
    Ok(())
}

fn tpu(files: &Files, device: &Device<'_>, _: f64) -> io::Result<()> {
    files.put(device, "vendor", "0x1ae0")?;
    files.put(device, "device", "0x0063")?;
    let group = files.folder(device).join("iommu_group");
    if fs::read_link(&group).is_err() {
        symlink(
            Path::new("../../../../kernel/iommu_groups").join(device.index.to_string()),
            group,
        )?;
    }
    Ok(())
}
