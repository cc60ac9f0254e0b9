use super::*;
use crate::table;
use gpuwho_model::labels::{MAX_NEW_PER_HOUR, SeenLabels};
use gpuwho_model::paths::Paths;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::sample::{Sample, Value};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_pipeline::series::SeriesRegistry;
use proptest::prelude::*;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

const ENGINE: EngineId = EngineId(7);

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/engines")
}

fn fixture(name: &str) -> String {
    std::fs::read_to_string(fixtures().join(name)).unwrap()
}

/// A sample in one line.
fn render(sample: &Sample) -> String {
    assert_eq!(sample.subject, ENGINE.into());
    let labels = sample.labels.iter().flat_map(|labels| labels.set().iter());
    let labels: Vec<_> = labels.map(|(key, value)| format!("{}={value}", key.name)).collect();
    let value = match &sample.value {
        Value::Int(number) => format!("{number}"),
        Value::Double(number) => format!("{number:?}"),
        Value::Histogram(histogram) => {
            let bounds = histogram.bounds.iter().map(|bound| format!("{bound}"));
            let buckets = bounds.chain(["inf".to_owned()]).zip(&histogram.counts);
            let buckets = buckets.filter(|(_, count)| **count != 0);
            let buckets: Vec<_> = buckets.map(|(le, count)| format!("{le}:{count}")).collect();
            let (sum, count) = (histogram.sum, histogram.count());
            let bounds = histogram.bounds.len();
            format!("sum {sum:?} count {count} bounds {bounds} [{}]", buckets.join(" "))
        }
    };
    format!("{}{{{}}} {value}", sample.metric.name, labels.join(","))
}

/// What a reader makes of a page.
fn read_by(reader: &mut PageReader, page: &[u8]) -> Result<Vec<String>, PageError> {
    let mut out = Batch::new("engine", UNIX_EPOCH);
    let summary = reader.read(page, ENGINE, &mut out)?;
    assert_eq!(summary.samples, out.samples.len());
    Ok(out.samples.iter().map(|(_, sample)| render(sample)).collect())
}

fn read(page: &str) -> Vec<String> {
    read_by(&mut PageReader::new(), page.as_bytes()).unwrap()
}

/// What is said of a page beside its samples.
fn summarise(page: &str, version: Option<&str>) -> String {
    let mut reader = PageReader::new();
    reader.set_version(version.and_then(Version::parse));
    let mut out = Batch::new("engine", UNIX_EPOCH);
    let PageSummary { engine, models, unknown, unknown_count, missing, first_bad, .. } =
        reader.read(page.as_bytes(), ENGINE, &mut out).unwrap();
    let bad = first_bad.map(|(line, cause)| format!(" bad {line}: {cause}")).unwrap_or_default();
    format!("{engine} {models:?} unknown {unknown_count} {unknown:?} missing {missing:?}{bad}")
}

/// The samples whose metric's name ends so.
fn of<'a>(samples: &'a [String], name: &str) -> Vec<&'a str> {
    let is_of = |sample: &&String| sample.split('{').next().unwrap().ends_with(name);
    samples.iter().filter(is_of).map(|sample| sample.split_once('{').unwrap().1).collect()
}

/// Every sample of every recorded page, compared with the file beside it, which
/// `GOLDEN=write cargo test -p gpuwho --lib recorded_pages` writes anew.
#[test]
fn recorded_pages_have_exactly_these_samples() {
    let mut pages: Vec<_> =
        std::fs::read_dir(fixtures()).unwrap().map(|e| e.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|ending| ending == "prom"));
    assert!(pages.len() >= 8, "{pages:?}");
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut samples = vec![format!("# {}", summarise(&text, None))];
        samples.extend(read(&text));
        let samples = samples.join("\n") + "\n";
        let golden = page.with_extension("samples");
        if std::env::var_os("GOLDEN").is_some() {
            std::fs::write(&golden, &samples).unwrap();
        }
        assert_eq!(samples, std::fs::read_to_string(&golden).unwrap(), "{}", page.display());
    }
}

#[test]
fn values_that_are_no_numbers_are_left_out_however_they_are_spelled() {
    let page = "# TYPE sglang:token_usage gauge\nsglang:token_usage{tp_rank=\"0\"} NaN\n\
                sglang:token_usage{tp_rank=\"1\"} Nan\nsglang:token_usage{tp_rank=\"2\"} +Inf\n\
                sglang:token_usage{tp_rank=\"3\"} 1.5e-001\n";
    assert_eq!(of(&read(page), "kv_cache.utilization"), ["inference.tensor_parallel.rank=3} 0.15"]);
}

