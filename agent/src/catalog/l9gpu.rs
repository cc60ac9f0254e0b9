//! What l9gpu 0.1 tells of inference engines, DCGM's exporter and health, and where the same is here: for those who bring
//! dashboards along. Its rates and quantiles are functions of counters and buckets here.

use super::MetricDef;
use super::{attributes as attr, device, engine as to, event, gpm, health, link, wear};
use std::fmt::Write as _;

/// How a row of l9gpu's comes out of a metric here.
enum How {
    /// Its rate.
    Rate(&'static MetricDef),
    /// A quantile of its buckets.
    Quantile(&'static MetricDef),
    /// As it is.
    Value(&'static MetricDef),
    /// One rate divided by another.
    Ratio(&'static MetricDef, &'static MetricDef),
    /// As it is, of one value of an attribute.
    Of(&'static MetricDef, &'static str),
    /// As it is, or the rate of a counter, which more devices have.
    ValueOrRate(&'static MetricDef, &'static MetricDef),
    /// An attribute of every point.
    Attribute(&'static attr::AttrKey),
    /// The rate of one value of an attribute.
    RateOf(&'static MetricDef, &'static str),
    /// Not the same, for a reason; a metric has what was meant.
    Instead(&'static str, &'static MetricDef),
    /// It is of nothing that the engine has.
    Wrong(&'static str),
}

use How::{Attribute, Instead, Of, Quantile, Rate, RateOf, Ratio, Value, ValueOrRate, Wrong};

const NIM: &str = "no NIM has the series it is read from (`nvidia_nim_*`); here from NIM's own: ";

/// Names as l9gpu sends them of fleet health, and what they are here.
static HEALTH_ROWS: &[(&str, How)] = &[
    (
        "gpu.xid.last_error_code",
        Instead(
            "the library has no such field, so l9gpu never sends it; here each code has a counter",
            event::XID_ERRORS.def(),
        ),
    ),
    ("gpu.xid.error_rate", Rate(event::XID_ERRORS.def())),
    ("gpu.ecc.sbe_rate", RateOf(wear::ECC_ERRORS.def(), "corrected` and `volatile")),
    ("gpu.ecc.dbe_total", Of(wear::ECC_ERRORS.def(), "uncorrected` and `volatile")),
    ("gpu.row_remap.available", Value(wear::SPARE_ROWS.def())),
    ("gpu.pcie.link.gen.current", Value(wear::PCIE_GENERATION.def())),
    ("gpu.pcie.link.width.current", Value(wear::PCIE_WIDTH.def())),
    (
        "gpu.pcie.link.downtraining",
        Instead(
            "l9gpu reports an idle link, which saves power, as a fault; here judged while the device is busy: `bus_width` and `bus_generation` of",
            health::CONDITION.def(),
        ),
    ),
    (
        "gpu.thermal.ramp_rate",
        Instead(
            "a rise with the load is no fault; the rise at the same power is the condition `thermal_ramp`, any other is the derivative of",
            device::TEMPERATURE.def(),
        ),
    ),
    (
        "gpu.health.score",
        Instead(
            "l9gpu's cannot fall below 30, because three of its inputs are never read; here 0 to 100 by the conditions that last:",
            health::SCORE.def(),
        ),
    ),
];

/// Names as l9gpu sends them from DCGM's exporter, and what they are here. The metrics are the same
/// where the agent reads the counters itself (GPM).
static DCGM_ROWS: &[(&str, How)] = &[
    ("gpu.sm.active", Value(gpm::SM_ACTIVE.def())),
    ("gpu.dram.active", Value(gpm::DRAM_ACTIVE.def())),
    ("gpu.gr_engine.active", Value(gpm::GR_ENGINE_ACTIVE.def())),
    ("gpu.pipe.tensor.active", Of(gpm::PIPE_ACTIVE.def(), "tensor")),
    ("gpu.pipe.fp64.active", Of(gpm::PIPE_ACTIVE.def(), "fp64")),
    ("gpu.pipe.fp32.active", Of(gpm::PIPE_ACTIVE.def(), "fp32")),
    ("gpu.pipe.fp16.active", Of(gpm::PIPE_ACTIVE.def(), "fp16")),
    ("gpu.sm.occupancy", Value(gpm::SM_OCCUPANCY.def())),
    (
        "gpu.interconnect.throughput",
        ValueOrRate(gpm::NVLINK_THROUGHPUT.def(), link::NVLINK_IO.def()),
    ),
    ("gpu.pcie.throughput", ValueOrRate(gpm::PCIE_THROUGHPUT.def(), wear::PCIE_IO.def())),
    ("gpu.index", Attribute(&attr::GPU_INDEX)),
    ("gpu.uuid", Attribute(&attr::GPU_UUID)),
    ("gpu.model", Attribute(&attr::GPU_MODEL)),
    ("gpu.mig.enabled", Attribute(&attr::GPU_MIG_MODE)),
    ("gpu.mig.instance_id", Attribute(&attr::GPU_MIG_GPU_INSTANCE)),
];

/// Names as l9gpu sends them, and what they are here.
static ROWS: &[(&str, How)] = &[
    ("vllm.prompt.throughput", Rate(to::PROMPT_TOKENS.def())),
    ("vllm.generation.throughput", Rate(to::GENERATED_TOKENS.def())),
    ("vllm.request.latency", Quantile(to::REQUEST_DURATION.def())),
    ("vllm.ttft", Quantile(to::TIME_TO_FIRST_TOKEN.def())),
    ("vllm.cache.usage` of `gpu", Value(to::KV_CACHE_UTILIZATION.def())),
    ("vllm.cache.usage` of `cpu", Value(to::VLLM_CPU_CACHE.def())),
    ("vllm.requests.running", Value(to::RUNNING.def())),
    ("vllm.requests.waiting", Value(to::WAITING.def())),
    ("vllm.requests.swapped", Value(to::SWAPPED.def())),
    ("vllm.itl", Quantile(to::INTER_TOKEN.def())),
    ("vllm.prefill.duration", Quantile(to::PREFILL_DURATION.def())),
    ("vllm.decode.duration", Quantile(to::DECODE_DURATION.def())),
    ("vllm.cache.hit_rate", Ratio(to::PREFIX_HITS.def(), to::PREFIX_QUERIES.def())),
    ("vllm.cache.evictions", Wrong("vLLM has no series of evictions: it is always 0")),
    (
        "vllm.spec_decode.acceptance_rate",
        Ratio(to::ACCEPTED_TOKENS.def(), to::DRAFTED_TOKENS.def()),
    ),
    ("vllm.spec_decode.efficiency", Ratio(to::ACCEPTED_TOKENS.def(), to::DRAFTS.def())),
    ("vllm.requests.success", Rate(to::FINISHED.def())),
    ("vllm.requests.finished", Rate(to::FINISHED.def())),
    ("vllm.scheduler.preemptions", Rate(to::PREEMPTIONS.def())),
    ("vllm.lora.active_count", Value(to::LORA_RUNNING.def())),
    ("vllm.model.name", Attribute(&attr::GEN_AI_MODEL)),
    ("nim.requests.total", Value(to::FINISHED.def())),
    ("nim.requests.failed", Value(to::FINISHED.def())),
    ("nim.request.latency", Quantile(to::REQUEST_DURATION.def())),
    ("nim.batch.size", Wrong("NIM has no series of batches")),
    ("nim.queue.depth", Value(to::WAITING.def())),
    ("nim.kv_cache.usage", Value(to::KV_CACHE_UTILIZATION.def())),
    ("nim.itl", Quantile(to::INTER_TOKEN.def())),
    ("nim.model", Attribute(&attr::GEN_AI_MODEL)),
    ("triton.requests.success", Rate(to::FINISHED.def())),
    ("triton.requests.failed", Rate(to::FINISHED.def())),
    ("triton.request.latency", Ratio(to::TRITON_REQUEST_TIME.def(), to::FINISHED.def())),
    ("triton.queue.latency", Ratio(to::TRITON_QUEUE_TIME.def(), to::FINISHED.def())),
    ("triton.compute.input_latency", Ratio(to::TRITON_INPUT_TIME.def(), to::FINISHED.def())),
    ("triton.compute.latency", Ratio(to::TRITON_INFER_TIME.def(), to::FINISHED.def())),
    ("triton.compute.output_latency", Ratio(to::TRITON_OUTPUT_TIME.def(), to::FINISHED.def())),
    ("triton.queue.depth", Value(to::WAITING.def())),
    ("triton.batch.size", Ratio(to::TRITON_INFERENCES.def(), to::TRITON_EXECUTIONS.def())),
    ("sglang.prompt.throughput", Rate(to::PROMPT_TOKENS.def())),
    ("sglang.generation.throughput", Rate(to::GENERATED_TOKENS.def())),
    ("sglang.cache.hit_rate", Ratio(to::PREFIX_HITS.def(), to::PREFIX_QUERIES.def())),
    ("sglang.itl", Quantile(to::INTER_TOKEN.def())),
    ("sglang.ttft", Quantile(to::TIME_TO_FIRST_TOKEN.def())),
    ("sglang.request.latency", Quantile(to::REQUEST_DURATION.def())),
    ("sglang.requests.running", Value(to::RUNNING.def())),
    ("sglang.requests.waiting", Value(to::WAITING.def())),
    ("tgi.request.latency", Quantile(to::REQUEST_DURATION.def())),
    ("tgi.queue.latency", Quantile(to::QUEUE_DURATION.def())),
    ("tgi.inference.latency", Quantile(to::INFERENCE_DURATION.def())),
    ("tgi.tpot", Quantile(to::TIME_PER_OUTPUT_TOKEN.def())),
    ("tgi.batch.size", Quantile(to::BATCH_SIZE.def())),
    ("tgi.batch.forward_duration", Quantile(to::TGI_FORWARD_DURATION.def())),
    ("tgi.request.input_tokens", Quantile(to::REQUEST_PROMPT_TOKENS.def())),
    ("tgi.request.output_tokens", Quantile(to::REQUEST_GENERATED_TOKENS.def())),
    ("model.name", Attribute(&attr::GEN_AI_MODEL)),
    ("model.version", Attribute(&attr::INFERENCE_MODEL_VERSION)),
    (
        "gen_ai.client.token.usage",
        Wrong("a client's histogram by OpenTelemetry's conventions, sent as a server's rate"),
    ),
    ("gen_ai.server.request.duration", Quantile(to::REQUEST_DURATION.def())),
    ("gen_ai.server.time_to_first_token", Quantile(to::TIME_TO_FIRST_TOKEN.def())),
    ("gen_ai.server.time_per_output_token", Quantile(to::INTER_TOKEN.def())),
    ("gen_ai.server.cache.utilization", Value(to::KV_CACHE_UTILIZATION.def())),
    ("gen_ai.server.cache.hit_rate", Ratio(to::PREFIX_HITS.def(), to::PREFIX_QUERIES.def())),
];

const HEAD: &str = "
## Inference engines, DCGM and health: from l9gpu's names

What l9gpu 0.1 sends as quantiles since the start and as rates of its own interval is here a function
of buckets and counters, which the receiver computes over any time. Of several engines, models or
ranks on a page l9gpu reads the first; here each is a series.

| l9gpu | here |
|---|---|
";

/// The table in `METRICS.md`.
pub(super) fn table(out: &mut String) {
    out.push_str(HEAD);
    for (name, how) in ROWS.iter().chain(DCGM_ROWS).chain(HEALTH_ROWS) {
        let note = if name.starts_with("nim.") { NIM } else { "" };
        // Writing to a String cannot fail.
        let _ = match how {
            Rate(metric) => writeln!(out, "| `{name}` | {note}the rate of `{}` |", metric.name),
            Quantile(metric) => {
                writeln!(out, "| `{name}` | {note}a quantile of `{}` |", metric.name)
            }
            Value(metric) => writeln!(out, "| `{name}` | {note}`{}` |", metric.name),
            Ratio(a, b) => {
                writeln!(
                    out,
                    "| `{name}` | {note}the rate of `{}` by that of `{}` |",
                    a.name, b.name
                )
            }
            Of(metric, value) => writeln!(out, "| `{name}` | `{}` of `{value}` |", metric.name),
            ValueOrRate(a, b) => {
                writeln!(out, "| `{name}` | `{}`, or the rate of `{}` |", a.name, b.name)
            }
            RateOf(metric, value) => {
                writeln!(out, "| `{name}` | the rate of `{}` of `{value}` |", metric.name)
            }
            Instead(reason, metric) => writeln!(out, "| `{name}` | {reason} `{}` |", metric.name),
            Attribute(key) => writeln!(out, "| `{name}` | the attribute `{}` |", key.name),
            Wrong(reason) => writeln!(out, "| `{name}` | nothing: {reason} |"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_name_has_one_row() {
        let mut table = String::new();
        super::table(&mut table);
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).collect();
        let names: HashSet<_> = rows.iter().map(|row| row.split('|').nth(1)).collect();
        let count = ROWS.len() + DCGM_ROWS.len() + HEALTH_ROWS.len();
        assert_eq!((names.len(), rows.len()), (count, count));
        assert!(
            rows.contains(&"| `vllm.ttft` | a quantile of `gen_ai.server.time_to_first_token` |")
        );
    }

    /// The metrics of l9gpu's schema of fleet health (`GPUFleetHealthMetrics`).
    #[test]
    fn every_metric_of_l9gpus_fleet_health_has_an_answer() {
        let names: Vec<_> = HEALTH_ROWS.iter().map(|(name, _)| *name).collect();
        let schema = "gpu.xid.last_error_code gpu.xid.error_rate gpu.ecc.sbe_rate gpu.ecc.dbe_total \
                      gpu.row_remap.available gpu.pcie.link.gen.current gpu.pcie.link.width.current \
                      gpu.pcie.link.downtraining gpu.thermal.ramp_rate gpu.health.score";
        assert_eq!(names, schema.split_whitespace().collect::<Vec<_>>());
    }

    /// The rows of engines and of DCGM in l9gpu's own list (`tests/fixtures/l9gpu-engines.tsv`): its
    /// schema, field and name.
    #[test]
    fn every_row_of_l9gpus_engines_and_dcgm_has_an_answer() {
        let list = include_str!("../../../tests/fixtures/l9gpu-engines.tsv");
        let mut table = String::new();
        super::table(&mut table);
        let answers: Vec<_> = table
            .lines()
            .filter_map(|row| row.strip_prefix("| `")?.strip_suffix(" |")?.split_once(" | "))
            .collect();
        let mut count = 0;
        for row in list.lines().skip(1) {
            let [schema, field, name] = row.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{row}")
            };
            let is_it = |answered: &str| {
                answered.split('`').next() == Some(name)
                    // NIM's and vLLM's models have names of their own.
                    || (name == "model.name" && answered.starts_with("model.name"))
            };
            let answer = answers.iter().find(|(answered, _)| is_it(answered));
            let (_, answer) =
                answer.unwrap_or_else(|| panic!("no answer to {schema} {field} ({name})"));
            assert!(answer.len() > 3, "an empty answer to {schema} {field}: {answer}");
            count += 1;
        }
        assert_eq!(count, 125, "rows of the list");
    }
}
