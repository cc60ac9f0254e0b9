//! vLLM, from 0.5 to 0.33.

use super::table::{Engine, Family, Read, Signs, Version, counter, histogram, info, level};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::engine as to;

/// vLLM. `engine` counts data-parallel replicas, not devices.
pub(super) static VLLM: Engine = Engine {
    name: "vllm",
    prefixes: &["vllm:"],
    marks: &[],
    signs: Signs {
        programs: &["vllm"],
        titles: &["VLLM::"],
        arguments: &["vllm", "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"],
        ports: &[8000],
        port_options: &["--port"],
        version: Some(("/version", "version")),
        paths: &["/metrics"],
    },
    labels: &[
        ("model_name", &attr::GEN_AI_MODEL),
        ("engine", &attr::INFERENCE_DATA_RANK),
        ("finished_reason", &attr::INFERENCE_FINISH_REASON),
        ("reason", &attr::INFERENCE_REASON),
        ("source", &attr::INFERENCE_SOURCE),
        ("sleep_state", &attr::INFERENCE_STATE),
        ("position", &attr::INFERENCE_POSITION),
        ("status", &attr::INFERENCE_HTTP_STATUS),
        // Of the vLLM backend in Triton.
        ("version", &attr::INFERENCE_MODEL_VERSION),
    ],
    families: FAMILIES,
    unread: &[
        "vllm:kv_offload_config_info",
        // Of one connector or one kind of model each.
        "vllm:diffusion_*",
        "vllm:hf3fs_*",
        "vllm:hisparse_*",
        "vllm:kv_offload_*",
        "vllm:mooncake_*",
        "vllm:nixl_*",
        "vllm:umbp_*",
        "vllm:num_requests_kv_fetch_by_stage",
        "vllm:watermark_requests",
        // Rates and averages of the engine's own: their counters are read.
        "vllm:avg_generation_throughput_toks_per_s",
        "vllm:avg_prompt_throughput_toks_per_s",
        "vllm:cpu_prefix_cache_hit_rate",
        "vllm:spec_decode_efficiency",
        "vllm:spec_decode_num_emitted_tokens",
        "vllm:model_execute_time_milliseconds",
        "vllm:model_forward_time_milliseconds",
        "vllm:time_in_queue_requests",
        "vllm:tokens",
        "vllm:prompt_tokens_recomputed",
        "vllm:request_params_best_of",
    ],
};

