//! SGLang, from 0.3 to 0.5.23.

use super::table::{Engine, Family, Scale, Signs, Version, counter, histogram, level};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::engine as to;

const GIB: Scale = Scale::Multiply(1_073_741_824.0);

/// SGLang, with `--enable-metrics`. Its request series come from the tokenizer and have no ranks.
pub(super) static SGLANG: Engine = Engine {
    name: "sglang",
    prefixes: &["sglang:"],
    marks: &[],
    signs: Signs {
        programs: &["sglang"],
        titles: &["sglang::"],
        arguments: &["sglang", "sglang.launch_server"],
        ports: &[30000],
        port_options: &["--port"],
        version: Some(("/get_server_info", "version")),
        paths: &["/metrics"],
    },
    labels: &[
        ("model_name", &attr::GEN_AI_MODEL),
        // Until 0.4.
        ("name", &attr::GEN_AI_MODEL),
        ("engine_type", &attr::INFERENCE_ROLE),
        ("dp_rank", &attr::INFERENCE_DATA_RANK),
        ("tp_rank", &attr::INFERENCE_TENSOR_RANK),
        ("pp_rank", &attr::INFERENCE_PIPELINE_RANK),
        ("moe_ep_rank", &attr::INFERENCE_EXPERT_RANK),
        ("is_streaming", &attr::INFERENCE_STREAMING),
        ("mode", &attr::INFERENCE_MODE),
        ("cache_source", &attr::INFERENCE_SOURCE),
        ("stage", &attr::INFERENCE_STAGE),
        ("phase", &attr::INFERENCE_STAGE),
        ("category", &attr::INFERENCE_STAGE),
        ("component", &attr::INFERENCE_COMPONENT),
        ("status_code", &attr::INFERENCE_HTTP_STATUS),
    ],
    families: FAMILIES,
    unread: &[
        "sglang:backup_*",
        "sglang:backuped_tokens",
        "sglang:cache_config_info",
        "sglang:context_len",
        "sglang:decode_deferred_*",
        "sglang:decode_sum_seq_lens",
        "sglang:dp_*",
        "sglang:encoder_*",
        "sglang:engine_load_weights_time",
        "sglang:engine_startup_time",
        "sglang:eplb_*",
        "sglang:evict*",
        "sglang:full_token_usage",
        "sglang:func_latency_seconds",
        "sglang:fwd_occupancy",
        // The last batch's, also when nothing runs: tokens are counted.
        "sglang:gen_throughput",
        "sglang:get_loads_duration_seconds",
        "sglang:grammar_*",
        "sglang:hicache_*",
        "sglang:http_requests",
        "sglang:http_requests_active",
        "sglang:is_cuda_graph",
        "sglang:kv_transfer_*",
        "sglang:load_back_*",
        "sglang:lora_pool_utilization",
        "sglang:mamba_*",
        "sglang:max_running_requests_under_SLO",
        "sglang:max_total_num_tokens_swa",
        "sglang:new_token_ratio",
        "sglang:num_bootstrap_failed_reqs",
        "sglang:num_decode_host_receive_reqs",
        "sglang:num_grammar",
        "sglang:num_grammar_aborted",
        "sglang:num_grammar_cache_hit",
        "sglang:num_grammar_timeout",
        "sglang:num_pages",
        "sglang:num_prefill_retries",
        "sglang:num_retracted_input_tokens",
        "sglang:num_retracted_output_tokens",
        "sglang:num_retractions",
        "sglang:num_running_reqs_offline_batch",
        "sglang:num_so_requests",
        "sglang:num_streaming_sessions",
        "sglang:num_transfer_failed_reqs",
        "sglang:num_unique_running_routing_keys",
        "sglang:page_size",
        "sglang:pending_prealloc_token_usage",
        "sglang:prealloc_*",
        "sglang:prefetch*",
        "sglang:prefill_delayer_*",
        "sglang:avg_request_queue_latency",
        // Gauges with `le` and `gt`: no histograms.
        "sglang:routing_key*",
        "sglang:spec_block_accept_length",
        "sglang:spec_cap_length",
        "sglang:spec_num_*",
        "sglang:spec_verify_calls",
        "sglang:startup_available_gpu_memory_gb",
        "sglang:startup_cuda_graph_time_seconds",
        "sglang:startup_latency_breakdown_seconds_max",
        "sglang:storage_*",
        "sglang:streaming_session_*",
        "sglang:swa_*",
        "sglang:total_retracted_reqs",
        "sglang:utilization",
        "sglang:weight_load_duration_seconds",
    ],
};

