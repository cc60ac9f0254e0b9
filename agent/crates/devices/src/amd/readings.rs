//! The readings of a board: load, memory, power, temperatures, clocks, fan; one small file each, and the
//! driver's table for what has no file.

use super::super::cached::Cached;
use super::super::files::Files;
use super::super::sysfs::{self, Link, MEGA, MICRO, MILLI, PERCENT};
use super::gpu_metrics::{Field, Table, Unreadable};
use super::links;
use super::ras;
use super::throttle::Throttle;
use crate::wire::{WireValue, push};
use gpuwho_model::catalog::device::{
    self as metric, ApertureState, Clock, CodeKind, Fan, Limit, MemoryState, Sensor, Task,
    TemperatureLimit,
};
use std::path::{Path, PathBuf};

/// Joules per step of the energy counter in the table: 2^-16.
const ENERGY_STEP: f64 = 1.0 / 65536.0;
/// Largest value of a fan's setting.
const MAX_PWM: f64 = 255.0;
/// Beyond these a temperature in degrees or a clock in MHz is no reading.
const MAX_CELSIUS: u64 = 300;
const MAX_MHZ: u64 = 100_000;
/// Sensors of `hwmon` by their labels (`amdgpu_pm.c`).
const SENSORS: [(&str, Sensor); 3] =
    [("edge", Sensor::Gpu), ("junction", Sensor::Hotspot), ("mem", Sensor::Memory)];

/// Files by which the folder of the sensors is found.
const PROBES: &[&str] =
    &["power1_average", "power1_input", "temp1_input", "temp2_input", "freq1_input"];

/// State of a board between readings.
#[derive(Debug, Default)]
pub(super) struct Board {
    throttle: Throttle,
    ras: Cached<6>,
    limits: Cached<30>,
    link: Link,
    /// The host's memory is the device's own (an APU): what a program asks for as VRAM comes from GTT there
    /// (`apu_prefer_gtt`).
    pub(super) is_integrated: bool,
    /// The folder of its sensors, and their numbers.
    hwmon: Option<(PathBuf, Vec<(Sensor, u32)>)>,
}

/// No file of a board could be read.
#[derive(Debug)]
pub(super) struct NothingRead;

/// A reading: the device's folder, its files, and what is read.
pub(super) struct Pass<'a> {
    pub(super) folder: &'a Path,
    pub(super) files: &'a mut Files,
    pub(super) out: &'a mut Vec<WireValue>,
    /// On the boot clock.
    pub(super) now_ns: u64,
}

impl Board {
    /// Forgets where the sensors are: the driver may have numbered them anew.
    pub(super) fn renew(&mut self) {
        self.hwmon = None;
    }

    /// Reads everything; returns the driver's table for its partitions, or that no file could be read.
    pub(super) fn read(&mut self, pass: &mut Pass<'_>) -> Result<Option<Table>, NothingRead> {
        let before = pass.out.len();
        load(pass);
        let [(vram, has_no_own), (gtt, _)] = ["vram", "gtt"].map(|name| pool(pass, name));
        let (table, format) = table(pass);
        // The driver has tables of formats 2 and 3 for APUs alone (`kgd_pp_interface.h`), and an APU of whose
        // memory nothing is set aside has no VRAM (MI300A: `gmc_v9_0_mc_init`).
        self.is_integrated |= has_no_own || matches!(format, Some(2 | 3));
        let own = match (self.is_integrated, has_no_own) {
            (false, _) => vram,
            (true, false) => both(vram, gtt),
            (true, true) => gtt,
        };
        memory(pass, own, gtt);
        let replays = pass.number("pcie_replay_count").and_then(whole);
        self.link.read(pass.folder, pass.files, pass.out);
        self.sensors(pass, table.as_ref());
        if let Some(table) = &table {
            links::pcie_counters(table, replays, pass.out);
            links::xgmi(table, pass.out);
            self.throttle.read(table, pass.now_ns, pass.out);
            of_table(table, pass);
        } else {
            push(pass.out, &gpuwho_model::catalog::wear::PCIE_REPLAYS, (), replays);
        }
        // What follows may be from an earlier reading.
        if pass.out.len() == before {
            return Err(NothingRead);
        }
        let Pass { folder, files, out, .. } = pass;
        if let Some((hwmon, sensors)) = &self.hwmon {
            self.limits.read(out, |out| limits(folder, files, (hwmon, sensors), out));
        }
        self.link.limits(folder, files, out);
        self.ras.read(out, |out| ras::read(folder, files, out));
        Ok(table)
    }

