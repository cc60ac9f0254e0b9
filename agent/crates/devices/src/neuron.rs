//! Reads AWS Neuron devices (Inferentia 2, Trainium) from the files of their kernel driver.
//!
//! A reading is one small file for each core and a few for the device, below
//! `/sys/devices/virtual/neuron_device`. The driver's counter of busy time (`nc_time_in_use`) has no
//! published unit, and current runtimes leave it at 0, so no utilisation is read. Files: aws-neuron-
//! driver 2.24.7 `neuron_sysfs_metrics.c` and AWS's sysfs guide. Driver 2.31 has moved several of them
//! (the guide of Neuron 2.33), to places that no public source names: then the reading says so. Not
//! tried on hardware.

use super::files::{Files, numbered};
use super::sysfs::{self, FileDevice, ReadFiles, Source};
use super::wire::{Outcome, Reading, WireValue, push};
use super::{OpenError, OpenLibrary, OpenOptions, Vendor};
use gpuwho_model::catalog::device::{self as metric, MemoryState};
use gpuwho_model::catalog::process;
use gpuwho_model::catalog::wear::{self, EccCount, EccError, EccLocation};
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use rustix::thread::CapabilitySet;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

const SAMPLE: &str = r#"#: enabled = true
# There is no library to name: the driver's files (/sys/devices/virtual/neuron_device) are read. Some
# are for root only; the process that reads them keeps CAP_DAC_READ_SEARCH.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "neuron",
    remedy: "load the kernel driver: modprobe neuron",
    nodes: VendorNodes {
        nodes: &["/dev/neuron*"],
        node_drivers: &["neuron"],
        drivers: &["neuron-driver"],
        is_device_node: |node| {
            node.strip_prefix("neuron").is_some_and(|number| number.parse::<u32>().is_ok())
        },
        resources: &[
            ("aws.amazon.com/neuroncore", IdForm::NeuronCore),
            ("aws.amazon.com/neuron", IdForm::Index("neuron")),
        ],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    keeps: CapabilitySet::DAC_READ_SEARCH,
    listed,
    source: |def| sysfs::source_of(&sources(), &without(), def, "no file of the driver has it"),
    open,
    ..Vendor::DEFAULT
};

/// More cores than any device has.
const MAX_CORES: usize = 64;
/// The memory that a core uses now. `present` beside it is the size of the last change, whether taken or
/// given back (`nsysfsmetric_inc_counter` and `nsysfsmetric_dec_counter`: `total += delta; present = delta`).
const USED: &str = "stats/memory_usage/device_mem/total";
/// Begins as [`sysfs::UNREAD`] does.
const NO_FILES: &str = "it is there, but its driver has no reading of it at the places of drivers up to 2.30 \
     (2.31 moved them, and no public source says where to): no memory, no ECC errors";

fn class(paths: &Paths) -> PathBuf {
    paths.sys.join("devices/virtual/neuron_device")
}

fn folders(paths: &Paths) -> Vec<(u32, PathBuf)> {
    numbered(&class(paths), "neuron").into_iter().take(sysfs::MAX_DEVICES).collect()
}

fn listed(paths: &Paths) -> BTreeSet<OsString> {
    folders(paths).iter().filter_map(|(_, folder)| folder.file_name().map(Into::into)).collect()
}

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let device =
        |(number, folder)| FileDevice::boxed(Chip { paths: paths.clone(), number, folder });
    let devices = folders(&paths).into_iter().map(device).collect();
    sysfs::library(devices, &paths, listed, "the driver neuron lists no device")
}

/// One device.
struct Chip {
    paths: Paths,
    number: u32,
    folder: PathBuf,
}

