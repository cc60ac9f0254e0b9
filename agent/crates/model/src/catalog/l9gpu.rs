//! The names of l9gpu 0.2: the profile `l9gpu` of the sinks, and a table for those who bring
//! dashboards along. Names, units and attributes are its own; values are the catalogue's, so where its
//! own were wrong the note says how they differ. Everything is a gauge, as there.

use super::attributes as attr;
use super::profile::Origin::{
    Below, Bits, Greatest, Increases, Least, Mean, Quantile, Rate, Ratio, Sum,
};
use super::profile::keys as key;
use super::profile::{Input, Per, Rename, Row, absent, gauge, of};
use super::{
    MetricDef, cost, device, engine as to, event, gpm, health, host, inspector, interconnect, link,
    wear,
};
use std::fmt::Write as _;

const PERCENT: f64 = 100.0;
const MEGA: f64 = 1e-6;
const MICRO: f64 = 1e6;
const HOUR: f64 = 3600.0;
const MINUTE: f64 = 60.0;
const TX: &[(&attr::AttrKey, &[&str])] = &[(&attr::IO_DIRECTION, &["transmit"])];
const RX: &[(&attr::AttrKey, &[&str])] = &[(&attr::IO_DIRECTION, &["receive"])];
const USD: &[(&attr::AttrKey, &[&str])] = &[(&attr::CURRENCY, &["USD"])];
const IDLE_USD: &[(&attr::AttrKey, &[&str])] =
    &[(&attr::TIME_USE, &["idle"]), (&attr::CURRENCY, &["USD"])];
const VLLM: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["vllm"])];
const NIM: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["nim"])];
const TRITON: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["triton"])];
const SGLANG: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["sglang"])];
const TGI: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["tgi"])];
/// The engines whose figures l9gpu sends under `gen_ai.*` too.
const DUAL: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["vllm", "sglang", "tgi"])];
const TOKENS: &[(&attr::AttrKey, &[&str])] = &[(&attr::ENGINE_NAME, &["vllm", "sglang"])];

const SUCCESS: &[(&attr::AttrKey, &[&str])] =
    &[(&attr::ENGINE_NAME, &["triton"]), (&attr::INFERENCE_FINISH_REASON, &["success"])];
/// Triton's requests that succeeded.
const SUCCEEDED: Input = of(to::FINISHED.def()).only(SUCCESS);

/// NVML's bits of throttle reasons, without the idle bit.
const THROTTLE_BITS: &[(&str, u32)] = &[
    ("application_clocks", 0x2),
    ("power_cap", 0x4),
    ("hardware_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("software_thermal", 0x20),
    ("hardware_thermal", 0x40),
    ("power_brake", 0x80),
    ("display_clocks", 0x100),
];

const EVERY_VENDOR: &str =
    "0 to 1 of every vendor's devices (l9gpu: 0 to 100 of AMD's and Intel's)";
const COUNTED: &str = "a counter's value, as there";
const SINCE_START: &str = "of the last minute (l9gpu: since the engine's start)";
const OWN_RATE: &str = "over the time that passed (l9gpu: over its nominal interval)";
const NIM_NOTE: &str = "from NIM's own page; no NIM has the series that l9gpu reads";
const AVERAGE: &str = "mean of the last minute's requests";
const OWN_NAME: &str = "documented by l9gpu, not sent by it";
const TWICE: &str = "documented by l9gpu, not sent by it; Prometheus gives it the name of the row of its code, so the endpoint shows that one";
const INSIDE: &str =
    "the job's own library sends it; the agent does not look into the job's program";
const SLURM: &str = "a figure of Slurm's controller, not of a node; Slurm's own exporters have it";
const PER_TOKEN: &str = "l9gpu divides one device's figure by all tokens of the engine; the recording rules `inference:*` (dashboards/alerts.yaml) divide what the engine's owner had";
const UNIFIED: &str =
    "a device without memory of its own reports none; the host's is `system.memory.usage`";
const DUAL_RATE: &str = "a rate under the name of OpenTelemetry's histogram, as there";

const fn clock(kind: &'static [(&'static attr::AttrKey, &'static [&'static str])]) -> Input {
    of(device::CLOCK_SPEED.def()).only(kind).times(MEGA)
}

const fn quantile(
    name: &'static str,
    unit: &'static str,
    metric: &'static MetricDef,
    engine: &'static [(&'static attr::AttrKey, &'static [&'static str])],
    which: f64,
) -> Row {
    gauge(name, unit, Quantile(of(metric).only(engine), which)).note(SINCE_START)
}

const P50: &[(&attr::AttrKey, &str)] = &[(&key::QUANTILE, "p50")];
const P95: &[(&attr::AttrKey, &str)] = &[(&key::QUANTILE, "p95")];
const P99: &[(&attr::AttrKey, &str)] = &[(&key::QUANTILE, "p99")];
const WHOLE: &[(&attr::AttrKey, &str)] = &[(&key::MIG_ENABLED, "false")];
const PARTS: &[(&attr::AttrKey, &str)] = &[(&key::MIG_ENABLED, "true")];

/// Attributes of the host that l9gpu puts on every point.
pub(super) static OF_HOST: &[&attr::AttrKey] = &[&attr::HOST_NAME, &attr::K8S_CLUSTER_NAME];

/// Attributes under other keys, and those that it does not have.
pub(super) static RENAMES: &[Rename] = &[
    Rename { from: &attr::GEN_AI_MODEL, to: Some(&key::MODEL_NAME), stays: false },
    Rename { from: &attr::INFERENCE_MODEL_VERSION, to: Some(&key::MODEL_VERSION), stays: false },
    Rename { from: &attr::GPU_MIG_GPU_INSTANCE, to: Some(&key::MIG_INSTANCE), stays: false },
    Rename { from: &attr::SLURM_JOB_USER, to: Some(&key::SLURM_USER), stays: true },
    Rename { from: &attr::INFERENCE_FINISH_REASON, to: None, stays: false },
    Rename { from: &attr::INFERENCE_STREAMING, to: None, stays: false },
    Rename { from: &attr::ERROR_TYPE, to: None, stays: false },
    Rename { from: &attr::GPU_XID_CODE, to: None, stays: false },
];