    /// Power, energy, temperatures, clocks and the fan from `hwmon`.
    fn sensors(&mut self, pass: &mut Pass<'_>, table: Option<&Table>) {
        if self.hwmon.is_none() {
            self.hwmon = sensors(pass);
        }
        let energy = table.and_then(|table| table.one(Field::Energy));
        let Some((hwmon, sensors)) = &self.hwmon else {
            return push(pass.out, &metric::ENERGY, (), energy_of(None, energy));
        };
        let mut read = |file: &str, divisor: f64| {
            let number = pass.files.number(&hwmon.join(file))?;
            #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
            Some(number as f64 / divisor)
        };
        // Newer boards have the current power (MI300), older ones its average (MI200), some both.
        let average = read("power1_average", MICRO);
        let now = read("power1_input", MICRO);
        push(pass.out, &metric::POWER, (), now.or(average));
        push(pass.out, &metric::POWER_AVERAGE, (), average);
        for (file, clock) in [("freq1_input", Clock::Graphics), ("freq2_input", Clock::Memory)] {
            push(pass.out, &metric::CLOCK_SPEED, clock, read(file, 1.0));
        }
        let fan = read("pwm1", MAX_PWM).filter(|ratio| *ratio <= 1.0);
        push(pass.out, &metric::FAN_SPEED, Fan::First, fan);
        let counter = read("energy1_input", MICRO);
        push(pass.out, &metric::ENERGY, (), energy_of(counter, energy));
        let mut temperatures = [None; 3];
        for ((_, sensor), value) in SENSORS.iter().zip(&mut temperatures) {
            let number = sensors.iter().find(|(known, _)| known == sensor).map(|(_, n)| *n);
            *value = number.and_then(|n| pass.celsius(&hwmon.join(format!("temp{n}_input"))));
        }
        let [edge, hotspot, memory] = temperatures;
        // MI300 has no edge sensor: its only die temperature is the hotspot.
        push(pass.out, &metric::TEMPERATURE, Sensor::Gpu, edge.or(hotspot));
        push(pass.out, &metric::TEMPERATURE, Sensor::Hotspot, hotspot);
        push(pass.out, &metric::TEMPERATURE, Sensor::Memory, memory);
    }
}

impl Pass<'_> {
    fn number(&mut self, file: &str) -> Option<u64> {
        self.files.number(&self.folder.join(file))
    }

    /// A percentage as a fraction, if it is at most 100.
    fn ratio(&mut self, file: &str) -> Option<f64> {
        let percent = self.number(file)?;
        self.percent(percent)
    }

    fn percent(&mut self, percent: u64) -> Option<f64> {
        let percent = u8::try_from(percent).ok().filter(|percent| *percent <= 100);
        self.files.count_implausible(percent).map(|percent| f64::from(percent) / PERCENT)
    }

    fn celsius(&mut self, path: &Path) -> Option<f64> {
        let number = self.files.signed(path)?;
        #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
        Some(number as f64 / MILLI)
    }
}

fn whole(count: u64) -> Option<i64> {
    i64::try_from(count).ok()
}

/// The sensor's counter, else that of the table. A counter that is still 0 counts nothing: no board runs
/// without energy.
fn energy_of(sensor: Option<f64>, table: Option<u64>) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a double has the joules of years")]
    let table = table.map(|steps| steps as f64 * ENERGY_STEP);
    sensor.filter(|joules| *joules > 0.0).or(table.filter(|joules| *joules > 0.0))
}

fn load(pass: &mut Pass<'_>) {
    let busy = pass.ratio("gpu_busy_percent");
    push(pass.out, &metric::UTILIZATION, Task::General, busy);
    let busy = pass.ratio("mem_busy_percent");
    push(pass.out, &metric::MEMORY_BANDWIDTH_UTILIZATION, (), busy);
}

/// Bytes of one kind of memory: all, and used and free.
type Pool = (Option<i64>, Option<[i64; 2]>);

/// One kind of memory, where the used bytes are not more than all; and whether there is none of it.
fn pool(pass: &mut Pass<'_>, name: &str) -> (Pool, bool) {
    let total = pass.number(&format!("mem_info_{name}_total"));
    let used = pass.number(&format!("mem_info_{name}_used"));
    let is_none = total == Some(0);
    let total = total.filter(|total| *total > 0);
    let parts = total.zip(used).and_then(|(total, used)| {
        let free = pass.files.count_implausible(total.checked_sub(used))?;
        Some([whole(used)?, whole(free)?])
    });
    ((total.and_then(whole), parts), is_none)
}

/// Two kinds together; nothing where one is not known.
fn both((a, x): Pool, (b, y): Pool) -> Pool {
    let sum = |(a, b): (i64, i64)| a.saturating_add(b);
    (a.zip(b).map(sum), x.zip(y).map(|([u, f], [v, g])| [sum((u, v)), sum((f, g))]))
}

