//! Devices of Gaudi, Tenstorrent, Google, Intel and AWS without any: the trees that their drivers make in
//! sysfs, of a scenario in the language of the fake NVIDIA library, and for Gaudi what `hl-smi` or the fake
//! of its library answers ([`gaudi`]). The layouts are those that the agent's readers name
//! (`drivers/accel/habanalabs`, tt-kmd, tpu-info, xe, i915, aws-neuron-driver); none of them is recorded but
//! what `hl-smi` prints of Gaudi3. The values are the scenario's. The names of files are written here again,
//! from the drivers' sources that each writer names: no writer uses anything of the reader that it is for.
//!
//! A device's node has the device's index in its name; what a worker's script calls it is [`BASES`].

pub mod gaudi;
mod intel;

use crate::agent::Config;
use crate::fakes::{self, Fake, FakeVendor};
use crate::worker::nodes::number_of;
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::health::Errors;
use nvidia_ml::scenario::{Device, Scenario};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of each vendor's first device in a worker's script, and how its node's name begins.
pub const BASES: [(u32, &str); 5] = [
    (1000, "accel/accel"),
    (2000, "tenstorrent/"),
    (3000, "vfio/"),
    (4000, "dri/renderD16"),
    (5000, "neuron"),
];

/// The node of a device of these vendors, by its number in a worker's script.
pub fn node_of(number: u32) -> Option<String> {
    let base = BASES.iter().rev().find(|(base, _)| number >= *base);
    base.map(|(base, name)| format!("{name}{}", number - base))
}

/// A row of a vendor: its name, its place in [`BASES`], its driver on the bus, and what writes a device.
macro_rules! vendor {
    ($name:literal, $place:literal, $driver:expr, $write:path) => {
        FakeVendor {
            name: $name,
            nodes: |scenario| {
                let count = u32::try_from(scenario.devices().count()).unwrap_or(0);
                (0..count).map(|index| format!("{}{index}", BASES[$place].1)).collect()
            },
            install: |root, scenario| {
                let fake = Files {
                    root: root.to_owned(),
                    scenario,
                    place: $place,
                    driver: $driver,
                    write: $write,
                    plays: AtomicU64::new(0),
                };
                fake.begin()?;
                fake.play(0.0)?;
                Ok(Box::new(fake))
            },
        }
    };
}
/// Intel's Gaudi.
pub const GAUDI: FakeVendor = vendor!("gaudi", 0, |_| "habanalabs", gaudi::write);
/// Tenstorrent.
pub const TENSTORRENT: FakeVendor = vendor!("tenstorrent", 1, |_| "tenstorrent", tenstorrent);
/// Google's TPU.
pub const TPU: FakeVendor = vendor!("tpu", 2, |_| "vfio-pci", tpu);
/// Intel's GPUs.
pub const INTEL: FakeVendor = vendor!("intel", 3, intel::driver, intel::write);
/// AWS Neuron.
pub const NEURON: FakeVendor = vendor!("neuron", 4, |_| "neuron-driver", neuron);

