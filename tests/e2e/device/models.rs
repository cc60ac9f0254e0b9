//! The readers of files on the trees of other models than those of their own tests.

use super::reader::amd::{Key, values};
use gpuwho_devices::wire::Outcome;
use gpuwho_devices::{OpenOptions, vendor};
use gpuwho_model::paths::Paths;
use gpuwho_tests::amd::Tree;
use gpuwho_tests::fakes::{FAKES, load};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The second of a scenario that the trees show.
const NOW: f64 = 100.0;
const GIB: f64 = 1_073_741_824.0;
/// Metric, dimensions, value.
type Row = (&'static str, &'static str, f64);

/// Reads a device of a scenario: its model must be this, and its values these.
fn reads(scenario: &str, name: &str, index: usize, model: &str, rows: &[Row]) {
    let folder = TempDir::new().unwrap();
    let fake = FAKES.iter().find(|vendor| vendor.name == name).unwrap();
    let scenario = load(scenario).unwrap().only(name);
    let fake = (fake.install)(folder.path(), scenario).unwrap();
    fake.play(NOW).unwrap();
    let paths = Paths::under(folder.path());
    let opening = OpenOptions { library: Path::new(""), paths: &paths, off: &[] };
    let mut opened = (vendor(name).unwrap().open)(&opening).map_err(|e| e.to_string()).unwrap();
    let reading = opened.devices[index].read(&[]);
    assert_eq!((&reading.outcome, reading.cost.failed), (&Outcome::Ok, 0), "{reading:#?}");
    let rows = rows.iter().chain(&[("gpu.info", "", 1.0)]);
    let expected = rows.map(|(name, dims, value)| ((*name, (*dims).to_owned()), *value));
    assert_eq!(values(&reading.values), expected.collect::<BTreeMap<Key, f64>>(), "{model}");
    assert_eq!(reading.identity.unwrap().model.as_deref(), Some(model));
}

#[test]
fn a_board_of_amds_whose_name_is_in_no_file_has_that_of_its_number() {
    for (scenario, model) in [
        ("mi210x4", "AMD Instinct MI210"),
        ("mi300x8", "AMD Instinct MI300X"),
        ("mi325x8", "AMD Instinct MI325X"),
    ] {
        let folder = TempDir::new().unwrap();
        let tree = Tree::new(folder.path(), &load(scenario).unwrap(), NOW).unwrap();
        fs::remove_file(tree.folder("0000:05:00.0").join("product_name")).unwrap();
        let paths = Paths::under(folder.path());
        let opening = OpenOptions { library: Path::new(""), paths: &paths, off: &[] };
        let opened = (vendor("amd").unwrap().open)(&opening).map_err(|error| error.to_string());
        let reading = opened.unwrap().devices[0].read(&[]);
        assert_eq!(reading.identity.unwrap().model.as_deref(), Some(model));
    }
}

/// A link as it is and can be.
fn link(generation: f64, width: f64) -> [Row; 4] {
    [
        ("gpu.pcie.link.generation", "", generation),
        ("gpu.pcie.link.generation.limit", "", generation),
        ("gpu.pcie.link.width", "", width),
        ("gpu.pcie.link.width.limit", "", width),
    ]
}

