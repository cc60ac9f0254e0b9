//! What connects a device and how its board is, as the scenario has it.

use super::super::rig::Key;
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::links::{C2c, Errors, Fabric, NvLink};
use nvidia_ml::scenario::{Device, Scenario};
use std::collections::BTreeMap;

/// Metrics that are told here.
pub(crate) const NAMES: &[&str] = &[
    "gpu.nvlink.",
    "gpu.c2c.",
    "gpu.fabric.",
    "gpu.recovery.",
    "gpu.mode",
    "gpu.compute_mode",
    "gpu.accounting.",
    "gpu.inforom.",
    "gpu.video.",
    "gpu.confidential_compute.",
];

/// Whether a metric is told here.
pub(crate) fn is_ours(name: &str) -> bool {
    NAMES.iter().any(|start| name.starts_with(start))
}

/// A name, a dimension and a value.
type Row = (&'static str, String, f64);

/// Every value of every device at a time.
pub(crate) fn at(scenario: &Scenario, seconds: f64) -> BTreeMap<Key, f64> {
    let mut values = BTreeMap::new();
    for device in scenario.devices() {
        let mut rows = Vec::new();
        if let Some(nvlink) = &device.group.nvlink {
            nvlinks((device, nvlink, seconds), &mut rows);
        }
        if let Some(c2c) = &device.group.c2c {
            chip_links((device, c2c, seconds), &mut rows);
        }
        if let Some(fabric) = &device.group.fabric {
            self::fabric(fabric, fabric.state_at(device, seconds), &mut rows);
        }
        modes(scenario, device, seconds, &mut rows);
        for (name, dim, value) in rows {
            values.insert((name.to_owned(), device.index, 0, dim), value);
        }
    }
    values
}

/// Metrics that grow by themselves: their truth at two times frames what is read in between.
pub(crate) fn grows(name: &str) -> bool {
    ["gpu.nvlink.io", "gpu.nvlink.raw.io", "gpu.nvlink.link.io"].contains(&name)
}

fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

/// One row for each word, 1 on the one that holds.
fn words(name: &'static str, all: &[&str], holds: Option<usize>, rows: &mut Vec<Row>) {
    let Some(holds) = holds else { return };
    for (place, word) in all.iter().enumerate() {
        rows.push((name, (*word).to_owned(), flag(place == holds)));
    }
}

fn nvlinks((device, nvlink, seconds): (Device<'_>, &NvLink, f64), rows: &mut Vec<Row>) {
    let states: Vec<u32> = (0..nvlink.links).map(|l| nvlink.state(device, l, seconds)).collect();
    for (number, word) in [(1, "active"), (0, "inactive"), (2, "sleep"), (3, "disabled")] {
        let count = states.iter().filter(|state| **state == number).count();
        rows.push(("gpu.nvlink.links", word.to_owned(), count as f64));
    }
    let carried = [("transmit", &nvlink.transmit), ("receive", &nvlink.receive)];
    for (way, rate) in carried {
        let bytes = |link, wire: f64| {
            (nvlink.carried_kib(device, rate, link, seconds) * wire).round() * 1024.0
        };
        rows.push(("gpu.nvlink.io", way.to_owned(), bytes(None, 1.0)));
        if !nvlink.byte_counters {
            rows.push(("gpu.nvlink.raw.io", way.to_owned(), bytes(None, nvlink.wire)));
        }
        for (link, state) in (0..).zip(&states).filter(|(_, state)| **state == 1) {
            assert_eq!(*state, 1);
            rows.push(("gpu.nvlink.link.io", format!("{link},{way}"), bytes(Some(link), 1.0)));
        }
    }
    for (link, state) in (0..).zip(&states) {
        rows.push(("gpu.nvlink.link.active", link.to_string(), flag(*state == 1)));
        if *state == 1 {
            let speed = f64::from(nvlink.speed) * 1e6;
            rows.push(("gpu.nvlink.link.speed", link.to_string(), speed));
        }
        errors((device, nvlink, seconds), link, rows);
    }
    let sum = |curve: &Curve| nvlink.total(device, curve, seconds);
    for (word, curve) in sums(&nvlink.errors, nvlink.no_totals) {
        rows.extend(curve.as_ref().map(|c| ("gpu.nvlink.errors", word.to_owned(), sum(c))));
    }
    for (bin, curve) in nvlink.fec.iter().enumerate() {
        rows.push(("gpu.nvlink.fec.codewords", bin.to_string(), sum(curve)));
    }
}

/// What the driver does not sum has only what each link tells.
fn sums(errors: &Errors, no_totals: bool) -> [(&'static str, &Option<Curve>); 15] {
    let of_driver = |curve| if no_totals { &None } else { curve };
    [
        if no_totals { ("crc", &errors.crc) } else { ("crc_flit", &errors.crc) },
        ("crc_data", of_driver(&errors.crc_data)),
        ("ecc_data", of_driver(&errors.ecc_data)),
        ("replay", &errors.replay),
        ("recovery", if errors.recovery.is_some() { &errors.recovery } else { &errors.recovered }),
        ("recovery_failed", &errors.lost),
        ("malformed", &errors.malformed),
        ("buffer_overrun", &errors.overrun),
        ("received", &errors.received),
        ("remote", &errors.remote),
        ("header", &errors.general),
        ("link_integrity", &errors.integrity),
        ("transmit_discarded", &errors.discarded),
        ("effective", &errors.effective),
        ("symbol", &errors.symbol),
    ]
}

fn errors((device, nvlink, seconds): (Device<'_>, &NvLink, f64), link: u32, rows: &mut Vec<Row>) {
    let errors = &nvlink.errors;
    let counts = [
        ("crc", &errors.crc),
        ("replay", &errors.replay),
        ("recovery", &errors.recovery),
        ("malformed", &errors.malformed),
        ("buffer_overrun", &errors.overrun),
        ("received", &errors.received),
        ("remote", &errors.remote),
        ("header", &errors.general),
        ("link_integrity", &errors.integrity),
        ("transmit_discarded", &errors.discarded),
        ("effective", &errors.effective),
        ("symbol", &errors.symbol),
    ];
    let count = |curve: &Curve| nvlink.count(device, curve, link, seconds);
    for (word, curve) in counts {
        let row = |c| ("gpu.nvlink.link.errors", format!("{link},{word}"), count(c));
        rows.extend(curve.as_ref().map(row));
    }
    for (word, curve) in [("successful", &errors.recovered), ("failed", &errors.lost)] {
        let row = |c| ("gpu.nvlink.link.recoveries", format!("{link},{word}"), count(c));
        rows.extend(curve.as_ref().map(row));
    }
    for (word, rate) in [("effective", errors.effective_ber), ("symbol", errors.symbol_ber)] {
        let Some([mantissa, exponent]) = rate else { continue };
        let rate = format!("{mantissa}e-{exponent}").parse().unwrap();
        rows.push(("gpu.nvlink.link.bit_error_rate", format!("{link},{word}"), rate));
    }
}

fn chip_links((device, c2c, seconds): (Device<'_>, &C2c, f64), rows: &mut Vec<Row>) {
    for link in 0..c2c.links {
        let dim = link.to_string();
        let active = !c2c.inactive.contains(&link);
        rows.push(("gpu.c2c.link.active", dim.clone(), flag(active)));
        if active {
            rows.push(("gpu.c2c.link.speed", dim.clone(), f64::from(c2c.speed) * 1e6));
        }
        rows.push(("gpu.c2c.link.low_power", dim.clone(), flag(c2c.low_power.contains(&link))));
        let errors = [
            ("crc", &c2c.crc),
            ("replay", &c2c.replay),
            ("replay_back_to_back", &c2c.replay_back_to_back),
        ];
        for (word, curve) in errors {
            let count = c2c.count(device, curve, link, seconds);
            rows.push(("gpu.c2c.link.errors", format!("{link},{word}"), count));
        }
    }
}

fn fabric(fabric: &Fabric, state: u8, rows: &mut Vec<Row>) {
    let states = ["not_started", "in_progress", "completed", "failed", "other"];
    let failed = state == 3 && fabric.status != 0;
    let holds = if failed { Some(3) } else { usize::from(state).checked_sub(1) };
    words("gpu.fabric.status", &states, holds, rows);
    let summaries = ["healthy", "unhealthy", "limited_capacity"];
    words("gpu.fabric.health", &summaries, usize::from(fabric.summary).checked_sub(1), rows);
    let health = fabric.health;
    let conditions = [
        ("degraded_bandwidth", health.degraded_bandwidth),
        ("route_recovery", health.route_recovery),
        ("route_unhealthy", health.route_unhealthy),
        ("access_timeout_recovery", health.access_timeout),
        ("partition_unassigned", health.partitioned.map(|yes| !yes)),
        ("fabric_manager_disconnected", health.connected.map(|yes| !yes)),
    ];
    // Of the scenarios' boards all those of racks have a cluster.
    let is_registered = fabric.cluster.chars().any(|digit| !"0-".contains(digit));
    let unregistered = is_registered.then_some(false);
    for (word, reported) in conditions.into_iter().chain([("unregistered", unregistered)]) {
        rows.extend(reported.map(|on| ("gpu.fabric.condition", word.to_owned(), flag(on))));
    }
    let wrong = [
        "incorrect_system_guid",
        "incorrect_chassis_serial",
        "no_partition",
        "insufficient_nvlinks",
        "incompatible_gpu_firmware",
        "invalid_location",
        "invalid_gpu_state",
    ];
    for (value, word) in (2..).zip(wrong).filter(|_| health.configuration != 0) {
        rows.push(("gpu.fabric.condition", word.to_owned(), flag(health.configuration == value)));
    }
}

fn modes(scenario: &Scenario, device: Device<'_>, seconds: f64, rows: &mut Vec<Row>) {
    let (modes, board) = (&device.group.modes, &device.group.board);
    let reported = [
        ("persistence", modes.persistence),
        ("accounting", modes.accounting),
        ("gsp_firmware", board.gsp.as_ref().map(|_| true)),
        ("c2c", device.group.c2c.as_ref().map(|_| true)),
    ];
    for (word, on) in reported {
        rows.extend(on.map(|on| ("gpu.mode", word.to_owned(), flag(on))));
    }
    if modes.accounting == Some(true) {
        rows.push(("gpu.accounting.limit", String::new(), 4000.0));
    }
    let compute = ["default", "exclusive_thread", "prohibited", "exclusive_process"];
    words("gpu.compute_mode", &compute, modes.compute.map(|mode| mode as usize), rows);
    let actions = [
        "none",
        "gpu_reset",
        "node_reboot",
        "drain_p2p",
        "drain_and_reset",
        "recover_imex_domain",
        "bus_reset",
        "system_reboot",
        "other",
    ];
    let reported = modes.recovery.as_ref().map(|curve| device.value(curve, seconds));
    let holds =
        reported.map(|reported| (0..8_u8).find(|n| f64::from(*n) == reported).unwrap().into());
    words("gpu.recovery.action", &actions, holds, rows);
    if board.inforom.is_some() {
        rows.push(("gpu.inforom.valid", String::new(), flag(!board.inforom_corrupted)));
    }
    for (word, reported) in [("encoder", modes.encoder), ("capture", modes.capture)] {
        let Some([sessions, frames, microseconds]) = reported else { continue };
        rows.push(("gpu.video.sessions", word.to_owned(), f64::from(sessions)));
        if sessions > 0 {
            rows.push(("gpu.video.frame_rate", word.to_owned(), f64::from(frames)));
            let seconds = f64::from(microseconds) / 1e6;
            rows.push(("gpu.video.latency", word.to_owned(), seconds));
        }
    }
    let Some(confidential) = scenario.confidential.filter(|reported| reported.on) else { return };
    rows.push(("gpu.confidential_compute.ready", String::new(), flag(confidential.ready)));
    for (word, kib) in ["protected", "unprotected"].iter().zip(modes.protected.iter().flatten()) {
        let bytes = *kib as f64 * 1024.0;
        rows.push(("gpu.confidential_compute.memory", (*word).to_owned(), bytes));
    }
}