/// Modes of `prefill_effective_tokens` that came from a cache.
const HITS: &[&str] = &["device_hit", "host_hit", "storage_hit"];

static FAMILIES: &[Family] = &[
    histogram("sglang:e2e_request_latency_seconds", &to::REQUEST_DURATION),
    histogram("sglang:time_to_first_token_seconds", &to::TIME_TO_FIRST_TOKEN),
    histogram("sglang:request_time_per_output_token_seconds", &to::TIME_PER_OUTPUT_TOKEN),
    histogram("sglang:inter_token_latency_seconds", &to::INTER_TOKEN),
    histogram("sglang:time_per_output_token_seconds", &to::INTER_TOKEN)
        .renamed("sglang:inter_token_latency_seconds")
        .until(Version(0, 4, 6)),
    level("sglang:num_running_reqs", &to::RUNNING).expected(),
    level("sglang:num_queue_reqs", &to::WAITING).expected(),
    counter("sglang:num_requests", &to::FINISHED)
        .labelled(&[(&attr::INFERENCE_FINISH_REASON, "finished")]),
    // A counter by type; without `_total` in 0.4.9.
    counter("sglang:num_aborted_requests", &to::FINISHED)
        .labelled(&[(&attr::INFERENCE_FINISH_REASON, "abort")]),
    counter("sglang:prompt_tokens", &to::PROMPT_TOKENS),
    counter("sglang:generation_tokens", &to::GENERATED_TOKENS),
    counter("sglang:cached_tokens", &to::CACHED_TOKENS),
    histogram("sglang:queue_time_seconds", &to::QUEUE_DURATION),
    histogram("sglang:per_stage_req_latency_seconds", &to::PREFILL_DURATION)
        .total("stage", &["prefill_forward"]),
    histogram("sglang:per_stage_req_latency_seconds", &to::SGLANG_STAGE_DURATION),
    histogram("sglang:prompt_tokens_histogram", &to::REQUEST_PROMPT_TOKENS),
    histogram("sglang:generation_tokens_histogram", &to::REQUEST_GENERATED_TOKENS),
    histogram("sglang:uncached_prompt_tokens_histogram", &to::SGLANG_UNCACHED_TOKENS),
    level("sglang:token_usage", &to::KV_CACHE_UTILIZATION).expected(),
    level("sglang:max_total_num_tokens", &to::KV_CACHE_CAPACITY).since(Version(0, 5, 6)).expected(),
    level("sglang:kv_used_tokens", &to::SGLANG_USED_TOKENS).since(Version(0, 5, 12)).expected(),
    level("sglang:num_used_tokens", &to::SGLANG_USED_TOKENS).renamed("sglang:kv_used_tokens"),
    level("sglang:kv_available_tokens", &to::SGLANG_AVAILABLE_TOKENS).since(Version(0, 5, 12)),
    level("sglang:kv_evictable_tokens", &to::SGLANG_EVICTABLE_TOKENS).since(Version(0, 5, 12)),
    counter("sglang:prefill_effective_tokens", &to::PREFIX_QUERIES)
        .total("mode", &["input", "device_hit", "host_hit", "storage_hit"]),
    counter("sglang:prefill_effective_tokens", &to::PREFIX_HITS).total("mode", HITS),
    counter("sglang:prefill_effective_tokens", &to::SGLANG_PREFILL_TOKENS),
    counter("sglang:num_retracted_requests", &to::PREEMPTIONS),
    level("sglang:lora_pool_slots_used", &to::LORA_RUNNING),
    // A level, for all its name.
    level("sglang:lora_pool_slots_total", &to::LORA_LIMIT),
    counter("sglang:estimated_flops_per_gpu", &to::ESTIMATED_FLOPS),
    counter("sglang:estimated_read_bytes_per_gpu", &to::ESTIMATED_READ),
    counter("sglang:estimated_write_bytes_per_gpu", &to::ESTIMATED_WRITTEN),
    counter("sglang:http_responses", &to::HTTP_RESPONSES),
    counter("sglang:realtime_tokens", &to::SGLANG_REALTIME_TOKENS),
    level("sglang:num_grammar_queue_reqs", &to::SGLANG_GRAMMAR_WAITING),
    level("sglang:num_retracted_reqs", &to::SGLANG_RETRACTED),
    level("sglang:num_paused_reqs", &to::SGLANG_PAUSED),
    queue(
        "sglang:num_prefill_bootstrap_queue_reqs",
        &[(&attr::INFERENCE_STAGE, "prefill_bootstrap")],
    ),
    queue(
        "sglang:num_prefill_inflight_queue_reqs",
        &[(&attr::INFERENCE_STAGE, "prefill_inflight")],
    ),
    queue("sglang:num_prefill_infight_queue_reqs", &[(&attr::INFERENCE_STAGE, "prefill_inflight")])
        .renamed("sglang:num_prefill_inflight_queue_reqs"),
    queue(
        "sglang:num_prefill_prealloc_queue_reqs",
        &[(&attr::INFERENCE_STAGE, "prefill_prealloc")],
    ),
    queue("sglang:num_decode_prealloc_queue_reqs", &[(&attr::INFERENCE_STAGE, "decode_prealloc")]),
    queue("sglang:num_decode_transfer_queue_reqs", &[(&attr::INFERENCE_STAGE, "decode_transfer")]),
    queue(
        "sglang:num_decode_host_receive_queue_reqs",
        &[(&attr::INFERENCE_STAGE, "decode_host_receive")],
    ),
    queue(
        "sglang:num_decode_deferred_kv_release_reqs",
        &[(&attr::INFERENCE_STAGE, "decode_deferred_release")],
    ),
    counter("sglang:scheduler_stage_seconds", &to::SGLANG_SCHEDULER_TIME),
    counter("sglang:scheduler_idle_seconds", &to::SGLANG_SCHEDULER_IDLE),
    counter("sglang:scheduler_process_cpu_seconds", &to::SGLANG_SCHEDULER_CPU),
    counter("sglang:process_cpu_seconds", &to::SGLANG_CPU),
    counter("sglang:forward_execution_seconds", &to::SGLANG_FORWARD_TIME),
    counter("sglang:gpu_execution_seconds", &to::SGLANG_FORWARD_TIME)
        .renamed("sglang:forward_execution_seconds"),
    counter("sglang:cuda_graph_passes", &to::SGLANG_PASSES),
    level("sglang:spec_accept_length", &to::SGLANG_ACCEPT_LENGTH),
    level("sglang:spec_accept_rate", &to::SGLANG_ACCEPT_RATE),
    level("sglang:cache_hit_rate", &to::SGLANG_HIT_RATE),
    level("sglang:weight_memory_usage_gb", &to::SGLANG_WEIGHT_MEMORY).scaled(GIB),
    level("sglang:kv_cache_memory_usage_gb", &to::SGLANG_KV_MEMORY).scaled(GIB),
    level("sglang:graph_memory_usage_gb", &to::SGLANG_GRAPH_MEMORY).scaled(GIB),
    level("sglang:startup_time_seconds", &to::SGLANG_STARTUP),
];

/// A queue of disaggregated serving.
const fn queue(
    upstream: &'static str,
    labels: &'static [(&'static attr::AttrKey, &'static str)],
) -> Family {
    level(upstream, &to::SGLANG_QUEUED).labelled(labels)
}