fn memory(pass: &mut Pass<'_>, (total, parts): Pool, gtt: Pool) {
    push(pass.out, &metric::MEMORY_LIMIT, (), total);
    for (state, bytes) in
        [MemoryState::Used, MemoryState::Free].into_iter().zip(parts.iter().flatten())
    {
        push(pass.out, &metric::MEMORY_USAGE, state, Some(*bytes));
    }
    let (visible, _) = pool(pass, "vis_vram");
    for ((total, parts), usage, limit) in [
        (visible, &metric::APERTURE_USAGE, &metric::APERTURE_LIMIT),
        (gtt, &metric::HOST_MEMORY_USAGE, &metric::HOST_MEMORY_LIMIT),
    ] {
        push(pass.out, limit, (), total);
        let states = [ApertureState::Used, ApertureState::Free];
        for (state, bytes) in states.into_iter().zip(parts.iter().flatten()) {
            push(pass.out, usage, state, Some(*bytes));
        }
    }
}

/// Reads the driver's table; reports a revision that is not known.
/// Returns it with its format, which a revision that is not known has too.
fn table(pass: &mut Pass<'_>) -> (Option<Table>, Option<u8>) {
    let bytes = pass.files.bytes(&pass.folder.join("gpu_metrics"));
    match bytes.map(Table::parse) {
        Some(Ok(table)) => {
            let format = table.format();
            (Some(table), format)
        }
        Some(Err(Unreadable::Malformed)) => (pass.files.count_implausible(None), None),
        Some(Err(Unreadable::Revision(number))) => {
            push(pass.out, &metric::UNKNOWN_CODE, CodeKind::MetricsTable, Some(number.into()));
            (None, Some(number.to_be_bytes()[0]))
        }
        None => (None, None),
    }
}

/// What only the table has.
fn of_table(table: &Table, pass: &mut Pass<'_>) {
    for (task, field) in [(Task::Video, Field::VideoBusy), (Task::Jpeg, Field::JpegBusy)] {
        let engines: Vec<_> = table.each(field).flatten().collect();
        let engines: Option<Vec<_>> = engines.into_iter().map(|each| pass.percent(each)).collect();
        push(pass.out, &metric::UTILIZATION, task, engines.as_deref().and_then(mean));
    }
    let regulators = [Field::VrGfxTemperature, Field::VrSocTemperature, Field::VrMemTemperature];
    let hottest = regulators.into_iter().filter_map(|field| table.one(field)).max();
    // A regulator without a sensor has 0.
    let hottest = hottest.filter(|degrees| (1..=MAX_CELSIUS).contains(degrees));
    #[expect(clippy::cast_precision_loss, reason = "degrees")]
    push(pass.out, &metric::TEMPERATURE, Sensor::Regulator, hottest.map(|degrees| degrees as f64));
    for (clock, field) in [(Clock::Soc, Field::SocClock), (Clock::Video, Field::VideoClock)] {
        let rate = table.one(field).filter(|rate| *rate <= MAX_MHZ);
        #[expect(clippy::cast_precision_loss, reason = "at most 100,000")]
        push(pass.out, &metric::CLOCK_SPEED, clock, rate.map(|rate| rate as f64 * MEGA));
    }
}

/// The mean of fractions; `None` of none.
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}

/// Finds the folder of the sensors and which of them there are.
fn sensors(pass: &mut Pass<'_>) -> Option<(PathBuf, Vec<(Sensor, u32)>)> {
    let hwmon = sysfs::hwmon(pass.folder, PROBES, pass.files)?;
    let mut found = Vec::new();
    for n in 1..=3 {
        let label = pass.files.text(&hwmon.join(format!("temp{n}_label")));
        let sensor = SENSORS.iter().find(|(known, _)| Some(*known) == label.as_deref());
        found.extend(sensor.map(|(_, sensor)| (*sensor, n)));
    }
    Some((hwmon, found))
}

/// Limits of power and temperature, and the highest clocks.
fn limits(
    folder: &Path,
    files: &mut Files,
    (hwmon, sensors): (&Path, &[(Sensor, u32)]),
    out: &mut Vec<WireValue>,
) {
    let mut read = |file: &str, divisor: f64| {
        let number = files.number(&hwmon.join(file))?;
        #[expect(clippy::cast_precision_loss, reason = "readings of a sensor")]
        Some(number as f64 / divisor)
    };
    for (file, limit) in [
        ("power1_cap", Limit::Management),
        ("power1_cap_default", Limit::Default),
        ("power1_cap_min", Limit::Minimum),
        ("power1_cap_max", Limit::Maximum),
    ] {
        push(out, &metric::POWER_LIMIT, limit, read(file, MICRO));
    }
    for (sensor, kind, limit) in [
        (Sensor::Hotspot, "emergency", TemperatureLimit::Shutdown),
        (Sensor::Hotspot, "crit", TemperatureLimit::Slowdown),
        (Sensor::Memory, "crit", TemperatureLimit::MemoryOperating),
    ] {
        let number = sensors.iter().find(|(known, _)| *known == sensor).map(|(_, n)| *n);
        let degrees = number.and_then(|n| read(&format!("temp{n}_{kind}"), MILLI));
        push(out, &metric::TEMPERATURE_LIMIT, limit, degrees);
    }
    for (file, clock) in [("pp_dpm_sclk", Clock::Graphics), ("pp_dpm_mclk", Clock::Memory)] {
        let highest = files.text(&folder.join(file)).as_deref().and_then(highest);
        push(out, &metric::CLOCK_LIMIT, clock, highest);
    }
}

