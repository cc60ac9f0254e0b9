//! Intel's GPUs: files of the PCI device, `hwmon` and DRM's nodes. A Battlemage of xe's, a Ponte Vecchio of
//! two tiles, and an Arc of i915's, by their numbers on the bus. Of Linux 6.16: `energy*`, `power*` and `temp*`
//! `hwmon_info` in `xe_hwmon.c` and `hwm_info` in `i915_hwmon.c`; `act_freq`, `rp0_freq` `xe_gt_freq.c`,
//! `throttle/reason_*` `xe_gt_throttle.c`; `rps_*_freq_mhz`, `throttle_reason_*` `intel_gt_sysfs_pm.c`;
//! `power/runtime_status` `drivers/base/power/sysfs.c`. `physical_vram_size_bytes` is of Intel's own builds of
//! xe (`physical_vram_size_bytes_show` in `xe_tile_sysfs.c`).

use super::{Files, highest, joules, whole};
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::Device;
use std::io;

/// Arc A770, which i915 drives.
const ARC: &str = "0x56a0";
/// Data Center GPU Max 1550.
const PONTE_VECCHIO: &str = "0x0bd5";
/// Its tiles, each with a graphics unit; the others have one.
const TILES: u32 = 2;

/// The driver of a device.
pub(super) fn driver(device: &Device<'_>) -> &'static str {
    if device.group.name == ARC { "i915" } else { "xe" }
}

/// Writes the files of a device as they are at a second.
pub(super) fn write(files: &Files, device: &Device<'_>, seconds: f64) -> io::Result<()> {
    files.put(device, "vendor", "0x8086")?;
    files.put(device, "device", &device.text(&device.group.name))?;
    files.put(device, "power/runtime_status", "active")?;
    let render = format!("renderD16{}", device.index);
    files.put(device, &format!("drm/{render}/dev"), &files.number(device))?;
    files.class(device, "drm", &render)?;
    let card = format!("sys/class/drm/card{}/device", device.index);
    files.link(&files.folder(device), &card)?;
    let all = [sensors(device, seconds), units(device, seconds)].concat();
    all.into_iter().try_for_each(|(file, text)| match text {
        Some(text) => files.put(device, &file, &text),
        None => Ok(()),
    })
}

/// A file and its text, if the scenario has a value for it.
type FileText = (String, Option<String>);

/// xe has the temperatures of the package and of the memory as the second and the third, i915 that of
/// the package alone. The power limits of a Ponte Vecchio are those of its package.
fn sensors(device: &Device<'_>, seconds: f64) -> Vec<FileText> {
    let group = device.group;
    let micro = |number: Option<f64>| number.map(|number| format!("{:.0}", number * 1e6));
    let milli = |curve: &Option<Curve>| whole(device, curve.as_ref(), seconds, 1e3);
    let (package, memory) = if driver(device) == "i915" { (1, 0) } else { (2, 3) };
    let power = if group.name == PONTE_VECCHIO { 2 } else { 1 };
    let limits = group.power_limits.as_ref();
    let hwmon = |file: &str| format!("hwmon/hwmon2/{file}");
    vec![
        (hwmon("energy1_input"), micro(joules(device, seconds))),
        (hwmon(&format!("power{power}_max")), micro(group.power_limit)),
        (hwmon(&format!("power{power}_rated_max")), micro(limits.map(|limits| limits.default))),
        (hwmon(&format!("temp{package}_input")), milli(&group.temperature)),
        (
            hwmon(&format!("temp{memory}_input")),
            milli(&group.memory_temperature).filter(|_| memory > 0),
        ),
    ]
}

/// Clocks of the graphics units, and what holds them down.
fn units(device: &Device<'_>, seconds: f64) -> Vec<FileText> {
    let group = device.group;
    let is_i915 = driver(device) == "i915";
    let tiles = if group.name == PONTE_VECCHIO { TILES } else { 1 };
    let held = |curve: &Option<Curve>| {
        let is_held = curve.as_ref().is_some_and(|curve| device.value(curve, seconds) > 0.0);
        Some(u8::from(is_held).to_string())
    };
    let of_unit = |unit: u32| {
        let (clock, limit, throttle) = if is_i915 {
            let at = format!("drm/card{}/gt/gt{unit}", device.index);
            let files = ["rps_act_freq_mhz", "rps_RP0_freq_mhz"].map(|file| format!("{at}/{file}"));
            (files[0].clone(), files[1].clone(), format!("{at}/throttle_reason_"))
        } else {
            let at = format!("tile{unit}/gt{unit}/freq0");
            let files = ["act_freq", "rp0_freq"].map(|file| format!("{at}/{file}"));
            (files[0].clone(), files[1].clone(), format!("{at}/throttle/reason_"))
        };
        let memory = format!("tile{unit}/physical_vram_size_bytes");
        let size = (group.memory.total / u64::from(tiles)).to_string();
        [
            (memory, Some(size).filter(|_| !is_i915)),
            (clock, whole(device, group.clocks.graphics.as_ref(), seconds, 1.0)),
            (limit, highest(device).map(|mhz| format!("{mhz:.0}"))),
            (format!("{throttle}pl1"), held(&group.held.power_cap)),
            (format!("{throttle}thermal"), held(&group.held.thermal)),
        ]
    };
    (0..tiles).flat_map(of_unit).collect()
}
