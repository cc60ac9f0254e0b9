//! NVIDIA's Triton inference server, 2.51 as recorded and newer ones from its source. The vLLM
//! backend's series are on the same page and are vLLM's.

use super::table::{Engine, Scale, Signs, counter, histogram, level};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::engine as to;

const MICROSECONDS: Scale = Scale::Divide(1e6);
const MILLISECONDS: Scale = Scale::Divide(1e3);

/// Triton. Its counters have no `_total`, its times are sums of microseconds.
pub(super) static TRITON: Engine = Engine {
    name: "triton",
    prefixes: &["nv_inference_", "nv_trt_llm_", "nv_cache_", "nv_pinned_memory_", "nv_model_"],
    marks: &[],
    signs: Signs {
        programs: &["tritonserver"],
        titles: &[],
        arguments: &[],
        ports: &[8002],
        port_options: &["--metrics-port"],
        version: None,
        paths: &["/metrics"],
    },
    labels: &[
        ("model", &attr::GEN_AI_MODEL),
        ("version", &attr::INFERENCE_MODEL_VERSION),
        // Absent before mid-2024.
        ("reason", &attr::ERROR_TYPE),
        ("request_type", &attr::INFERENCE_STATE),
        ("kv_cache_block_type", &attr::INFERENCE_STATE),
    ],
    families: &[
        counter("nv_inference_request_success", &to::FINISHED)
            .labelled(&[(&attr::INFERENCE_FINISH_REASON, "success")])
            .expected(),
        counter("nv_inference_request_failure", &to::FINISHED)
            .labelled(&[(&attr::INFERENCE_FINISH_REASON, "error")])
            .expected(),
        level("nv_inference_pending_request_count", &to::WAITING).expected(),
        counter("nv_inference_count", &to::TRITON_INFERENCES).expected(),
        counter("nv_inference_exec_count", &to::TRITON_EXECUTIONS).expected(),
        counter("nv_inference_request_duration_us", &to::TRITON_REQUEST_TIME)
            .scaled(MICROSECONDS)
            .expected(),
        counter("nv_inference_queue_duration_us", &to::TRITON_QUEUE_TIME)
            .scaled(MICROSECONDS)
            .expected(),
        counter("nv_inference_compute_input_duration_us", &to::TRITON_INPUT_TIME)
            .scaled(MICROSECONDS)
            .expected(),
        counter("nv_inference_compute_infer_duration_us", &to::TRITON_INFER_TIME)
            .scaled(MICROSECONDS)
            .expected(),
        counter("nv_inference_compute_output_duration_us", &to::TRITON_OUTPUT_TIME)
            .scaled(MICROSECONDS)
            .expected(),
        // From 24.11, with `histogram_latencies`.
        histogram("nv_inference_first_response_histogram_ms", &to::TIME_TO_FIRST_TOKEN)
            .scaled(MILLISECONDS),
        level("nv_trt_llm_kv_cache_block_metrics", &to::KV_CACHE_UTILIZATION)
            .total("kv_cache_block_type", &["fraction"]),
        level("nv_trt_llm_kv_cache_block_metrics", &to::TRITON_TRTLLM_BLOCKS)
            .only("kv_cache_block_type", &["max", "free", "used", "reused"]),
        level("nv_trt_llm_request_metrics", &to::TRITON_TRTLLM_REQUESTS),
        counter("nv_cache_num_hits_per_model", &to::TRITON_CACHE_HITS),
        counter("nv_cache_num_misses_per_model", &to::TRITON_CACHE_MISSES),
        counter("nv_cache_hit_duration_per_model", &to::TRITON_CACHE_HIT_TIME).scaled(MICROSECONDS),
        counter("nv_cache_miss_duration_per_model", &to::TRITON_CACHE_MISS_TIME)
            .scaled(MICROSECONDS),
        level("nv_cache_util", &to::TRITON_CACHE_UTILIZATION),
        // The cache's plugin says gauge.
        counter("nv_cache_num_evictions", &to::TRITON_CACHE_EVICTIONS),
        level("nv_pinned_memory_pool_total_bytes", &to::TRITON_PINNED_LIMIT),
        level("nv_pinned_memory_pool_used_bytes", &to::TRITON_PINNED_USED),
        level("nv_model_load_duration_secs", &to::TRITON_LOAD_DURATION),
    ],
    unread: &[
        // Quantiles since the start: the sums are read.
        "nv_inference_request_summary_us",
        "nv_inference_queue_summary_us",
        "nv_inference_compute_input_summary_us",
        "nv_inference_compute_infer_summary_us",
        "nv_inference_compute_output_summary_us",
        "nv_cache_hit_summary_per_model",
        "nv_cache_miss_summary_per_model",
        // The server's own, where those by model are read.
        "nv_cache_num_entries",
        "nv_cache_num_hits",
        "nv_cache_num_misses",
        "nv_cache_num_lookups",
        "nv_cache_lookup_duration",
        "nv_cache_insertion_duration",
        "nv_trt_llm_runtime_memory_metrics",
        "nv_trt_llm_inflight_batcher_metrics",
        "nv_trt_llm_disaggregated_serving_metrics",
        "nv_trt_llm_general_metrics",
    ],
};
