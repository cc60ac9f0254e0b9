//! The metrics of NVIDIA's dcgm-exporter by default, and where the same is here: for the `dcgm`
//! names of the Prometheus endpoint, and for those who bring dashboards along. From
//! `etc/default-counters.csv` of dcgm-exporter 3.1 to 4.8; the names of 4.9 from NVIDIA/go-dcgm
//! (`pkg/dcgm/const_fields.go`, `base_unit_fields_test.go`) and NVIDIA's list of fields of DCGM 4.7.

use super::attributes::{self as attr, AttrKey};
use super::{MetricDef, device, event, gpm, instance, link, wear};
use std::fmt::Write as _;

/// Which of dcgm-exporter's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vocabulary {
    /// Those until 4.8.
    Old,
    /// Those from 4.9 on, with DCGM 4.7: base units.
    New,
}

/// One metric of dcgm-exporter.
#[derive(Debug)]
pub struct DcgmMetric {
    /// Its name in each vocabulary; empty where it has none.
    names: [&'static str; 2],
    /// Whether dcgm-exporter declares it as a counter.
    pub is_counter: bool,
    /// dcgm-exporter's help.
    help: &'static str,
    /// Where it comes from, or why there is no such metric.
    pub from: Result<DcgmOrigin, &'static str>,
}

impl DcgmMetric {
    /// Its name.
    pub fn name(&self, of: Vocabulary) -> Option<&'static str> {
        let [old, new] = self.names;
        let name = if of == Vocabulary::Old { old } else { new };
        (!name.is_empty()).then_some(name)
    }

    /// Its help: a name in base units says the unit itself.
    pub fn help(&self, of: Vocabulary) -> &'static str {
        let [old, new] = self.names;
        if of == Vocabulary::Old || old == new {
            return self.help;
        }
        self.help.split_once(" (").map_or(self.help, |(help, _)| help)
    }
}

/// Metrics here whose series, added up and scaled, are one of dcgm-exporter's.
#[derive(Debug)]
pub struct DcgmOrigin {
    /// Of a device.
    pub device: &'static MetricDef,
    /// Of a MIG instance, which dcgm-exporter shows under the same name.
    pub instance: Option<&'static MetricDef>,
    /// Only series with this attribute.
    pub only: Option<(&'static AttrKey, &'static str)>,
    /// What a value is multiplied by, in each vocabulary.
    scales: [f64; 2],
    /// Whether a device without a series has 0, as DCGM says where there was none.
    pub or_zero: bool,
}

impl DcgmOrigin {
    /// What a value is multiplied by.
    pub fn scale(&self, of: Vocabulary) -> f64 {
        let [old, new] = self.scales;
        if of == Vocabulary::Old { old } else { new }
    }
}

/// With the scale of the old names; the new ones have the catalogue's units.
const fn of(device: &'static MetricDef, scale: f64) -> DcgmOrigin {
    DcgmOrigin { device, instance: None, only: None, scales: [scale, 1.0], or_zero: false }
}

impl DcgmOrigin {
    const fn only(self, key: &'static AttrKey, value: &'static str) -> Self {
        Self { only: Some((key, value)), ..self }
    }

    const fn with(self, instance: &'static MetricDef) -> Self {
        Self { instance: Some(instance), ..self }
    }

    /// The unit has not changed.
    const fn always(self) -> Self {
        let [scale, _] = self.scales;
        Self { scales: [scale, scale], ..self }
    }

    const fn or_zero(self) -> Self {
        Self { or_zero: true, ..self }
    }
}

macro_rules! dcgm {
    ($($name:literal $new:literal $kind:ident $help:literal = $from:expr;)+) => {
        /// The metrics, in dcgm-exporter's order.
        pub static ALL: &[DcgmMetric] = &[$(DcgmMetric {
            names: [$name, $new],
            is_counter: dcgm!(@ $kind),
            help: $help,
            from: $from,
        }),+];
    };
    (@ gauge) => { false };
    (@ counter) => { true };
}

const MEGA: f64 = 1e-6;
const MEBI: f64 = 1.0 / 1_048_576.0;
const PERCENT: f64 = 100.0;
const TX: (&AttrKey, &str) = (&attr::IO_DIRECTION, "transmit");
const RX: (&AttrKey, &str) = (&attr::IO_DIRECTION, "receive");

