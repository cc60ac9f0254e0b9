//! Gaudi: the driver's files, an `hl-smi` that answers as recorded from eight Gaudi3, and what the fake of
//! its library answers.

use super::{Files, highest, joules, whole};
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::health::Errors;
use nvidia_ml::scenario::{Device, Scenario};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;
/// What each port has received and sent, on the port of number 0; the library adds the number.
const OCTETS: [u64; 2] = [1000, 3000];
/// Network ports: the first two are up.
const PORTS: u32 = 3;

/// The `hl-smi` of the fake.
pub fn program(root: &Path) -> PathBuf {
    root.join("hl-smi")
}

/// The driver's files, and a line of `hl-smi`. Of the former `status`, `device_type`, `module_id`, `max_power`
/// and the clocks are `hl_dev_attrs` and `hl_dev_clk_attrs` in `drivers/accel/habanalabs/common/sysfs.c`
/// (`*_show`, Linux 6.16), `accel/accelN/dev` is `drivers/accel/drm_accel.c`; the latter is as recorded from
/// eight Gaudi3 (`-Q … -f csv,noheader`).
pub(super) fn write(files: &Files, device: &Device<'_>, seconds: f64) -> io::Result<()> {
    let group = device.group;
    files.put(device, "status", "Operational")?;
    let generation = if group.name == "HL-225" { "GAUDI2" } else { "GAUDI3" };
    files.put(device, "device_type", generation)?;
    files.put(device, "module_id", &device.index.to_string())?;
    let node = format!("accel{}", device.index);
    files.put(device, &format!("accel/{node}/dev"), &files.number(device))?;
    files.class(device, "accel", &node)?;
    let limit = group.power_limit.map(|watts| format!("{:.0}", watts * 1e3));
    for (file, text) in [
        ("clk_cur_freq_mhz", whole(device, group.clocks.graphics.as_ref(), seconds, 1.0)),
        ("clk_max_freq_mhz", highest(device).map(|mhz| format!("{mhz:.0}"))),
        ("max_power", limit),
    ] {
        if let Some(text) = text {
            files.put(device, file, &text)?;
        }
    }
    let number = |curve: &Option<Curve>| {
        whole(device, curve.as_ref(), seconds, 1.0).unwrap_or_else(|| "N/A".to_owned())
    };
    let used = device.value(&group.memory.used, seconds) / MIB;
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
    let program = program(&files.root);
    if !program.exists() {
        fs::write(&program, "#!/bin/sh\nexec cat \"$0\".[0-9]*\n")?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// What the fake library answers for a scenario at a second.
pub fn answers(scenario: &Scenario, seconds: f64) -> String {
    let all: Vec<_> = scenario.devices().collect();
    let addresses: Vec<_> = all.iter().map(|device| device.text(&device.group.pci)).collect();
    let ups = (0..PORTS).map(|port| (format!("hlml_nic_get_link/{port}"), u8::from(port < 2)));
    let mut text = format!(
        "devices {}\nhlml_get_driver_version {}\nhlml_get_mac_addr_info {} 0\n\
         hlml_nic_get_statistics rx_Octets {} rx_Pkts 5 tx_Octets {}\n",
        addresses.join(" "),
        scenario.driver,
        (1 << PORTS) - 1,
        OCTETS[0],
        OCTETS[1],
    );
    for (name, up) in ups {
        let _ = writeln!(text, "{name} {up}");
    }
    for (name, words) in ROWS {
        // Each word of a line is that of the device whose number it has between `|`.
        let each: Option<Vec<Vec<String>>> =
            all.iter().map(|device| words(device, seconds)).collect();
        let Some((first, _)) = each.as_ref().and_then(|each| each.split_first()) else { continue };
        let column = |at: usize| {
            let words = each.iter().flatten().filter_map(|words| words.get(at).cloned());
            words.collect::<Vec<_>>().join("|")
        };
        let line: Vec<_> = (0..first.len()).map(column).collect();
        let _ = writeln!(text, "{name} {}", line.join(" "));
    }
    text
}

/// What a function writes for a device.
type Words = fn(&Device<'_>, f64) -> Option<Vec<String>>;

/// A curve times a factor.
fn scaled(
    device: &Device<'_>,
    curve: Option<&Curve>,
    seconds: f64,
    factor: f64,
) -> Option<Vec<String>> {
    whole(device, curve, seconds, factor).map(|word| vec![word])
}

fn one(number: Option<f64>) -> Option<Vec<String>> {
    number.map(|number| vec![format!("{number:.0}")])
}

fn degrees(device: &Device<'_>, which: usize) -> Option<Vec<String>> {
    one(device.group.temperature_limits.degrees.map(|all| f64::from(all[which])))
}

/// Errors of kind 0 (corrected) or 1, since the driver was loaded (0) or ever (1), of both memories or
/// of one.
fn errors(
    device: &Device<'_>,
    seconds: f64,
    which: [usize; 2],
    place: Option<usize>,
) -> Option<Vec<String>> {
    let ecc = device.group.ecc.as_ref()?;
    let [kind, count] = which;
    let of = |errors: &Option<Errors>| {
        let errors = errors.as_ref()?;
        let curve = [&errors.corrected, &errors.uncorrected][kind];
        let before = if count == 1 { errors.before[kind] } else { 0 };
        #[expect(clippy::cast_precision_loss, reason = "a scenario's counts are small")]
        Some(device.value(curve, seconds) + before as f64)
    };
    let memories = [of(&ecc.sram), of(&ecc.dram)];
    one(match place {
        Some(place) => memories[place],
        None => Some(memories.iter().flatten().sum()),
    })
}

const ROWS: &[(&str, Words)] = &[
    ("hlml_device_get_uuid", |device, _| Some(vec![device.text(&device.group.uuid)])),
    ("hlml_device_get_name", |device, _| Some(vec![device.text(&device.group.name)])),
    ("hlml_device_get_serial", |device, _| {
        device.group.serial.as_deref().map(|text| vec![device.text(text)])
    }),
    ("hlml_device_get_utilization_rates", |device, at| {
        let mut words = scaled(device, device.group.utilization.as_ref(), at, 1.0)?;
        words.push("7".to_owned());
        Some(words)
    }),
    ("hlml_device_get_memory_info", |device, at| {
        let memory = &device.group.memory;
        let used = device.value(&memory.used, at);
        #[expect(clippy::cast_precision_loss, reason = "a double has the bytes of a device")]
        let free = (memory.total - memory.reserved) as f64 - used;
        Some(vec![format!("{free:.0}"), memory.total.to_string(), format!("{used:.0}")])
    }),
    ("hlml_device_get_power_usage", |device, at| {
        scaled(device, device.group.power.as_ref(), at, 1e3)
    }),
    ("hlml_device_get_total_energy_consumption", |device, at| {
        one(joules(device, at).map(|joules| joules * 1e3))
    }),
    ("hlml_device_get_temperature/0", |device, at| {
        scaled(device, device.group.temperature.as_ref(), at, 1.0)
    }),
    ("hlml_device_get_temperature/3", |device, at| {
        scaled(device, device.group.memory_temperature.as_ref(), at, 1.0)
    }),
    ("hlml_device_get_clock_info/0", |device, at| {
        scaled(device, device.group.clocks.graphics.as_ref(), at, 1.0)
    }),
    ("hlml_device_get_max_clock_info/0", |device, _| one(highest(device))),
    ("hlml_device_get_current_clocks_throttle_reasons", |device, at| {
        let held = &device.group.held;
        let is_held = |curve: &Option<Curve>| {
            curve.as_ref().is_some_and(|curve| device.value(curve, at) > 0.0)
        };
        let bits = u8::from(is_held(&held.power_cap)) | u8::from(is_held(&held.thermal)) << 1;
        Some(vec![bits.to_string()])
    }),
    ("hlml_device_get_power_management_limit", |device, _| {
        one(device.group.power_limit.map(|watts| watts * 1e3))
    }),
    ("hlml_device_get_power_management_default_limit", |device, _| {
        one(device.group.power_limits.as_ref().map(|limits| limits.default * 1e3))
    }),
    ("hlml_device_get_temperature_threshold/0", |device, _| degrees(device, 0)),
    ("hlml_device_get_temperature_threshold/1", |device, _| degrees(device, 1)),
    ("hlml_device_get_temperature_threshold/2", |device, _| degrees(device, 2)),
    ("hlml_device_get_temperature_threshold/3", |device, _| degrees(device, 3)),
    ("hlml_device_get_ecc_mode", |device, _| {
        let enabled = device.group.ecc.as_ref()?.enabled;
        Some(enabled.map(|on| u8::from(on).to_string()).to_vec())
    }),
    ("hlml_device_get_total_ecc_errors/0/0", |device, at| errors(device, at, [0, 0], None)),
    ("hlml_device_get_total_ecc_errors/1/0", |device, at| errors(device, at, [1, 0], None)),
    ("hlml_device_get_total_ecc_errors/0/1", |device, at| errors(device, at, [0, 1], None)),
    ("hlml_device_get_total_ecc_errors/1/1", |device, at| errors(device, at, [1, 1], None)),
    ("hlml_device_get_memory_error_counter/1/0/0", |device, at| {
        errors(device, at, [1, 0], Some(0))
    }),
    ("hlml_device_get_memory_error_counter/0/0/1", |device, at| {
        errors(device, at, [0, 0], Some(1))
    }),
    ("hlml_device_get_memory_error_counter/0/1/1", |device, at| {
        errors(device, at, [0, 1], Some(1))
    }),
    ("hlml_device_get_replaced_rows/0", |device, at| {
        scaled(device, device.group.remapped.as_ref().map(|rows| &rows.corrected), at, 1.0)
    }),
    ("hlml_device_get_replaced_rows/1", |device, at| {
        scaled(device, device.group.remapped.as_ref().map(|rows| &rows.uncorrected), at, 1.0)
    }),
    ("hlml_device_get_replaced_rows_pending_status", |device, at| {
        scaled(device, device.group.remapped.as_ref().map(|rows| &rows.pending), at, 1.0)
    }),
    ("hlml_device_get_pcie_replay_counter", |device, at| {
        scaled(device, device.group.pcie.as_ref().and_then(|pcie| pcie.replays.as_ref()), at, 1.0)
    }),
];
