//! What a reading of a scenario whose values do not change must be, in the catalogue's units. MIG
//! instances and processes may come and go.

pub(crate) mod gpm;
pub(crate) mod health;
pub(crate) mod links;

use super::rig::Values;
use nvidia_ml::curve::Curve;
use nvidia_ml::scenario::{Device, Instance, List, Process, Scenario};
use std::collections::BTreeSet;

/// Any time: the values are constant.
const WHENEVER: f64 = 0.0;

/// Every value of every device and process, without energy and age, which depend on time.
pub(crate) fn of(scenario: &Scenario, pid: impl Fn(u32, u32) -> u32) -> Values {
    at(scenario, WHENEVER, pid)
}

/// The same, of the instances and processes there are at a time.
pub(crate) fn at(scenario: &Scenario, seconds: f64, pid: impl Fn(u32, u32) -> u32) -> Values {
    let mut values = Values::new();
    for device in scenario.devices() {
        let mut own = Vec::new();
        levels(device, &mut own);
        electrics(device, &mut own);
        let mut count = 0.0;
        for process in device.processes().filter(|process| process.lives(seconds)) {
            count += 1.0;
            let pid = pid(device.index, process.slot);
            let place = process.group.instance.map_or_else(String::new, prefix);
            for (name, dim, value) in on_process(device, process) {
                let dim = format!("{place}{dim}");
                values.insert((name.to_owned(), device.index, pid, dim), value);
            }
        }
        for (name, dim, value) in health::at(device, seconds) {
            values.insert((name.to_owned(), device.index, 0, dim), value);
        }
        for (name, dim, value) in in_instances(device, seconds) {
            values.insert((name.to_owned(), device.index, 0, dim), value);
        }
        own.push(("gpu.process.count", "", count));
        for (name, dim, value) in own {
            values.insert((name.to_owned(), device.index, 0, dim.to_owned()), value);
        }
    }
    values
}

pub(crate) type Row = (&'static str, &'static str, f64);

/// Every state a device can be in.
const STATES: [&str; 8] =
    ["ok", "lost", "hung", "failing", "released", "missing", "replaced", "no_driver"];

/// A curve's value rounded to what the library can say.
fn whole(device: Device<'_>, curve: Option<&Curve>) -> f64 {
    device.value(curve.unwrap(), WHENEVER).round()
}

fn levels(device: Device<'_>, rows: &mut Vec<Row>) {
    let group = device.group;
    for state in STATES {
        rows.push(("gpu.status", state, f64::from(u8::from(state == "ok"))));
    }
    rows.push(("gpu.up", "", 1.0));
    rows.push(("gpu.info", "", 1.0));
    if !device.mig() {
        busy(device, rows);
    }
    let (total, reserved) = (group.memory.total as f64, group.memory.reserved as f64);
    let used = whole(device, Some(&group.memory.used));
    rows.push(("gpu.memory.usage", "used", used));
    rows.push(("gpu.memory.usage", "reserved", reserved));
    rows.push(("gpu.memory.usage", "free", total - reserved - used));
    rows.push(("gpu.memory.limit", "", total));
    rows.push(("gpu.temperature", "gpu", whole(device, group.temperature.as_ref())));
    rows.push(("gpu.temperature", "memory", whole(device, group.memory_temperature.as_ref())));
}

/// What the driver does not tell with MIG on.
fn busy(device: Device<'_>, rows: &mut Vec<Row>) {
    let group = device.group;
    let percent = |curve: &Option<Curve>| whole(device, curve.as_ref()) / 100.0;
    rows.push(("gpu.utilization", "general", percent(&group.utilization)));
    rows.push(("gpu.utilization", "encoder", percent(&group.encoder)));
    rows.push(("gpu.utilization", "decoder", percent(&group.decoder)));
    for (task, curve) in [("jpeg", &group.jpeg), ("optical_flow", &group.optical_flow)] {
        if curve.is_some() {
            rows.push(("gpu.utilization", task, percent(curve)));
        }
    }
    let memory = percent(&group.memory_utilization);
    rows.push(("gpu.memory.bandwidth.utilization", "", memory));
}

/// What counts time, energy or bytes since time 0.
pub(crate) fn counters(device: Device<'_>, seconds: f64) -> Vec<Row> {
    let group = device.group;
    let held = group.held.counters().into_iter().filter_map(|(reason, curve)| {
        Some(("gpu.throttle.time", reason, device.area(curve?, seconds)))
    });
    let rates = group
        .pcie
        .iter()
        .filter(|pcie| !pcie.narrow)
        .flat_map(|pcie| [("transmit", &pcie.transmit), ("receive", &pcie.receive)]);
    let io = rates.filter_map(|(direction, rate)| {
        Some(("gpu.pcie.io", direction, device.area(rate.as_ref()?, seconds).round()))
    });
    let energy = ("gpu.energy", "", device.energy_mj(seconds).unwrap() / 1000.0);
    held.chain(io).chain([energy]).collect()
}

