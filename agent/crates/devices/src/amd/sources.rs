//! The file behind each metric, or why there is none: AMD's column of METRICS.md.

use crate::sysfs::{self, Source};
use gpuwho_model::catalog::device as metric;
use gpuwho_model::catalog::{MetricDef, board, gpm, instance, interconnect, link, process, wear};

/// The file of a metric.
pub(super) fn of(def: &'static MetricDef) -> Result<&'static str, &'static str> {
    let find = |table: Vec<Source>| {
        table.into_iter().find(|(known, _)| *known == def).map(|(_, text)| text)
    };
    let shared = || sysfs::own_sources().into_iter().chain(sysfs::link_sources()).collect();
    let file = find(of_devices()).or_else(|| find(of_the_rest())).or_else(|| find(shared()));
    if let Some(file) = file {
        return Ok(file);
    }
    Err(find(without()).unwrap_or_else(|| match def.subject {
        "xid" => "only NVIDIA's driver has such codes; the driver's faults are events",
        "instance" => "no file has it by partition",
        _ if gpm::ALL.contains(&def) => "no file has the performance counters",
        _ if link::ALL.contains(&def) => "the links are XGMI: `gpu.interconnect.*`",
        _ if wear::ALL.contains(&def) => "the driver does not count it apart",
        _ => "no file has it",
    }))
}

fn of_devices() -> Vec<Source> {
    vec![
        (
            metric::INFO.def(),
            "`unique_id`, `product_name`, `serial_number`, `vbios_version`, `current_compute_partition`, \
             `current_memory_partition`, `xgmi_hive_info`, KFD `properties`; what these lack by \
             `amdsmi_get_gpu_asic_info`, `_board_info`, `_vbios_info`",
        ),
        (metric::STATE.def(), "the link `driver`, the reader's deadline"),
        (
            metric::UTILIZATION.def(),
            "`gpu_busy_percent`; video and JPEG from `gpu_metrics` up to 1.5 and 1.9",
        ),
        (metric::MEMORY_BANDWIDTH_UTILIZATION.def(), "`mem_busy_percent`"),
        (metric::MEMORY_USAGE.def(), "`mem_info_vram_used`; of an APU with `mem_info_gtt_used`"),
        (metric::MEMORY_LIMIT.def(), "`mem_info_vram_total`; of an APU with `mem_info_gtt_total`"),
        (metric::HOST_MEMORY_USAGE.def(), "`mem_info_gtt_used`"),
        (metric::HOST_MEMORY_LIMIT.def(), "`mem_info_gtt_total`"),
        (metric::APERTURE_USAGE.def(), "`mem_info_vis_vram_used`"),
        (metric::APERTURE_LIMIT.def(), "`mem_info_vis_vram_total`"),
        (
            metric::TEMPERATURE.def(),
            "hwmon `tempN_input` of `edge`, `junction`, `mem` (m°C); regulators from `gpu_metrics` 1.x",
        ),
        (metric::TEMPERATURE_LIMIT.def(), "hwmon `tempN_crit`, `tempN_emergency` (m°C)"),
        (metric::POWER.def(), "hwmon `power1_input`, else `power1_average` (µW)"),
        (metric::POWER_AVERAGE.def(), "hwmon `power1_average` (µW; the firmware's window)"),
        (metric::POWER_LIMIT.def(), "hwmon `power1_cap`, `_default`, `_min`, `_max` (µW)"),
        (
            metric::ENERGY.def(),
            "hwmon `energy1_input` (µJ), else `gpu_metrics` 1.3 to 1.9 (2^-16 J)",
        ),
        (
            metric::THROTTLE_ACTIVE.def(),
            "`gpu_metrics`: bits in 1.3 and 2.2 to 2.4; from 1.6 on whether the time below has grown \
             since the last reading",
        ),
        (
            metric::THROTTLE_TIME.def(),
            "`gpu_metrics` 1.6 to 1.9: `*_residency_acc` by `accumulation_counter`, from the agent's \
             start on",
        ),
        (metric::UNKNOWN_CODE.def(), "`gpu_metrics` (bits, revision)"),
        (
            metric::CLOCK_SPEED.def(),
            "hwmon `freq1_input`, `freq2_input`; others from `gpu_metrics` 1.x (MHz)",
        ),
        (metric::CLOCK_LIMIT.def(), "`pp_dpm_sclk`, `pp_dpm_mclk`"),
        (metric::FAN_SPEED.def(), "hwmon `pwm1`"),
        (metric::PROCESS_COUNT.def(), "the processes below"),
    ]
}

