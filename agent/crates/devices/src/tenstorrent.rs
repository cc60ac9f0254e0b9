//! Reads Tenstorrent devices (Wormhole, Blackhole) from the files of their kernel driver.
//!
//! A reading is about fifteen small files: telemetry that the firmware writes
//! (`/sys/class/tenstorrent`), `hwmon` and the PCIe counters. The driver has no counter of busy
//! time and does not tell how much memory is used; `tt-smi` derives neither, and is not run
//! (`docs/decisions/0019-tt-smi.md`). Files and units: tt-kmd `docs/sysfs-attributes.md`,
//! `telemetry.c`, `wormhole.c` and `blackhole.c` (2026); not tried on hardware.

use super::files::{Files, numbered};
use super::sysfs::{self, FileDevice, Hwmon, Link, MEGA, MICRO, ReadFiles, Source};
use super::wire::{Outcome, Reading, WireValue, push};
use super::{OpenError, OpenLibrary, OpenOptions, Vendor};
use gpuwho_model::catalog::device::{self as metric, Clock, Limit, Sensor, TemperatureLimit};
use gpuwho_model::catalog::link::Direction;
use gpuwho_model::catalog::wear;
use gpuwho_model::ids::GpuUuid;
use gpuwho_model::paths::Paths;
use gpuwho_owners::inventory::GpuInfo;
use gpuwho_owners::inventory::facts::Fact;
use gpuwho_owners::nodes::{IdForm, VendorNodes};
use std::path::PathBuf;

const SAMPLE: &str = r#"#: enabled = true
# There is no library to name: the driver's files (/sys/class/tenstorrent, hwmon) are read.
#: confined = true
# A device that has not answered by then is reported as hung. Half the interval, where that is shorter.
#: deadline = "5s"
# How often a missing driver or device is searched for.
#: retry = "30s"
"#;

pub(super) const VENDOR: Vendor = Vendor {
    name: "tenstorrent",
    remedy: "load the kernel driver: modprobe tenstorrent",
    nodes: VendorNodes {
        nodes: &["/dev/tenstorrent/*"],
        node_drivers: &[DRIVER],
        drivers: &[DRIVER],
        is_device_node: |node| {
            node.strip_prefix("tenstorrent/").is_some_and(|number| number.parse::<u32>().is_ok())
        },
        resources: &[("tenstorrent.com/", IdForm::Index("tenstorrent"))],
        ..VendorNodes::NONE
    },
    sample: SAMPLE,
    listed: |paths| sysfs::bound(paths, &[DRIVER]),
    source: |def| sysfs::source_of(&sources(), &without(), def, "no file of the driver has it"),
    open,
    ..Vendor::DEFAULT
};

/// The driver's name on the bus and in `/proc/devices`.
const DRIVER: &str = "tenstorrent";
/// Bytes of a word of the PCIe counters, by the chip's number on the bus. Of Wormhole tt-kmd
/// (`docs/sysfs-attributes.md`) and tt-isa-documentation (`WormholeB0/NoC/README.md`) both say 32. Of Blackhole
/// they differ, 32 and 64 (`BlackholeA0/NoC/Counters.md`), so its traffic is not read.
const WORDS: &[(&str, u64)] = &[("0x401e", 32)];
/// PCIe counters by direction, seen from the device, of two networks each. They are of the PCIe tile, which
/// begins (`mst`) what the host asks for and serves (`slv`) what tiles ask of the host (`NoC/Counters.md`).
const SENT: &[&str] = &[
    "mst_rd_data_word_received",
    "slv_posted_wr_data_word_received",
    "slv_nonposted_wr_data_word_received",
];
const RECEIVED: &[&str] =
    &["mst_posted_wr_data_word_sent", "mst_nonposted_wr_data_word_sent", "slv_rd_data_word_sent"];
/// The heartbeat changes several times a second; without a change for so long the firmware has
/// stopped.
const MAX_STILL_NS: u64 = 20_000_000_000;

fn open(opening: &OpenOptions<'_>) -> Result<OpenLibrary, OpenError> {
    let paths = opening.paths.clone();
    let device = |(index, address, folder)| {
        FileDevice::boxed(Card {
            paths: paths.clone(),
            folder,
            address,
            index,
            word: None,
            io: [Words::default(), Words::default()],
            heartbeat: Heartbeat::default(),
            link: Link::default(),
        })
    };
    let devices = sysfs::bound_devices(&paths, &[DRIVER]).map(device).collect();
    sysfs::library(devices, &paths, VENDOR.listed, &sysfs::unbound(&[DRIVER]))
}