#[test]
fn an_mi210_has_an_edge_a_mean_of_its_power_and_bits_of_its_throttle_reasons() {
    let (total, used) = (68_702_699_520.0, 17.0 * GIB);
    let (host, aperture) = (1_081_835_950_080.0, 2_097_152.0);
    let rows = [
        ("gpu.utilization", "general", 0.27),
        ("gpu.memory.bandwidth.utilization", "", 0.13),
        ("gpu.memory.limit", "", total),
        ("gpu.memory.usage", "used", used),
        ("gpu.memory.usage", "free", total - used),
        ("gpu.memory.aperture.limit", "", total),
        ("gpu.memory.aperture.usage", "used", aperture),
        ("gpu.memory.aperture.usage", "free", total - aperture),
        ("gpu.memory.host.limit", "", host),
        ("gpu.memory.host.usage", "used", GIB / 4.0),
        ("gpu.memory.host.usage", "free", host - GIB / 4.0),
        ("gpu.power", "", 140.75),
        ("gpu.power.average", "", 140.75),
        ("gpu.power.limit", "management", 300.0),
        ("gpu.power.limit", "default", 300.0),
        ("gpu.power.limit", "minimum", 0.0),
        ("gpu.power.limit", "maximum", 300.0),
        ("gpu.energy", "", 14_075.0),
        ("gpu.clock.speed", "graphics", 1.41e9),
        ("gpu.clock.speed", "memory", 1.6e9),
        ("gpu.temperature", "gpu", 53.0),
        ("gpu.temperature", "hotspot", 61.0),
        ("gpu.temperature", "memory", 46.0),
        ("gpu.temperature.limit", "shutdown", 105.0),
        ("gpu.temperature.limit", "slowdown", 100.0),
        ("gpu.temperature.limit", "memory_operating", 110.0),
        ("gpu.throttle.active", "power_cap", 1.0),
        ("gpu.throttle.active", "current_limit", 0.0),
        ("gpu.throttle.active", "thermal", 0.0),
        ("gpu.throttle.active", "memory_thermal", 0.0),
        ("gpu.throttle.active", "regulator_thermal", 0.0),
        ("gpu.throttle.active", "hardware_slowdown", 0.0),
        ("gpu.throttle.active", "reliability", 0.0),
        ("gpu.pcie.replays", "", 2.0),
        ("gpu.ecc.enabled", "", 1.0),
        ("gpu.ecc.errors", "corrected,volatile", 5.0),
        ("gpu.ecc.errors", "uncorrected,volatile", 0.0),
        ("gpu.ecc.location.errors.volatile", "corrected,dram", 4.0),
        ("gpu.ecc.location.errors.volatile", "uncorrected,dram", 0.0),
        ("gpu.ecc.block.errors", "corrected,umc", 4.0),
        ("gpu.ecc.block.errors", "uncorrected,umc", 0.0),
        ("gpu.ecc.block.errors", "deferred,umc", 0.0),
        ("gpu.ecc.block.errors", "corrected,gfx", 1.0),
        ("gpu.ecc.block.errors", "uncorrected,gfx", 0.0),
        ("gpu.ecc.block.errors", "deferred,gfx", 0.0),
        ("gpu.memory.retired_pages", "uncorrected", 2.0),
        ("gpu.memory.retirement.pending", "", 0.0),
        ("gpu.process.count", "", 0.0),
    ];
    let rows = [&rows[..], &link(4.0, 16.0)].concat();
    reads("mi210x4", "amd", 1, "AMD Instinct MI210", &rows);
}

#[test]
fn a_gaudi2_and_a_blackhole_have_their_drivers_files() {
    let rows = [
        ("gpu.clock.speed", "graphics", 1.65e9),
        ("gpu.clock.limit", "graphics", 1.65e9),
        ("gpu.power.limit", "management", 600.0),
    ];
    let rows = [&rows[..], &link(4.0, 16.0)].concat();
    reads("gaudi2x8", "gaudi", 1, "Intel Gaudi GAUDI2", &rows);
    let rows = [
        ("gpu.clock.speed", "graphics", 1.35e9),
        ("gpu.temperature", "gpu", 54.0),
        ("gpu.temperature.limit", "slowdown", 90.0),
        ("gpu.thermal.shutdowns", "", 2.0),
        ("gpu.power", "", 145.0),
        ("gpu.power.limit", "maximum", 300.0),
    ];
    let rows = [&rows[..], &link(5.0, 16.0)].concat();
    reads("blackhole2", "tenstorrent", 1, "Tenstorrent p150a", &rows);
}

#[test]
fn a_device_of_two_tiles_and_one_of_i915_have_the_values_of_theirs() {
    let rows = [
        ("gpu.clock.speed", "graphics", 1.6e9),
        ("gpu.clock.limit", "graphics", 1.6e9),
        ("gpu.memory.limit", "", 128.0 * GIB),
        ("gpu.energy", "", 48_000.0),
        ("gpu.power.limit", "management", 600.0),
        ("gpu.power.limit", "default", 600.0),
        ("gpu.throttle.active", "power_cap", 0.0),
        ("gpu.throttle.active", "thermal", 0.0),
        ("gpu.process.count", "", 0.0),
    ];
    let rows = [&rows[..], &link(5.0, 16.0)].concat();
    reads("intel-trio", "intel", 1, "Intel Data Center GPU Max 1550", &rows);
    let rows = [
        ("gpu.clock.speed", "graphics", 2.1e9),
        ("gpu.clock.limit", "graphics", 2.4e9),
        ("gpu.energy", "", 14_000.0),
        ("gpu.power.limit", "management", 190.0),
        ("gpu.temperature", "gpu", 63.0),
        ("gpu.throttle.active", "power_cap", 0.0),
        ("gpu.throttle.active", "thermal", 1.0),
        ("gpu.process.count", "", 0.0),
    ];
    let rows = [&rows[..], &link(4.0, 16.0)].concat();
    reads("intel-trio", "intel", 2, "Intel Arc A770", &rows);
}

#[test]
fn the_first_trainium_has_two_cores() {
    let rows = [
        ("gpu.memory.usage", "used", 9.0 * GIB),
        ("gpu.ecc.location.errors.volatile", "uncorrected,dram", 1.0),
        ("gpu.ecc.location.errors.volatile", "uncorrected,sram", 0.0),
        ("gpu.ecc.errors", "uncorrected,volatile", 1.0),
        ("gpu.memory.remap.pending", "", 0.0),
    ];
    reads("trainium4", "neuron", 1, "AWS Trainium1", &rows);
}