/// Every name that l9gpu's code or its documents have.
pub(super) static ROWS: &[Row] = &[
    // Devices.
    gauge("gpu.utilization", "1",
        Sum(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["general"])])))
        .with(&[(&key::TASK_TYPE, "compute")]).note(EVERY_VENDOR),
    gauge("gpu.memory.utilization", "1", Sum(of(device::MEMORY_BANDWIDTH_UTILIZATION.def())))
        .with(&[(&key::TASK_TYPE, "memory_controller")])
        .note("how busy the memory's controller is, not how full the memory; 0 to 1 of every vendor's devices"),
    gauge("gpu.memory.used.percent", "{percent}",
        Ratio(of(device::MEMORY_USAGE.def()).only(&[(&attr::GPU_MEMORY_STATE, &["used"])]).times(PERCENT),
            of(device::MEMORY_LIMIT.def())))
        .note("with fractions; absent, never -1, where it is not known"),
    gauge("gpu.memory.used", "By",
        Sum(of(device::MEMORY_USAGE.def()).only(&[(&attr::GPU_MEMORY_STATE, &["used"])]))),
    gauge("gpu.memory.free", "By",
        Sum(of(device::MEMORY_USAGE.def()).only(&[(&attr::GPU_MEMORY_STATE, &["free"])])))
        .note("the last reading (l9gpu: the greatest of its window)"),
    gauge("gpu.memory.total", "By", Sum(of(device::MEMORY_LIMIT.def()))),
    absent("gpu.memory.unified.used", "By", UNIFIED),
    absent("gpu.memory.unified.total", "By", UNIFIED),
    gauge("gpu.temperature", "Cel",
        Sum(of(device::TEMPERATURE.def()).only(&[(&attr::GPU_TEMPERATURE_SENSOR, &["gpu"])])))
        .with(&[(&attr::GPU_TEMPERATURE_SENSOR, "edge")]),
    gauge("gpu.temperature", "Cel",
        Sum(of(device::TEMPERATURE.def()).only(&[(&attr::GPU_TEMPERATURE_SENSOR, &["hotspot"])])))
        .with(&[(&attr::GPU_TEMPERATURE_SENSOR, "hotspot")]),
    gauge("gpu.temperature", "Cel",
        Sum(of(device::TEMPERATURE.def()).only(&[(&attr::GPU_TEMPERATURE_SENSOR, &["memory"])])))
        .with(&[(&attr::GPU_TEMPERATURE_SENSOR, "memory")]),
    gauge("gpu.power.draw", "W", Sum(of(device::POWER.def())))
        .note("watts (l9gpu: milliwatts of NVIDIA's devices under the unit W)"),
    gauge("gpu.power.utilization", "1",
        Ratio(of(device::POWER.def()),
            of(device::POWER_LIMIT.def()).only(&[(&attr::GPU_LIMIT_TYPE, &["enforced"])])))
        .note("0 to 1 of every vendor's devices"),
    gauge("gpu.power.state", "{state}", Sum(of(device::POWER_STATE.def()))),
    gauge("gpu.energy.consumption", "mJ", Sum(of(device::ENERGY.def()).times(1e3))).note(COUNTED),
    gauge("gpu.clock.frequency", "MHz", Sum(clock(&[(&attr::GPU_CLOCK_TYPE, &["graphics"])])))
        .with(&[(&attr::GPU_CLOCK_TYPE, "graphics")]),
    gauge("gpu.clock.frequency", "MHz", Sum(clock(&[(&attr::GPU_CLOCK_TYPE, &["memory"])])))
        .with(&[(&attr::GPU_CLOCK_TYPE, "memory")]),
    gauge("gpu.fan.speed", "1", Sum(of(device::FAN_SPEED.def()).only(&[(&attr::GPU_FAN, &["0"])])))
        .note("of the first fan"),
    gauge("gpu.encode.utilization", "1",
        Sum(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["encoder"])])))
        .with(&[(&key::TASK_TYPE, "encoder")])
        .note("below level `all` only after the encoder was used"),
    gauge("gpu.decode.utilization", "1",
        Sum(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["decoder"])])))
        .with(&[(&key::TASK_TYPE, "decoder")])
        .note("below level `all` only after the decoder was used"),
    gauge("gpu.interconnect.throughput", "By/s", Rate(of(link::NVLINK_IO.def()).only(TX)))
        .with(&[(&key::LINK_TYPE, "nvlink"), (&key::LINK_DIRECTION, "transmit")])
        .note("bytes a second (l9gpu: bytes since the driver's start, of one link, under this unit)"),
    gauge("gpu.interconnect.throughput", "By/s", Rate(of(link::NVLINK_IO.def()).only(RX)))
        .with(&[(&key::LINK_TYPE, "nvlink"), (&key::LINK_DIRECTION, "receive")])
        .note("the same"),
    gauge("gpu.interconnect.throughput", "By/s", Sum(of(gpm::NVLINK_THROUGHPUT.def()).only(TX)))
        .with(&[(&key::LINK_TYPE, "nvlink"), (&key::LINK_DIRECTION, "transmit"), (&key::LINK_SOURCE, "dcgm_profiling")]),
    gauge("gpu.interconnect.throughput", "By/s", Sum(of(gpm::NVLINK_THROUGHPUT.def()).only(RX)))
        .with(&[(&key::LINK_TYPE, "nvlink"), (&key::LINK_DIRECTION, "receive"), (&key::LINK_SOURCE, "dcgm_profiling")]),
    gauge("gpu.interconnect.throughput", "By/s",
        Rate(of(interconnect::LINK_IO.def())
            .only(&[(&attr::IO_DIRECTION, &["transmit"]), (&attr::GPU_VENDOR, &["amd"])])
            .keep(&[(&attr::GPU_LINK_INDEX, &attr::GPU_LINK_INDEX)])))
        .with(&[(&key::LINK_TYPE, "xgmi")])
        .note("transmitted (l9gpu reads keys that the library does not have, and never sends it)"),
    gauge("gpu.interconnect.throughput", "By/s",
        Rate(of(interconnect::LINK_IO.def())
            .only(&[(&attr::IO_DIRECTION, &["receive"]), (&attr::GPU_VENDOR, &["gaudi"])])
            .keep(&[(&attr::GPU_LINK_INDEX, &attr::GPU_LINK_INDEX)])))
        .with(&[(&key::LINK_DIRECTION, "receive")])
        .note("bytes a second (l9gpu: bytes since the start)"),
    gauge("gpu.interconnect.throughput", "By/s",
        Rate(of(interconnect::LINK_IO.def())
            .only(&[(&attr::IO_DIRECTION, &["transmit"]), (&attr::GPU_VENDOR, &["gaudi"])])
            .keep(&[(&attr::GPU_LINK_INDEX, &attr::GPU_LINK_INDEX)])))
        .with(&[(&key::LINK_DIRECTION, "transmit")])
        .note("the same"),
    gauge("gpu.pcie.throughput", "By/s", Rate(of(wear::PCIE_IO.def()).only(RX)))
        .or(Sum(of(gpm::PCIE_SAMPLED.def()).only(RX)))
        .with(&[(&key::LINK_TYPE, "pcie"), (&key::LINK_DIRECTION, "receive")]),
    gauge("gpu.pcie.throughput", "By/s", Rate(of(wear::PCIE_IO.def()).only(TX)))
        .or(Sum(of(gpm::PCIE_SAMPLED.def()).only(TX)))
        .with(&[(&key::LINK_TYPE, "pcie"), (&key::LINK_DIRECTION, "transmit")]),
    gauge("gpu.pcie.throughput", "By/s", Sum(of(gpm::PCIE_THROUGHPUT.def()).only(TX)))
        .with(&[(&key::LINK_TYPE, "pcie"), (&key::LINK_DIRECTION, "transmit"), (&key::LINK_SOURCE, "dcgm_profiling")]),
    gauge("gpu.pcie.throughput", "By/s", Sum(of(gpm::PCIE_THROUGHPUT.def()).only(RX)))
        .with(&[(&key::LINK_TYPE, "pcie"), (&key::LINK_DIRECTION, "receive"), (&key::LINK_SOURCE, "dcgm_profiling")]),
    gauge("gpu.pcie.replay.count", "{event}", Sum(of(wear::PCIE_REPLAYS.def()))).note(COUNTED),
    gauge("gpu.ecc.errors", "{error}",
        Sum(of(wear::ECC_ERRORS.def())
            .only(&[(&attr::GPU_ECC_ERROR_TYPE, &["corrected"]), (&attr::GPU_ECC_COUNT_TYPE, &["volatile"])])))
        .with(&[(&attr::GPU_ECC_ERROR_TYPE, "correctable"), (&attr::GPU_ECC_COUNT_TYPE, "volatile")])
        .note(COUNTED),
    gauge("gpu.ecc.errors", "{error}",
        Sum(of(wear::ECC_ERRORS.def())
            .only(&[(&attr::GPU_ECC_ERROR_TYPE, &["uncorrected"]), (&attr::GPU_ECC_COUNT_TYPE, &["volatile"])])))
        .with(&[(&attr::GPU_ECC_ERROR_TYPE, "uncorrectable"), (&attr::GPU_ECC_COUNT_TYPE, "volatile")])
        .note(COUNTED),
    gauge("gpu.ecc.errors", "{error}",
        Sum(of(wear::BLOCK_ERRORS.def()).only(&[(&attr::GPU_ECC_ERROR_TYPE, &["corrected"])])
            .keep(&[(&attr::GPU_ECC_BLOCK, &key::MEMORY_BLOCK)])))
        .note("corrected errors of a block of AMD's (l9gpu reads a key that is not there: always 0)"),
    gauge("gpu.row_remap.count", "{row}",
        Sum(of(wear::REMAPPED_ROWS.def()).only(&[(&attr::GPU_MEMORY_RETIREMENT_CAUSE, &["corrected"])])))
        .with(&[(&attr::GPU_ECC_ERROR_TYPE, "correctable")])
        .note("remapped rows (l9gpu counts retired pages, which are `gpu.memory.retired_pages`, and sends 0 where there are none to count)"),
    gauge("gpu.row_remap.count", "{row}",
        Sum(of(wear::REMAPPED_ROWS.def()).only(&[(&attr::GPU_MEMORY_RETIREMENT_CAUSE, &["uncorrected"])])))
        .with(&[(&attr::GPU_ECC_ERROR_TYPE, "uncorrectable")])
        .note("the same"),
    absent("gpu.row_remap.count", "{row}", "l9gpu reads the wrong column, so it is always 0; the row above has every vendor's")
        .with(&[(&key::ROW_STATE, "replaced")]),
    gauge("gpu.row_remap.pending", "{row}", Sum(of(wear::REMAP_PENDING.def())))
        .with(&[(&key::ROW_STATE, "pending")])
        .note("1 while a remapping waits for a reset, not a number of rows; of every vendor (l9gpu: Intel's, always 0)"),
    gauge("gpu.throttle.reason", "{bool}",
        Bits(of(device::THROTTLE_ACTIVE.def()), &attr::GPU_THROTTLE_REASON, THROTTLE_BITS))
        .note("NVML's bits without that of an idle device, which l9gpu's boards count as throttled"),
    gauge("gpu.throttle.reason", "{bool}",
        Sum(of(device::THROTTLE_ACTIVE.def()).only(&[(&attr::GPU_THROTTLE_REASON, &["power_cap"])])))
        .with(&[(&key::THROTTLE_CAUSE, "power_software")])
        .note("below level `all` only after the device was throttled so"),
    gauge("gpu.throttle.reason", "{bool}",
        Sum(of(device::THROTTLE_ACTIVE.def()).only(&[(&attr::GPU_THROTTLE_REASON, &["hardware_thermal"])])))
        .with(&[(&key::THROTTLE_CAUSE, "temp_hardware")]),
    gauge("gpu.throttle.reason", "{bool}",
        Sum(of(device::THROTTLE_ACTIVE.def()).only(&[(&attr::GPU_THROTTLE_REASON, &["software_thermal"])])))
        .with(&[(&key::THROTTLE_CAUSE, "temp_software")])
        .note("the thermal limit of the driver (l9gpu tests the bit of the power brake)"),
    gauge("gpu.throttle.reason", "{bool}",
        Sum(of(device::THROTTLE_ACTIVE.def()).only(&[(&attr::GPU_THROTTLE_REASON, &["sync_boost"])])))
        .with(&[(&key::THROTTLE_CAUSE, "syncboost")])
        .note("sync boost (l9gpu tests the bit of the hardware slowdown)"),
    gauge("gpu.xid.errors", "{error}", Sum(of(event::XID_ERRORS.def()))).per(Per::Device)
        .note("XIDs since the agent's start, absent before the first (l9gpu reads an NVLink counter)"),
    // Of the host.
    gauge("gpu.utilization.max", "1",
        Greatest(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["general"])]))).per(Per::Host)
        .note("idle devices count (l9gpu leaves them out)"),
    gauge("gpu.utilization.min", "1",
        Least(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["general"])]))).per(Per::Host)
        .note("idle devices count"),
    gauge("gpu.utilization.avg", "1",
        Mean(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["general"])]))).per(Per::Host)
        .note("idle devices count"),
    gauge("host.memory.utilization", "1",
        Ratio(of(host::MEMORY_USAGE.def()).only(&[(&attr::SYSTEM_MEMORY_STATE, &["used"])]),
            of(host::MEMORY_LIMIT.def()))).per(Per::Host),
    // DCGM's profiling.
    gauge("gpu.sm.active", "1", Sum(of(gpm::SM_ACTIVE.def()))).with(WHOLE),
    gauge("gpu.sm.active", "1", Sum(of(gpm::INSTANCE_SM_ACTIVE.def()))).with(PARTS),
    gauge("gpu.sm.occupancy", "1", Sum(of(gpm::SM_OCCUPANCY.def()))).with(WHOLE),
    gauge("gpu.sm.occupancy", "1", Sum(of(gpm::INSTANCE_SM_OCCUPANCY.def()))).with(PARTS),
    gauge("gpu.gr_engine.active", "1", Sum(of(gpm::GR_ENGINE_ACTIVE.def()))).with(WHOLE),
    gauge("gpu.gr_engine.active", "1", Sum(of(gpm::INSTANCE_GR_ENGINE_ACTIVE.def()))).with(PARTS),
    gauge("gpu.dram.active", "1", Sum(of(gpm::DRAM_ACTIVE.def()))).with(WHOLE),
    gauge("gpu.dram.active", "1", Sum(of(gpm::INSTANCE_DRAM_ACTIVE.def()))).with(PARTS),
    gauge("gpu.pipe.tensor.active", "1",
        Sum(of(gpm::PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["tensor"])]))).with(WHOLE),
    gauge("gpu.pipe.tensor.active", "1",
        Sum(of(gpm::INSTANCE_PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["tensor"])]))).with(PARTS),
    gauge("gpu.pipe.fp64.active", "1",
        Sum(of(gpm::PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["fp64"])]))).with(WHOLE),
    gauge("gpu.pipe.fp64.active", "1",
        Sum(of(gpm::INSTANCE_PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["fp64"])]))).with(PARTS),
    gauge("gpu.pipe.fp32.active", "1",
        Sum(of(gpm::PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["fp32"])]))).with(WHOLE),
    gauge("gpu.pipe.fp32.active", "1",
        Sum(of(gpm::INSTANCE_PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["fp32"])]))).with(PARTS),
    gauge("gpu.pipe.fp16.active", "1",
        Sum(of(gpm::PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["fp16"])]))).with(WHOLE),
    gauge("gpu.pipe.fp16.active", "1",
        Sum(of(gpm::INSTANCE_PIPE_ACTIVE.def()).only(&[(&attr::GPU_PIPE, &["fp16"])]))).with(PARTS),
    // Fleet health.
    absent("gpu.xid.last_error_code", "{code}",
        "the library has no such field, so l9gpu never sends it; `gpu.xid.errors` of the native names counts each code"),
    gauge("gpu.xid.error_rate", "{error}/h", Rate(of(event::XID_ERRORS.def()).times(HOUR))).per(Per::Device)
        .note("of the last minute (l9gpu never sends it)"),
    gauge("gpu.ecc.sbe_rate", "{error}/h",
        Rate(of(wear::ECC_ERRORS.def())
            .only(&[(&attr::GPU_ECC_ERROR_TYPE, &["corrected"]), (&attr::GPU_ECC_COUNT_TYPE, &["volatile"])])
            .times(HOUR)))
        .note("of the last minute"),
    gauge("gpu.ecc.dbe_total", "{error}",
        Sum(of(wear::ECC_ERRORS.def())
            .only(&[(&attr::GPU_ECC_ERROR_TYPE, &["uncorrected"]), (&attr::GPU_ECC_COUNT_TYPE, &["volatile"])])))
        .note("also while it is 0"),
    gauge("gpu.row_remap.available", "{row}",
        Sum(of(wear::SPARE_ROWS.def()).only(&[(&attr::GPU_MEMORY_SPARE_ROWS, &["all"])])))
        .note("banks with all their spare rows (l9gpu never sends it)"),
    gauge("gpu.pcie.link.gen.current", "{gen}", Sum(of(wear::PCIE_GENERATION.def()))),
    gauge("gpu.pcie.link.width.current", "{lanes}", Sum(of(wear::PCIE_WIDTH.def()))),
    gauge("gpu.pcie.link.downtraining", "{bool}",
        Greatest(of(health::CONDITION.def())
            .only(&[(&attr::GPU_HEALTH_CONDITION, &["bus_width", "bus_generation"])])))
        .note("judged while the device is busy (l9gpu reports an idle link, which saves power, as a fault); below level `all` only after it happened"),
    gauge("gpu.thermal.ramp_rate", "Cel/min",
        Rate(of(device::TEMPERATURE.def()).only(&[(&attr::GPU_TEMPERATURE_SENSOR, &["gpu"])]).times(MINUTE)))
        .note("of the last minute; a rise with the load is no fault, `gpu.health.condition` of `thermal_ramp` is"),
    gauge("gpu.health.score", "1", Sum(of(health::SCORE.def()).times(0.01)))
        .note("0 to 1, as its alerts expect (l9gpu: 0 to 100, never below 30), by `gpu.health.condition`"),
    // Cost.
    gauge("gpu.cost.per_gpu_hour", "USD/h", Sum(of(cost::PRICE.def()).only(USD)))
        .note("only of prices in US dollars"),
    gauge("gpu.cost.rate", "USD/s", Rate(of(cost::DEVICE_COST.def()).only(USD)))
        .note("only of prices in US dollars"),
    gauge("gpu.cost.idle_rate", "USD/s", Rate(of(cost::OWNER_COST.def()).only(IDLE_USD))).per(Per::Device)
        .note("of the time that was idle, measured (l9gpu: all or nothing)"),
    absent("gpu.cost.per_prompt_token", "USD/{token}",
        "a token of a prompt and one of an answer would each bear the whole cost; see the cost of generated tokens"),
    absent("gpu.cost.per_generation_token", "USD/{token}", PER_TOKEN),
    absent("gpu.efficiency.tokens_per_watt", "{token}/W", PER_TOKEN),
    absent("gpu.efficiency.joules_per_token", "J/{token}", PER_TOKEN),
    gauge("gpu.idle", "{bool}",
        Below(of(device::UTILIZATION.def()).only(&[(&attr::GPU_TASK, &["general"])]), 0.05))
        .note("absent, not 0, while the utilization is not known"),
    gauge("gpu.energy.co2_intensity", "g/kWh", Sum(of(cost::CARBON_INTENSITY.def()))).per(Per::Host)
        .note("one of the host (l9gpu: one of each device)"),
    gauge("gpu.energy.co2_rate", "g/s", Rate(of(cost::CARBON.def()))).per(Per::Device),
    // NCCL.
    gauge("nccl.collective.message_size", "By",
        Increases(of(inspector::BYTES.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]),
            of(inspector::DURATION.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]), 0.0))
        .note("the mean (l9gpu: the last line of its file); operations in the native spelling"),
    gauge("nccl.collective.bandwidth", "By/s",
        Increases(of(inspector::ALGORITHM_BANDWIDTH.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]).sum(),
            of(inspector::ALGORITHM_BANDWIDTH.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]), 0.0))
        .note("the mean"),
    gauge("nccl.collective.bus_bandwidth", "By/s",
        Increases(of(inspector::BUS_BANDWIDTH.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]).sum(),
            of(inspector::BUS_BANDWIDTH.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]), 0.0))
        .note("the mean"),
    gauge("nccl.collective.duration", "us",
        Increases(of(inspector::DURATION.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]).sum().times(MICRO),
            of(inspector::DURATION.def()).keep(&[(&attr::NCCL_OPERATION, &key::COLLECTIVE_TYPE)]), 0.0))
        .note("the mean"),
    absent("nccl.rank.straggler", "{bool}",
        "l9gpu compares calls of different sizes; the rule `nccl:straggler:seconds_rate5m` compares the ranks of one call"),
    // vLLM.
    gauge("vllm.prompt.throughput", "{token}/s", Rate(of(to::PROMPT_TOKENS.def()).only(VLLM))).note(OWN_RATE),
    gauge("vllm.generation.throughput", "{token}/s", Rate(of(to::GENERATED_TOKENS.def()).only(VLLM))).note(OWN_RATE),
    quantile("vllm.request.latency", "s", to::REQUEST_DURATION.def(), VLLM, 0.5).with(P50),
    quantile("vllm.request.latency", "s", to::REQUEST_DURATION.def(), VLLM, 0.95).with(P95),
    quantile("vllm.request.latency", "s", to::REQUEST_DURATION.def(), VLLM, 0.99).with(P99),
    quantile("vllm.ttft", "s", to::TIME_TO_FIRST_TOKEN.def(), VLLM, 0.5).with(P50),
    quantile("vllm.ttft", "s", to::TIME_TO_FIRST_TOKEN.def(), VLLM, 0.95).with(P95),
    quantile("vllm.ttft", "s", to::TIME_TO_FIRST_TOKEN.def(), VLLM, 0.99).with(P99)
        .note("of the last minute (l9gpu shows it on a board and never sends it)"),
    gauge("vllm.cache.usage", "1", Sum(of(to::KV_CACHE_UTILIZATION.def()).only(VLLM)))
        .with(&[(&key::CACHE_TYPE, "gpu")]),
    gauge("vllm.cache.usage", "1", Sum(of(to::VLLM_CPU_CACHE.def()).only(VLLM)))
        .with(&[(&key::CACHE_TYPE, "cpu")]),
    gauge("vllm.requests.running", "{request}", Sum(of(to::RUNNING.def()).only(VLLM))),
    gauge("vllm.requests.waiting", "{request}", Sum(of(to::WAITING.def()).only(VLLM))),
    gauge("vllm.requests.swapped", "{request}", Sum(of(to::SWAPPED.def()).only(VLLM)))
        .note("vLLM before 0.9 only"),
    quantile("vllm.itl", "s", to::INTER_TOKEN.def(), VLLM, 0.5).with(P50),
    quantile("vllm.itl", "s", to::INTER_TOKEN.def(), VLLM, 0.95).with(P95),
    quantile("vllm.itl", "s", to::INTER_TOKEN.def(), VLLM, 0.99).with(P99),
    quantile("vllm.prefill.duration", "s", to::PREFILL_DURATION.def(), VLLM, 0.5).with(P50),
    quantile("vllm.prefill.duration", "s", to::PREFILL_DURATION.def(), VLLM, 0.95).with(P95),
    quantile("vllm.decode.duration", "s", to::DECODE_DURATION.def(), VLLM, 0.5).with(P50),
    quantile("vllm.decode.duration", "s", to::DECODE_DURATION.def(), VLLM, 0.95).with(P95),
    gauge("vllm.cache.hit_rate", "1",
        Increases(of(to::PREFIX_HITS.def()).only(VLLM), of(to::PREFIX_QUERIES.def()).only(VLLM), 0.0)),
    absent("vllm.cache.evictions", "{block}/s", "vLLM has no series of evictions: l9gpu's is always 0"),
    gauge("vllm.spec_decode.acceptance_rate", "1",
        Increases(of(to::ACCEPTED_TOKENS.def()).only(VLLM), of(to::DRAFTED_TOKENS.def()).only(VLLM), 0.0)),
    gauge("vllm.spec_decode.efficiency", "1",
        Increases(of(to::ACCEPTED_TOKENS.def()).only(VLLM), of(to::DRAFTS.def()).only(VLLM), 1.0))
        .note("l9gpu reads a name that vLLM does not have, and never sends it"),
    gauge("vllm.requests.success", "{request}/s",
        Rate(of(to::FINISHED.def()).only(VLLM)))
        .note(OWN_RATE),
    gauge("vllm.requests.finished", "{request}/s",
        Rate(of(to::FINISHED.def()).only(&[(&attr::ENGINE_NAME, &["vllm"]), (&attr::INFERENCE_FINISH_REASON, &["stop"])])))
        .with(&[(&key::FINISH_REASON, "stop")]).note(OWN_RATE),
    gauge("vllm.requests.finished", "{request}/s",
        Rate(of(to::FINISHED.def()).only(&[(&attr::ENGINE_NAME, &["vllm"]), (&attr::INFERENCE_FINISH_REASON, &["length"])])))
        .with(&[(&key::FINISH_REASON, "length")]).note(OWN_RATE),
    gauge("vllm.requests.finished", "{request}/s",
        Rate(of(to::FINISHED.def()).only(&[(&attr::ENGINE_NAME, &["vllm"]), (&attr::INFERENCE_FINISH_REASON, &["abort"])])))
        .with(&[(&key::FINISH_REASON, "abort")]).note(OWN_RATE),
    gauge("vllm.scheduler.preemptions", "{event}/s", Rate(of(to::PREEMPTIONS.def()).only(VLLM))).note(OWN_RATE),
    gauge("vllm.lora.active_count", "{adapter}", Sum(of(to::LORA_RUNNING.def()).only(VLLM)))
        .note("l9gpu reads a name that vLLM does not have"),
    // NIM.
    gauge("nim.requests.total", "{request}", Sum(of(to::FINISHED.def()).only(NIM))).note(NIM_NOTE),
    gauge("nim.requests.failed", "{request}",
        Sum(of(to::FINISHED.def()).only(&[(&attr::ENGINE_NAME, &["nim"]), (&attr::INFERENCE_FINISH_REASON, &["error"])])))
        .note(NIM_NOTE),
    quantile("nim.request.latency", "s", to::REQUEST_DURATION.def(), NIM, 0.5).with(P50).note(NIM_NOTE),
    quantile("nim.request.latency", "s", to::REQUEST_DURATION.def(), NIM, 0.99).with(P99).note(NIM_NOTE),
    absent("nim.batch.size", "{request}", "NIM has no series of batches"),
    gauge("nim.queue.depth", "{request}", Sum(of(to::WAITING.def()).only(NIM))).note(NIM_NOTE),
    gauge("nim.kv_cache.usage", "1", Sum(of(to::KV_CACHE_UTILIZATION.def()).only(NIM))).note(NIM_NOTE),
    quantile("nim.itl", "s", to::INTER_TOKEN.def(), NIM, 0.5).with(P50).note(NIM_NOTE),
    quantile("nim.itl", "s", to::INTER_TOKEN.def(), NIM, 0.95).with(P95).note(NIM_NOTE),
    // Triton.
    gauge("triton.requests.success", "{request}/s",
        Rate(of(to::FINISHED.def()).only(&[(&attr::ENGINE_NAME, &["triton"]), (&attr::INFERENCE_FINISH_REASON, &["success"])])))
        .note(OWN_RATE),
    gauge("triton.requests.failed", "{request}/s",
        Rate(of(to::FINISHED.def()).only(&[(&attr::ENGINE_NAME, &["triton"]), (&attr::INFERENCE_FINISH_REASON, &["error"])])))
        .note(OWN_RATE),
    gauge("triton.request.latency", "us",
        Increases(of(to::TRITON_REQUEST_TIME.def()).only(TRITON).times(MICRO), SUCCEEDED, 0.0)).note(AVERAGE),
    gauge("triton.queue.latency", "us",
        Increases(of(to::TRITON_QUEUE_TIME.def()).only(TRITON).times(MICRO), SUCCEEDED, 0.0)).note(AVERAGE),
    gauge("triton.compute.input_latency", "us",
        Increases(of(to::TRITON_INPUT_TIME.def()).only(TRITON).times(MICRO), SUCCEEDED, 0.0)).note(AVERAGE),
    gauge("triton.compute.latency", "us",
        Increases(of(to::TRITON_INFER_TIME.def()).only(TRITON).times(MICRO), SUCCEEDED, 0.0)).note(AVERAGE),
    gauge("triton.compute.output_latency", "us",
        Increases(of(to::TRITON_OUTPUT_TIME.def()).only(TRITON).times(MICRO), SUCCEEDED, 0.0)).note(AVERAGE),
    gauge("triton.queue.depth", "{request}", Sum(of(to::WAITING.def()).only(TRITON))),
    gauge("triton.batch.size", "{request}",
        Increases(of(to::TRITON_INFERENCES.def()).only(TRITON), of(to::TRITON_EXECUTIONS.def()).only(TRITON), 0.0)),
    // SGLang.
    gauge("sglang.prompt.throughput", "{token}/s", Rate(of(to::PROMPT_TOKENS.def()).only(SGLANG))).note(OWN_RATE),
    gauge("sglang.generation.throughput", "{token}/s", Rate(of(to::GENERATED_TOKENS.def()).only(SGLANG))).note(OWN_RATE),
    gauge("sglang.cache.hit_rate", "1",
        Increases(of(to::PREFIX_HITS.def()).only(SGLANG), of(to::PREFIX_QUERIES.def()).only(SGLANG), 0.0))
        .or(Sum(of(to::SGLANG_HIT_RATE.def()).only(SGLANG))),
    quantile("sglang.itl", "s", to::INTER_TOKEN.def(), SGLANG, 0.5).with(P50),
    quantile("sglang.itl", "s", to::INTER_TOKEN.def(), SGLANG, 0.95).with(P95),
    quantile("sglang.ttft", "s", to::TIME_TO_FIRST_TOKEN.def(), SGLANG, 0.5).with(P50),
    quantile("sglang.ttft", "s", to::TIME_TO_FIRST_TOKEN.def(), SGLANG, 0.95).with(P95),
    quantile("sglang.request.latency", "s", to::REQUEST_DURATION.def(), SGLANG, 0.5).with(P50),
    quantile("sglang.request.latency", "s", to::REQUEST_DURATION.def(), SGLANG, 0.95).with(P95),
    quantile("sglang.request.latency", "s", to::REQUEST_DURATION.def(), SGLANG, 0.99).with(P99),
    gauge("sglang.requests.running", "{request}", Sum(of(to::RUNNING.def()).only(SGLANG))),
    gauge("sglang.requests.waiting", "{request}", Sum(of(to::WAITING.def()).only(SGLANG))),
    // TGI.
    quantile("tgi.request.latency", "s", to::REQUEST_DURATION.def(), TGI, 0.5).with(P50),
    quantile("tgi.request.latency", "s", to::REQUEST_DURATION.def(), TGI, 0.95).with(P95),
    quantile("tgi.request.latency", "s", to::REQUEST_DURATION.def(), TGI, 0.99).with(P99),
    quantile("tgi.queue.latency", "s", to::QUEUE_DURATION.def(), TGI, 0.5).with(P50),
    quantile("tgi.queue.latency", "s", to::QUEUE_DURATION.def(), TGI, 0.95).with(P95),
    quantile("tgi.inference.latency", "s", to::INFERENCE_DURATION.def(), TGI, 0.5).with(P50),
    quantile("tgi.inference.latency", "s", to::INFERENCE_DURATION.def(), TGI, 0.95).with(P95),
    quantile("tgi.tpot", "s", to::TIME_PER_OUTPUT_TOKEN.def(), TGI, 0.5).with(P50),
    quantile("tgi.tpot", "s", to::TIME_PER_OUTPUT_TOKEN.def(), TGI, 0.95).with(P95),
    quantile("tgi.batch.size", "{request}", to::BATCH_SIZE.def(), TGI, 0.5).with(P50),
    quantile("tgi.batch.size", "{request}", to::BATCH_SIZE.def(), TGI, 0.95).with(P95),
    quantile("tgi.batch.forward_duration", "s", to::TGI_FORWARD_DURATION.def(), TGI, 0.5).with(P50),
    quantile("tgi.batch.forward_duration", "s", to::TGI_FORWARD_DURATION.def(), TGI, 0.95).with(P95),
    quantile("tgi.request.input_tokens", "{token}", to::REQUEST_PROMPT_TOKENS.def(), TGI, 0.5).with(P50),
    quantile("tgi.request.input_tokens", "{token}", to::REQUEST_PROMPT_TOKENS.def(), TGI, 0.95).with(P95),
    quantile("tgi.request.output_tokens", "{token}", to::REQUEST_GENERATED_TOKENS.def(), TGI, 0.5).with(P50),
    quantile("tgi.request.output_tokens", "{token}", to::REQUEST_GENERATED_TOKENS.def(), TGI, 0.95).with(P95),
    // With --emit-genai-namespace.
    gauge("gen_ai.client.token.usage", "{token}/s", Rate(of(to::PROMPT_TOKENS.def()).only(TOKENS)))
        .with(&[(&key::TOKEN_TYPE, "input")]).note(DUAL_RATE),
    gauge("gen_ai.client.token.usage", "{token}/s", Rate(of(to::GENERATED_TOKENS.def()).only(TOKENS)))
        .with(&[(&key::TOKEN_TYPE, "output")]).note(DUAL_RATE),
    quantile("gen_ai.server.request.duration", "s", to::REQUEST_DURATION.def(), DUAL, 0.5).with(P50),
    quantile("gen_ai.server.request.duration", "s", to::REQUEST_DURATION.def(), DUAL, 0.95).with(P95),
    quantile("gen_ai.server.request.duration", "s", to::REQUEST_DURATION.def(), DUAL, 0.99).with(P99),
    quantile("gen_ai.server.time_to_first_token", "s", to::TIME_TO_FIRST_TOKEN.def(), TOKENS, 0.5).with(P50),
    quantile("gen_ai.server.time_to_first_token", "s", to::TIME_TO_FIRST_TOKEN.def(), TOKENS, 0.95).with(P95),
    quantile("gen_ai.server.time_per_output_token", "s", to::INTER_TOKEN.def(), TOKENS, 0.5)
        .or(Quantile(of(to::TIME_PER_OUTPUT_TOKEN.def()).only(TGI), 0.5)).with(P50),
    quantile("gen_ai.server.time_per_output_token", "s", to::INTER_TOKEN.def(), TOKENS, 0.95)
        .or(Quantile(of(to::TIME_PER_OUTPUT_TOKEN.def()).only(TGI), 0.95)).with(P95),
    quantile("gen_ai.server.time_per_output_token", "s", to::INTER_TOKEN.def(), TOKENS, 0.99).with(P99),
    gauge("gen_ai.server.cache.utilization", "1", Sum(of(to::KV_CACHE_UTILIZATION.def()).only(VLLM)))
        .with(&[(&key::CACHE_TYPE, "gpu"), (&key::GEN_AI_CACHE_TYPE, "gpu")]),
    gauge("gen_ai.server.cache.utilization", "1", Sum(of(to::VLLM_CPU_CACHE.def()).only(VLLM)))
        .with(&[(&key::CACHE_TYPE, "cpu"), (&key::GEN_AI_CACHE_TYPE, "cpu")]),
    gauge("gen_ai.server.cache.hit_rate", "1",
        Increases(of(to::PREFIX_HITS.def()).only(TOKENS), of(to::PREFIX_QUERIES.def()).only(TOKENS), 0.0)),
    // Of its documents.
    gauge("gpu.memory.used.bytes", "By",
        Sum(of(device::MEMORY_USAGE.def()).only(&[(&attr::GPU_MEMORY_STATE, &["used"])]))).note(TWICE),
    gauge("gpu.memory.total.bytes", "By", Sum(of(device::MEMORY_LIMIT.def()))).note(TWICE),
    gauge("gpu.temperature.celsius", "Cel",
        Sum(of(device::TEMPERATURE.def()).only(&[(&attr::GPU_TEMPERATURE_SENSOR, &["gpu"])])))
        .with(&[(&attr::GPU_TEMPERATURE_SENSOR, "edge")]).note(TWICE),
    gauge("gpu.power.watts", "W", Sum(of(device::POWER.def()))).note(OWN_NAME),
    gauge("gpu.sm.clock.hertz", "Hz",
        Sum(of(device::CLOCK_SPEED.def()).only(&[(&attr::GPU_CLOCK_TYPE, &["sm"])]))).note(OWN_NAME),
    gauge("gpu.memory.clock.hertz", "Hz",
        Sum(of(device::CLOCK_SPEED.def()).only(&[(&attr::GPU_CLOCK_TYPE, &["memory"])]))).note(OWN_NAME),
    gauge("gpu.errors.xid.total", "{error}", Sum(of(event::XID_ERRORS.def()))).per(Per::Device).note(OWN_NAME),
    gauge("gpu.errors.ecc.total", "{error}",
        Sum(of(wear::ECC_ERRORS.def())
            .only(&[(&attr::GPU_ECC_ERROR_TYPE, &["uncorrected"]), (&attr::GPU_ECC_COUNT_TYPE, &["volatile"])])))
        .note(OWN_NAME),
    gauge("gpu.throttle.reasons", "flags",
        Bits(of(device::THROTTLE_ACTIVE.def()), &attr::GPU_THROTTLE_REASON, THROTTLE_BITS)).note(OWN_NAME),
    // Of programs in jobs, and of Slurm's controller.
    absent("training.*", "", INSIDE),
    absent("gpu.nodes_*", "1", SLURM),
    absent("gpu.jobs_*", "1", SLURM),
    absent("gpu.job_*", "1", SLURM),
    absent("gpu.sdiag_*", "1", SLURM),
    absent("gpu.schedule_*", "1", SLURM),
    absent("gpu.bf_*", "1", SLURM),
    absent("gpu.agent_*", "1", SLURM),
    absent("gpu.total_*", "1", SLURM),
    absent("gpu.avg_*", "1", SLURM),
    absent("gpu.server_thread_count", "1", SLURM),
    absent("gpu.dbd_agent_queue_size", "1", SLURM),
    absent("gpu.gpus_pending", "1", SLURM),
    absent("gpu.runaway_jobs", "1", SLURM),
    absent("gpu.active_users", "1", SLURM),
    absent("gpu.running_and_pending_users", "1", SLURM),
];

