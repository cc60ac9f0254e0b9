//! Other names for the same points: l9gpu's boards on a real Prometheus, its names and OpenTelemetry's
//! at the real Collector, and the owner on a device's own points.

use crate::fixture::TRAINER;
use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, ReceivedValue};
use gpuwho_tests::kmsg::Kmsg;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::prometheus::{Prometheus, free_address, get};
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::Worker;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// A few ticks and scrapes, on a machine under load.
const WITHIN: Duration = Duration::from_mins(2);

/// What l9gpu's boards ask (`dashboards/*.json` of l9gpu 0.2), with any cluster, node and GPU: each
/// query has data. A rule's window is a few seconds here.
const BOARDS: &[&str] = &[
    // Fleet, node and single GPU.
    "count(gpu_utilization_ratio{gpu_task_type=\"compute\",host_name=~\".+\"})",
    "avg(gpu_utilization_ratio{gpu_task_type=\"compute\"})",
    "max by (host_name, gpu_index) (gpu_utilization_ratio{gpu_task_type=\"compute\",gpu_index=~\".+\"})",
    "count(gpu_utilization_ratio{gpu_task_type=\"compute\"} < 0.1) or vector(0)",
    "gpu_memory_utilization_ratio{gpu_task_type=\"memory_controller\"}",
    "gpu_utilization_max_ratio",
    "gpu_utilization_min_ratio",
    "gpu_utilization_avg_ratio",
    "host_memory_utilization_ratio",
    "max(gpu_temperature_celsius{gpu_temperature_sensor=\"edge\"})",
    "gpu_temperature_celsius{gpu_temperature_sensor=\"memory\"}",
    "sum(gpu_power_draw_watts)",
    "gpu_power_utilization_ratio",
    "rate(gpu_energy_consumption_mJ[10s]) / 1000",
    "avg by (host_name) (gpu_memory_used_percent)",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_memory_free_bytes",
    "gpu_clock_frequency_MHz{gpu_clock_type=\"graphics\"}",
    "gpu_clock_frequency_MHz{gpu_clock_type=\"memory\"}",
    "gpu_power_state",
    "gpu_encode_utilization_ratio",
    "gpu_decode_utilization_ratio",
    "sum(increase(gpu_ecc_errors{gpu_ecc_error_type=\"correctable\"}[10s]))",
    "gpu_ecc_errors{gpu_ecc_error_type=\"uncorrectable\",gpu_ecc_count_type=\"volatile\"}",
    "sum(gpu_throttle_reason)",
    "gpu_throttle_reason{gpu_throttle_cause=\"power_software\"}",
    "gpu_throttle_reason{gpu_throttle_cause=\"temp_hardware\"}",
    "gpu_throttle_reason{gpu_throttle_cause=\"temp_software\"}",
    "gpu_throttle_reason{gpu_throttle_cause=\"syncboost\"}",
    "gpu_pcie_throughput_bytes_per_second{gpu_interconnect_direction=\"receive\"}",
    "gpu_pcie_throughput_bytes_per_second{gpu_interconnect_direction=\"transmit\"}",
    "gpu_interconnect_throughput_bytes_per_second{gpu_interconnect_type=\"nvlink\",gpu_interconnect_direction=\"transmit\"}",
    "gpu_interconnect_throughput_bytes_per_second{gpu_interconnect_type=\"nvlink\",gpu_interconnect_direction=\"receive\"}",
    "rate(gpu_pcie_replay_count[10s])",
    "gpu_row_remap_count",
    "sum(gpu_xid_errors)",
    // What it sends and shows on no board.
    "gpu_health_score_ratio <= 1",
    "gpu_ecc_dbe_total",
    "gpu_row_remap_available",
    "gpu_pcie_link_gen_current",
    "gpu_pcie_link_width_current",
    "gpu_idle",
    "gpu_cost_per_gpu_hour_USD_per_hour",
    "gpu_cost_rate_USD_per_second",
    "gpu_sm_active_ratio{gpu_mig_enabled=\"false\"}",
    "gpu_pipe_tensor_active_ratio",
    // Its documents' spellings.
    "gpu_power_watts",
    "gpu_sm_clock_hertz",
    "gpu_errors_ecc_total",
    "gpu_throttle_reasons_flags",
    // DCGM profiling, native on its board.
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    // Inference.
    "sum(vllm_prompt_throughput_per_second)",
    "sum(vllm_generation_throughput_per_second{model_name=~\".+\"})",
    "vllm_ttft_seconds{quantile=\"p50\"}",
    "vllm_ttft_seconds{quantile=\"p95\"}",
    "vllm_ttft_seconds{quantile=\"p99\"}",
    "vllm_request_latency_seconds{quantile=\"p99\"}",
    "vllm_itl_seconds{quantile=\"p95\"}",
    "vllm_cache_usage_ratio{cache_type=\"gpu\"} * 100",
    "vllm_requests_running",
    "vllm_requests_waiting",
    "vllm_requests_finished_per_second{finish_reason=\"stop\"}",
    "vllm_cache_hit_rate_ratio",
    "nim_requests_total",
    "nim_requests_failed",
    "nim_request_latency_seconds{quantile=\"p50\"}",
    "nim_request_latency_seconds{quantile=\"p99\"}",
    "nim_queue_depth",
    "nim_kv_cache_usage_ratio",
    "triton_request_latency_microseconds",
    "triton_queue_latency_microseconds",
    "triton_requests_success_per_second",
    "triton_requests_failed_per_second",
    "triton_queue_depth",
    "triton_batch_size",
    "sglang_ttft_seconds{quantile=\"p95\"}",
    "sglang_itl_seconds{quantile=\"p50\"}",
    "sglang_prompt_throughput_per_second",
    "sglang_generation_throughput_per_second",
    "sglang_requests_running",
    "sglang_requests_waiting",
    "sglang_cache_hit_rate_ratio",
    "tgi_request_latency_seconds{quantile=\"p95\"}",
    "tgi_tpot_seconds{quantile=\"p50\"}",
    "tgi_batch_size{quantile=\"p50\"}",
    "tgi_queue_latency_seconds{quantile=\"p95\"}",
];

