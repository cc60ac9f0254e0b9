//! The most that a configuration lets this host send, for `gpuwho config check`.

use super::configuration::Configuration;
use gpuwho_devices::{DEVICES, Vendor};
use gpuwho_model::catalog;
use gpuwho_model::catalog::selection::{Family, Selection};
use gpuwho_model::sample::Subject;
use gpuwho_model::subject::KindDef;
use serde::Serialize;
use std::fmt::Write as _;

/// What a point takes in a request on the mean: 2,065 points of eight H100s made requests of 42,864 B with
/// gzip (`docs/benchmarks.md`).
const POINT_BYTES: u64 = 21;

/// The word of a device's metrics in the catalogue.
const DEVICE: &str = "gpu";

/// The largest numbers of series, and of bytes in a minute.
#[derive(Debug, PartialEq, Serialize)]
pub struct WorstCase {
    /// The bound drivers' devices of this host.
    devices: Vec<Devices>,
    /// What is not known before it runs, and the series of each.
    each: Vec<Each>,
    /// `metrics.limits`.
    families: Vec<Limited>,
    /// Series of the devices together.
    of_devices: u64,
    /// `agent.series_limit`.
    limit: u64,
    interval_s: f64,
    /// One receiver of OTLP, with gzip, of the devices alone.
    device_bytes_a_minute: u64,
    /// The same at the limit.
    bytes_a_minute: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Devices {
    vendor: &'static str,
    count: u64,
    /// Series of one, its links included.
    series: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Limited {
    pattern: String,
    series: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Each {
    of: &'static str,
    series: u64,
}

impl Limited {
    fn of(family: &Family) -> Self {
        Self { pattern: family.pattern.clone(), series: family.limit as u64 }
    }
}

impl WorstCase {
    /// Counts what the catalogue allows, and the devices that the kernel's drivers have now.
    pub fn of(configuration: &Configuration) -> Self {
        let settings = &configuration.settings;
        let is_read = |name| {
            configuration
                .sources
                .iter()
                .any(|(def, source)| def.name == name && source.is_enabled())
        };
        let devices: Vec<Devices> = DEVICES
            .iter()
            .filter(|vendor| is_read(vendor.name))
            .map(|vendor| Devices {
                vendor: vendor.name,
                count: (vendor.listed)(&settings.paths).len() as u64,
                series: device_series(&settings.metrics, vendor),
            })
            .filter(|devices| devices.count > 0)
            .collect();
        let of = |word| {
            let defs = catalog::all().filter(move |def| def.subject == word);
            defs.map(|def| settings.metrics.most_series(def) as u64).sum::<u64>()
        };
        let each = |kind: &'static KindDef| Each { of: kind.about, series: of(kind.word) };
        let each = Subject::KINDS.iter().filter(|kind| kind.word != DEVICE).map(each);
        let of_devices = devices.iter().map(|devices| devices.count * devices.series).sum();
        let (limit, interval) =
            (settings.series_limit as u64, settings.interval.as_millis().max(1));
        let interval = u64::try_from(interval).unwrap_or(u64::MAX);
        let bytes = |series: u64| series * POINT_BYTES * 60_000 / interval;
        Self {
            families: settings.metrics.families().iter().map(Limited::of).collect(),
            each: each.filter(|each| each.series > 0).collect(),
            of_devices,
            limit,
            interval_s: settings.interval.as_secs_f64(),
            device_bytes_a_minute: bytes(of_devices.min(limit)),
            bytes_a_minute: bytes(limit),
            devices,
        }
    }

    /// Lines for a terminal of 80 columns.
    pub fn text(&self) -> String {
        let mut out = String::from("At most, on this host:\n");
        let mut line = |text: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {text}");
        };
        for Devices { vendor, count, series } in &self.devices {
            line(format_args!(
                "{:>7} series  {count} {vendor} devices, {series} each",
                count * series
            ));
        }
        if self.devices.is_empty() {
            line(format_args!("{:>7} device series: no accelerator driver found", 0));
        }
        for Each { of, series } in &self.each {
            let of =
                ["a ", "an ", "the "].iter().find_map(|word| of.strip_prefix(word)).unwrap_or(of);
            line(format_args!("{series:>7} series  per {of}"));
        }
        for Limited { pattern, series } in &self.families {
            line(format_args!("{series:>7} series  of {pattern} together (metrics.limits)"));
        }
        line(format_args!(
            "{:>7} series  in total, with the agent's own (agent.series_limit)",
            self.limit
        ));
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let (devices, all) =
            (megabytes(self.device_bytes_a_minute), megabytes(self.bytes_a_minute));
        let interval = self.interval_s;
        let _ = writeln!(
            out,
            "Every {interval} s to one OTLP receiver, with gzip: about {devices:.2} MB a minute for\n\
             devices, {all:.2} MB at the limit."
        );
        out
    }
}

/// Series of one device: what the vendor has of the metrics that are exported.
fn device_series(metrics: &Selection, vendor: &Vendor) -> u64 {
    let defs = catalog::all().filter(|def| def.subject == DEVICE);
    let has = defs.filter(|def| (vendor.source)(def).is_ok());
    has.map(|def| metrics.most_series(def) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A host with two devices of NVIDIA's driver and one of AMD's, and a configuration.
    fn worst_case(text: &str) -> WorstCase {
        let folder = tempfile::tempdir().unwrap();
        for device in ["nvidia/0000:01:00.0", "nvidia/0000:02:00.0", "amdgpu/0000:03:00.0"] {
            fs::create_dir_all(folder.path().join("sys/bus/pci/drivers").join(device)).unwrap();
        }
        fs::create_dir_all(folder.path().join("proc/driver/nvidia/gpus/0000:01:00.0")).unwrap();
        fs::create_dir_all(folder.path().join("proc/driver/nvidia/gpus/0000:02:00.0")).unwrap();
        let file = folder.path().join("config.toml");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let paths = format!("[paths]\nsys = \"{}\"\nproc = \"{}\"\n", at("sys"), at("proc"));
        fs::write(&file, format!("{paths}{text}")).unwrap();
        WorstCase::of(&Configuration::check(&file).unwrap())
    }

    #[test]
    fn the_devices_of_each_vendor_are_counted_with_what_it_has() {
        let found = worst_case("[agent]\nseries_limit = 900\ninterval = \"30s\"\n");
        let counts: Vec<_> = found.devices.iter().map(|of| (of.vendor, of.count)).collect();
        assert_eq!(counts, [("nvidia", 2), ("amd", 1)]);
        let [nvidia, amd] = &found.devices[..] else { panic!() };
        assert!(nvidia.series > 100 && amd.series > 50 && nvidia.series != amd.series, "{found:?}");
        assert_eq!(found.of_devices, 2 * nvidia.series + amd.series);
        assert_eq!(found.bytes_a_minute, 900 * 21 * 2, "at the limit, twice a minute");
        assert_eq!(
            found.device_bytes_a_minute, found.bytes_a_minute,
            "the limit holds for them too"
        );
        assert!(
            found.each.iter().any(|each| each.of == "a process on a device" && each.series > 3)
        );
        assert!(found.families.is_empty() && !found.text().contains("metrics.limits"));
        assert!(found.text().lines().all(|line| line.len() <= 80), "{}", found.text());
    }

    #[test]
    fn what_is_not_exported_or_not_read_is_not_counted() {
        let all = worst_case("[metrics]\nlevel = \"all\"\n");
        let basic = worst_case("[metrics]\nlevel = \"basic\"\nexclude = [\"gpu.process.*\"]\n");
        assert!(basic.of_devices < all.of_devices / 2, "{} {}", basic.of_devices, all.of_devices);
        assert!(basic.each.iter().all(|each| each.of != "a process on a device"), "{basic:?}");
        let limits = "[metrics]\nlimits = { \"gpu.process.*\" = 70 }\n";
        let line = "     70 series  of gpu.process.* together (metrics.limits)\n";
        let limited = worst_case(limits).text();
        assert!(limited.contains(line), "{limited}");
        let off = worst_case("[nvidia]\nenabled = false\n[amd]\nenabled = false\n");
        assert!(off.devices.is_empty() && off.of_devices == 0);
        assert!(off.text().contains("no accelerator driver found"), "{}", off.text());
    }
}
