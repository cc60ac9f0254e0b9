//! The call or file behind each metric, or why there is none: Gaudi's column of METRICS.md.

use crate::sysfs::{self, Source};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::{MetricDef, interconnect, process, wear};

pub(super) fn of(def: &'static MetricDef) -> Result<&'static str, &'static str> {
    let without = [
        (wear::PCIE_IO.def(), "the library has a sample of 10 ms and no counter"),
        (
            metric::THROTTLE_TIME.def(),
            "the unit of `hlml_device_get_violation_status` is not published",
        ),
        (
            metric::MEMORY_BANDWIDTH_UTILIZATION.def(),
            "what `utilization.memory` counts is not published",
        ),
        (
            process::UTILIZATION.def(),
            "one process at a time computes on a device: `gpu.utilization` is its own",
        ),
    ];
    sysfs::source_of(&rows(), &without, def, "neither the library nor a file has it")
}

fn rows() -> Vec<Source> {
    let own = [
        (
            metric::INFO.def(),
            "`hlml_device_get_uuid`, `_name`, `_serial`, `hlml_get_driver_version`, else `hl-smi`; `device_type`, `module_id`",
        ),
        (metric::STATE.def(), "the link `driver`, `status`, codes of the library, the deadline"),
        (
            metric::UTILIZATION.def(),
            "`hlml_device_get_utilization_rates` (%), else `hl-smi` `utilization.aip`",
        ),
        (
            metric::MEMORY_USAGE.def(),
            "`hlml_device_get_memory_info`, else `hl-smi` `memory.used` (MiB); the firmware's part is never 0",
        ),
        (metric::MEMORY_LIMIT.def(), "`hlml_device_get_memory_info`, else `hl-smi` `memory.total`"),
        (
            metric::TEMPERATURE.def(),
            "`hlml_device_get_temperature` (chip, memory), else `hl-smi` `temperature.aip`",
        ),
        (metric::TEMPERATURE_LIMIT.def(), "`hlml_device_get_temperature_threshold`"),
        (metric::POWER.def(), "`hlml_device_get_power_usage` (mW), else `hl-smi` `power.draw`"),
        (
            metric::POWER_LIMIT.def(),
            "`hlml_device_get_power_management_limit`, `_default_limit` (mW), else `max_power`",
        ),
        (metric::ENERGY.def(), "`hlml_device_get_total_energy_consumption` (mJ)"),
        (metric::THROTTLE_ACTIVE.def(), "`hlml_device_get_current_clocks_throttle_reasons`"),
        (metric::UNKNOWN_CODE.def(), "`hlml_device_get_current_clocks_throttle_reasons`"),
        (metric::CLOCK_SPEED.def(), "`hlml_device_get_clock_info` (MHz), else `clk_cur_freq_mhz`"),
        (
            metric::CLOCK_LIMIT.def(),
            "`hlml_device_get_max_clock_info` (MHz), else `clk_max_freq_mhz`",
        ),
        (wear::ECC_ENABLED.def(), "`hlml_device_get_ecc_mode`"),
        (wear::ECC_ENABLED_NEXT.def(), "`hlml_device_get_ecc_mode`"),
        (
            wear::ECC_ERRORS.def(),
            "`hlml_device_get_total_ecc_errors`, else `hl-smi` `ecc.errors.*.total`",
        ),
        (wear::ECC_VOLATILE.def(), "`hlml_device_get_memory_error_counter`"),
        (wear::ECC_AGGREGATE.def(), "`hlml_device_get_memory_error_counter`"),
        (wear::REMAPPED_ROWS.def(), "`hlml_device_get_replaced_rows`"),
        (wear::REMAP_PENDING.def(), "`hlml_device_get_replaced_rows_pending_status`"),
        (interconnect::LINKS.def(), "`hlml_nic_get_link` of each network port"),
        (interconnect::LINK_ACTIVE.def(), "`hlml_nic_get_link`"),
        (
            interconnect::IO.def(),
            "`hlml_nic_get_statistics` `rx_Octets`, `tx_Octets` of all network ports, by a thread of its own",
        ),
        (wear::PCIE_REPLAYS.def(), "`hlml_device_get_pcie_replay_counter`"),
    ];
    own.into_iter().chain(sysfs::link_sources()).chain(sysfs::opener_sources()).collect()
}