/// What they ask for in vain, and why.
const IN_VAIN: &[(&str, &str)] = &[
    ("gpu_fan_speed_ratio", "an H200 has no fan of its own; `rtx-pro-fans` has"),
    ("vllm_requests_swapped", "vLLM before 0.9 only"),
    ("vllm_cache_usage_ratio{cache_type=\"cpu\"}", "vLLM before 0.9 only"),
    ("vllm_cache_evictions_per_second", "no series of vLLM"),
    ("nim_batch_size", "no series of NIM"),
    ("nim_kv_cache_usage", "a name that l9gpu itself does not send; with _ratio there is one"),
];

/// A NIM's page by its documents; the recorded ones are of real engines.
const NIM_PAGE: &str = "\
# TYPE num_requests_running gauge
num_requests_running{model_name=\"m\"} 3
# TYPE num_requests_waiting gauge
num_requests_waiting{model_name=\"m\"} 2
# TYPE num_request_max gauge
num_request_max{model_name=\"m\"} 64
# TYPE gpu_cache_usage_perc gauge
gpu_cache_usage_perc{model_name=\"m\"} 0.25
# TYPE request_finish_total counter
request_finish_total{model_name=\"m\",finished_reason=\"stop\"} 40
# TYPE request_failure_total counter
request_failure_total{model_name=\"m\"} 4
# TYPE e2e_request_latency_seconds histogram
e2e_request_latency_seconds_bucket{model_name=\"m\",le=\"1.0\"} 20
e2e_request_latency_seconds_bucket{model_name=\"m\",le=\"2.0\"} 40
e2e_request_latency_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 40
e2e_request_latency_seconds_sum{model_name=\"m\"} 50
e2e_request_latency_seconds_count{model_name=\"m\"} 40
";

/// Serves an engine's page whose counters and buckets grow by a tenth with each request; gives its
/// address.
fn serve(page: String) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    // Ends with the test's process.
    thread::spawn(move || {
        for (round, stream) in (10_u64..).zip(listener.incoming()) {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let body = grown(&page, round);
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close";
            // A client that is gone is no fault here.
            let _gone = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    url
}

fn grown(page: &str, round: u64) -> String {
    let mut grows = false;
    let line = |line: &str| {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            grows = !of.ends_with(" gauge");
        }
        let sample = line.rsplit_once(' ').filter(|_| grows && !line.starts_with('#'));
        match sample.and_then(|(series, value)| Some((series, value.parse::<f64>().ok()?))) {
            Some((series, value)) => format!("{series} {}\n", (value * round as f64).round()),
            None => format!("{line}\n"),
        }
    };
    page.lines().map(line).collect()
}

fn recorded(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/engines").join(name);
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_query_of_l9gpus_boards_has_data_or_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let address = free_address(folder.path()).unwrap();
    let prometheus = or_skip!(Prometheus::start(&folder.path().join("prometheus"), &address));
    let nvml = FakeNvml::install(folder.path(), "h200x8-nvlink").unwrap();
    let mut kmsg = Kmsg::new(folder.path()).unwrap();
    let pages = [
        "vllm-0.32.0-busy",
        "sglang-0.5.23-busy",
        "triton-2.51.0-busy",
        "tgi-3.3.x-reconstructed-load",
    ];
    let pages = pages.map(|name| recorded(&format!("{name}.prom")));
    let pages = pages.into_iter().chain([NIM_PAGE.to_owned()]);
    let endpoints: Vec<String> =
        pages.map(|page| format!("{{ url = {:?} }}", serve(page))).collect();
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(folder.path().join("no-pod-logs")),
        kmsg: Some(kmsg.path()),
        more: format!(
            "{ALONE}[prometheus]\nlisten = {address:?}\nnames = [\"l9gpu\", \"dcgm\"]\n\
             [engines]\ninterval = \"1s\"\nendpoints = [{}]\n\
             [cost]\nprices = [{{ per_hour = 4.0 }}]\n",
            endpoints.join(", ")
        ),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let pci = "0000:10:00";
    let line = format!("NVRM: Xid (PCI:{pci}): 31, pid=1, name=python, Ch 00000008");
    let has = |query: &str| prometheus.query(query).is_ok_and(|found| !found.is_empty());
    let mut waiting: Vec<&str> = BOARDS.to_vec();
    let all = until(WITHIN, || {
        kmsg.write_line(&line).unwrap();
        waiting.retain(|query| !has(query));
        waiting.is_empty().then_some(())
    });
    assert!(all.is_some(), "no data for {waiting:#?}; agent: {:#?}", agent.log());
    for (query, reason) in IN_VAIN {
        assert!(!has(query), "{query} has data, though {reason}");
    }
    // Watts, not milliwatts; a fraction of a score.
    assert!(has("sum(gpu_power_draw_watts) < 10000") && !has("gpu_health_score_ratio > 1"));
    // One page has each series once, and no native name.
    let page = get(&address, "/metrics").unwrap();
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("gpu")) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(series.to_owned()), "{series} twice");
    }
    assert!(!page.contains("\ngpu_info{") && !page.contains("gpu_owner_"), "native names");
}

/// A point's name and kind at the Collector.
fn received(points: &[ReceivedPoint], metric: &str) -> Option<ReceivedPoint> {
    let mut named = points.iter().filter(|point| point.metric == metric);
    named.find(|point| point.value != ReceivedValue::None).cloned()
}

/// An agent that sends to a collector under these names, by `GPUWHO_OTLP_NAMES`.
fn sends(folder: &Path, collector: &Collector, names: &str) -> Agent {
    let nvml = FakeNvml::install(folder, "h200x8-nvlink").unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(folder.join("no-pod-logs")),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        launcher: vec!["env".to_owned(), format!("GPUWHO_OTLP_NAMES={names}")],
        more: ALONE.to_owned(),
        ..Config::default()
    };
    Agent::start(folder, &config, Some(&nvml)).unwrap()
}

#[test]
fn the_collector_gets_l9gpus_names_alone() {
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let _agent = sends(folder.path(), &collector, "[\"l9gpu\"]");
    let power = collector.wait_for(WITHIN, |points| {
        received(points, "gpu.interconnect.throughput")?;
        received(points, "gpu.power.draw")
    });
    let power = power.unwrap().expect("the power under l9gpu's name");
    assert_eq!((power.kind, power.unit.as_str()), (ReceivedKind::Gauge, "W"));
    assert!(power.attrs.contains_key("host.name") && power.attrs.contains_key("gpu.uuid"));
    let ReceivedValue::Double(watts) = power.value else { panic!("{power:?}") };
    assert!((20.0..1500.0).contains(&watts), "{watts} W");
    let points = collector.points().unwrap();
    assert!(received(&points, "gpu.power").is_none() && received(&points, "gpu.info").is_none());
    assert!(points.iter().all(|point| point.kind == ReceivedKind::Gauge), "gauges only");
}

#[test]
fn the_collector_gets_opentelemetrys_names_beside_the_native_ones() {
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let _agent = sends(folder.path(), &collector, "[\"native\", \"semconv\"]");
    let found = collector.wait_for(WITHIN, |points| {
        let of = |name| received(points, name);
        Some([of("gpu.energy")?, of("hw.energy")?, of("hw.temperature")?, of("hw.status")?])
    });
    let [native, energy, heat, status] = found.unwrap().expect("both names");
    assert_eq!((energy.kind, energy.unit.as_str()), (ReceivedKind::Counter, "J"));
    assert_eq!(energy.attrs["hw.type"], "gpu");
    assert_eq!(heat.attrs["hw.id"].split_once('/').unwrap().0, heat.attrs["hw.parent"]);
    assert_eq!(status.kind, ReceivedKind::UpDownCounter);
    let points = collector.points().unwrap();
    let same = |point: &&ReceivedPoint| {
        point.metric == "hw.energy" && point.attrs["hw.id"] == native.attrs["gpu.uuid"]
    };
    let energy = points.iter().find(same).expect("the same device");
    assert_eq!((energy.start, &energy.value), (native.start, &native.value), "the same reading");
}

#[test]
fn the_one_owner_of_a_device_is_on_its_own_points_where_that_is_wanted() {
    let mut stage = or_skip!(Stage::new());
    let address = free_address(stage.folder()).unwrap();
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let file = stage.folder().join("points.jsonl");
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        more: format!(
            "{ALONE}[prometheus]\nlisten = {address:?}\nnames = [\"native\", \"dcgm\"]\n\
             [sinks]\nfile = {file:?}\nowner_on_devices = true\n"
        ),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let first = stage.pod(&PodSpec { name: "trainer-0", ..TRAINER }).unwrap();
    let second = stage.pod(&PodSpec { name: "trainer-1", ..TRAINER }).unwrap();
    let one = Worker::on(&first, &[2]).unwrap();
    nvml.set_processes(2, &[Some(one.pid())]).unwrap();
    let page = || get(&address, "/metrics").unwrap();
    let line = |page: &str, name: &str, gpu: &str| -> Vec<String> {
        let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(gpu);
        page.lines().filter(is_it).map(str::to_owned).collect()
    };
    let heat =
        |page: &str, gpu: &str| line(page, "DCGM_FI_DEV_GPU_TEMP", &format!("gpu=\"{gpu}\""));
    let owner = "pod=\"trainer-0\",namespace=\"research\"";
    let owned = until(WITHIN, || {
        let page = page();
        let lines = heat(&page, "2");
        (lines.len() == 1 && lines[0].contains(owner)).then_some(page)
    });
    let owned = owned.unwrap_or_else(|| panic!("{:#?} {:#?}", heat(&page(), "2"), agent.log()));
    assert!(!heat(&owned, "3")[0].contains("pod="), "a device without an owner");
    let energy = line(&owned, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu=\"2\"");
    assert!(!energy.is_empty() && !energy[0].contains("pod="), "a counter: {energy:?}");
    let power = line(&owned, "gpu_power_watts", "gpu_index=\"2\"");
    assert!(power.len() == 1 && !power[0].contains("k8s_"), "the native names: {power:?}");
    let part = line(&owned, "gpu_owner_power_watts", "k8s_pod_name=\"trainer-0\"");
    assert_eq!(part.len(), 1, "{part:?}");

    // A second owner: nobody's alone.
    let two = Worker::on(&second, &[2]).unwrap();
    nvml.set_processes(2, &[Some(one.pid()), Some(two.pid())]).unwrap();
    let shared = until(WITHIN, || {
        let lines = heat(&page(), "2");
        (lines.len() == 1 && !lines[0].contains("pod=")).then_some(())
    });
    assert!(shared.is_some(), "{:#?}", heat(&page(), "2"));

    // The other sink has the owner on its gauges under the native names, not on counters and info.
    let text = std::fs::read_to_string(file).unwrap();
    let owned = |name: &str| {
        let name = format!("\"{name}\"");
        let of = text.lines().filter(|line| line.contains(&name));
        of.filter(|line| line.contains("trainer-0")).count()
    };
    assert!(owned("gpu.power") > 0 && owned("gpu.memory.usage") > 0, "{text}");
    assert_eq!((owned("gpu.energy"), owned("gpu.info"), owned("gpu.state")), (0, 0, 0));
}