/// One device.
struct Card {
    paths: Paths,
    folder: PathBuf,
    address: String,
    index: u32,
    /// Bytes of a word of its PCIe counters.
    word: Option<u64>,
    io: [Words; 2],
    heartbeat: Heartbeat,
    link: Link,
}

/// The last heartbeat of the firmware, and when it was first read, in nanoseconds of the boot clock.
#[derive(Default)]
struct Heartbeat(Option<(u64, u64)>);

impl Heartbeat {
    /// Whether the firmware has stopped; a firmware without a heartbeat has not.
    fn has_stopped(&mut self, beat: Option<u64>, now_ns: u64) -> bool {
        let since =
            self.0.filter(|(last, _)| Some(*last) == beat).map_or(now_ns, |(_, since)| since);
        self.0 = beat.map(|beat| (beat, since));
        now_ns.saturating_sub(since) >= MAX_STILL_NS
    }
}

/// 32-bit counters as one that does not wrap. It begins with the first reading, as a wrap before it
/// leaves no trace.
#[derive(Default)]
struct Words {
    last: Vec<u32>,
    total: u64,
}

impl Words {
    /// Adds what the counters gained; `None` if their number has changed, as after a firmware update.
    fn add(&mut self, now: Vec<u32>) -> Option<u64> {
        if self.last.len() != now.len() {
            *self = Self { last: now, total: 0 };
            return (!self.last.is_empty()).then_some(0);
        }
        let gained = now.iter().zip(&self.last).map(|(now, last)| now.wrapping_sub(*last));
        self.total = self.total.saturating_add(gained.map(u64::from).sum());
        self.last = now;
        (!self.last.is_empty()).then_some(self.total)
    }
}

impl Card {
    /// Its folder in the class, named `tenstorrent!N`.
    fn class(&self) -> Option<(u32, PathBuf)> {
        numbered(&self.folder.join(DRIVER), "tenstorrent!").into_iter().next()
    }

    fn io(&mut self, class: &std::path::Path, files: &mut Files, out: &mut Vec<WireValue>) {
        let Some(word) = self.word else { return };
        let folder = class.join("pcie_perf_counters");
        let directions = [(Direction::Transmit, SENT), (Direction::Receive, RECEIVED)];
        for ((direction, names), words) in directions.into_iter().zip(&mut self.io) {
            let counters = names.iter().flat_map(|name| [0, 1].map(|noc| format!("{name}{noc}")));
            let read = |file| {
                // All ones is a value of these counters, so the file is read as text.
                files.text(&folder.join(file)).and_then(|text| text.parse().ok())
            };
            // A sum without one of them is another sum.
            let now: Option<Vec<u32>> = counters.map(read).collect();
            let bytes = now.and_then(|now| words.add(now)).map(|words| words.saturating_mul(word));
            push(out, &wear::PCIE_IO, direction, bytes.and_then(|bytes| i64::try_from(bytes).ok()));
        }
    }
}

impl ReadFiles for Card {
    fn identity(&mut self, files: &mut Files) -> GpuInfo {
        let chip = files.text(&self.folder.join("device"));
        let word = WORDS.iter().find(|(known, _)| Some(*known) == chip.as_deref());
        self.word = word.map(|(_, bytes)| *bytes);
        let class = self.class();
        let mut text = |file: &str| files.text(&class.as_ref()?.1.join(file));
        let is_id = |id: &String| {
            let digits = id.trim_start_matches("0x").trim_matches('0');
            !digits.is_empty() && !digits.bytes().all(|digit| digit.eq_ignore_ascii_case(&b'f'))
        };
        let asic = text("tt_asic_id").filter(is_id);
        let serial = text("tt_serial").filter(is_id);
        let card = text("tt_card_type").filter(|card| card != "unknown");
        let bundle = text("tt_fw_bundle_ver");
        // Two chips of a board have one serial number and a chip's number each.
        let placed = format!("TT-{}", self.address);
        let id = asic.map(|id| format!("TT-{}", id.trim_start_matches("0x")));
        let id = id.unwrap_or_else(|| placed.clone());
        let nodes = class.as_ref().map_or_else(Vec::new, |(number, class)| {
            sysfs::nodes(format!("tenstorrent/{number}"), class, files)
        });
        let model = card.map_or_else(|| "Tenstorrent".to_owned(), |c| format!("Tenstorrent {c}"));
        let mut info = GpuInfo {
            nodes,
            placed: Some(GpuUuid::new(&placed)),
            model: Some(model),
            pci_address: Some(self.address.to_ascii_lowercase()),
            serial,
            driver_version: sysfs::version(&self.paths, DRIVER, files),
            ..GpuInfo::new(GpuUuid::new(&id), VENDOR.name, self.index)
        };
        info.facts.set(Fact::Vbios, bundle);
        info
    }

