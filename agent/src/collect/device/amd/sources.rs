//! The file behind each metric, or why there is none: AMD's column of METRICS.md.

use crate::catalog::device as metric;
use crate::catalog::{MetricDef, gpm, instance, link, process, wear};

/// The file of a metric.
pub(super) fn of(def: &'static MetricDef) -> Result<&'static str, &'static str> {
    let is = |known: &&'static MetricDef| std::ptr::eq(*known, def);
    let file = files().into_iter().find(|(known, _)| is(known)).map(|(_, file)| file);
    file.ok_or_else(|| match def.subject {
        "xid" => "the driver has no such codes",
        "instance" => "the driver does not tell by partition",
        _ if gpm::ALL.iter().any(&is) => "no file has the performance counters",
        _ if link::ALL.iter().any(&is) => "XGMI is not read yet",
        _ if wear::ALL.iter().any(is) => "`ras/*` is not read yet",
        _ => "no file that is read has it",
    })
}

fn files() -> Vec<(&'static MetricDef, &'static str)> {
    vec![
        (
            metric::INFO.def(),
            "`unique_id`, `product_name`, `serial_number`, `vbios_version`, KFD `properties`",
        ),
        (metric::STATE.def(), "the link `driver`, the reader's deadline"),
        (metric::UP.def(), "`gpu.status`"),
        (metric::READ_AGE.def(), "the agent's clock"),
        (metric::UTILIZATION.def(), "`gpu_busy_percent` (%)"),
        (metric::MEMORY_BANDWIDTH_UTILIZATION.def(), "`mem_busy_percent` (%)"),
        (metric::MEMORY_USAGE.def(), "`mem_info_vram_used`"),
        (metric::MEMORY_LIMIT.def(), "`mem_info_vram_total`"),
        (metric::TEMPERATURE.def(), "hwmon `tempN_input` of `edge`, `junction`, `mem` (m°C)"),
        (metric::POWER.def(), "hwmon `power1_input`, else `power1_average` (µW)"),
        (metric::POWER_AVERAGE.def(), "hwmon `power1_average` (µW; the firmware's window)"),
        (metric::POWER_LIMIT.def(), "hwmon `power1_cap`, `_default`, `_min`, `_max` (µW)"),
        (
            metric::ENERGY.def(),
            "hwmon `energy1_input` (µJ), else `gpu_metrics` 1.3, 1.4, 1.6 to 1.8 (2^-16 J)",
        ),
        (metric::CLOCK_SPEED.def(), "hwmon `freq1_input`, `freq2_input`"),
        (metric::PROCESS_COUNT.def(), "the processes below"),
        (wear::PCIE_WIDTH.def(), "`current_link_width`"),
        (wear::PCIE_WIDTH_LIMIT.def(), "`max_link_width`"),
        (wear::PCIE_REPLAYS.def(), "`pcie_replay_count`"),
        (instance::INFO.def(), "KFD nodes of the device, `current_compute_partition`"),
        (process::INFO.def(), "KFD's list, openers of render nodes, the ownership table"),
        (
            process::MEMORY_USAGE.def(),
            "KFD `proc/PID/vram_ID`, else `drm-resident-vram` of `fdinfo`",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::of;
    use crate::catalog;

    #[test]
    fn no_metric_of_a_device_is_without_a_file_or_a_reason() {
        let (files, none): (Vec<_>, Vec<_>) = catalog::all().map(of).partition(Result::is_ok);
        assert_eq!(files.len(), super::files().len(), "each file once");
        assert!(none.iter().all(|why| why.is_err_and(|why| !why.is_empty())));
    }
}
