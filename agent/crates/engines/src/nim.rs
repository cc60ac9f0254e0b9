//! NVIDIA NIM for LLMs 1.x, from its documents: names without a prefix. Newer images pass vLLM's or
//! SGLang's names through, which are then theirs.

use super::table::{Engine, Signs, counter, histogram, level};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::engine as to;

/// NIM.
pub(super) static NIM: Engine = Engine {
    name: "nim",
    prefixes: &[],
    marks: &["num_requests_running", "num_request_max"],
    signs: Signs {
        programs: &["nim_llm"],
        titles: &[],
        arguments: &["vllm_nvext.entrypoints.openai.api_server", "nim_llm_sdk.entrypoints.launch"],
        ports: &[8000],
        port_options: &["--port"],
        version: Some(("/v1/version", "release")),
        paths: &["/v1/metrics", "/metrics"],
    },
    labels: &[
        ("model_name", &attr::GEN_AI_MODEL),
        ("finished_reason", &attr::INFERENCE_FINISH_REASON),
    ],
    families: &[
        histogram("e2e_request_latency_seconds", &to::REQUEST_DURATION).expected(),
        histogram("time_to_first_token_seconds", &to::TIME_TO_FIRST_TOKEN).expected(),
        histogram("time_per_output_token_seconds", &to::INTER_TOKEN).expected(),
        level("num_requests_running", &to::RUNNING).expected(),
        level("num_requests_waiting", &to::WAITING).expected(),
        level("num_request_max", &to::MAX_RUNNING).expected(),
        level("gpu_cache_usage_perc", &to::KV_CACHE_UTILIZATION).expected(),
        counter("prompt_tokens", &to::PROMPT_TOKENS).expected(),
        counter("generation_tokens", &to::GENERATED_TOKENS).expected(),
        counter("request_finish", &to::FINISHED),
        counter("request_success", &to::FINISHED)
            .labelled(&[(&attr::INFERENCE_FINISH_REASON, "success")])
            .renamed("request_finish"),
        counter("request_failure", &to::FINISHED)
            .labelled(&[(&attr::INFERENCE_FINISH_REASON, "error")]),
        histogram("request_prompt_tokens", &to::REQUEST_PROMPT_TOKENS),
        histogram("request_generation_tokens", &to::REQUEST_GENERATED_TOKENS),
    ],
    unread: &[],
};