/// The highest clock of lines `1: 2100Mhz *`, in Hz.
fn highest(levels: &str) -> Option<f64> {
    let rate = |line: &str| {
        let (_, rate) = line.split_once(": ")?;
        rate.split("Mhz").next()?.parse::<u32>().ok().filter(|rate| u64::from(*rate) <= MAX_MHZ)
    };
    levels.lines().filter_map(rate).max().map(|rate| f64::from(rate) * MEGA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::fake::{Tree, values};

    #[test]
    fn the_highest_clock_is_that_of_the_levels() {
        assert_eq!(highest("0: 132Mhz\n1: 1900Mhz *\n2: 2100Mhz\n"), Some(2.1e9));
        assert_eq!(highest("S: 19Mhz *\n0: 615Mhz\n1: 800Mhz\n2: 888Mhz\n"), Some(888e6));
        assert_eq!(highest("0: 99999999999Mhz"), None);
        assert_eq!(highest(""), None);
    }

    /// Bytes used and in all of a board whose files are those of `amdgpu_vram_mgr.c` and `amdgpu_gtt_mgr.c`.
    fn memory_of(vram: [u64; 2], gtt: [u64; 2], table: Option<([u8; 2], u16)>) -> [Option<f64>; 3] {
        let tree = Tree::new();
        let folder = tree.pci("0000:c5:00.0", "amdgpu");
        for (name, [total, used]) in [("vram", vram), ("gtt", gtt)] {
            tree.put(&format!("{folder}/mem_info_{name}_total"), &total.to_string());
            tree.put(&format!("{folder}/mem_info_{name}_used"), &used.to_string());
        }
        if let Some((revision, length)) = table {
            let mut bytes = vec![0xff; usize::from(length)];
            bytes[..2].copy_from_slice(&length.to_le_bytes());
            bytes[2..4].copy_from_slice(&revision);
            std::fs::write(tree.at(&format!("{folder}/gpu_metrics")), bytes).unwrap();
        }
        let read = values(&tree.read(&crate::amd::VENDOR)[0].values);
        ["gpu.memory.usage{used}", "gpu.memory.limit", "gpu.memory.host.usage{used}"]
            .map(|name| read.get(name).copied())
    }

    #[test]
    fn the_memory_of_an_apu_is_what_is_set_aside_and_what_it_takes_of_the_host_s() {
        let (small, gtt) = ([512 << 20, 148 << 20], [124 << 30, 60 << 30]);
        let both = [Some(64_579_698_688.0), Some(133_680_857_088.0), Some(64_424_509_440.0)];
        // Strix Halo (gpustack #4848), an older one, and one of a revision that is not known.
        for table in [([3, 0], 264), ([2, 1], 120), ([3, 7], 300)] {
            assert_eq!(memory_of(small, gtt, Some(table)), both, "{table:?}");
        }
        // MI300A: nothing is set aside, and its tables are those of cards.
        let whole = [Some(64_424_509_440.0), Some(133_143_986_176.0), Some(64_424_509_440.0)];
        assert_eq!(memory_of([0, 0], gtt, Some(([1, 6], 1664))), whole);
        let card = [Some(155_189_248.0), Some(536_870_912.0), Some(64_424_509_440.0)];
        assert_eq!(memory_of(small, gtt, Some(([1, 3], 120))), card);
        assert_eq!(memory_of(small, gtt, None), card, "nothing says that it is one");
        let none = [None, Some(133_680_857_088.0), None];
        assert_eq!(memory_of(small, [124 << 30, 125 << 30], Some(([2, 1], 120))), none);
    }

    #[test]
    fn a_counter_of_energy_that_stands_at_0_is_none() {
        assert_eq!(energy_of(Some(7.5), Some(65536)), Some(7.5));
        assert_eq!(energy_of(None, Some(65536)), Some(1.0));
        assert_eq!(energy_of(Some(0.0), None), None);
        assert_eq!(energy_of(None, Some(0)), None);
    }
}