/// Writes the files of a device as they are at a second.
type Write = fn(&Files, &Device<'_>, f64) -> io::Result<()>;

/// The devices of one vendor.
#[derive(Debug)]
struct Files {
    root: PathBuf,
    scenario: Scenario,
    place: usize,
    /// The driver of a device.
    driver: fn(&Device<'_>) -> &'static str,
    write: Write,
    /// How often the scenario was shown.
    plays: AtomicU64,
}

impl Files {
    /// Makes what does not change.
    fn begin(&self) -> io::Result<()> {
        fakes::kernel(&self.root)?;
        for device in self.scenario.devices() {
            let address = device.text(&device.group.pci);
            let driver = (self.driver)(&device);
            for folder in ["devices".to_owned(), format!("drivers/{driver}")] {
                self.link(&self.folder(&device), &format!("sys/bus/pci/{folder}/{address}"))?;
            }
            let driver = self.root.join("sys/bus/pci/drivers").join(driver);
            self.link(&driver, &format!("sys/devices/pci0000:00/{address}/driver"))?;
        }
        Ok(())
    }

    fn folder(&self, device: &Device<'_>) -> PathBuf {
        self.root.join("sys/devices/pci0000:00").join(device.text(&device.group.pci))
    }

    /// Writes a file of the device's folder.
    fn put(&self, device: &Device<'_>, file: &str, text: &str) -> io::Result<()> {
        put_text(&self.folder(device).join(file), text)
    }

    /// Writes the files of a device.
    fn show(&self, device: &Device<'_>, seconds: f64) -> io::Result<()> {
        for (file, text) in device.group.pcie.iter().flat_map(fakes::link_files) {
            self.put(device, &file, &text)?;
        }
        (self.write)(self, device, seconds)
    }

    /// Makes a link below the root, unless it is there.
    fn link(&self, to: &Path, place: &str) -> io::Result<()> {
        let place = self.root.join(place);
        fs::create_dir_all(place.parent().unwrap_or(&self.root))?;
        match symlink(to, place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// The number of the device's node: of what stands for it, or one that nothing has.
    fn number(&self, device: &Device<'_>) -> String {
        let (_, name) = BASES[self.place];
        let otherwise = (240 + u32::try_from(self.place).unwrap_or(0), device.index);
        number_of(&format!("{name}{}", device.index), otherwise)
    }

    /// Its folder in a class, with its node's number and a link to the device.
    fn class(&self, device: &Device<'_>, class: &str, name: &str) -> io::Result<()> {
        let folder = format!("sys/class/{class}/{name}");
        put_text(&self.root.join(&folder).join("dev"), &self.number(device))?;
        self.link(&self.folder(device), &format!("{folder}/device"))
    }
}

impl Fake for Files {
    fn numbers(&self) -> Vec<u32> {
        let (first, _) = BASES[self.place];
        self.scenario.devices().map(|device| first + device.index).collect()
    }

    fn configure(&self, config: &mut Config) {
        config.sys = Some(self.root.join("sys"));
        let program = gaudi::program(&self.root);
        if self.place == 0 && program.exists() {
            // Writing to a string cannot fail.
            let _ = write!(config.more, "[gaudi]\nlibrary = \"{}\"\n", program.display());
        }
    }

    /// Their drivers list no processes: those are on a device that have its node open.
    fn set_processes(&self, _: u32, _: &[u32]) -> io::Result<()> {
        Ok(())
    }

    fn play(&self, seconds: f64) -> io::Result<()> {
        self.plays.fetch_add(1, Ordering::Relaxed);
        self.scenario.devices().try_for_each(|device| self.show(&device, seconds))
    }
}

/// Writes a file with the line end that sysfs gives.
fn put_text(path: &Path, text: &str) -> io::Result<()> {
    fakes::put(path, format!("{text}\n").as_bytes())
}

/// A curve at a second, times a factor, as a whole number.
fn whole(device: &Device<'_>, curve: Option<&Curve>, seconds: f64, factor: f64) -> Option<String> {
    curve.map(|curve| format!("{:.0}", device.value(curve, seconds) * factor))
}

/// Joules since the scenario began.
fn joules(device: &Device<'_>, seconds: f64) -> Option<f64> {
    let place = nvidia_ml::curve::Place { device: device.index, slot: 0 };
    device.group.power.as_ref().map(|power| power.integral(seconds, place))
}

/// The clock at most, in MHz.
fn highest(device: &Device<'_>) -> Option<f64> {
    device.group.clocks.highest.map(|[graphics, ..]| graphics)
}

/// Of tt-kmd 4af71921: `tt_*` `telemetry.c` (`tt_sysfs_show_*`, `docs/sysfs-attributes.md`), `pcie_perf_counters`
/// `WH_PCIE_COUNTER_ATTR_RO_PAIR` in `wormhole.c` and `BH_…` in `blackhole.c`, `hwmon` `wh_hwmon_attrs` and
/// `bh_hwmon_attrs`, `device` `enumerate.h`.
fn tenstorrent(files: &Files, device: &Device<'_>, seconds: f64) -> io::Result<()> {
    let group = device.group;
    let class = format!("tenstorrent/tenstorrent!{}", device.index);
    let put = |file: &str, text: &str| files.put(device, &format!("{class}/{file}"), text);
    put("dev", &files.number(device))?;
    let is_blackhole = group.name.starts_with('p');
    files.put(device, "device", if is_blackhole { "0xb140" } else { "0x401e" })?;
    put("tt_asic_id", &device.text(&group.uuid))?;
    put("tt_card_type", &device.text(&group.name))?;
    if is_blackhole {
        put("tt_therm_trip_count", "2")?;
    }
    // It beats while the scenario is played.
    let plays = files.plays.load(Ordering::Relaxed);
    if plays > 1 {
        put("tt_heartbeat", &plays.to_string())?;
    }
    if let Some(mhz) = whole(device, group.clocks.graphics.as_ref(), seconds, 1.0) {
        put("tt_aiclk", &mhz)?;
    }
    if let Some(pcie) = &group.pcie {
        // What the host writes the tile sends on to the network, and what the device writes to the host
        // arrives from the network (tt-isa-documentation, NoC/Counters.md).
        let counters = [
            ("mst_posted_wr_data_word_sent", &pcie.receive),
            ("mst_nonposted_wr_data_word_sent", &None),
            ("slv_rd_data_word_sent", &None),
            ("mst_rd_data_word_received", &None),
            ("slv_posted_wr_data_word_received", &pcie.transmit),
            ("slv_nonposted_wr_data_word_received", &None),
        ];
        for (name, rate) in counters {
            for network in 0..2 {
                let bytes = rate.as_ref().filter(|_| network == 0).map_or(0.0, |rate| {
                    let place = nvidia_ml::curve::Place { device: device.index, slot: 0 };
                    rate.integral(seconds, place)
                });
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "the counter has 32 bits of 32 bytes each"
                )]
                let flits = (bytes / 32.0) as u64 as u32;
                put(&format!("pcie_perf_counters/{name}{network}"), &flits.to_string())?;
            }
        }
    }
    let hwmon = format!("hwmon/hwmon{}", device.index);
    let limit = group.power_limits.as_ref().map(|limits| format!("{:.0}", limits.maximum * 1e6));
    let slowdown = group.temperature_limits.degrees.map(|[_, slowdown, ..]| slowdown * 1000);
    for (file, text) in [
        ("power1_input", whole(device, group.power.as_ref(), seconds, 1e6)),
        ("power1_max", limit),
        ("temp1_input", whole(device, group.temperature.as_ref(), seconds, 1e3)),
        ("temp1_max", slowdown.map(|degrees| degrees.to_string())),
    ] {
        if let Some(text) = text {
            files.put(device, &format!("{hwmon}/{file}"), &text)?;
        }
    }
    Ok(())
}

/// Of the kernel: `vendor` and `device` `drivers/pci/pci-sysfs.c`, `iommu_group` and `iommu_groups/N/devices`
/// `drivers/iommu/iommu.c`, `vfio/N/dev` `drivers/vfio/group.c` (Linux 6.16); the numbers are those of
/// tpu-info 0.14 `device.py`.
fn tpu(files: &Files, device: &Device<'_>, _: f64) -> io::Result<()> {
    files.put(device, "vendor", "0x1ae0")?;
    files.put(device, "device", "0x0063")?;
    vfio(files, device, &device.index.to_string())
}

/// The device's group, through which processes use it.
fn vfio(files: &Files, device: &Device<'_>, group: &str) -> io::Result<()> {
    let address = device.text(&device.group.pci);
    let groups = format!("sys/kernel/iommu_groups/{group}");
    files.link(&files.folder(device), &format!("{groups}/devices/{address}"))?;
    let folder = files.root.join(groups);
    files.link(&folder, &format!("sys/devices/pci0000:00/{address}/iommu_group"))?;
    files.class(device, "vfio", group)
}

/// The driver's own tree; there is nothing of it in the PCI device's folder. Of aws-neuron-driver
/// fca19f7 (2.24.7), `neuron_sysfs_metrics.c`: `info/serial_number` and `info/architecture/device_name`
/// `root_arch_node_attrs_info_tbl` and `nsysfsmetric_show_nrt_other_metrics`; `device_mem`
/// `MEM_USAGE_COUNTER_ATTR_INFO_TBL` and `nsysfsmetric_inc_counter`; `stats/hardware` `ecc_attrs_info_tbl`;
/// `dev` is the kernel's (`device_create` in `neuron_cdev.c`).
fn neuron(files: &Files, device: &Device<'_>, seconds: f64) -> io::Result<()> {
    let group = device.group;
    let chip = files.root.join(format!("sys/devices/virtual/neuron_device/neuron{}", device.index));
    let put = |file: &str, text: &str| put_text(&chip.join(file), text);
    put("dev", &files.number(device))?;
    put("info/architecture/device_name", &device.text(&group.name))?;
    let serial = group.serial.as_deref().map(|text| device.text(text));
    put("info/serial_number", &serial.unwrap_or_default())?;
    let cores = if group.name == "Trainium1" { 2 } else { 8 };
    let used = device.value(&group.memory.used, seconds) / f64::from(cores);
    for core in 0..cores {
        // In use now, the size of the last change, the most so far (`nsysfsmetric_inc_counter`).
        for (file, bytes) in [("total", used), ("present", 4096.0), ("peak", used)] {
            let folder = format!("neuron_core{core}/stats/memory_usage/device_mem");
            put(&format!("{folder}/{file}"), &format!("{bytes:.0}"))?;
        }
    }
    let uncorrected = |errors: &Option<Errors>| {
        let errors = errors.as_ref()?;
        Some(format!("{:.0}", device.value(&errors.uncorrected, seconds)))
    };
    let ecc = group.ecc.as_ref();
    for (file, count) in [
        ("mem_ecc_uncorrected", ecc.and_then(|ecc| uncorrected(&ecc.dram))),
        ("mem_ecc_repairable_uncorrected", None),
        ("sram_ecc_uncorrected", ecc.and_then(|ecc| uncorrected(&ecc.sram))),
    ] {
        put(&format!("stats/hardware/{file}"), &count.unwrap_or_else(|| "0".to_owned()))?;
    }
    Ok(())
}
