//! What changes in the files of a device, as a scenario has it at a second.

use super::table::Table;
use super::{Tree, address, models, parts};
use crate::fakes::{self, link_files};
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::health::Errors;
use nvidia_ml::scenario::{Device, Scenario};
use std::io;

/// Lanes of an XGMI link, and bytes a second of a Gbit/s.
const LANES: u32 = 16;
/// Bytes of a KiB.
const KIB: f64 = 1024.0;
/// Degrees by which the hottest spot of a die is above its edge.
const HOTSPOT: f64 = 8.0;
/// Largest value of a fan's setting.
const MAX_PWM: f64 = 255.0;

impl Tree {
    /// Shows a scenario as it is at a second.
    pub fn play(&self, scenario: &Scenario, seconds: f64) -> io::Result<()> {
        scenario.devices().try_for_each(|device| self.values(&device, seconds))
    }

    pub(super) fn values(&self, device: &Device<'_>, seconds: f64) -> io::Result<()> {
        let folder = format!("sys/devices/pci0000:00/{}", address(device));
        let put = |file: &str, text: &str| self.write(&format!("{folder}/{file}"), text);
        let group = device.group;
        let value =
            |curve: &Option<Curve>| curve.as_ref().map(|curve| device.value(curve, seconds));
        put("mem_info_vram_total", &group.memory.total.to_string())?;
        put("mem_info_vram_used", &whole(device.value(&group.memory.used, seconds)))?;
        let pairs = [("vis_vram", group.aperture), ("gtt", group.host_memory)];
        for (name, [total, used]) in pairs.into_iter().filter_map(|(n, pair)| Some((n, pair?))) {
            put(&format!("mem_info_{name}_total"), &total.to_string())?;
            put(&format!("mem_info_{name}_used"), &used.to_string())?;
        }
        for (file, curve) in [
            ("gpu_busy_percent", &group.utilization),
            ("mem_busy_percent", &group.memory_utilization),
        ] {
            if let Some(percent) = value(curve) {
                put(file, &whole(percent))?;
            }
        }
        let limits = group.power_limits.as_ref();
        let [shutdown, slowdown, memory, _] = group
            .temperature_limits
            .degrees
            .map_or([None; 4], |all| all.map(|degrees| Some(f64::from(degrees) * 1e3)));
        let is_old = models::of(device).is_before_mi300;
        let power = if is_old { "power1_average" } else { "power1_input" };
        let [edge, hotspot] = [0.0, if is_old { HOTSPOT } else { 0.0 }]
            .map(|above| value(&group.temperature).map(|degrees| (degrees + above) * 1e3));
        let fan = group.fans.first().map(|fan| device.value(fan, seconds) / 100.0);
        let hwmon = [
            (power, value(&group.power).map(|watts| watts * 1e6)),
            ("power1_cap", group.power_limit.map(|watts| watts * 1e6)),
            ("power1_cap_default", limits.map(|limits| limits.default * 1e6)),
            ("power1_cap_min", limits.map(|limits| limits.minimum * 1e6)),
            ("power1_cap_max", limits.map(|limits| limits.maximum * 1e6)),
            ("temp1_input", edge.filter(|_| is_old)),
            ("temp2_input", hotspot),
            ("temp2_emergency", shutdown),
            ("temp2_crit", slowdown),
            ("temp3_input", value(&group.memory_temperature).map(|degrees| degrees * 1e3)),
            ("temp3_crit", memory),
            ("freq1_input", value(&group.clocks.graphics).map(|mhz| mhz * 1e6)),
            ("freq2_input", value(&group.clocks.memory).map(|mhz| mhz * 1e6)),
            ("pwm1", fan.map(|ratio| ratio * MAX_PWM)),
        ];
        for (file, number) in hwmon {
            if let Some(number) = number {
                put(&format!("hwmon/hwmon{}/{file}", device.index), &whole(number))?;
            }
        }
        if let Some([graphics, _, memory, _]) = group.clocks.highest {
            for (file, mhz) in [("pp_dpm_sclk", graphics), ("pp_dpm_mclk", memory)] {
                put(file, &format!("0: 500Mhz *\n1: {mhz:.0}Mhz"))?;
            }
        }
        self.links(device, seconds, &folder)?;
        self.memory_errors(device, seconds, &folder)?;
        let table = if is_old { mi210(device, seconds) } else { mi300(device, seconds) };
        fakes::put(&self.path(&format!("{folder}/gpu_metrics")), table.bytes())
    }