const HEAD: &str = "
## Names of l9gpu

A sink with the names `l9gpu` has the names, units and attributes of l9gpu 0.2, and those that only its
documents have. Everything is a gauge, as there. Rates and quantiles are of the last minute, or of the last
interval where that is longer; without a request in it there is no quantile. Every point has `host.name`
and, where it is set, `k8s.cluster.name`. The attributes of the pod or job on a device's own points are
those of its one owner with `owner_on_devices`. Engines have more attributes than l9gpu gives them, because
it reads one engine of a host and the first model of its page. `gpu.utilization` in per cent, which only the
documents have, is not there: its code has the name for a ratio.

| l9gpu | unit | attributes | here | remark |
|---|---|---|---|---|
";

/// The table in `METRICS.md`.
pub(super) fn table(out: &mut String) {
    out.push_str(HEAD);
    super::profile::table(ROWS, out);
    out.push_str("\n| l9gpu's attribute | here |\n|---|---|\n");
    for Rename { from, to, .. } in RENAMES {
        if let Some(to) = to {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "| `{}` | `{}` |", to.name, from.name);
        }
    }
    out.push_str(ATTRIBUTES);
}

const ATTRIBUTES: &str = "| `k8s.pod.label.app` | a pod's labels are on `gpu.allocation.info` and `gpu.process.info` of the native names |
| `cloud.availability_zone` | the same, on the resource |
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::selection::matches;

    /// Every name of l9gpu's code with its unit and constant attributes
    /// (`tests/fixtures/l9gpu-metrics.tsv`).
    #[test]
    fn every_name_of_l9gpu_is_there_with_its_unit_and_attributes_or_has_a_reason() {
        let list = include_str!("../../../../../tests/fixtures/l9gpu-metrics.tsv");
        let mut count = 0;
        for line in list.lines().skip(1) {
            let [_, name, unit, with] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let has = |row: &&Row| {
                let all = row.with.iter().map(|(key, value)| format!("{}={value}", key.name));
                let all: Vec<_> = all.collect();
                matches(row.name, name)
                    && (!row.is_served() || row.unit == unit)
                    && with
                        .split(';')
                        .filter(|one| !one.is_empty())
                        .all(|one| all.contains(&one.to_owned()))
            };
            assert!(ROWS.iter().any(|row| has(&row)), "no answer to {line}");
            count += 1;
        }
        assert_eq!(count, 297, "lines of the list");
    }

    #[test]
    fn the_spellings_of_its_documents_are_there() {
        let documented = "gpu.memory.used.bytes gpu.memory.total.bytes gpu.temperature.celsius gpu.power.watts \
                          gpu.sm.clock.hertz gpu.memory.clock.hertz gpu.errors.xid.total gpu.errors.ecc.total \
                          gpu.throttle.reasons gpu.interconnect.throughput";
        for name in documented.split_whitespace() {
            assert!(ROWS.iter().any(|row| row.name == name && row.is_served()), "{name}");
        }
    }
}