dcgm! {
    "DCGM_FI_DEV_SM_CLOCK" "DCGM_FI_DEV_SM_CLOCK_HERTZ" gauge "SM clock frequency (in MHz)."
        = Ok(of(device::CLOCK_SPEED.def(), MEGA).only(&attr::GPU_CLOCK_TYPE, "sm"));
    "DCGM_FI_DEV_MEM_CLOCK" "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ" gauge "Memory clock frequency (in MHz)."
        = Ok(of(device::CLOCK_SPEED.def(), MEGA).only(&attr::GPU_CLOCK_TYPE, "memory"));
    "DCGM_FI_DEV_MEMORY_TEMP" "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS" gauge "Memory temperature (in C)."
        = Ok(of(device::TEMPERATURE.def(), 1.0).only(&attr::GPU_TEMPERATURE_SENSOR, "memory"));
    "DCGM_FI_DEV_GPU_TEMP" "DCGM_FI_DEV_GPU_TEMP_CELSIUS" gauge "GPU temperature (in C)."
        = Ok(of(device::TEMPERATURE.def(), 1.0).only(&attr::GPU_TEMPERATURE_SENSOR, "gpu"));
    "DCGM_FI_DEV_POWER_USAGE" "DCGM_FI_DEV_BOARD_POWER_WATTS" gauge "Power draw (in W)." = Ok(of(device::POWER.def(), 1.0));
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL" counter "Total energy consumption since boot (in mJ)."
        = Ok(of(device::ENERGY.def(), 1e3));
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT" "DCGM_FI_DEV_PCIE_TX_THROUGHPUT" counter "Total number of bytes transmitted through PCIe TX (in KB)."
        = Ok(of(wear::PCIE_IO.def(), 1e-3).only(TX.0, TX.1).always());
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT" "DCGM_FI_DEV_PCIE_RX_THROUGHPUT" counter "Total number of bytes received through PCIe RX (in KB)."
        = Ok(of(wear::PCIE_IO.def(), 1e-3).only(RX.0, RX.1).always());
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" "DCGM_FI_DEV_PCIE_REPLAY_TOTAL" counter "Total number of PCIe retries."
        = Ok(of(wear::PCIE_REPLAYS.def(), 1.0));
    "DCGM_FI_DEV_GPU_UTIL" "DCGM_FI_DEV_GPU_UTIL_RATIO" gauge "GPU utilization (in %)."
        = Ok(of(device::UTILIZATION.def(), PERCENT).only(&attr::GPU_TASK, "general"));
    "DCGM_FI_DEV_MEM_COPY_UTIL" "DCGM_FI_DEV_MEMORY_UTIL_RATIO" gauge "Memory utilization (in %)."
        = Ok(of(device::MEMORY_BANDWIDTH_UTILIZATION.def(), PERCENT));
    "DCGM_FI_DEV_ENC_UTIL" "DCGM_FI_DEV_ENC_UTIL_RATIO" gauge "Encoder utilization (in %)."
        = Ok(of(device::UTILIZATION.def(), PERCENT).only(&attr::GPU_TASK, "encoder"));
    "DCGM_FI_DEV_DEC_UTIL" "DCGM_FI_DEV_DEC_UTIL_RATIO" gauge "Decoder utilization (in %)."
        = Ok(of(device::UTILIZATION.def(), PERCENT).only(&attr::GPU_TASK, "decoder"));
    "DCGM_FI_DEV_XID_ERRORS" "DCGM_FI_DEV_XID_ERROR" gauge "Value of the last XID error encountered."
        = Ok(of(event::XID_LAST.def(), 1.0).or_zero());
    "DCGM_FI_DEV_FB_FREE" "DCGM_FI_DEV_FB_FREE_BYTES" gauge "Framebuffer memory free (in MiB)."
        = Ok(of(device::MEMORY_USAGE.def(), MEBI)
            .only(&attr::GPU_MEMORY_STATE, "free").with(instance::MEMORY_USAGE.def()));
    "DCGM_FI_DEV_FB_USED" "DCGM_FI_DEV_FB_USED_BYTES" gauge "Framebuffer memory used (in MiB)."
        = Ok(of(device::MEMORY_USAGE.def(), MEBI)
            .only(&attr::GPU_MEMORY_STATE, "used").with(instance::MEMORY_USAGE.def()));
    "DCGM_FI_DEV_FB_RESERVED" "DCGM_FI_DEV_FB_RESERVED_BYTES" gauge "Framebuffer memory reserved (in MiB)."
        = Ok(of(device::MEMORY_USAGE.def(), MEBI)
            .only(&attr::GPU_MEMORY_STATE, "reserved").with(instance::MEMORY_USAGE.def()));
    "DCGM_FI_DEV_FB_TOTAL" "DCGM_FI_DEV_FB_CAPACITY_BYTES" gauge "Framebuffer memory in total (in MiB)."
        = Ok(of(device::MEMORY_LIMIT.def(), MEBI).with(instance::MEMORY_LIMIT.def()));
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" "" counter "Total number of NVLink bandwidth counters for all lanes (in MB)."
        = Ok(of(link::NVLINK_IO.def(), MEGA));
    "" "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND" gauge "NVLink traffic of all lanes in both directions."
        = Ok(of(gpm::NVLINK_THROUGHPUT.def(), 1.0));
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS" "DCGM_FI_DEV_VGPU_LICENSE_STATUS" gauge "vGPU License status."
        = Err("only a vGPU guest has a licence, and the agent reads hosts");
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS" "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL" counter "Number of remapped rows for uncorrectable errors."
        = Ok(of(wear::REMAPPED_ROWS.def(), 1.0).only(&attr::GPU_MEMORY_RETIREMENT_CAUSE, "uncorrected"));
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS" "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL" counter "Number of remapped rows for correctable errors."
        = Ok(of(wear::REMAPPED_ROWS.def(), 1.0).only(&attr::GPU_MEMORY_RETIREMENT_CAUSE, "corrected"));
    "DCGM_FI_DEV_ROW_REMAP_FAILURE" "DCGM_FI_DEV_ROW_REMAP_FAILED" gauge "Whether remapping of rows has failed."
        = Ok(of(wear::REMAP_FAILED.def(), 1.0));
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE" "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO" gauge "Ratio of time the graphics engine is active."
        = Ok(of(gpm::GR_ENGINE_ACTIVE.def(), 1.0).with(gpm::INSTANCE_GR_ENGINE_ACTIVE.def()));
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" "DCGM_FI_PROF_TENSOR_UTIL_RATIO" gauge "Ratio of cycles the tensor (HMMA) pipe is active."
        = Ok(of(gpm::PIPE_ACTIVE.def(), 1.0)
            .only(&attr::GPU_PIPE, "tensor").with(gpm::INSTANCE_PIPE_ACTIVE.def()));
    "DCGM_FI_PROF_DRAM_ACTIVE" "DCGM_FI_PROF_DRAM_UTIL_RATIO" gauge "Ratio of cycles the device memory interface is active sending or receiving data."
        = Ok(of(gpm::DRAM_ACTIVE.def(), 1.0).with(gpm::INSTANCE_DRAM_ACTIVE.def()));
    "DCGM_FI_PROF_PCIE_TX_BYTES" "DCGM_FI_PROF_PCIE_TX_BYTES" gauge "The rate of data transmitted over the PCIe bus (in bytes per second)."
        = Ok(of(gpm::PCIE_THROUGHPUT.def(), 1.0)
            .only(TX.0, TX.1).with(gpm::INSTANCE_PCIE_THROUGHPUT.def()));
    "DCGM_FI_PROF_PCIE_RX_BYTES" "DCGM_FI_PROF_PCIE_RX_BYTES" gauge "The rate of data received over the PCIe bus (in bytes per second)."
        = Ok(of(gpm::PCIE_THROUGHPUT.def(), 1.0)
            .only(RX.0, RX.1).with(gpm::INSTANCE_PCIE_THROUGHPUT.def()));
}