/// A place before a dimension, as in `1/0 used`.
fn prefix([gpu_instance, compute_instance]: [u32; 2]) -> String {
    format!("{gpu_instance}/{compute_instance} ")
}

/// Every value of every instance. Memory belongs to the GPU instance, and is on its first compute
/// instance.
fn in_instances(device: Device<'_>, seconds: f64) -> Vec<(&'static str, String, f64)> {
    let mut living: Vec<&Instance> = device.instances(seconds).collect();
    living.sort_by_key(|instance| instance.index);
    let mut rows = Vec::new();
    let mut first = BTreeSet::new();
    for instance in living {
        let place = prefix(instance.place());
        let memory = &instance.memory;
        let (total, reserved) = (memory.total as f64, memory.reserved as f64);
        let used = whole(device, Some(&memory.used));
        let dim = |state: &str| format!("{place}{state}");
        rows.push(("gpu.instance.info", dim(""), 1.0));
        if first.insert(instance.gpu_instance) {
            rows.push(("gpu.instance.memory.usage", dim("used"), used));
            rows.push(("gpu.instance.memory.usage", dim("reserved"), reserved));
            rows.push(("gpu.instance.memory.usage", dim("free"), total - reserved - used));
            rows.push(("gpu.instance.memory.limit", dim(""), total));
        }
    }
    rows
}

fn electrics(device: Device<'_>, rows: &mut Vec<Row>) {
    let group = device.group;
    rows.push(("gpu.power", "", device.value(group.power.as_ref().unwrap(), WHENEVER)));
    if let Some(power) = &group.module_power {
        rows.push(("gpu.module.power", "", device.value(power, WHENEVER)));
    }
    rows.push(("gpu.power.average", "", device.value(group.power.as_ref().unwrap(), WHENEVER)));
    rows.push(("gpu.power.limit", "management", group.power_limit.unwrap()));
    rows.push(("gpu.power.limit", "enforced", group.enforced_limit().unwrap()));
    if let Some(limits) = &group.power_limits {
        rows.push(("gpu.power.limit", "default", limits.default));
        rows.push(("gpu.power.limit", "minimum", limits.minimum));
        rows.push(("gpu.power.limit", "maximum", limits.maximum));
    }
    let clocks = [
        ("graphics", &group.clocks.graphics),
        ("sm", &group.clocks.sm),
        ("memory", &group.clocks.memory),
        ("video", &group.clocks.video),
    ];
    for (clock, curve) in clocks {
        rows.push(("gpu.clock.speed", clock, whole(device, curve.as_ref()) * 1e6));
    }
    for (clock, highest) in
        ["graphics", "sm", "memory", "video"].into_iter().zip(group.clocks.highest.iter().flatten())
    {
        rows.push(("gpu.clock.limit", clock, highest * 1e6));
    }
    for (clock, rate) in
        ["graphics", "memory"].into_iter().zip(group.clocks.application.iter().flatten())
    {
        rows.push(("gpu.clock.application", clock, rate * 1e6));
    }
    rows.push(("gpu.power.state", "", f64::from(group.power_state.unwrap())));
}

fn on_process(device: Device<'_>, process: Process<'_>) -> Vec<Row> {
    let group = process.group;
    let whole = |curve: &Curve| process.value(curve, WHENEVER).round();
    let kinds = [(List::Mps, "mps"), (List::Compute, "compute"), (List::Graphics, "graphics")];
    let (_, kind) = kinds.into_iter().find(|(list, _)| group.is_on(*list)).unwrap();
    let mut rows = vec![
        ("gpu.process.info", "", 1.0),
        ("gpu.process.memory.usage", kind, whole(group.memory.as_ref().unwrap())),
    ];
    if !device.mig() {
        rows.extend([
            ("gpu.process.utilization", "sm", whole(&group.sm) / 100.0),
            ("gpu.process.utilization", "memory", whole(&group.memory_controller) / 100.0),
            ("gpu.process.utilization", "encoder", whole(&group.encoder) / 100.0),
            ("gpu.process.utilization", "decoder", whole(&group.decoder) / 100.0),
        ]);
    }
    rows
}