static FAMILIES: &[Family] = &[
    histogram("vllm:e2e_request_latency_seconds", &to::REQUEST_DURATION).expected(),
    histogram("vllm:time_to_first_token_seconds", &to::TIME_TO_FIRST_TOKEN).expected(),
    histogram("vllm:request_time_per_output_token_seconds", &to::TIME_PER_OUTPUT_TOKEN)
        .since(Version(0, 12, 0))
        .expected(),
    histogram("vllm:inter_token_latency_seconds", &to::INTER_TOKEN)
        .since(Version(0, 10, 2))
        .expected(),
    // Until 0.12 under both names.
    histogram("vllm:time_per_output_token_seconds", &to::INTER_TOKEN)
        .renamed("vllm:inter_token_latency_seconds")
        .until(Version(0, 13, 0)),
    level("vllm:num_requests_running", &to::RUNNING).expected(),
    level("vllm:num_requests_waiting", &to::WAITING).expected(),
    level("vllm:num_requests_swapped", &to::SWAPPED).until(Version(0, 9, 0)),
    level("vllm:num_requests_waiting_by_reason", &to::VLLM_WAITING).since(Version(0, 20, 0)),
    counter("vllm:request_success", &to::FINISHED).expected(),
    counter("vllm:admission_rejections", &to::REJECTED),
    counter("vllm:corrupted_requests", &to::VLLM_CORRUPTED).since(Version(0, 12, 0)),
    counter("vllm:prompt_tokens", &to::PROMPT_TOKENS).expected(),
    counter("vllm:generation_tokens", &to::GENERATED_TOKENS).expected(),
    counter("vllm:prompt_tokens_cached", &to::CACHED_TOKENS).since(Version(0, 16, 0)).expected(),
    counter("vllm:prompt_tokens_by_source", &to::VLLM_PROMPT_TOKENS).since(Version(0, 16, 0)),
    counter("vllm:prompt_tokens_cached_by_source", &to::VLLM_CACHED_TOKENS),
    histogram("vllm:request_queue_time_seconds", &to::QUEUE_DURATION)
        .since(Version(0, 6, 6))
        .expected(),
    histogram("vllm:request_prefill_time_seconds", &to::PREFILL_DURATION)
        .since(Version(0, 6, 6))
        .expected(),
    histogram("vllm:request_decode_time_seconds", &to::DECODE_DURATION)
        .since(Version(0, 6, 6))
        .expected(),
    histogram("vllm:request_inference_time_seconds", &to::INFERENCE_DURATION)
        .since(Version(0, 6, 6))
        .expected(),
    histogram("vllm:request_prompt_tokens", &to::REQUEST_PROMPT_TOKENS).expected(),
    histogram("vllm:request_generation_tokens", &to::REQUEST_GENERATED_TOKENS).expected(),
    histogram("vllm:request_params_max_tokens", &to::REQUEST_MAX_TOKENS).since(Version(0, 6, 6)),
    histogram("vllm:request_max_num_generation_tokens", &to::VLLM_MAX_GENERATED)
        .since(Version(0, 6, 6)),
    histogram("vllm:request_params_n", &to::VLLM_PARAMS_N),
    histogram("vllm:request_num_preemptions", &to::VLLM_REQUEST_PREEMPTIONS),
    histogram("vllm:request_prefill_kv_computed_tokens", &to::VLLM_COMPUTED_TOKENS)
        .since(Version(0, 16, 0)),
    // A histogram, for all its name.
    histogram("vllm:iteration_tokens_total", &to::STEP_TOKENS).since(Version(0, 6, 6)),
    // A fraction, for all its name.
    level("vllm:kv_cache_usage_perc", &to::KV_CACHE_UTILIZATION).since(Version(0, 9, 0)).expected(),
    level("vllm:gpu_cache_usage_perc", &to::KV_CACHE_UTILIZATION)
        .renamed("vllm:kv_cache_usage_perc")
        .until(Version(0, 11, 0)),
    level("vllm:cpu_cache_usage_perc", &to::VLLM_CPU_CACHE).until(Version(0, 9, 0)),
    // Versions without the label have the product; where it is there, several kinds of layers may
    // share the blocks.
    info(
        "vllm:cache_config_info",
        Read::Label("kv_cache_size_tokens", ["num_gpu_blocks", "block_size"]),
        &to::KV_CACHE_CAPACITY,
    ),
    counter("vllm:prefix_cache_queries", &to::PREFIX_QUERIES).since(Version(0, 9, 0)).expected(),
    counter("vllm:prefix_cache_hits", &to::PREFIX_HITS).since(Version(0, 9, 0)).expected(),
    counter("vllm:gpu_prefix_cache_queries", &to::PREFIX_QUERIES)
        .renamed("vllm:prefix_cache_queries")
        .since(Version(0, 8, 0))
        .until(Version(0, 11, 0)),
    counter("vllm:gpu_prefix_cache_hits", &to::PREFIX_HITS)
        .renamed("vllm:prefix_cache_hits")
        .since(Version(0, 8, 0))
        .until(Version(0, 11, 0)),
    level("vllm:gpu_prefix_cache_hit_rate", &to::VLLM_PREFIX_HIT_RATE).until(Version(0, 9, 0)),
    counter("vllm:external_prefix_cache_queries", &to::VLLM_EXTERNAL_QUERIES),
    counter("vllm:external_prefix_cache_hits", &to::VLLM_EXTERNAL_HITS),
    counter("vllm:mm_cache_queries", &to::VLLM_MULTIMODAL_QUERIES),
    counter("vllm:mm_cache_hits", &to::VLLM_MULTIMODAL_HITS),
    counter("vllm:num_preemptions", &to::PREEMPTIONS).expected(),
    counter("vllm:spec_decode_num_drafts", &to::DRAFTS),
    counter("vllm:spec_decode_num_draft_tokens", &to::DRAFTED_TOKENS),
    counter("vllm:spec_decode_num_accepted_tokens", &to::ACCEPTED_TOKENS),
    counter("vllm:spec_decode_num_accepted_tokens_per_pos", &to::VLLM_ACCEPTED_TOKENS),
    level("vllm:spec_decode_draft_acceptance_rate", &to::VLLM_ACCEPTANCE_RATE)
        .until(Version(0, 10, 0)),
    info("vllm:lora_requests_info", Read::NewestNames("running_lora_adapters"), &to::LORA_RUNNING),
    info("vllm:lora_requests_info", Read::NewestNames("waiting_lora_adapters"), &to::LORA_WAITING),
    info("vllm:lora_requests_info", Read::NewestLabel("max_lora"), &to::LORA_LIMIT),
    level("vllm:engine_sleep_state", &to::VLLM_SLEEP_STATE),
    histogram("vllm:kv_block_lifetime_seconds", &to::VLLM_BLOCK_LIFETIME),
    histogram("vllm:kv_block_idle_before_evict_seconds", &to::VLLM_BLOCK_IDLE),
    histogram("vllm:kv_block_reuse_gap_seconds", &to::VLLM_BLOCK_REUSE),
    // Of the server's instrumentation, which has no prefix and leaves out the page itself.
    counter("http_requests", &to::HTTP_RESPONSES),
    counter("vllm:estimated_flops_per_gpu", &to::ESTIMATED_FLOPS),
    counter("vllm:estimated_read_bytes_per_gpu", &to::ESTIMATED_READ),
    counter("vllm:estimated_write_bytes_per_gpu", &to::ESTIMATED_WRITTEN),
];
