//! llama.cpp's server (`llama-server --metrics`), from its source of 2024 to 2026. Its page has no
//! labels, and no histogram.

use super::table::{Engine, Signs, counter, level};
use gpuwho_model::catalog::engine as to;

/// llama.cpp. Without `--metrics` its page is refused (501).
pub(super) static LLAMACPP: Engine = Engine {
    name: "llama.cpp",
    prefixes: &["llamacpp:"],
    marks: &[],
    signs: Signs {
        programs: &["llama-server"],
        titles: &[],
        arguments: &[],
        ports: &[8080],
        port_options: &["--port"],
        version: Some(("/props", "build_info")),
        paths: &["/metrics"],
    },
    labels: &[],
    families: &[
        level("llamacpp:requests_processing", &to::RUNNING).expected(),
        level("llamacpp:requests_deferred", &to::WAITING).expected(),
        counter("llamacpp:tokens_predicted", &to::GENERATED_TOKENS).expected(),
        // Without those from the cache, which newer versions count beside them.
        counter("llamacpp:prompt_tokens", &to::LLAMACPP_COMPUTED_TOKENS).expected(),
        counter("llamacpp:prompt_tokens_cached", &to::CACHED_TOKENS),
        counter("llamacpp:prompt_seconds", &to::LLAMACPP_PROMPT_TIME).expected(),
        counter("llamacpp:tokens_predicted_seconds", &to::LLAMACPP_GENERATION_TIME).expected(),
        counter("llamacpp:n_decode", &to::LLAMACPP_DECODES).expected(),
        counter("llamacpp:spec_decode_num_drafts", &to::DRAFTS),
        counter("llamacpp:spec_decode_num_draft_tokens", &to::DRAFTED_TOKENS),
        counter("llamacpp:spec_decode_num_accepted_tokens", &to::ACCEPTED_TOKENS),
        // Before mid-2025.
        level("llamacpp:kv_cache_usage_ratio", &to::KV_CACHE_UTILIZATION),
    ],
    unread: &[
        "llamacpp:kv_cache_tokens",
        // Means since the start, one of them said to be a counter.
        "llamacpp:n_busy_slots_per_decode",
        "llamacpp:n_tokens_max",
        "llamacpp:predicted_tokens_seconds",
        "llamacpp:prompt_tokens_seconds",
    ],
};