const HEAD: &str = "
## Names of dcgm-exporter

With `[prometheus] names = [\"dcgm\"]` (or `[\"native\", \"dcgm\"]`) the Prometheus endpoint has NVIDIA's devices
under the names and labels of dcgm-exporter's default counters (`gpu`, `UUID`, `pci_bus_id`, `device`,
`modelName`, `Hostname`, `GPU_I_ID`, `GPU_I_PROFILE`, `DCGM_FI_DRIVER_VERSION`), so that its dashboard
(Grafana 12239) and rules work. `\"dcgm-4.9\"` has the names of dcgm-exporter 4.9 and later, in base units
(`hostname`, `DCGM_FI_SYSTEM_DRIVER_VERSION`); both may be there at once. DCGM has
`DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL` as a rate that it declares as a counter; here it is the counter.
`DCGM_FI_DEV_XID_ERRORS` is 0 until the first XID. `DCGM_FI_PROF_*` needs Hopper or later.

| until 4.8 (`dcgm`) | from 4.9 on (`dcgm-4.9`) | here |
|---|---|---|
";

/// Writes the table for `METRICS.md`.
pub(super) fn table(out: &mut String) {
    out.push_str(HEAD);
    for metric @ DcgmMetric { from, .. } in ALL {
        let [old, new] = [Vocabulary::Old, Vocabulary::New].map(|of| {
            let name =
                metric.name(of).map_or_else(|| "none".to_owned(), |name| format!("`{name}`"));
            let scale = from.as_ref().map_or(1.0, |origin| origin.scale(of));
            let times = match scale {
                scale if scale > 1.0 => format!(" (× {scale})"),
                scale if scale < 1.0 => format!(" (÷ {:.0})", 1.0 / scale),
                _ => String::new(),
            };
            name + &times
        });
        // Writing to a String cannot fail.
        let _ = match from {
            Ok(DcgmOrigin { device, instance, only, .. }) => {
                let only = only.map_or_else(String::new, |(_, value)| format!(" of `{value}`"));
                let and = instance.map_or_else(String::new, |def| format!(", `{}`", def.name));
                writeln!(out, "| {old} | {new} | `{}`{and}{only} |", device.name)
            }
            Err(why) => writeln!(out, "| {old} | {new} | no: {why} |"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_row_names_a_value_that_its_metric_has() {
        let mut seen = HashSet::new();
        for DcgmMetric { names, from, .. } in ALL {
            assert!(seen.insert(names), "{names:?} is there twice");
            let Ok(DcgmOrigin { device, instance, only: Some((key, value)), .. }) = from else {
                continue;
            };
            for def in [Some(device), instance.as_ref()].into_iter().flatten() {
                let dim = def.dims.iter().find(|dim| dim.key.name == key.name);
                let has = dim.is_some_and(|dim| dim.values.contains(value));
                assert!(has, "{names:?}: {} has no {value}", def.name);
            }
        }
    }
}
