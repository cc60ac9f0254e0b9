//! Reads AWS Neuron devices (Inferentia 2, Trainium) from the files of their kernel driver.
//!
//! A reading is one small file for each core and a few for the device, below
//! `/sys/devices/virtual/neuron_device`. The driver's counter of busy time (`nc_time_in_use`) has no
//! published unit, and current runtimes leave it at 0, so no utilisation is read. Files: aws-neuron-
//! driver 2.22 `neuron_sysfs_metrics.c` and AWS's sysfs guide; a later driver that has moved a file
//! has no value for it. Not tried on hardware.

use super::files::{Files, numbered};
use super::partitions::PartitionNodes;
use super::sysfs::{self, FileDevice, ReadFiles, Source};
use super::wire::{Outcome, Reading, push};
use super::{OpenError, OpenLibrary, OpenOptions, Vendor};
use crate::catalog::device::{self as metric, MemoryState};
use crate::catalog::wear::{self, EccError, EccLocation};
use crate::ids::GpuUuid;
use crate::inventory::GpuInfo;
use crate::paths::Paths;
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
    library: None,
    supplement: None,
    drivers: &["neuron-driver"],
    nodes: &["/dev/neuron*"],
    node_drivers: &["neuron"],
    sample: SAMPLE,
    switches: &[],
    keeps: CapabilitySet::DAC_READ_SEARCH,
    listed,
    is_device_node: |node| {
        node.strip_prefix("neuron").is_some_and(|number| number.parse::<u32>().is_ok())
    },
    partition_nodes: |_| PartitionNodes::default(),
    events: None,
    source: |def| sysfs::source_of(&sources(), def, "no file of the driver has it"),
    function: |file| file,
    lists_processes: false,
    served: None,
    is_through_vfio: None,
    open,
};

/// More cores than any device has.
const MAX_CORES: usize = 64;

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

impl ReadFiles for Chip {
    fn identity(&mut self, files: &mut Files) -> GpuInfo {
        // The driver writes an empty line for a number that it could not read.
        let serial = files.text(&self.folder.join("info/serial_number"));
        let id = serial
            .as_deref()
            .map_or_else(|| format!("NEURON-{}", self.number), |serial| format!("NEURON-{serial}"));
        let chip = files.text(&self.folder.join("info/architecture/device_name"));
        let model = chip.map_or_else(|| "AWS Neuron".to_owned(), |chip| format!("AWS {chip}"));
        GpuInfo {
            nodes: sysfs::nodes(format!("neuron{}", self.number), &self.folder, files),
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
        let used = cores
            .iter()
            .take(MAX_CORES)
            .map(|(_, core)| files.number(&core.join("stats/memory_usage/device_mem/present")));
        // A sum without one core is another sum.
        let used: Option<Vec<u64>> = used.collect();
        let used = used.filter(|cores| !cores.is_empty());
        let used = used.and_then(|used| i64::try_from(used.iter().sum::<u64>()).ok());
        push(out, &metric::MEMORY_USAGE, MemoryState::Used, used);
        for (file, location) in [
            ("mem_ecc_uncorrected", EccLocation::Dram),
            ("sram_ecc_uncorrected", EccLocation::Sram),
        ] {
            let errors = files.number(&self.folder.join("stats/hardware").join(file));
            let errors = errors.and_then(|errors| i64::try_from(errors).ok());
            push(out, &wear::ECC_VOLATILE, (EccError::Uncorrected, location), errors);
        }
        sysfs::outcome(out, files)
    }
}

/// The file behind each metric.
fn sources() -> Vec<Source> {
    let own = [
        (metric::INFO.def(), "`info/serial_number`, `info/architecture/device_name`"),
        (metric::STATE.def(), "the driver's list, the reader's deadline"),
        (
            metric::MEMORY_USAGE.def(),
            "`neuron_coreN/stats/memory_usage/device_mem/present`, in sum",
        ),
        (wear::ECC_VOLATILE.def(), "`stats/hardware/mem_ecc_uncorrected`, `sram_ecc_uncorrected`"),
    ];
    own.into_iter().chain(sysfs::opener_sources()).collect()
}

#[cfg(test)]
mod tests {
    use super::VENDOR;
    use crate::collect::device::sysfs::fake::{Tree, values};
    use crate::collect::device::wire::Outcome;
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
                ("stats/hardware/sram_ecc_uncorrected", "0"),
            ],
        );
        for core in 0..8 {
            let file = format!("{CHIP}/neuron_core{core}/stats/memory_usage/device_mem/present");
            tree.put(&file, &(1_000_000 + core).to_string());
        }
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
        ]);
        assert_eq!(values(&reading.values), expected);
        let info = reading.identity.as_ref().unwrap();
        assert_eq!(info.uuid.as_str(), "NEURON-0123456789abcdef");
        assert_eq!((info.nodes.join(" "), info.model.as_deref()), {
            ("neuron0 242:0".to_owned(), Some("AWS Trainium2"))
        });
    }

    #[test]
    fn a_core_without_its_file_leaves_the_sum_out_and_all_ones_are_no_value() {
        let tree = Tree::new();
        trainium(&tree);
        let file = format!("{CHIP}/neuron_core3/stats/memory_usage/device_mem/present");
        tree.put(&file, "18446744073709551615");
        tree.put(&format!("{CHIP}/stats/hardware/mem_ecc_uncorrected"), "4294967295");
        let reading = &tree.read(&VENDOR)[0];
        let names: Vec<_> = values(&reading.values).into_keys().collect();
        assert_eq!(names, ["gpu.ecc.location.errors.volatile{uncorrected,sram}", "gpu.info"]);
        assert_eq!(reading.cost.implausible, 2);
    }

    #[test]
    fn an_empty_file_costs_only_its_own_value() {
        let tree = Tree::new();
        trainium(&tree);
        let whole = values(&tree.read(&VENDOR)[0].values);
        for (file, metric) in [
            ("neuron_core7/stats/memory_usage/device_mem/present", "gpu.memory.usage{used}"),
            (
                "stats/hardware/sram_ecc_uncorrected",
                "gpu.ecc.location.errors.volatile{uncorrected,sram}",
            ),
        ] {
            for bad in ["", "\n", "none\n"] {
                fs::write(tree.at(&format!("{CHIP}/{file}")), bad).unwrap();
                let mut rest = values(&tree.read(&VENDOR)[0].values);
                assert_eq!(rest.insert(metric.to_owned(), whole[metric]), None, "{file} {bad:?}");
                assert_eq!(rest, whole);
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
    fn a_device_that_the_driver_drops_is_lost() {
        let tree = Tree::new();
        trainium(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        fs::remove_dir_all(tree.at(CHIP)).unwrap();
        assert!(matches!(device.read(&[]).outcome, Outcome::Lost(_)));
        assert!((VENDOR.listed)(&tree.paths()).is_empty());
    }
}