    fn links(&self, device: &Device<'_>, seconds: f64, folder: &str) -> io::Result<()> {
        let put = |file: &str, text: &str| self.write(&format!("{folder}/{file}"), text);
        let pcie = device.group.pcie.as_ref();
        let replays = pcie.and_then(|pcie| pcie.replays.as_ref());
        put(
            "pcie_replay_count",
            &whole(replays.map_or(0.0, |count| device.value(count, seconds))),
        )?;
        let mut files = pcie.into_iter().flat_map(link_files);
        files.try_for_each(|(file, text)| put(&file, &text))
    }

    /// The blocks' errors and the bad pages.
    fn memory_errors(&self, device: &Device<'_>, seconds: f64, folder: &str) -> io::Result<()> {
        let put = |file: &str, text: &str| self.write(&format!("{folder}/ras/{file}"), text);
        if let Some(ecc) = &device.group.ecc {
            put("features", &format!("feature mask: {:#x}", u8::from(ecc.enabled[0])))?;
            for (block, errors) in [("umc", &ecc.dram), ("gfx", &ecc.sram)] {
                let Some(errors) = errors else { continue };
                let [corrected, uncorrected] = counts(device, errors, seconds);
                let text = format!("ue: {uncorrected}\nce: {corrected}\nde: 0");
                put(&format!("{block}_err_count"), &text)?;
            }
        }
        if let Some(retired) = &device.group.retired {
            let count = number(device.value(&retired.uncorrected, seconds));
            let mut lines: Vec<_> =
                (0..count).map(|page| format!("{page:#010x} : 0x00001000 : R")).collect();
            if device.value(&retired.pending, seconds) > 0.0 {
                lines.push("0x00ffffff : 0x00001000 : P".to_owned());
            }
            put("gpu_vram_bad_pages", &lines.join("\n"))?;
        }
        Ok(())
    }
}

fn counts(device: &Device<'_>, errors: &Errors, seconds: f64) -> [u64; 2] {
    let [since_loaded, _] = device.errors(errors, seconds);
    since_loaded
}

/// What is held of what the table can say: nothing, power, temperature of the socket, nothing, nothing.
fn mi300(device: &Device<'_>, seconds: f64) -> Table {
    let group = device.group;
    let area =
        |curve: &Option<Curve>| curve.as_ref().map_or(0.0, |curve| device.area(curve, seconds));
    let mut table = Table::mi300();
    if let Some(mj) = device.energy_mj(seconds) {
        table.energy(mj / 1e3);
    }
    let slowed = area(&group.held.hardware_slowdown);
    let held = [slowed, area(&group.held.power_cap), area(&group.held.thermal), 0.0, 0.0];
    table.held(seconds, held);
    if let Some(pcie) = &group.pcie {
        let count =
            |word: &str| pcie.errors.get(word).map_or(0.0, |curve| device.value(curve, seconds));
        let count = |word: &str| number(count(word));
        let replays = pcie.replays.as_ref().map_or(0.0, |count| device.value(count, seconds));
        table.pcie(
            [count("recovery"), number(replays), count("replay_rollover")],
            [count("nak_sent"), count("nak_received")],
        );
    }
    if let Some(links) = &group.nvlink {
        table.xgmi(u64::from(LANES), u64::from(links.speed * 8 / LANES / 1000));
        for link in 0..usize::try_from(links.links).unwrap_or_default().min(8) {
            let kib = |curve: &Curve| number(device.area(curve, seconds) / KIB);
            table.link(link, [kib(&links.receive), kib(&links.transmit)], 1);
        }
    }
    if let Some(video) = &group.clocks.video {
        table.clocks(1200, number(device.value(video, seconds)));
    }
    if let Some(busy) = group.utilization.as_ref().filter(|_| parts(device) > 1) {
        for part in 0..usize::try_from(parts(device)).unwrap_or_default().min(8) {
            table.partition(part, number(device.value(busy, seconds)));
        }
    }
    table
}

fn mi210(device: &Device<'_>, seconds: f64) -> Table {
    let mut table = Table::mi210();
    if let Some(mj) = device.energy_mj(seconds) {
        table.energy(mj / 1e3);
    }
    let held = &device.group.held;
    let is_on = |curve: &Option<Curve>| {
        curve.as_ref().is_some_and(|curve| device.value(curve, seconds) > 0.0)
    };
    table.throttle_bits(u64::from(is_on(&held.power_cap)) | u64::from(is_on(&held.thermal)) << 36);
    table
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of a scenario")]
fn number(value: f64) -> u64 {
    value as u64
}