    fn is_lost(&mut self, _: &mut Files) -> Option<String> {
        sysfs::lost(&self.folder, &self.address, &[DRIVER])
    }

    fn values(&mut self, files: &mut Files, _: &[u32], reading: &mut Reading) -> Outcome {
        let out = &mut reading.values;
        push(out, &metric::INFO, (), Some(1));
        let Some((_, class)) = self.class() else {
            return Outcome::Failing("the driver has not finished with the device".to_owned());
        };
        let beat = files.number(&class.join("tt_heartbeat"));
        if self.heartbeat.has_stopped(beat, reading.asked_ns) {
            return Outcome::Failing("the firmware's heartbeat has stopped".to_owned());
        }
        #[expect(clippy::cast_precision_loss, reason = "megahertz")]
        let clock = files.number(&class.join("tt_aiclk")).map(|mhz| mhz as f64 * MEGA);
        push(out, &metric::CLOCK_SPEED, Clock::Graphics, clock);
        let trips = files.number(&class.join("tt_therm_trip_count"));
        push(
            out,
            &metric::THERMAL_SHUTDOWNS,
            (),
            trips.and_then(|trips| i64::try_from(trips).ok()),
        );
        self.io(&class, files, out);
        let mut hwmon = Hwmon::of(&self.folder, &["power1_input", "temp1_input"], files);
        push(out, &metric::POWER, (), hwmon.scaled("power1_input", MICRO));
        push(out, &metric::POWER_LIMIT, Limit::Maximum, hwmon.scaled("power1_max", MICRO));
        push(out, &metric::TEMPERATURE, Sensor::Gpu, hwmon.degrees("temp1_input"));
        let limit = hwmon.degrees("temp1_max");
        push(out, &metric::TEMPERATURE_LIMIT, TemperatureLimit::Slowdown, limit);
        let outcome = sysfs::outcome(reading, files);
        self.link.read(&self.folder, files, &mut reading.values);
        self.link.limits(&self.folder, files, &mut reading.values);
        outcome
    }
}

/// The file behind each metric.
fn sources() -> Vec<Source> {
    let own = [
        (metric::INFO.def(), "`tt_asic_id`, `tt_card_type`, `tt_serial`, `tt_fw_bundle_ver`"),
        (metric::STATE.def(), "the link `driver`, `tt_heartbeat`, the reader's deadline"),
        (metric::POWER.def(), "hwmon `power1_input` (µW)"),
        (metric::POWER_LIMIT.def(), "hwmon `power1_max` (µW)"),
        (metric::TEMPERATURE.def(), "hwmon `temp1_input` (m°C)"),
        (metric::TEMPERATURE_LIMIT.def(), "hwmon `temp1_max` (m°C)"),
        (metric::CLOCK_SPEED.def(), "`tt_aiclk` (MHz)"),
        (metric::THERMAL_SHUTDOWNS.def(), "`tt_therm_trip_count` (Blackhole)"),
        (
            wear::PCIE_IO.def(),
            "`pcie_perf_counters/*` (Wormhole: words of 32 bytes; 32 bits, counted on)",
        ),
    ];
    own.into_iter().chain(sysfs::link_sources()).chain(sysfs::opener_sources()).collect()
}