impl Chip {
    /// An error of the device memory is in one of two files: while a repair is pending in the
    /// repairable ones', else in the other (`nsysfsmetric_get_hbm_error_count_v3`). So their sum is the
    /// counter, and any in the former means that rows are repaired when the driver is loaded again. Older
    /// drivers have no such file.
    fn ecc(&self, files: &mut Files, out: &mut Vec<WireValue>) {
        let folder = self.folder.join("stats/hardware");
        let mut count = |file: &str| i64::try_from(files.number(&folder.join(file))?).ok();
        let (memory, sram) = (count("mem_ecc_uncorrected"), count("sram_ecc_uncorrected"));
        let repairable = count("mem_ecc_repairable_uncorrected");
        let memory = memory.map(|errors| errors.saturating_add(repairable.unwrap_or(0)));
        for (location, errors) in [(EccLocation::Dram, memory), (EccLocation::Sram, sram)] {
            push(out, &wear::ECC_VOLATILE, (EccError::Uncorrected, location), errors);
        }
        let all = memory.zip(sram).map(|(memory, sram)| memory.saturating_add(sram));
        push(out, &wear::ECC_ERRORS, (EccError::Uncorrected, EccCount::Volatile), all);
        push(out, &wear::REMAP_PENDING, (), repairable.map(|errors| i64::from(errors > 0)));
    }
}

impl ReadFiles for Chip {
    fn identity(&mut self, files: &mut Files) -> GpuInfo {
        // The driver writes an empty line for a number that it could not read.
        let serial = files.text(&self.folder.join("info/serial_number"));
        let placed = format!("NEURON-{}", self.number);
        let id = serial.as_deref().map(|serial| format!("NEURON-{serial}"));
        let id = id.unwrap_or_else(|| placed.clone());
        let chip = files.text(&self.folder.join("info/architecture/device_name"));
        let model = chip.map_or_else(|| "AWS Neuron".to_owned(), |chip| format!("AWS {chip}"));
        GpuInfo {
            nodes: sysfs::nodes(format!("neuron{}", self.number), &self.folder, files),
            placed: Some(GpuUuid::new(&placed)),
            model: Some(model),
            serial,
            driver_version: sysfs::version(&self.paths, "neuron", files),
            ..GpuInfo::new(GpuUuid::new(&id), VENDOR.name, self.number)
        }
    }

    fn is_lost(&mut self, _: &mut Files) -> Option<String> {
        let is_gone = !self.folder.exists();
        is_gone.then(|| format!("the driver no longer lists neuron{}", self.number))
    }

    fn values(&mut self, files: &mut Files, _: &[u32], reading: &mut Reading) -> Outcome {
        let out = &mut reading.values;
        push(out, &metric::INFO, (), Some(1));
        let cores = numbered(&self.folder, "neuron_core");
        let used = cores.iter().take(MAX_CORES).map(|(_, core)| files.number(&core.join(USED)));
        // A sum without one core is another sum.
        let used: Option<Vec<u64>> = used.collect();
        let used = used.filter(|cores| !cores.is_empty());
        // Root can set a core's counter to 0; it wraps when memory from before is given back.
        let used = used.and_then(|used| {
            let sum = used.into_iter().try_fold(0, u64::checked_add);
            files.count_implausible(sum.and_then(|sum| i64::try_from(sum).ok()))
        });
        push(out, &metric::MEMORY_USAGE, MemoryState::Used, used);
        self.ecc(files, out);
        if out.len() == 1 {
            NO_FILES.clone_into(&mut reading.note);
        }
        sysfs::outcome(reading, files)
    }
}

/// The file behind each metric.
fn sources() -> Vec<Source> {
    let own = [
        (metric::INFO.def(), "`info/serial_number`, `info/architecture/device_name`"),
        (metric::STATE.def(), "the driver's list, the reader's deadline"),
        (
            metric::MEMORY_USAGE.def(),
            "`neuron_coreN/stats/memory_usage/device_mem/total`, in sum (drivers before 2.31)",
        ),
        (
            wear::ECC_ERRORS.def(),
            "`stats/hardware/*_uncorrected`, in sum; the driver has no corrected ones",
        ),
        (
            wear::ECC_VOLATILE.def(),
            "`stats/hardware/mem_ecc_uncorrected` and `mem_ecc_repairable_uncorrected`, in sum; `sram_ecc_uncorrected`",
        ),
        (
            wear::REMAP_PENDING.def(),
            "whether `stats/hardware/mem_ecc_repairable_uncorrected` has any: repaired when the driver is loaded again",
        ),
    ];
    own.into_iter().chain(sysfs::opener_sources()).collect()
}

