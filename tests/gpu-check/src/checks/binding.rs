//! Each reading against NVIDIA's own binding for Python, which asks the same driver by other code.

use super::agreement::Ours::{self, Value, Word};
use super::agreement::rows;
use super::{Bench, Checked};
use crate::python::Python;
use crate::report::Row;
use crate::smi::Fields;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::{device as metric, wear};
use std::collections::BTreeMap;
use std::time::SystemTime;

const CHECK: &str = "agrees with NVIDIA's binding";
const ASK: &str = include_str!("binding.py");
/// Bytes that may have come or gone between the two.
const MOVED: f64 = 64.0 * 1_048_576.0;
/// Joules between the two: some seconds of the largest board.
const BURNT: f64 = 5_000.0;

fn table() -> Vec<(&'static str, Ours)> {
    let of_memory = |state| (metric::MEMORY_USAGE.def().name, state);
    let (used, by_used) = of_memory(&[("gpu.memory.state", "used")]);
    let (reserved, by_reserved) = of_memory(&[("gpu.memory.state", "reserved")]);
    vec![
        ("name", Word(attr::GPU_MODEL.name)),
        ("memory.total", Value(metric::MEMORY_LIMIT.def().name, &[], 1.0, 0.0)),
        ("memory.used", Value(used, by_used, 1.0, MOVED)),
        ("memory.reserved", Value(reserved, by_reserved, 1.0, MOVED)),
        (
            "temperature",
            Value(metric::TEMPERATURE.def().name, &[("gpu.temperature.sensor", "gpu")], 1.0, 3.0),
        ),
        (
            "power.enforced",
            Value(metric::POWER_LIMIT.def().name, &[("gpu.limit.type", "enforced")], 1.0, 0.5),
        ),
        (
            "clock.memory",
            Value(metric::CLOCK_SPEED.def().name, &[("gpu.clock.type", "memory")], 1e6, 1.0),
        ),
        (
            "clock.sm.max",
            Value(metric::CLOCK_LIMIT.def().name, &[("gpu.clock.type", "sm")], 1e6, 1.0),
        ),
        ("pcie.width", Value(wear::PCIE_WIDTH.def().name, &[], 1.0, 0.0)),
        ("pcie.width.max", Value(wear::PCIE_WIDTH_LIMIT.def().name, &[], 1.0, 0.0)),
        ("pcie.generation.max", Value(wear::PCIE_GENERATION_LIMIT.def().name, &[], 1.0, 0.0)),
        ("pcie.replays", Value(wear::PCIE_REPLAYS.def().name, &[], 1.0, 0.0)),
        ("energy", Value(metric::ENERGY.def().name, &[], 1.0, BURNT)),
        (
            "ecc.corrected",
            Value(
                wear::ECC_ERRORS.def().name,
                &[("gpu.ecc.error.type", "corrected"), ("gpu.ecc.count.type", "volatile")],
                1.0,
                0.0,
            ),
        ),
        (
            "remapped.uncorrected",
            Value(
                wear::REMAPPED_ROWS.def().name,
                &[("gpu.memory.retirement.cause", "uncorrected")],
                1.0,
                0.0,
            ),
        ),
    ]
}

pub(super) fn check(bench: &Bench<'_>) -> Checked {
    let before = SystemTime::now();
    let mut python = match Python::start(ASK, &[], &[]) {
        Ok(python) => python,
        Err(why) => return Ok(vec![Row::skip(CHECK, why)]),
    };
    let Some(said) = python.says::<Vec<BTreeMap<String, String>>>() else {
        return Ok(vec![Row::skip(CHECK, "python3 has no nvidia-ml-py that answers here")]);
    };
    let table = table();
    let known = || table.iter().map(|(field, _)| *field).chain(["uuid"]);
    let fields = |gpu: &BTreeMap<String, String>| {
        known().filter_map(|field| Some((field, gpu.get(field)?.clone()))).collect::<Fields>()
    };
    let reported: Vec<_> = said.iter().map(fields).collect();
    rows(bench, CHECK, (&reported, &table), before)
}