fn of_the_rest() -> Vec<Source> {
    vec![
        (wear::ECC_ENABLED.def(), "`ras/features` (bit 0)"),
        (wear::ECC_ERRORS.def(), "the sums of `ras/*_err_count` or `ras/aca_*`"),
        (wear::ECC_VOLATILE.def(), "`ras/umc_err_count` or `ras/aca_umc`"),
        (wear::BLOCK_ERRORS.def(), "`ras/*_err_count` or `ras/aca_*` (`ce`, `ue`, `de`)"),
        (wear::RETIRED_PAGES.def(), "`ras/gpu_vram_bad_pages` (`R`)"),
        (wear::RETIREMENT_PENDING.def(), "`ras/gpu_vram_bad_pages` (`P`, `F`)"),
        (wear::PCIE_REPLAYS.def(), "`pcie_replay_count`, else `gpu_metrics` 1.4 to 1.9"),
        (wear::PCIE_ERRORS.def(), "`gpu_metrics` 1.4 to 1.9 (NAKs from 1.5 on)"),
        (interconnect::LINKS.def(), "`gpu_metrics` 1.7 to 1.9"),
        (interconnect::LINK_ACTIVE.def(), "`gpu_metrics` 1.7 to 1.9"),
        (interconnect::LINK_SPEED.def(), "`gpu_metrics` 1.7 to 1.9: lanes × bit rate"),
        (interconnect::LINK_IO.def(), "`gpu_metrics` 1.4 to 1.9 (KiB)"),
        (interconnect::IO.def(), "the sum over the links"),
        (instance::INFO.def(), "KFD nodes of the device, `current_compute_partition`"),
        (instance::UTILIZATION.def(), "`gpu_metrics` 1.6 to 1.8 (`gfx_busy_inst` by partition)"),
        (process::INFO.def(), "KFD's list, openers of render nodes, the ownership table"),
        (
            process::MEMORY_USAGE.def(),
            "KFD `proc/PID/vram_ID` (those that were 0 in turns), else `drm-resident-vram` of `fdinfo`, of an APU \
             with `drm-resident-gtt`",
        ),
        (process::OCCUPANCY.def(), "KFD `proc/PID/stats_ID/cu_occupancy` of all compute units"),
        (process::EVICTED_TIME.def(), "KFD `proc/PID/stats_ID/evicted_ms`"),
        (process::MEMORY_EVICTED.def(), "`amd-evicted-vram` of `fdinfo`"),
    ]
}

/// Why there is no file, where it is not the same for all of a kind.
fn without() -> Vec<Source> {
    vec![
        (wear::PCIE_IO.def(), "no file counts bytes in a unit that is the same for all drivers"),
        (instance::MEMORY_USAGE.def(), "the driver counts memory by device and by process only"),
        (instance::MEMORY_LIMIT.def(), "on `gpu.instance.info` as its share of the device"),
        (process::UTILIZATION.def(), "compute queues are not timed; `gpu.process.occupancy`"),
        (board::RECOVERY_ACTION.def(), "the driver recovers by itself and logs it: events"),
        (
            gpm::PCIE_SAMPLED.def(),
            "`pcie_bw` and `amdsmi_get_gpu_pci_throughput` count packets of unknown size, for a second",
        ),
        (metric::POWER_STATE.def(), "the driver has no numbered states"),
        (metric::THERMAL_SHUTDOWNS.def(), "the driver logs it: events"),
    ]
}

#[cfg(test)]
mod tests {
    use super::of;
    use gpuwho_model::catalog;

    #[test]
    fn no_metric_of_a_device_is_without_a_file_or_a_reason() {
        let (files, none): (Vec<_>, Vec<_>) = catalog::all().map(of).partition(Result::is_ok);
        let shared = super::sysfs::own_sources().len() + super::sysfs::link_sources().len();
        let listed = super::of_devices().len() + super::of_the_rest().len() + shared;
        assert_eq!(files.len(), listed, "each file once");
        assert!(none.iter().all(|why| why.is_err_and(|why| !why.is_empty())));
    }
}
