//! Hugging Face's text-generation-inference, from 1.4 to 3.3. Most of its series appear with their
//! first event; none names the model.

use super::table::{Engine, Signs, counter, histogram, level, sum};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::engine as to;

/// text-generation-inference. Its counters have no `_total`.
pub(super) static TGI: Engine = Engine {
    name: "tgi",
    prefixes: &["tgi_"],
    marks: &[],
    signs: Signs {
        programs: &["text-generation-router", "text-generation-launcher"],
        titles: &[],
        arguments: &[],
        ports: &[80, 3000, 9000],
        port_options: &["--prometheus-port", "--port", "-p"],
        version: Some(("/info", "version")),
        paths: &["/metrics"],
    },
    labels: &[
        ("model_name", &attr::GEN_AI_MODEL),
        ("err", &attr::ERROR_TYPE),
        ("method", &attr::INFERENCE_MODE),
        ("reason", &attr::INFERENCE_REASON),
    ],
    families: &[
        histogram("tgi_request_duration", &to::REQUEST_DURATION),
        histogram("tgi_request_mean_time_per_token_duration", &to::TIME_PER_OUTPUT_TOKEN),
        level("tgi_batch_current_size", &to::RUNNING),
        level("tgi_queue_size", &to::WAITING),
        counter("tgi_request_success", &to::FINISHED)
            .labelled(&[(&attr::INFERENCE_FINISH_REASON, "success")]),
        counter("tgi_request_failure", &to::FINISHED)
            .labelled(&[(&attr::INFERENCE_FINISH_REASON, "error")]),
        counter("tgi_request_count", &to::TGI_REQUESTS),
        sum("tgi_request_input_length", &to::PROMPT_TOKENS),
        sum("tgi_request_generated_tokens", &to::GENERATED_TOKENS),
        histogram("tgi_request_queue_duration", &to::QUEUE_DURATION),
        histogram("tgi_request_inference_duration", &to::INFERENCE_DURATION),
        histogram("tgi_request_validation_duration", &to::TGI_VALIDATION),
        histogram("tgi_request_input_length", &to::REQUEST_PROMPT_TOKENS),
        histogram("tgi_request_generated_tokens", &to::REQUEST_GENERATED_TOKENS),
        histogram("tgi_request_max_new_tokens", &to::REQUEST_MAX_TOKENS),
        histogram("tgi_batch_next_size", &to::BATCH_SIZE),
        // A summary, as no rule of the router gives it buckets.
        sum("tgi_request_skipped_tokens", &to::TGI_SKIPPED_TOKENS),
        counter("tgi_batch_inference_count", &to::TGI_BATCHES),
        counter("tgi_batch_inference_success", &to::TGI_BATCHES_SUCCESS),
        counter("tgi_batch_inference_failure", &to::TGI_BATCHES_FAILURE),
        counter("tgi_batch_concat", &to::TGI_CONCATENATIONS),
        histogram("tgi_batch_inference_duration", &to::TGI_BATCH_DURATION),
        histogram("tgi_batch_forward_duration", &to::TGI_FORWARD_DURATION),
        histogram("tgi_batch_decode_duration", &to::TGI_DECODE_DURATION),
        histogram("tgi_batch_filter_duration", &to::TGI_FILTER_DURATION),
        histogram("tgi_batch_concat_duration", &to::TGI_CONCAT_DURATION),
        level("tgi_batch_current_max_tokens", &to::TGI_BATCH_TOKENS),
        level("tgi_batch_max_total_tokens", &to::TGI_BATCH_TOKEN_LIMIT),
    ],
    unread: &[],
};