/// Why there is no file, where it is not the same for all.
fn without() -> Vec<Source> {
    let smi = "only the firmware has it, which `tt-smi` asks (`docs/decisions/0019-tt-smi.md`)";
    vec![
        (metric::UTILIZATION.def(), "the driver has no counter of busy time"),
        (metric::MEMORY_USAGE.def(), "memory is given out by the program itself"),
        (metric::ENERGY.def(), "the driver has the power now: `gpu.power`"),
        (
            metric::FAN_SPEED.def(),
            "hwmon `fan1_input` is turns a minute, of a maximum that is not published",
        ),
        (wear::ECC_ERRORS.def(), smi),
        (wear::ECC_VOLATILE.def(), smi),
        (metric::CLOCK_LIMIT.def(), smi),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Heartbeat, VENDOR};
    use crate::sysfs::fake::{Tree, expected, values};
    use crate::wire::Outcome;
    use std::fs;

    const ADDRESS: &str = "0000:41:00.0";

    fn wormhole(tree: &Tree) -> String {
        let folder = tree.pci(ADDRESS, "tenstorrent");
        tree.put(&format!("{folder}/device"), "0x401e");
        let class = format!("{folder}/tenstorrent/tenstorrent!0");
        tree.put_all(
            &class,
            &[
                ("dev", "236:0"),
                ("tt_aiclk", "1000"),
                ("tt_asic_id", "00112233aabbccdd"),
                ("tt_serial", "0100014211703001"),
                ("tt_card_type", "n300"),
                ("tt_fw_bundle_ver", "18.7.0.0"),
                ("tt_heartbeat", "41"),
            ],
        );
        // tt-kmd, `docs/sysfs-attributes.md`.
        for name in [
            "mst_rd_data_word_received",
            "mst_nonposted_wr_data_word_sent",
            "mst_posted_wr_data_word_sent",
            "slv_nonposted_wr_data_word_received",
            "slv_posted_wr_data_word_received",
            "slv_rd_data_word_sent",
        ] {
            for noc in 0..2 {
                tree.put(&format!("{class}/pcie_perf_counters/{name}{noc}"), "4294967290");
            }
        }
        let hwmon = format!("{folder}/hwmon/hwmon3");
        tree.put_all(
            &hwmon,
            &[
                ("power1_input", "83000000"),
                ("power1_max", "160000000"),
                ("temp1_input", "47250"),
                ("temp1_max", "75000"),
            ],
        );
        class
    }

    #[test]
    fn every_value_of_a_wormhole_is_in_its_base_unit() {
        let tree = Tree::new();
        let class = wormhole(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        let reading = device.read(&[]);
        assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
        let of = |sent, received| {
            expected(&[
                ("gpu.power", 83.0),
                ("gpu.power.limit{maximum}", 160.0),
                ("gpu.temperature{gpu}", 47.25),
                ("gpu.temperature.limit{slowdown}", 75.0),
                ("gpu.clock.speed{graphics}", 1e9),
                ("gpu.pcie.io{transmit}", sent),
                ("gpu.pcie.io{receive}", received),
            ])
        };
        assert_eq!(values(&reading.values), of(0.0, 0.0));
        let info = reading.identity.unwrap();
        assert_eq!(info.uuid.as_str(), "TT-00112233aabbccdd");
        assert_eq!(info.nodes, ["tenstorrent/0", "236:0"]);
        assert_eq!(info.model.as_deref(), Some("Tenstorrent n300"));
        // A counter of 32 bits has wrapped, by 16 words of 32 bytes: the device has read from the host.
        tree.put(&format!("{class}/pcie_perf_counters/slv_rd_data_word_sent1"), "10");
        tree.put(&format!("{class}/tt_heartbeat"), "42");
        assert_eq!(values(&device.read(&[]).values), of(0.0, 512.0));
    }

    #[test]
    fn what_the_host_writes_is_received_and_what_it_reads_is_sent() {
        let tree = Tree::new();
        let class = wormhole(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        device.read(&[]);
        let mut grows = |counter: &str| {
            tree.put(&format!("{class}/pcie_perf_counters/{counter}0"), "4294967291");
            let read = values(&device.read(&[]).values);
            let of = |direction| read[&format!("gpu.pcie.io{{{direction}}}")] / 32.0;
            (of("transmit"), of("receive"))
        };
        assert_eq!(grows("mst_posted_wr_data_word_sent"), (0.0, 1.0), "the host writes");
        assert_eq!(grows("mst_nonposted_wr_data_word_sent"), (0.0, 2.0));
        assert_eq!(grows("mst_rd_data_word_received"), (1.0, 2.0), "the host reads");
        assert_eq!(grows("slv_posted_wr_data_word_received"), (2.0, 2.0), "a tile writes to it");
        assert_eq!(grows("slv_rd_data_word_sent"), (2.0, 3.0), "a tile reads from it");
    }

    #[test]
    fn a_blackhole_has_no_traffic_while_the_vendor_s_texts_differ() {
        let tree = Tree::new();
        wormhole(&tree);
        tree.put(&format!("sys/devices/pci0000:00/{ADDRESS}/device"), "0xb140");
        let read = values(&tree.read(&VENDOR)[0].values);
        assert!(!read.keys().any(|name| name.starts_with("gpu.pcie.io")), "{read:?}");
    }

    /// `tenstorrent/tt-firmware` 9: a Galaxy whose class folder has `dev` and `uevent` alone, without `hwmon`.
    #[test]
    fn a_chip_without_telemetry_is_there_and_unread_and_one_that_loses_it_fails() {
        let tree = Tree::new();
        let folder = tree.pci(ADDRESS, "tenstorrent");
        tree.put(&format!("{folder}/tenstorrent/tenstorrent!0/dev"), "236:0");
        let mut device = tree.open(&VENDOR).devices.remove(0);
        for _ in 0..3 {
            let reading = device.read(&[]);
            assert_eq!(
                (&reading.outcome, reading.note.as_str()),
                (&Outcome::Ok, super::sysfs::UNREAD)
            );
            assert_eq!(values(&reading.values), expected(&[]));
        }
        tree.put(&format!("{folder}/hwmon/hwmon3/power1_input"), "83000000");
        let reading = device.read(&[]);
        assert_eq!((&reading.outcome, reading.note.as_str()), (&Outcome::Ok, ""));
        fs::remove_dir_all(tree.at(&format!("{folder}/hwmon"))).unwrap();
        let gone = Outcome::Failing("the readings that it had are gone".to_owned());
        assert_eq!(device.read(&[]).outcome, gone);
    }

    #[test]
    fn a_blackhole_counts_its_shutdowns() {
        let tree = Tree::new();
        let class = wormhole(&tree);
        let count = |tree: &Tree| {
            values(&tree.read(&VENDOR)[0].values).get("gpu.thermal.shutdowns").copied()
        };
        assert_eq!(count(&tree), None, "a Wormhole has no such file");
        tree.put(&format!("{class}/tt_therm_trip_count"), "2");
        assert_eq!(count(&tree), Some(2.0));
    }

    #[test]
    fn a_firmware_whose_heartbeat_does_not_change_has_stopped_until_it_beats_again() {
        let mut heartbeat = Heartbeat::default();
        let mut stops = |beat, second: u64| heartbeat.has_stopped(beat, second * 1_000_000_000);
        assert_eq!([(7, 0), (7, 19), (7, 20)].map(|(beat, at)| stops(Some(beat), at)), {
            [false, false, true]
        });
        assert_eq!([(8, 21), (8, 30)].map(|(beat, at)| stops(Some(beat), at)), [false, false]);
        assert_eq!([31, 99].map(|at| stops(None, at)), [false, false], "it has none");
    }

    #[test]
    fn files_that_are_missing_or_nonsense_cost_only_their_own_value() {
        let tree = Tree::new();
        let class = wormhole(&tree);
        let whole = values(&tree.read(&VENDOR)[0].values);
        let hwmon = tree.at(&format!("sys/devices/pci0000:00/{ADDRESS}/hwmon/hwmon3"));
        for text in ["", "4294967295\n", "-7\n", "warm\n"] {
            fs::write(hwmon.join("power1_input"), text).unwrap();
            let mut rest = values(&tree.read(&VENDOR)[0].values);
            assert_eq!(rest.insert("gpu.power".into(), 83.0), None, "{text:?}");
            assert_eq!(rest, whole);
        }
        fs::remove_file(tree.at(&format!("{class}/pcie_perf_counters/slv_rd_data_word_sent0")))
            .unwrap();
        let values = values(&tree.read(&VENDOR)[0].values);
        assert!(!values.contains_key("gpu.pcie.io{receive}"), "a part of a sum is no sum");
        assert!(values.contains_key("gpu.pcie.io{transmit}"));
    }

    #[test]
    fn of_two_folders_of_sensors_the_one_with_values_is_read() {
        let tree = Tree::new();
        wormhole(&tree);
        let whole = values(&tree.read(&VENDOR)[0].values);
        let device = format!("sys/devices/pci0000:00/{ADDRESS}");
        for (folder, files) in [("hwmon2", &["name", "power1_label"][..]), ("hwmon9", &["name"])] {
            for file in files {
                tree.put(&format!("{device}/hwmon/{folder}/{file}"), "wormhole");
            }
        }
        assert_eq!(values(&tree.read(&VENDOR)[0].values), whole);
    }

    #[test]
    fn a_device_that_is_unbound_is_lost() {
        let tree = Tree::new();
        wormhole(&tree);
        let mut device = tree.open(&VENDOR).devices.remove(0);
        fs::remove_file(tree.at(&format!("sys/devices/pci0000:00/{ADDRESS}/driver"))).unwrap();
        assert!(matches!(device.read(&[]).outcome, Outcome::Lost(_)));
    }
}
