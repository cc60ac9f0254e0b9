//! NVIDIA's column of METRICS.md: the catalogue's own sources, and why the rest has none.

use gpuwho_model::catalog::{MetricDef, device, instance, interconnect, process, wear};

/// The call or field of a metric.
pub(crate) fn of(def: &'static MetricDef) -> Result<&'static str, &'static str> {
    let why = without().into_iter().find(|(known, _)| *known == def).map(|(_, why)| why);
    let is_link = interconnect::ALL.contains(&def);
    match why.or(is_link.then_some("the links are NVLinks: `gpu.nvlink.*`")) {
        Some(why) => Err(why),
        None => Ok(def.source),
    }
}

fn without() -> [(&'static MetricDef, &'static str); 8] {
    let host = "the library does not report host memory";
    let evicted = "the library does not report moved memory";
    [
        (device::HOST_MEMORY_USAGE.def(), host),
        (device::HOST_MEMORY_LIMIT.def(), host),
        (device::THERMAL_SHUTDOWNS.def(), "the driver reports it as a lost device: events"),
        (wear::BLOCK_ERRORS.def(), "by memory and unit: `gpu.ecc.location.errors.*`"),
        (instance::UTILIZATION.def(), "the performance counters: `gpu.instance.sm.active`"),
        (process::OCCUPANCY.def(), "the driver's samples: `gpu.process.utilization`"),
        (process::EVICTED_TIME.def(), evicted),
        (process::MEMORY_EVICTED.def(), evicted),
    ]
}