/// Why there is no file, where it is not the same for all.
fn without() -> Vec<Source> {
    let link = "no file says which PCI device it is";
    let own = [
        (
            metric::UTILIZATION.def(),
            "`nc_time_in_use` has no published unit, and current runtimes leave it at 0",
        ),
        (
            metric::POWER.def(),
            "`stats/power/utilization` is a percentage of a maximum that is not published",
        ),
        (
            metric::HOST_MEMORY_USAGE.def(),
            "`stats/memory_usage/host_mem` has what is used, of an unknown limit",
        ),
        (process::MEMORY_USAGE.def(), "the driver counts memory by core"),
    ];
    let links = sysfs::link_sources().into_iter().map(|(def, _)| (def, link));
    own.into_iter().chain(links).collect()
}

#[cfg(test)]
mod tests {
    use super::VENDOR;
    use crate::sysfs::fake::{Tree, values};
    use crate::wire::Outcome;
    use std::collections::BTreeMap;
    use std::fs;

    const CHIP: &str = "sys/devices/virtual/neuron_device/neuron0";

    fn trainium(tree: &Tree) {
        tree.put_all(
            CHIP,
            &[
                ("dev", "242:0"),
                ("info/serial_number", "0123456789abcdef"),
                ("info/architecture/device_name", "Trainium2"),
                ("stats/hardware/mem_ecc_uncorrected", "2"),
                ("stats/hardware/mem_ecc_repairable_uncorrected", "0"),
                ("stats/hardware/sram_ecc_uncorrected", "0"),
            ],
        );
        for core in 0..8 {
            memory(tree, core, 1_000_000 + core, 4096);
        }
    }

    /// A core's counter as the driver has it: in use now, and the size of the last change.
    fn memory(tree: &Tree, core: u64, total: u64, present: u64) {
        let folder = format!("{CHIP}/neuron_core{core}/stats/memory_usage/device_mem");
        tree.put(&format!("{folder}/total"), &total.to_string());
        tree.put(&format!("{folder}/present"), &present.to_string());
    }

    #[test]
    fn memory_is_the_sum_of_the_cores_and_ecc_is_by_location() {
        let tree = Tree::new();
        trainium(&tree);
        let reading = &tree.read(&VENDOR)[0];
        assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
        let expected = BTreeMap::from([
            ("gpu.info".to_owned(), 1.0),
            ("gpu.memory.usage{used}".to_owned(), 8_000_028.0),
            ("gpu.ecc.location.errors.volatile{uncorrected,dram}".to_owned(), 2.0),
            ("gpu.ecc.location.errors.volatile{uncorrected,sram}".to_owned(), 0.0),
            ("gpu.ecc.errors{uncorrected,volatile}".to_owned(), 2.0),
            ("gpu.memory.remap.pending".to_owned(), 0.0),
        ]);
        assert_eq!(values(&reading.values), expected);
        let info = reading.identity.as_ref().unwrap();
        assert_eq!(info.uuid.as_str(), "NEURON-0123456789abcdef");
        assert_eq!((info.nodes.join(" "), info.model.as_deref()), {
            ("neuron0 242:0".to_owned(), Some("AWS Trainium2"))
        });
    }

    #[test]
    fn memory_is_what_is_in_use_and_not_the_last_allocation() {
        let tree = Tree::new();
        tree.put(&format!("{CHIP}/dev"), "242:0");
        let used = |cores: [(u64, u64); 2]| {
            for (core, (total, present)) in (0..).zip(cores) {
                memory(&tree, core, total, present);
            }
            let reading = tree.read(&VENDOR).remove(0);
            (
                values(&reading.values).get("gpu.memory.usage{used}").copied(),
                reading.cost.implausible,
            )
        };
        let running = used([(9_000_000_000, 65_536), (8_500_000_000, 4_096)]);
        assert_eq!(running, (Some(17_500_000_000.0), 0));
        assert_eq!(used([(0, 3_221_225_472), (0, 4_096)]), (Some(0.0), 0), "all was given back");
        let wrapped = used([(u64::MAX - 4_095, 4_096), (0, 4_096)]);
        assert_eq!(wrapped, (None, 1), "a counter that root has reset wraps");
    }

    #[test]
    fn a_driver_that_has_moved_its_files_is_named() {
        let tree = Tree::new();
        tree.put(&format!("{CHIP}/dev"), "242:0");
        tree.put(&format!("{CHIP}/elsewhere/neuron_core0/total"), "1");
        let note = tree.read(&VENDOR).remove(0).note;
        assert!(note.contains("2.31 moved them"), "{note}");
    }