#[test]
fn names_are_known_with_colons_and_without() {
    let page = "# TYPE vllm_num_requests_running gauge\nvllm_num_requests_running 3\n";
    assert_eq!(read(page), ["inference.requests.running{} 3"]);
}

#[test]
fn counters_are_counters_with_and_without_their_ending() {
    let triton = "# TYPE nv_inference_request_success counter\n\
                  nv_inference_request_success{model=\"m\",version=\"1\"} 9\n";
    let expected = "inference.requests.finished{gen_ai.request.model=m,inference.model.version=1,\
                    inference.finish_reason=success} 9";
    assert_eq!(read(triton), [expected]);
    // OpenMetrics names the family, the text format the series.
    for of in ["vllm:prompt_tokens", "vllm:prompt_tokens_total"] {
        let page = format!("# TYPE {of} counter\nvllm:prompt_tokens_total 5.0\n");
        assert_eq!(read(&page), ["inference.tokens.prompt{} 5"]);
    }
}

const STEPS: &str = "\
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le=\"1.0\"} 2.0
vllm:iteration_tokens_total_bucket{le=\"8.0\"} 5.0
vllm:iteration_tokens_total_bucket{le=\"+Inf\"} 6.0
vllm:iteration_tokens_total_count 6.0
vllm:iteration_tokens_total_sum 30.0
# TYPE vllm:iteration_tokens_total_created gauge
vllm:iteration_tokens_total_created 1.7e+09
";

#[test]
fn a_histogram_called_total_is_one_and_the_time_it_began_is_nothing() {
    let expected = "inference.step.size{} sum 30.0 count 6 bounds 2 [1:2 8:3 inf:1]";
    assert_eq!(read(STEPS), [expected]);
    assert_eq!(
        summarise(STEPS, Some("0.5.5")),
        "vllm [] unknown 0 [] missing [\"vllm:e2e_request_latency_seconds\", \
         \"vllm:time_to_first_token_seconds\", \"vllm:num_requests_running\", \
         \"vllm:num_requests_waiting\", \"vllm:request_success\", \"vllm:prompt_tokens\", \
         \"vllm:generation_tokens\", \"vllm:request_prompt_tokens\", \
         \"vllm:request_generation_tokens\", \"vllm:num_preemptions\"]"
    );
}

#[test]
fn gauges_with_bounds_are_no_histogram() {
    let page = "# TYPE sglang:routing_key_running_req_count gauge\n\
                sglang:routing_key_running_req_count{gt=\"0\",le=\"1\"} 4.0\n\
                sglang:routing_key_running_req_count{gt=\"1\",le=\"+Inf\"} 1.0\n";
    assert_eq!(read(page), [""; 0]);
    assert!(summarise(page, None).starts_with("sglang [] unknown 0 []"));
}

#[test]
fn of_many_info_series_the_newest_is_read_in_whatever_order() {
    let page = "# TYPE vllm:lora_requests_info gauge\n\
        vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"l1\",waiting_lora_adapters=\"\"} 1.795e+09\n\
        vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"l2,l1\",waiting_lora_adapters=\"l3\"} 1.796e+09\n\
        vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.794e+09\n";
    let mut reader = PageReader::new();
    let mut read = |page: &str| read_by(&mut reader, page.as_bytes()).unwrap();
    let adapters = |running, waiting| {
        let of = |what, count| format!("inference.lora.{what}{{}} {count}");
        [of("running", running), of("waiting", waiting), of("limit", 4)]
    };
    assert_eq!(read(page), adapters(2, 1));
    // The old sets of labels stay where they are; the last of them is the present one again.
    assert_eq!(read(&page.replace("1.794e", "1.797e")), adapters(0, 0));
}

#[test]
fn an_info_series_of_45_labels_is_read_and_one_that_names_no_number_is_not() {
    let labels: Vec<_> = (0..45).map(|n| format!("l{n}=\"{}\"", "x".repeat(60))).collect();
    let page = |size: &str| {
        format!(
            "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{},engine=\"1\",\
             kv_cache_size_tokens=\"{size}\"}} 1.0\n",
            labels.join(",")
        )
    };
    let expected = "inference.kv_cache.capacity{inference.data_parallel.rank=1} 1048576";
    assert_eq!(read(&page("1048576")), [expected]);
    assert_eq!(read(&page("None")), [""; 0]);
}

#[test]
fn a_summary_among_histograms_gives_its_sum_only() {
    let samples = read(&fixture("tgi-3.3.x-reconstructed-load.prom"));
    assert_eq!(of(&samples, "tokens.skipped"), ["} 36.0"]);
    assert_eq!(samples.iter().filter(|sample| sample.contains("skipped")).count(), 1);
}

#[test]
fn of_too_many_buckets_those_that_stay_are_exact() {
    let page = fixture("tgi-3.3.x-reconstructed-load.prom");
    let mut out = Batch::new("engine", UNIX_EPOCH);
    PageReader::new().read(page.as_bytes(), ENGINE, &mut out).unwrap();
    let is_batch = |(_, sample): &&(_, Sample)| sample.metric.name == "inference.batch.size";
    let (_, sample) = out.samples.iter().find(is_batch).unwrap();
    let Value::Histogram(histogram) = &sample.value else { panic!("{sample:?}") };
    assert!(histogram.bounds.len() > 64 && histogram.bounds.len() <= buckets::MAX_BOUNDS);
    assert_eq!((histogram.sum, histogram.count()), (130.0, 37));
    let mut up_to = 0;
    for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
        up_to += count;
        let line = format!("tgi_batch_next_size_bucket{{le=\"{bound}\"}} {up_to}\n");
        assert!(page.contains(&line), "{line}");
    }
    assert_eq!(histogram.bounds[..4], [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn histogram_bounds_may_change_between_scrapes() {
    let other = STEPS.replace("le=\"8.0\"", "le=\"16.0\"");
    let mut reader = PageReader::new();
    let first = read_by(&mut reader, STEPS.as_bytes()).unwrap();
    let second = read_by(&mut reader, other.as_bytes()).unwrap();
    assert_ne!(first, second);
    assert_eq!(second, ["inference.step.size{} sum 30.0 count 6 bounds 2 [1:2 16:3 inf:1]"]);
}

#[test]
fn what_is_absent_stays_absent() {
    let samples = read(&fixture("tgi-3.3.x-reconstructed-idle.prom"));
    assert_eq!(samples, ["tgi.batch.token.limit{} 2048"]);
}

#[test]
fn series_that_differ_in_dropped_labels_are_added_up_and_ratios_are_the_greatest() {
    let page = "# TYPE sglang:num_retracted_reqs gauge\n\
        sglang:num_retracted_reqs{pid=\"1\",tp_rank=\"0\"} 2.0\n\
        sglang:num_retracted_reqs{pid=\"2\",tp_rank=\"0\"} 3.0\n\
        # TYPE sglang:token_usage gauge\n\
        sglang:token_usage{pid=\"1\",tp_rank=\"0\"} 0.25\n\
        sglang:token_usage{pid=\"2\",tp_rank=\"0\"} 0.75\n\
        # TYPE vllm:iteration_tokens_total histogram\n";
    let samples = read(page);
    let rank = "inference.tensor_parallel.rank=0";
    assert_eq!(of(&samples, "requests.retracted"), [format!("{rank}}} 5")]);
    assert_eq!(of(&samples, "kv_cache.utilization"), [format!("{rank}}} 0.75")]);
    let twice = STEPS
        .replace("_total_bucket{", "_total_bucket{pid=\"1\",")
        .replace("_count 6", "_count{pid=\"1\"} 6")
        .replace("_sum 30", "_sum{pid=\"1\"} 30");
    let twice = twice.clone() + &twice.replace("pid=\"1\"", "pid=\"2\"");
    assert_eq!(read(&twice), ["inference.step.size{} sum 60.0 count 12 bounds 2 [1:4 8:6 inf:2]"]);
}

#[test]
fn ranks_and_models_of_one_page_are_series_of_their_own() {
    let page = "# TYPE vllm:num_requests_running gauge\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 50.0\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 5.0\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 1.0\n";
    assert_eq!(
        of(&read(page), "running"),
        [
            "gen_ai.request.model=a,inference.data_parallel.rank=0} 50",
            "gen_ai.request.model=a,inference.data_parallel.rank=1} 5",
            "gen_ai.request.model=b,inference.data_parallel.rank=0} 1",
        ]
    );
    assert!(summarise(page, None).starts_with("vllm [\"a\", \"b\"] unknown 0"));
}

#[test]
fn a_family_under_its_old_name_and_its_new_one_counts_once() {
    let histogram = |name: &str| STEPS.replace("iteration_tokens_total", name);
    let old = histogram("time_per_output_token_seconds");
    let both = histogram("inter_token_latency_seconds") + &old;
    let expected = "inference.inter_token.duration{} sum 30.0 count 6 bounds 2 [1:2 8:3 inf:1]";
    assert_eq!(read(&old), [expected]);
    assert_eq!(read(&both), [expected]);
    let counter = |name: &str| format!("# TYPE {name} counter\n{name}_total 7.0\n");
    let both = counter("vllm:gpu_prefix_cache_hits") + &counter("vllm:prefix_cache_hits");
    assert_eq!(read(&both), ["inference.prefix_cache.hits{} 7"]);
}

#[test]
fn labels_may_change_their_order() {
    let page = "# TYPE vllm:request_success counter\n\
        vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} 3.0\n";
    let other = page.replace(
        "engine=\"0\",finished_reason=\"stop\",model_name=\"m\"",
        "model_name=\"m\",finished_reason=\"stop\",engine=\"0\",new=\"x\"",
    );
    assert_eq!(read(page), read(&other));
}

#[test]
fn what_the_table_does_not_know_and_what_the_page_lacks_is_named() {
    let page = fixture("vllm-0.32.0-busy.prom");
    assert_eq!(summarise(&page, Some("0.32.0")), "vllm [\"tiny-llama\"] unknown 0 [] missing []");
    let drifted = page
        .replace("vllm:kv_cache_usage_perc", "vllm:kv_cache_fill")
        .replace("vllm:num_preemptions_total gauge", "vllm:num_preemptions_total counter")
        .replace(
            "# TYPE vllm:num_requests_running gauge",
            "# TYPE vllm:num_requests_running summary",
        );
    assert_eq!(
        summarise(&drifted, Some("0.32.0")),
        "vllm [\"tiny-llama\"] unknown 2 [\"vllm:num_requests_running\", \"vllm:kv_cache_fill\"] \
         missing [\"vllm:kv_cache_usage_perc\"]"
    );
    // Before 0.9 it had another name; of an unknown version nothing is said.
    let old = summarise(&drifted, Some("0.8.5"));
    assert!(old.ends_with("missing []"), "{old}");
    let unknown: String = (0..1000)
        .flat_map(|n| ["vllm:new_".to_owned(), n.to_string(), " 1\n".to_owned()])
        .collect();
    let mut reader = PageReader::new();
    let mut out = Batch::new("engine", UNIX_EPOCH);
    let summary = reader.read(unknown.as_bytes(), ENGINE, &mut out).unwrap();
    assert_eq!((summary.unknown_count, summary.unknown.len()), (1000, MAX_UNKNOWN));
}

#[test]
fn nim_is_known_by_two_names_and_only_where_no_engine_has_a_prefix() {
    let page = "num_requests_running{model_name=\"m\"} 2.0\nnum_request_max{model_name=\"m\"} 64.0\n\
        # TYPE prompt_tokens_total counter\nprompt_tokens_total{model_name=\"m\"} 1.15890e+011\n\
        # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.5e+009\n";
    let model = "{gen_ai.request.model=m}";
    let expected = [
        format!("inference.requests.running{model} 2"),
        format!("inference.requests.limit{model} 64"),
        format!("inference.tokens.prompt{model} 115890000000"),
    ];
    assert_eq!(read(page), expected);
    let mut reader = PageReader::new();
    let mut out = Batch::new("engine", UNIX_EPOCH);
    let summary = reader.read(page.as_bytes(), ENGINE, &mut out).unwrap();
    assert_eq!((summary.engine, summary.started), ("nim", Some(1.5e9)));
    let through = page.to_owned() + "vllm:num_requests_running{model_name=\"m\"} 3.0\n";
    assert_eq!(read(&through), [format!("inference.requests.running{model} 3")]);
}

#[test]
fn a_back_end_s_series_on_triton_s_page_say_whose_they_are() {
    let page = "# TYPE nv_inference_pending_request_count gauge\n\
        nv_inference_pending_request_count{model=\"m\",version=\"1\"} 1\n\
        # TYPE vllm:num_requests_waiting gauge\n\
        vllm:num_requests_waiting{model=\"m\",version=\"1\",model_name=\"m\"} 4\n";
    assert!(summarise(page, None).starts_with("triton [\"m\"] unknown 0"));
    let waiting = "gen_ai.request.model=m,inference.model.version=1";
    let expected = [format!("{waiting}}} 1"), format!("{waiting},gpuwho.engine.name=vllm}} 4")];
    assert_eq!(of(&read(page), "requests.waiting"), expected);
}

#[test]
fn units_become_the_catalogue_s_and_bounds_with_them() {
    let page = "# TYPE nv_inference_first_response_histogram_ms histogram\n\
        nv_inference_first_response_histogram_ms_bucket{model=\"m\",le=\"100\"} 1\n\
        nv_inference_first_response_histogram_ms_bucket{model=\"m\",le=\"+Inf\"} 2\n\
        nv_inference_first_response_histogram_ms_count{model=\"m\"} 2\n\
        nv_inference_first_response_histogram_ms_sum{model=\"m\"} 1050\n\
        # TYPE nv_inference_queue_duration_us counter\n\
        nv_inference_queue_duration_us{model=\"m\"} 3619018\n";
    let first = "gen_ai.request.model=m} sum 1.05 count 2 bounds 1 [0.1:1 inf:1]";
    assert_eq!(of(&read(page), "time_to_first_token"), [first]);
    assert_eq!(of(&read(page), "queue.time"), ["gen_ai.request.model=m} 3.619018"]);
}

#[test]
fn a_histogram_that_is_none_is_left_out_and_the_rest_is_read() {
    let lines = [
        ("_sum 30.0\n", "_sum_of 30.0\n"),
        ("{le=\"8.0\"} 5.0", "{le=\"8.0\"} 1.0"),
        ("{le=\"8.0\"} 5.0", "{le=\"8.0\"} NaN"),
        ("{le=\"8.0\"} 5.0", "{le=\"eight\"} 5.0"),
        ("{le=\"8.0\"} 5.0", "{le=\"8.0\"} -5.0"),
        ("_sum 30.0\n", "_sum NaN\n"),
    ];
    for (good, bad) in lines {
        let page = STEPS.replace(good, bad) + "vllm:num_requests_running 3\n";
        assert_ne!(page.find(bad), None);
        assert_eq!(read(&page), ["inference.requests.running{} 3"], "{bad}");
    }
    // Without the infinite bucket, all observations are those that the count says.
    let page = STEPS.replace("vllm:iteration_tokens_total_bucket{le=\"+Inf\"} 6.0\n", "");
    assert_eq!(read(&page), read(STEPS));
}

#[test]
fn a_bad_line_loses_itself_and_is_named() {
    let page = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n\
        vllm:num_requests_waiting{a=\"b 4\nvllm:num_requests_running 9\nvllm:num_requests_swapped 1";
    assert_eq!(read(page), ["inference.requests.running{} 3"]);
    let mut reader = PageReader::new();
    let mut out = Batch::new("engine", UNIX_EPOCH);
    let summary = reader.read(page.as_bytes(), ENGINE, &mut out).unwrap();
    assert_eq!((summary.bad_lines, summary.first_bad), (3, Some((3, LineError::Labels))));
    let long = format!("vllm:x{{a=\"{}\"}} 1\n", "y".repeat(1 << 17));
    assert_eq!(read(&(long + page)), ["inference.requests.running{} 3"]);
}

#[test]
fn what_is_no_page_of_an_engine_says_why() {
    let error = |page: &[u8]| read_by(&mut PageReader::new(), page).unwrap_err().to_string();
    let of = |line, cause| format!("the page is no exposition: line {line}: {cause}");
    assert_eq!(error(b"<html>\n<body>\n"), of(1, "no name of a series"));
    assert_eq!(error(b"{\"a\": 1}\n"), of(1, "labels are not well formed"));
    assert_eq!(error(b"\xff\xfe\n"), of(1, "not UTF-8"));
    assert_eq!(error(b""), "the page has no series");
    assert_eq!(error(b"# HELP a b\n\n"), "the page has no series");
    assert_eq!(error(b"node_load1 0.5\n"), "the page is of no known engine");
    assert_eq!(error(&vec![b'\n'; MAX_PAGE + 1]), "the page has 8388609 bytes, more than 8388608");
}

#[test]
fn a_page_without_end_is_read_up_to_its_bound() {
    let start = "vllm:num_requests_running 3\n";
    let page = start.to_owned() + &"vllm:x 1\n".repeat(1 << 18) + "vllm:num_requests_waiting 1\n";
    let mut reader = PageReader::new();
    for _ in 0..2 {
        let samples = read_by(&mut reader, page.as_bytes()).unwrap();
        assert_eq!(samples, ["inference.requests.running{} 3"]);
    }
    // The first line, those of one series, and the last one.
    assert_eq!(left_out(&mut reader, &page), (1 << 18) + 2 - MAX_LINES);
    // 2^18 labels of 16 a line.
    let labels: Vec<_> = (0..16).map(|n| format!("l{n}=\"\"")).collect();
    let line = |n| format!("vllm:x{n}{{{}}} 1\n", labels.join(","));
    let page: String = (0..20_000).map(line).collect();
    read_by(&mut reader, page.as_bytes()).unwrap();
    assert_eq!(left_out(&mut reader, &page), 20_000 - MAX_LABELS / 16);
}

/// Lines of a page that are too many.
fn left_out(reader: &mut PageReader, page: &str) -> usize {
    let mut out = Batch::new("engine", UNIX_EPOCH);
    reader.read(page.as_bytes(), ENGINE, &mut out).unwrap().left_out
}

#[test]
fn of_readers_that_share_a_turn_one_reads_at_a_time() {
    let drafting = ParseTurn::default();
    let page = fixture("vllm-0.32.0-busy.prom");
    let turn = drafting.0.lock();
    let (sender, read) = std::sync::mpsc::channel();
    let mut new = PageReader::sharing(&drafting, SeenLabels::default());
    let thread = std::thread::spawn(move || {
        let samples = read_by(&mut new, page.as_bytes()).unwrap();
        sender.send(samples.len()).unwrap();
    });
    assert!(read.try_recv().is_err());
    drop(turn);
    assert!(read.recv().unwrap() > 40);
    thread.join().unwrap();
}

/// A page whose histograms are without end: each of these families has 1,000 models with a bound of
/// its own.
fn histograms() -> String {
    let vllm = super::super::vllm::VLLM.families;
    let is_one =
        |family: &&table::Family| family.read == table::Read::Histogram && family.newer.is_none();
    let families = vllm.iter().filter(is_one);
    let mut page = String::new();
    for (at, name) in families.map(|family| family.upstream).enumerate() {
        writeln!(page, "# TYPE {name} histogram").unwrap();
        for model in 0..1000 {
            let labels = format!("model_name=\"{model}\"");
            let bound = at * 1000 + model;
            writeln!(page, "{name}_bucket{{{labels},le=\"{bound}\"}} 1").unwrap();
            writeln!(page, "{name}_sum{{{labels}}} 1\n{name}_count{{{labels}}} 1").unwrap();
        }
    }
    page
}

#[test]
fn a_page_of_series_without_end_has_its_first_ones() {
    let page = histograms();
    let mut reader = PageReader::new();
    let samples = read_by(&mut reader, page.as_bytes()).unwrap();
    let all = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(all > 3 * 2 * MAX_SERIES, "{all}");
    assert!(samples.len() <= MAX_SERIES, "{}", samples.len());
    let first = histograms()
        .lines()
        .take(1 + 3 * 1000)
        .fold(String::new(), |page, line| page + line + "\n");
    assert_eq!(samples[..1000], read(&first)[..1000]);
    assert!(page.lines().count() < MAX_LINES);
    assert_eq!(left_out(&mut reader, &page), all - 3 * MAX_SERIES);
    // Numbers as well.
    let line = |n| {
        format!(
            "vllm:num_requests_running{{model_name=\"m\",engine=\"{n}\"}} 1\nvllm:num_requests_waiting{{model_name=\"m\",engine=\"{n}\"}} 1\n"
        )
    };
    let page: String = (0..MAX_SERIES).map(line).collect();
    assert_eq!(left_out(&mut PageReader::new(), &page), MAX_SERIES);
}

#[test]
fn a_page_of_sixty_four_ranks_is_read_whole() {
    for (name, one) in
        [("vllm-0.32.0-busy", "engine=\"0\""), ("sglang-0.5.23-busy", "tp_rank=\"0\"")]
    {
        let page = fixture(&format!("{name}.prom"));
        let rank = |n: usize| page.replace(one, &one.replace('0', &n.to_string()));
        let lines = |page: &str| -> Vec<String> {
            page.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let types = page.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned);
        let first = lines(&page);
        let mut all: Vec<String> = types.chain(first.clone()).collect();
        for n in 1..64 {
            all.extend(lines(&rank(n)).into_iter().filter(|line| !first.contains(line)));
        }
        let all = all.join("\n") + "\n";
        let mut reader = PageReader::new();
        let samples = read_by(&mut reader, all.as_bytes()).unwrap();
        assert!(samples.len() > 64 * 20, "{name}: {}", samples.len());
        assert_eq!(
            (left_out(&mut reader, &all), reader.folded()),
            (0, 0),
            "{name}: {} lines",
            all.lines().count()
        );
    }
}

#[test]
fn models_without_end_are_folded_and_their_total_stays_right() {
    let line = |n| format!("vllm:num_requests_running{{model_name=\"m{n}\"}} 1\n");
    let page: String = (0..MAX_LABEL_SETS + 976).map(line).collect();
    let mut reader = PageReader::new();
    let samples = read_by(&mut reader, page.as_bytes()).unwrap();
    assert_eq!(samples.len(), MAX_LABEL_SETS + 1);
    let other = samples.iter().find(|sample| sample.contains("=other")).unwrap();
    assert_eq!(other, "inference.requests.running{gen_ai.request.model=other} 976");
    assert_eq!((reader.folded(), reader.notes.models.len()), (976, MAX_MODELS));
    let long = format!("vllm:num_requests_running{{model_name=\"{}\"}} 1\n", "m".repeat(9999));
    let mut reader = PageReader::new();
    read_by(&mut reader, long.as_bytes()).unwrap();
    assert_eq!(reader.notes.models[0].len(), 256);
}

#[test]
fn an_engine_that_renames_its_model_on_each_page_makes_few_series() {
    let page = |n: usize| format!("vllm:num_requests_running{{model_name=\"m{n}\"}} 1\n");
    let mut reader = PageReader::new();
    let read = |n| read_by(&mut reader, page(n).as_bytes()).unwrap().concat();
    let series: HashSet<String> = (0..1_000).map(read).collect();
    // The first, those that are new in an hour, and `other`.
    assert_eq!(series.len(), 1 + MAX_NEW_PER_HOUR + 1);
    assert!(series.contains("inference.requests.running{gen_ai.request.model=other} 1"));
    assert_eq!(reader.folded(), 999 - MAX_NEW_PER_HOUR as u64);
}

/// Points of a page that was read so many seconds after the epoch: metric, value, start, time.
fn points(
    (reader, series): (&mut PageReader, &mut SeriesRegistry),
    seconds: u64,
    page: &str,
) -> Vec<(&'static str, Value, u64, u64)> {
    let mut batch = Batch::new("engine", UNIX_EPOCH + Duration::from_secs(seconds));
    reader.read(page.as_bytes(), ENGINE, &mut batch).unwrap();
    let mut out = EnrichedBatch::default();
    series.enrich(&batch, &mut out);
    let second = 1_000_000_000;
    let alive = out.points.into_iter().filter(|point| point.value.is_some());
    alive
        .map(|p| (p.metric.name, p.value.unwrap(), p.start_ns / second, p.time_ns / second))
        .collect()
}

#[test]
fn an_engine_that_starts_again_or_loads_another_model_begins_its_counters_again() {
    let nowhere = Paths::under(std::path::Path::new("/nonexistent"));
    let mut series = SeriesRegistry::new(Arc::default(), Ownership::new(&nowhere));
    let mut reader = PageReader::new();
    let mut tick = |seconds, model: &str, tokens: u32, all: u32| {
        let page = format!(
            "# TYPE vllm:generation_tokens_total counter\n\
             vllm:generation_tokens_total{{model_name=\"{model}\"}} {tokens}\n\
             # TYPE vllm:iteration_tokens_total histogram\n\
             vllm:iteration_tokens_total_bucket{{le=\"+Inf\"}} {all}\n\
             vllm:iteration_tokens_total_sum 1.0\n"
        );
        let points = points((&mut reader, &mut series), seconds, &page);
        let count = |value| match value {
            Value::Histogram(histogram) => i64::try_from(histogram.count()).unwrap(),
            Value::Int(number) => number,
            Value::Double(number) => panic!("{number}"),
        };
        points.into_iter().map(|(_, value, start, _)| (count(value), start)).collect::<Vec<_>>()
    };
    // What was there before is no increase: it starts with its first point.
    assert_eq!(tick(10, "a", 100, 7), [(100, 10), (7, 10)]);
    assert_eq!(tick(20, "a", 130, 9), [(130, 10), (9, 10)]);
    // Started again: both began since the last page.
    assert_eq!(tick(30, "a", 5, 1), [(5, 20), (1, 20)]);
    assert_eq!(tick(40, "a", 6, 1), [(6, 20), (1, 20)]);
    // Another model is another series.
    assert_eq!(tick(50, "b", 3, 1), [(3, 50), (1, 20)]);
}

/// The families of sgl-project/sglang #24248: with priority scheduling `priority=""` is the total.
#[test]
fn a_total_beside_its_parts_counts_alone() {
    let samples = read(&fixture("sglang-priority-issue-24248.prom"));
    let value = |name| {
        let all = of(&samples, name);
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].rsplit_once(' ').unwrap().1.to_owned()
    };
    assert_eq!([value("requests.running"), value("requests.waiting")], ["7", "40"]);
    assert_eq!(value("sglang.requests.queued"), "3");
    // Without a total, and where the label is missing on some (Triton's instances of a model), all count.
    let running = |lines: &[&str]| {
        let line = |labels: &&str| format!("vllm:num_requests_running{{{labels}}} 5\n");
        let page: Vec<_> = lines.iter().map(line).collect();
        let samples = read(&page.concat());
        let samples = of(&samples, "requests.running").into_iter();
        samples.map(|one| one.rsplit_once(' ').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(running(&["priority=\"1\"", "priority=\"2\""]), ["10"]);
    assert_eq!(running(&["", "gpu_uuid=\"GPU-1\""]), ["10"]);
    // The total of another engine or model is none of these.
    assert_eq!(running(&["priority=\"\",tier=\"a\"", "priority=\"1\",tier=\"b\""]), ["10"]);
    assert_eq!(
        running(&[
            "tier=\"b\",priority=\"\"",
            "priority=\"1\",tier=\"b\"",
            "priority=\"2\",tier=\"b\""
        ]),
        ["5"]
    );
    // An empty label that is kept is a series like any other.
    assert_eq!(running(&["model_name=\"\"", "model_name=\"m\""]).len(), 2);
}

#[test]
fn trtllm_serve_is_an_engine() {
    let samples = read(&fixture("trtllm-serve-issue-4926.prom"));
    let with = "gen_ai.request.model=m";
    assert_eq!(of(&samples, "requests.running"), [format!("{with}}} 1")]);
    assert_eq!(of(&samples, "kv_cache.utilization"), [format!("{with}}} 0.12")]);
    let finished = format!("{with},inference.finish_reason=stop}} 2");
    assert_eq!(of(&samples, "requests.finished"), [finished]);
    assert_eq!(of(&samples, "server.request.duration").len(), 1);
}

/// Ray's own metrics agent has the families of its replicas' engines behind its own word, with a colon or
/// not (DataDog/integrations-core `vllm` has the first, netdata's tests the second).
#[test]
fn under_ray_an_engine_is_the_same() {
    for name in ["ray_vllm:num_requests_running", "ray_vllm_num_requests_running"] {
        let line = |replica| {
            format!("{name}{{ReplicaId=\"{replica}\",engine=\"0\",model_name=\"m\"}} 2\n")
        };
        let page = format!("# TYPE {name} gauge\n{}{}", line("a"), line("b"));
        let expected = "gen_ai.request.model=m,inference.data_parallel.rank=0} 4";
        assert_eq!(of(&read(&page), "requests.running"), [expected]);
    }
}

#[test]
fn minus_one_is_an_engine_s_word_for_nothing() {
    let page = "vllm:gpu_prefix_cache_hit_rate{model_name=\"m\"} -1.0\n\
                vllm:num_requests_running -1\nvllm:num_requests_waiting 3\n";
    assert_eq!(read(page).len(), 1, "{:?}", read(page));
}

#[test]
fn room_for_tokens_is_blocks_by_their_size_where_nobody_says_it() {
    let capacity = |labels| {
        let samples = read(&format!("vllm:cache_config_info{{{labels}}} 1.0\n"));
        of(&samples, "kv_cache.capacity").first().map(|one| (*one).to_owned())
    };
    let blocks = "block_size=\"16\",num_gpu_blocks=\"7281\"";
    assert_eq!(capacity(blocks).as_deref(), Some("} 116496"));
    // Layers of several kinds share the blocks.
    let said = "block_size=\"1568\",kv_cache_size_tokens=\"66901\",num_gpu_blocks=\"49\"";
    assert_eq!(capacity(said).as_deref(), Some("} 66901"));
    for unknown in [
        "block_size=\"16\"",
        "block_size=\"16\",num_gpu_blocks=\"None\"",
        "block_size=\"16\",kv_cache_size_tokens=\"None\",num_gpu_blocks=\"9\"",
    ] {
        assert_eq!(capacity(unknown), None, "{unknown}");
    }
}

#[test]
fn tables_are_sound() {
    for engine in super::super::ENGINES {
        assert!(!engine.prefixes.is_empty() || engine.marks.len() > 1, "{}", engine.name);
        for family in engine.families {
            let name = names::plain(family.upstream);
            assert!(!engine.is_unread(&name), "{name} is read and unread");
            let newer = |name| engine.families.iter().any(|family| family.upstream == name);
            assert!(family.newer.is_none_or(newer), "{name}: its newer name is not there");
        }
    }
}

/// Lines of pages, and what is no line.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let pages = ["vllm-0.32.0-busy.prom", "sglang-0.5.23-busy.prom", "triton-2.51.0-busy.prom"];
    let lines: Vec<Vec<u8>> = pages
        .iter()
        .flat_map(|name| {
            fixture(name).lines().map(|line| line.as_bytes().to_vec()).collect::<Vec<_>>()
        })
        .collect();
    prop_oneof![
        4 => proptest::sample::select(lines),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
        1 => "[a-z:_]{1,12}(\\{[a-z]{1,3}=\"[a-z\\\\\"]{0,4}\",?\\})? [0-9.eE+naNIif-]{1,6}( #? ?[0-9{}]{0,4})?"
            .prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn any_page_is_read_the_same_by_a_warm_reader_and_a_new_one(
        first in proptest::collection::vec(lines(), 0..60),
        second in proptest::collection::vec(lines(), 0..60),
    ) {
        let page = |lines: &[Vec<u8>]| {
            lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect::<Vec<u8>>()
        };
        let mut reader = PageReader::new();
        for page in [page(&first), page(&second)] {
            let warm = read_by(&mut reader, &page);
            prop_assert_eq!(warm, read_by(&mut PageReader::new(), &page));
        }
    }
}
