//! Metrics of inference engines, as the engines' own pages say them.
//!
//! What means the same in every engine has one name: `gen_ai.server.*` where OpenTelemetry's
//! semantic conventions define it, else `inference.*`. What only one engine has bears that engine's
//! name. Counters stay counters, distributions keep the engine's buckets, and nothing is averaged;
//! a series that an engine does not have is absent, never 0.

use super::metrics;
use crate::ids::EngineId;
use crate::sample::Histogram;

metrics! {
    /// Time from a request's arrival to the end of its answer.
    REQUEST_DURATION: Histogram<Histogram> of EngineId = "gen_ai.server.request.duration" ["s"]
        from "vLLM, SGLang and TensorRT-LLM e2e_request_latency_seconds, TGI tgi_request_duration, NIM e2e_request_latency_seconds";
    /// Time from a request's arrival to its first token. SGLang counts requests that are not
    /// streamed too: their first token comes with the last.
    TIME_TO_FIRST_TOKEN: Histogram<Histogram> of EngineId = "gen_ai.server.time_to_first_token" ["s"]
        from "time_to_first_token_seconds; Triton nv_inference_first_response_histogram_ms";
    /// Mean time of a request's tokens after the first one, one observation a request.
    TIME_PER_OUTPUT_TOKEN: Histogram<Histogram> of EngineId =
        "gen_ai.server.time_per_output_token" ["s"]
        from "request_time_per_output_token_seconds, TensorRT-LLM time_per_output_token_seconds, TGI tgi_request_mean_time_per_token_duration";
    /// Time between two tokens, one observation a token (SGLang: a chunk).
    INTER_TOKEN: Histogram<Histogram> of EngineId = "inference.inter_token.duration" ["s"]
        from "inter_token_latency_seconds, in older versions and NIM time_per_output_token_seconds";
    /// Requests whose tokens are being computed.
    RUNNING: UpDownCounter<i64> of EngineId = "inference.requests.running" ["{request}"]
        from "num_requests_running, SGLang num_running_reqs, TGI tgi_batch_current_size, llama.cpp requests_processing";
    /// Requests that wait to be computed.
    WAITING: UpDownCounter<i64> of EngineId = "inference.requests.waiting" ["{request}"]
        from "num_requests_waiting, SGLang num_queue_reqs, TGI tgi_queue_size, Triton nv_inference_pending_request_count, llama.cpp requests_deferred";
    /// Requests moved to the host's memory; vLLM before 0.9 only.
    SWAPPED: UpDownCounter<i64> of EngineId = "inference.requests.swapped" ["{request}"]
        from "vLLM num_requests_swapped";
    /// Most requests that the engine computes at once.
    MAX_RUNNING: UpDownCounter<i64> of EngineId = "inference.requests.limit" ["{request}"]
        from "NIM num_request_max, TensorRT-LLM max_num_active_requests";
    /// Requests that ended, by the engine's own reason (`inference.finish_reason`): `stop`,
    /// `length`, `abort`, `error`, …. An engine that tells no reason has `finished`, one that tells
    /// only success and failure `success` and `error`. SGLang's `finished` may include requests
    /// that it counts as `abort` too.
    FINISHED: Counter<i64> of EngineId = "inference.requests.finished" ["{request}"]
        from "vLLM and TensorRT-LLM request_success, SGLang num_requests and num_aborted_requests, Triton nv_inference_request_success and _failure, TGI tgi_request_success and _failure, NIM request_finish and request_failure";
    /// Requests refused at admission.
    REJECTED: Counter<i64> of EngineId = "inference.requests.rejected" ["{request}"]
        from "vLLM admission_rejections";
    /// Tokens of the prompts, those from a cache included.
    PROMPT_TOKENS: Counter<i64> of EngineId = "inference.tokens.prompt" ["{token}"]
        from "prompt_tokens, TGI sum of tgi_request_input_length";
    /// Tokens of the prompts that came from a cache and were not computed.
    CACHED_TOKENS: Counter<i64> of EngineId = "inference.tokens.cached" ["{token}"]
        from "vLLM prompt_tokens_cached, SGLang cached_tokens, TensorRT-LLM prompt_cached_tokens, llama.cpp prompt_tokens_cached";
    /// Tokens generated. vLLM counts each step; SGLang and TGI count a request's tokens when it
    /// ends (`sglang.tokens.realtime` moves meanwhile).
    GENERATED_TOKENS: Counter<i64> of EngineId = "inference.tokens.generated" ["{token}"]
        from "generation_tokens, TGI sum of tgi_request_generated_tokens, llama.cpp tokens_predicted";
    /// Time a request waited before it was computed first.
    QUEUE_DURATION: Histogram<Histogram> of EngineId = "inference.request.queue.duration" ["s"]
        from "vLLM and TensorRT-LLM request_queue_time_seconds, SGLang queue_time_seconds, TGI tgi_request_queue_duration";
    /// Time a request's prompt was computed.
    PREFILL_DURATION: Histogram<Histogram> of EngineId = "inference.request.prefill.duration" ["s"]
        from "vLLM and TensorRT-LLM request_prefill_time_seconds, SGLang per_stage_req_latency_seconds of prefill_forward";
    /// Time a request's tokens were generated after the first.
    DECODE_DURATION: Histogram<Histogram> of EngineId = "inference.request.decode.duration" ["s"]
        from "vLLM and TensorRT-LLM request_decode_time_seconds";
    /// Time a request was computed, from the end of its waiting to its end.
    INFERENCE_DURATION: Histogram<Histogram> of EngineId = "inference.request.inference.duration" ["s"]
        from "vLLM and TensorRT-LLM request_inference_time_seconds, TGI tgi_request_inference_duration";
    /// Prompts' lengths.
    REQUEST_PROMPT_TOKENS: Histogram<Histogram> of EngineId = "inference.request.prompt.size" ["{token}"]
        from "vLLM and NIM request_prompt_tokens, SGLang prompt_tokens_histogram, TGI tgi_request_input_length";
    /// Answers' lengths.
    REQUEST_GENERATED_TOKENS: Histogram<Histogram> of EngineId =
        "inference.request.generated.size" ["{token}"]
        from "vLLM and NIM request_generation_tokens, SGLang generation_tokens_histogram, TGI tgi_request_generated_tokens";
    /// Answers' greatest lengths as the requests allow them.
    REQUEST_MAX_TOKENS: Histogram<Histogram> of EngineId = "inference.request.limit.size" ["{token}"]
        from "vLLM request_params_max_tokens, TGI tgi_request_max_new_tokens";
    /// Part of the KV cache that requests hold, from 0 to 1. SGLang's does not count what may be
    /// evicted; TGI's is absent (`tgi.batch.tokens` by `tgi.batch.token.limit`).
    KV_CACHE_UTILIZATION: Gauge<f64> of EngineId = "inference.kv_cache.utilization" ["1"]
        from "vLLM kv_cache_usage_perc, before 0.9 and NIM gpu_cache_usage_perc, SGLang token_usage, TensorRT-LLM kv_cache_utilization, Triton nv_trt_llm_kv_cache_block_metrics, llama.cpp before mid-2025 kv_cache_usage_ratio";
    /// Tokens that the KV cache has room for.
    KV_CACHE_CAPACITY: UpDownCounter<i64> of EngineId = "inference.kv_cache.capacity" ["{token}"]
        from "vLLM cache_config_info (kv_cache_size_tokens, else num_gpu_blocks × block_size), SGLang max_total_num_tokens";
    /// Tokens looked up in the prefix cache. Hits divided by queries is the hit rate.
    PREFIX_QUERIES: Counter<i64> of EngineId = "inference.prefix_cache.queries" ["{token}"]
        from "vLLM prefix_cache_queries, SGLang all modes of prefill_effective_tokens";
    /// Tokens found in the prefix cache.
    PREFIX_HITS: Counter<i64> of EngineId = "inference.prefix_cache.hits" ["{token}"]
        from "vLLM prefix_cache_hits, SGLang the hits of prefill_effective_tokens";
    /// Requests that lost their place in the KV cache to others and are computed again.
    PREEMPTIONS: Counter<i64> of EngineId = "inference.preemptions" ["{preemption}"]
        from "vLLM num_preemptions, SGLang num_retracted_requests";
    /// Speculations: each drafts some tokens.
    DRAFTS: Counter<i64> of EngineId = "inference.speculation.drafts" ["{draft}"]
        from "vLLM and llama.cpp spec_decode_num_drafts";
    /// Tokens drafted.
    DRAFTED_TOKENS: Counter<i64> of EngineId = "inference.speculation.tokens.drafted" ["{token}"]
        from "spec_decode_num_draft_tokens";
    /// Tokens drafted that the model accepted. By position where the engine tells it
    /// (`vllm.speculation.tokens.accepted`).
    ACCEPTED_TOKENS: Counter<i64> of EngineId = "inference.speculation.tokens.accepted" ["{token}"]
        from "spec_decode_num_accepted_tokens";
    /// LoRA adapters that running requests use.
    LORA_RUNNING: Gauge<i64> of EngineId = "inference.lora.running" ["{adapter}"]
        from "running_lora_adapters of the newest vLLM lora_requests_info, SGLang lora_pool_slots_used";
    /// LoRA adapters that waiting requests use.
    LORA_WAITING: Gauge<i64> of EngineId = "inference.lora.waiting" ["{adapter}"]
        from "waiting_lora_adapters of the newest vLLM lora_requests_info";
    /// LoRA adapters that there is room for.
    LORA_LIMIT: Gauge<i64> of EngineId = "inference.lora.limit" ["{adapter}"]
        from "max_lora of the newest vLLM lora_requests_info, SGLang lora_pool_slots_total";
    /// Tokens computed in a step of the engine.
    STEP_TOKENS: Histogram<Histogram> of EngineId = "inference.step.size" ["{token}"]
        from "vLLM iteration_tokens_total";
    /// Requests computed together.
    BATCH_SIZE: Histogram<Histogram> of EngineId = "inference.batch.size" ["{request}"]
        from "TGI tgi_batch_next_size";
    /// Floating-point operations for each device, as the engine estimates them from the model.
    ESTIMATED_FLOPS: Counter<f64> of EngineId = "inference.estimated.operations" ["{operation}"]
        from "estimated_flops_per_gpu";
    /// Bytes read from each device's memory, as the engine estimates them.
    ESTIMATED_READ: Counter<f64> of EngineId = "inference.estimated.read" ["By"]
        from "estimated_read_bytes_per_gpu";
    /// Bytes written to each device's memory, as the engine estimates them.
    ESTIMATED_WRITTEN: Counter<f64> of EngineId = "inference.estimated.written" ["By"]
        from "estimated_write_bytes_per_gpu";
    /// HTTP answers of the engine's server.
    HTTP_RESPONSES: Counter<i64> of EngineId = "inference.http.responses" ["{response}"]
        from "http_requests of vLLM, http_responses of SGLang";

    /// Requests that wait, by what for.
    VLLM_WAITING: UpDownCounter<i64> of EngineId = "vllm.requests.waiting" ["{request}"]
        from "vllm:num_requests_waiting_by_reason";
    /// 1 for the state that the engine is in, 0 for the others.
    VLLM_SLEEP_STATE: Gauge<i64> of EngineId = "vllm.engine.sleep_state" ["{state}"]
        from "vllm:engine_sleep_state";
    /// Tokens of the prompts, by where they came from.
    VLLM_PROMPT_TOKENS: Counter<i64> of EngineId = "vllm.tokens.prompt" ["{token}"]
        from "vllm:prompt_tokens_by_source";
    /// Tokens of the prompts from a cache, by which.
    VLLM_CACHED_TOKENS: Counter<i64> of EngineId = "vllm.tokens.cached" ["{token}"]
        from "vllm:prompt_tokens_cached_by_source";
    /// Tokens looked up in the connector's cache.
    VLLM_EXTERNAL_QUERIES: Counter<i64> of EngineId = "vllm.external_cache.queries" ["{token}"]
        from "vllm:external_prefix_cache_queries";
    /// Tokens found in the connector's cache.
    VLLM_EXTERNAL_HITS: Counter<i64> of EngineId = "vllm.external_cache.hits" ["{token}"]
        from "vllm:external_prefix_cache_hits";
    /// Items looked up in the multimodal cache.
    VLLM_MULTIMODAL_QUERIES: Counter<i64> of EngineId = "vllm.multimodal_cache.queries" ["{item}"]
        from "vllm:mm_cache_queries";
    /// Items found in the multimodal cache.
    VLLM_MULTIMODAL_HITS: Counter<i64> of EngineId = "vllm.multimodal_cache.hits" ["{item}"]
        from "vllm:mm_cache_hits";
    /// Greatest number of tokens generated of the answers to a request.
    VLLM_MAX_GENERATED: Histogram<Histogram> of EngineId = "vllm.request.generated.greatest" ["{token}"]
        from "vllm:request_max_num_generation_tokens";
    /// Answers that a request asks for.
    VLLM_PARAMS_N: Histogram<Histogram> of EngineId = "vllm.request.answers" ["{answer}"]
        from "vllm:request_params_n";
    /// Preemptions of a request.
    VLLM_REQUEST_PREEMPTIONS: Histogram<Histogram> of EngineId = "vllm.request.preemptions" ["{preemption}"]
        from "vllm:request_num_preemptions";
    /// Tokens of a request whose keys and values were computed, not cached.
    VLLM_COMPUTED_TOKENS: Histogram<Histogram> of EngineId = "vllm.request.computed.size" ["{token}"]
        from "vllm:request_prefill_kv_computed_tokens";
    /// Tokens accepted, by their position in the draft.
    VLLM_ACCEPTED_TOKENS: Counter<i64> of EngineId = "vllm.speculation.tokens.accepted" ["{token}"]
        from "vllm:spec_decode_num_accepted_tokens_per_pos";
    /// Requests whose numbers were not numbers.
    VLLM_CORRUPTED: Counter<i64> of EngineId = "vllm.requests.corrupted" ["{request}"]
        from "vllm:corrupted_requests";
    /// How long a block of the KV cache lived.
    VLLM_BLOCK_LIFETIME: Histogram<Histogram> of EngineId = "vllm.kv_cache.block.lifetime" ["s"]
        from "vllm:kv_block_lifetime_seconds";
    /// How long a block of the KV cache was unused before it was evicted.
    VLLM_BLOCK_IDLE: Histogram<Histogram> of EngineId = "vllm.kv_cache.block.idle" ["s"]
        from "vllm:kv_block_idle_before_evict_seconds";
    /// Time between two uses of a block of the KV cache.
    VLLM_BLOCK_REUSE: Histogram<Histogram> of EngineId = "vllm.kv_cache.block.reuse" ["s"]
        from "vllm:kv_block_reuse_gap_seconds";
    /// Part of the KV cache in the host's memory that is used; before 0.9 only.
    VLLM_CPU_CACHE: Gauge<f64> of EngineId = "vllm.cpu_cache.utilization" ["1"]
        from "vllm:cpu_cache_usage_perc";
    /// The engine's own hit rate of the prefix cache; before 0.9 only, which had no counters.
    VLLM_PREFIX_HIT_RATE: Gauge<f64> of EngineId = "vllm.prefix_cache.hit_rate" ["1"]
        from "vllm:gpu_prefix_cache_hit_rate";
    /// The engine's own rate of accepted drafts; before 0.10 only.
    VLLM_ACCEPTANCE_RATE: Gauge<f64> of EngineId = "vllm.speculation.acceptance_rate" ["1"]
        from "vllm:spec_decode_draft_acceptance_rate";

    /// Tokens as they are computed, by mode.
    SGLANG_REALTIME_TOKENS: Counter<i64> of EngineId = "sglang.tokens.realtime" ["{token}"]
        from "sglang:realtime_tokens";
    /// Tokens of the prompts, by where they came from.
    SGLANG_PREFILL_TOKENS: Counter<i64> of EngineId = "sglang.tokens.prefill" ["{token}"]
        from "sglang:prefill_effective_tokens";
    /// Tokens that the KV cache holds for requests.
    SGLANG_USED_TOKENS: UpDownCounter<i64> of EngineId = "sglang.kv_cache.used" ["{token}"]
        from "sglang:kv_used_tokens, before 0.5.12 num_used_tokens";
    /// Tokens that the KV cache has free room for.
    SGLANG_AVAILABLE_TOKENS: UpDownCounter<i64> of EngineId = "sglang.kv_cache.available" ["{token}"]
        from "sglang:kv_available_tokens";
    /// Tokens of the prefix cache that may be evicted: in use, and no pressure.
    SGLANG_EVICTABLE_TOKENS: UpDownCounter<i64> of EngineId = "sglang.kv_cache.evictable" ["{token}"]
        from "sglang:kv_evictable_tokens";
    /// Requests whose grammar is being compiled.
    SGLANG_GRAMMAR_WAITING: UpDownCounter<i64> of EngineId = "sglang.requests.grammar_waiting" ["{request}"]
        from "sglang:num_grammar_queue_reqs";
    /// Requests retracted and not yet back.
    SGLANG_RETRACTED: UpDownCounter<i64> of EngineId = "sglang.requests.retracted" ["{request}"]
        from "sglang:num_retracted_reqs";
    /// Requests paused.
    SGLANG_PAUSED: UpDownCounter<i64> of EngineId = "sglang.requests.paused" ["{request}"]
        from "sglang:num_paused_reqs";
    /// Requests in a queue of disaggregated serving, by queue.
    SGLANG_QUEUED: UpDownCounter<i64> of EngineId = "sglang.requests.queued" ["{request}"]
        from "sglang:num_prefill_bootstrap_queue_reqs and its like";
    /// Time of a stage of a request.
    SGLANG_STAGE_DURATION: Histogram<Histogram> of EngineId = "sglang.request.stage.duration" ["s"]
        from "sglang:per_stage_req_latency_seconds";
    /// Lengths of the parts of prompts that were computed.
    SGLANG_UNCACHED_TOKENS: Histogram<Histogram> of EngineId = "sglang.request.uncached.size" ["{token}"]
        from "sglang:uncached_prompt_tokens_histogram";
    /// Time the scheduler spent, by stage.
    SGLANG_SCHEDULER_TIME: Counter<f64> of EngineId = "sglang.scheduler.time" ["s"]
        from "sglang:scheduler_stage_seconds";
    /// Time the scheduler had nothing to do.
    SGLANG_SCHEDULER_IDLE: Counter<f64> of EngineId = "sglang.scheduler.idle.time" ["s"]
        from "sglang:scheduler_idle_seconds";
    /// CPU time of the scheduler.
    SGLANG_SCHEDULER_CPU: Counter<f64> of EngineId = "sglang.scheduler.cpu.time" ["s"]
        from "sglang:scheduler_process_cpu_seconds";
    /// CPU time of the tokenizer and the detokenizer.
    SGLANG_CPU: Counter<f64> of EngineId = "sglang.process.cpu.time" ["s"]
        from "sglang:process_cpu_seconds";
    /// Time in which the device computed.
    SGLANG_FORWARD_TIME: Counter<f64> of EngineId = "sglang.forward.time" ["s"]
        from "sglang:forward_execution_seconds, before 0.5.12 gpu_execution_seconds";
    /// Passes of the model, by whether they were CUDA graphs.
    SGLANG_PASSES: Counter<i64> of EngineId = "sglang.passes" ["{pass}"]
        from "sglang:cuda_graph_passes";
    /// Length of speculations that the model accepted, of the last batches.
    SGLANG_ACCEPT_LENGTH: Gauge<f64> of EngineId = "sglang.speculation.accept_length" ["{token}"]
        from "sglang:spec_accept_length";
    /// Part of the drafted tokens that the model accepted, of the last batches.
    SGLANG_ACCEPT_RATE: Gauge<f64> of EngineId = "sglang.speculation.accept_rate" ["1"]
        from "sglang:spec_accept_rate";
    /// The engine's own hit rate of the prefix cache, of its last batch.
    SGLANG_HIT_RATE: Gauge<f64> of EngineId = "sglang.prefix_cache.hit_rate" ["1"]
        from "sglang:cache_hit_rate";
    /// Device memory of the model's weights.
    SGLANG_WEIGHT_MEMORY: UpDownCounter<i64> of EngineId = "sglang.memory.weights" ["By"]
        from "sglang:weight_memory_usage_gb";
    /// Device memory of the KV cache.
    SGLANG_KV_MEMORY: UpDownCounter<i64> of EngineId = "sglang.memory.kv_cache" ["By"]
        from "sglang:kv_cache_memory_usage_gb";
    /// Device memory of CUDA graphs.
    SGLANG_GRAPH_MEMORY: UpDownCounter<i64> of EngineId = "sglang.memory.graphs" ["By"]
        from "sglang:graph_memory_usage_gb";
    /// Time of a phase of the engine's start.
    SGLANG_STARTUP: Gauge<f64> of EngineId = "sglang.startup.duration" ["s"]
        from "sglang:startup_time_seconds";

    /// Inferences: of a request with a batch of n there are n.
    TRITON_INFERENCES: Counter<i64> of EngineId = "triton.inferences" ["{inference}"]
        from "nv_inference_count";
    /// Executions of a model. Inferences divided by executions is the mean batch.
    TRITON_EXECUTIONS: Counter<i64> of EngineId = "triton.executions" ["{execution}"]
        from "nv_inference_exec_count";
    /// Time of successful requests, added up. Divided by those that ended with `success` it is the
    /// mean.
    TRITON_REQUEST_TIME: Counter<f64> of EngineId = "triton.request.time" ["s"]
        from "nv_inference_request_duration_us";
    /// Time that successful requests waited, added up.
    TRITON_QUEUE_TIME: Counter<f64> of EngineId = "triton.request.queue.time" ["s"]
        from "nv_inference_queue_duration_us";
    /// Time for inputs of successful requests, added up.
    TRITON_INPUT_TIME: Counter<f64> of EngineId = "triton.request.input.time" ["s"]
        from "nv_inference_compute_input_duration_us";
    /// Time that models computed successful requests, added up.
    TRITON_INFER_TIME: Counter<f64> of EngineId = "triton.request.infer.time" ["s"]
        from "nv_inference_compute_infer_duration_us";
    /// Time for outputs of successful requests, added up.
    TRITON_OUTPUT_TIME: Counter<f64> of EngineId = "triton.request.output.time" ["s"]
        from "nv_inference_compute_output_duration_us";
    /// Answers found in the response cache.
    TRITON_CACHE_HITS: Counter<i64> of EngineId = "triton.response_cache.hits" ["{request}"]
        from "nv_cache_num_hits_per_model";
    /// Answers not found in the response cache.
    TRITON_CACHE_MISSES: Counter<i64> of EngineId = "triton.response_cache.misses" ["{request}"]
        from "nv_cache_num_misses_per_model";
    /// Time for answers found in the response cache, added up.
    TRITON_CACHE_HIT_TIME: Counter<f64> of EngineId = "triton.response_cache.hit.time" ["s"]
        from "nv_cache_hit_duration_per_model";
    /// Time for answers not found in the response cache, added up.
    TRITON_CACHE_MISS_TIME: Counter<f64> of EngineId = "triton.response_cache.miss.time" ["s"]
        from "nv_cache_miss_duration_per_model";
    /// Part of the response cache that is used.
    TRITON_CACHE_UTILIZATION: Gauge<f64> of EngineId = "triton.response_cache.utilization" ["1"]
        from "nv_cache_util";
    /// Answers removed from the response cache.
    TRITON_CACHE_EVICTIONS: Counter<i64> of EngineId = "triton.response_cache.evictions" ["{entry}"]
        from "nv_cache_num_evictions, whose type line says gauge";
    /// Pinned host memory for transfers.
    TRITON_PINNED_LIMIT: UpDownCounter<i64> of EngineId = "triton.pinned_memory.limit" ["By"]
        from "nv_pinned_memory_pool_total_bytes";
    /// Pinned host memory for transfers that is used.
    TRITON_PINNED_USED: UpDownCounter<i64> of EngineId = "triton.pinned_memory.used" ["By"]
        from "nv_pinned_memory_pool_used_bytes";
    /// Time a model took to load.
    TRITON_LOAD_DURATION: Gauge<f64> of EngineId = "triton.model.load.duration" ["s"]
        from "nv_model_load_duration_secs";
    /// Requests in TensorRT-LLM, by state.
    TRITON_TRTLLM_REQUESTS: UpDownCounter<i64> of EngineId = "triton.trtllm.requests" ["{request}"]
        from "nv_trt_llm_request_metrics";
    /// Blocks of TensorRT-LLM's KV cache, by state.
    TRITON_TRTLLM_BLOCKS: Gauge<f64> of EngineId = "triton.trtllm.kv_cache.blocks" ["{block}"]
        from "nv_trt_llm_kv_cache_block_metrics";

    /// Requests received.
    TGI_REQUESTS: Counter<i64> of EngineId = "tgi.requests" ["{request}"]
        from "tgi_request_count";
    /// Time a request's checks took.
    TGI_VALIDATION: Histogram<Histogram> of EngineId = "tgi.request.validation.duration" ["s"]
        from "tgi_request_validation_duration";
    /// Tokens that speculation saved, added up.
    TGI_SKIPPED_TOKENS: Counter<f64> of EngineId = "tgi.speculation.tokens.skipped" ["{token}"]
        from "sum of the summary tgi_request_skipped_tokens";
    /// Batches computed, by method.
    TGI_BATCHES: Counter<i64> of EngineId = "tgi.batches" ["{batch}"]
        from "tgi_batch_inference_count";
    /// Batches computed with success, by method.
    TGI_BATCHES_SUCCESS: Counter<i64> of EngineId = "tgi.batches.success" ["{batch}"]
        from "tgi_batch_inference_success";
    /// Batches that failed, by method.
    TGI_BATCHES_FAILURE: Counter<i64> of EngineId = "tgi.batches.failure" ["{batch}"]
        from "tgi_batch_inference_failure";
    /// Batches joined, by reason.
    TGI_CONCATENATIONS: Counter<i64> of EngineId = "tgi.batch.concatenations" ["{batch}"]
        from "tgi_batch_concat";
    /// Time of a batch, by method.
    TGI_BATCH_DURATION: Histogram<Histogram> of EngineId = "tgi.batch.duration" ["s"]
        from "tgi_batch_inference_duration";
    /// Time of a batch's pass through the model, by method.
    TGI_FORWARD_DURATION: Histogram<Histogram> of EngineId = "tgi.batch.forward.duration" ["s"]
        from "tgi_batch_forward_duration";
    /// Time to turn a batch's tokens into text, by method.
    TGI_DECODE_DURATION: Histogram<Histogram> of EngineId = "tgi.batch.decode.duration" ["s"]
        from "tgi_batch_decode_duration";
    /// Time to take finished requests out of a batch, by method.
    TGI_FILTER_DURATION: Histogram<Histogram> of EngineId = "tgi.batch.filter.duration" ["s"]
        from "tgi_batch_filter_duration";
    /// Time to join batches, by method.
    TGI_CONCAT_DURATION: Histogram<Histogram> of EngineId = "tgi.batch.concatenation.duration" ["s"]
        from "tgi_batch_concat_duration";
    /// Tokens that the running batch may grow to.
    TGI_BATCH_TOKENS: UpDownCounter<i64> of EngineId = "tgi.batch.tokens" ["{token}"]
        from "tgi_batch_current_max_tokens";
    /// Tokens that a batch may have.
    TGI_BATCH_TOKEN_LIMIT: UpDownCounter<i64> of EngineId = "tgi.batch.token.limit" ["{token}"]
        from "tgi_batch_max_total_tokens";

    /// Tokens of the prompts that were computed, without those from a cache.
    LLAMACPP_COMPUTED_TOKENS: Counter<i64> of EngineId = "llamacpp.tokens.computed" ["{token}"]
        from "llamacpp:prompt_tokens";
    /// Time in which prompts were computed, added up over the slots.
    LLAMACPP_PROMPT_TIME: Counter<f64> of EngineId = "llamacpp.prompt.time" ["s"]
        from "llamacpp:prompt_seconds";
    /// Time in which tokens were generated, added up over the slots.
    LLAMACPP_GENERATION_TIME: Counter<f64> of EngineId = "llamacpp.generation.time" ["s"]
        from "llamacpp:tokens_predicted_seconds";
    /// Passes of the model.
    LLAMACPP_DECODES: Counter<i64> of EngineId = "llamacpp.passes" ["{pass}"]
        from "llamacpp:n_decode";
}