    #[test]
    fn a_device_without_statistics_is_there_and_unread() {
        let tree = Tree::new();
        tree.put_all(CHIP, &[("dev", "242:0"), ("core_count", "2")]);
        let reading = &tree.read(&VENDOR)[0];
        assert_eq!((&reading.outcome, reading.note.as_str()), (&Outcome::Ok, super::NO_FILES));
        assert_eq!(values(&reading.values).len(), 1);
    }

    #[test]
    fn a_core_without_its_file_leaves_the_sum_out_and_all_ones_are_no_value() {
        let tree = Tree::new();
        trainium(&tree);
        let file = format!("{CHIP}/neuron_core3/stats/memory_usage/device_mem/total");
        tree.put(&file, "18446744073709551615");
        tree.put(&format!("{CHIP}/stats/hardware/mem_ecc_uncorrected"), "4294967295");
        let reading = &tree.read(&VENDOR)[0];
        let names: Vec<_> = values(&reading.values).into_keys().collect();
        assert_eq!(
            names,
            [
                "gpu.ecc.location.errors.volatile{uncorrected,sram}",
                "gpu.info",
                "gpu.memory.remap.pending"
            ]
        );
        assert_eq!(reading.cost.implausible, 2);
    }

    #[test]
    fn an_empty_file_costs_only_its_own_value() {
        let tree = Tree::new();
        trainium(&tree);
        let whole = values(&tree.read(&VENDOR)[0].values);
        for (file, gone) in [
            ("neuron_core7/stats/memory_usage/device_mem/total", "gpu.memory.usage{used}"),
            (
                "stats/hardware/sram_ecc_uncorrected",
                "gpu.ecc.location.errors.volatile{uncorrected,sram}",
            ),
        ] {
            for bad in ["", "\n", "none\n"] {
                fs::write(tree.at(&format!("{CHIP}/{file}")), bad).unwrap();
                let rest = values(&tree.read(&VENDOR)[0].values);
                let mut expected = whole.clone();
                // With a location its sum is gone, too.
                let is_sum =
                    |name: &str| gone.contains("ecc") && name.starts_with("gpu.ecc.errors");
                expected.retain(|name, _| name != gone && !is_sum(name));
                assert_eq!(rest, expected, "{file} {bad:?}");
            }
            trainium(&tree);
        }
        for file in ["info/serial_number", "info/architecture/device_name"] {
            fs::write(tree.at(&format!("{CHIP}/{file}")), "").unwrap();
        }
        let info = tree.read(&VENDOR)[0].identity.clone().unwrap();
        assert_eq!((info.uuid.as_str(), info.model.as_deref()), ("NEURON-0", Some("AWS Neuron")));
    }

    #[test]
    fn an_error_that_a_reload_repairs_counts_once_and_is_pending() {
        let tree = Tree::new();
        trainium(&tree);
        let of = |uncorrected: &str, repairable: Option<&str>| {
            let folder = format!("{CHIP}/stats/hardware");
            tree.put(&format!("{folder}/mem_ecc_uncorrected"), uncorrected);
            let file = format!("{folder}/mem_ecc_repairable_uncorrected");
            match repairable {
                Some(text) => tree.put(&file, text),
                None => fs::remove_file(tree.at(&file)).unwrap(),
            }
            let read = values(&tree.read(&VENDOR)[0].values);
            let value = |name: &str| read.get(name).copied();
            (value("gpu.ecc.errors{uncorrected,volatile}"), value("gpu.memory.remap.pending"))
        };
        assert_eq!(of("0", Some("3")), (Some(3.0), Some(1.0)), "a repair is pending");
        assert_eq!(of("3", Some("0")), (Some(3.0), Some(0.0)), "it has failed");
        assert_eq!(of("3", None), (Some(3.0), None), "an older driver");
    }

    #[test]
    fn a_device_that_the_driver_drops_is_lost() {
        let tree = Tree::new();
        trainium(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        fs::remove_dir_all(tree.at(CHIP)).unwrap();
        assert!(matches!(device.read(&[]).outcome, Outcome::Lost(_)));
        assert!((VENDOR.listed)(&tree.paths()).is_empty());
    }
}
