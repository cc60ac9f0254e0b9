use super::*;
use crate::settings::Settings;
use gpuwho_model::ids::{GpuUuid, ProcKey};
use gpuwho_model::sample::{SourcePart, Value as SampleValue};
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::attribute::fake::{FakeHost, opened};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::inventory::GpuInfo;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::UNIX_EPOCH;

/// A server whose page counts tokens, and who asked it for what.
struct Served {
    port: u16,
    requests: Receiver<String>,
}

/// Serves these pages one after the other, the last one for ever.
fn serve(pages: Vec<String>) -> Served {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, requests) = channel();
    thread::spawn(move || {
        let mut pages = pages.into_iter();
        let mut page = pages.next().unwrap();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let first = head.first().cloned().unwrap_or_default();
            let is_page = first.starts_with("GET /metrics ");
            let media = if is_page { "text/plain" } else { "application/json" };
            let body = if is_page { page.as_str() } else { "{\"version\":\"0.32.0\"}" };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\n\r\n{body}");
            if is_page {
                page = pages.next().unwrap_or(page.clone());
            }
            // Sent before the answer: whoever has the answer finds it.
            if sender.send(first).is_err() {
                return;
            }
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    Served { port, requests }
}

fn page(tokens: u32, started: u32) -> String {
    format!(
        "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {tokens}\n\
         # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n"
    )
}

/// An endpoint of the configuration.
fn endpoint(host: &FakeHost, port: u16) -> Endpoint {
    let text = format!("endpoints = [{{ url = \"http://127.0.0.1:{port}/metrics\" }}]");
    let settings = Settings::resolve(toml::from_str(&text).unwrap()).unwrap();
    let ownership = Ownership::new(&host.paths);
    let shared = settings.shared(&host.paths, &ownership, <_>::default(), Duration::from_mins(1));
    Endpoint::configured(1, &settings.endpoints[0], &shared).unwrap()
}

/// The tokens of a reading, and of which engine instance they are.
fn tokens(endpoint: &mut Endpoint) -> (i64, EngineId) {
    let mut batch = Batch::of(SourcePart { source: NAME, part: 1 }, UNIX_EPOCH);
    endpoint.collect(&mut batch);
    let is_it = |name: &str| name == "inference.tokens.generated";
    let mut found = batch.samples.iter().filter(|(_, sample)| is_it(sample.metric.name));
    let (_, sample) = found.next().unwrap();
    assert!(found.next().is_none(), "more than one");
    let SampleValue::Int(tokens) = sample.value else { panic!("{sample:?}") };
    assert_eq!(sample.subject, endpoint.id.into());
    (tokens, endpoint.id)
}

#[test]
fn an_endpoint_is_asked_once_a_reading_and_once_for_its_version() {
    let host = FakeHost::new();
    let served = serve(vec![page(1, 100)]);
    let mut endpoint = endpoint(&host, served.port);
    for _ in 0..3 {
        assert_eq!(tokens(&mut endpoint).0, 1);
    }
    let asked: Vec<String> = served.requests.try_iter().collect();
    let asked: Vec<&str> = asked.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(asked, ["/metrics", "/version", "/metrics", "/metrics"]);
}

#[test]
fn a_restart_begins_new_series_although_the_counters_are_higher() {
    let host = FakeHost::new();
    let served = serve(vec![page(5, 100), page(6, 100), page(70, 200), page(71, 200)]);
    let mut endpoint = endpoint(&host, served.port);
    let read: Vec<_> = (0..4).map(|_| tokens(&mut endpoint)).collect();
    assert_eq!(read.iter().map(|(tokens, _)| *tokens).collect::<Vec<_>>(), [5, 6, 70, 71]);
    let ids: Vec<_> = read.iter().map(|(_, id)| *id).collect();
    assert_eq!((ids[0], ids[2]), (ids[1], ids[3]));
    assert_ne!(ids[0], ids[2]);
    let engines = &endpoint.shared.engines;
    assert_eq!(engines.facts(ids[0]), None, "the old one is gone");
    assert_eq!(engines.facts(ids[2]).unwrap().version.as_deref(), Some("0.32.0"));
}

#[test]
fn a_tick_waits_for_no_endpoint_that_has_not_answered_yet() {
    let host = FakeHost::new();
    let served = serve(vec![page(1, 100)]);
    assert!(!endpoint(&host, served.port).is_awaited());
}

#[test]
fn a_page_of_dcgm_counts_only_from_an_exporter_of_the_hosts_root() {
    let host = FakeHost::new();
    let page = include_str!("../../../../../tests/fixtures/dcgm/dcgm-exporter-4-documented.prom");
    let endpoint = endpoint(&host, 9);
    let uuid = GpuUuid::new("GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a");
    endpoint.shared.inventory.put(GpuInfo::new(uuid, "nvidia", 0));
    // Any process that holds a device may call itself an engine.
    let process = ProcKey { pid: 7, start_ticks: 100 };
    host.start(process, "vllm", "0::/\n");
    let ownership = &endpoint.shared.ownership;
    ownership.observe(Evidence::Opened(opened(process, 1, 1_000_000_000)));
    let server = Server {
        engine: ENGINES.iter().copied().find(|engine| engine.name == "vllm"),
        annotated: None,
        process,
        network: 1,
        at: ([127, 0, 0, 1], 9).into(),
        cgroup: None,
        owner: ownership.attribution(process).unwrap(),
        holders: vec![process],
    };
    let mut batch = Batch::of(SourcePart { source: NAME, part: 1 }, UNIX_EPOCH);
    let mut read = |server| {
        let page = (Some(&dcgm::DCGM), page.as_bytes());
        read_devices(&endpoint.shared, 1, server, page, &mut batch)
    };
    let refused = read(Some(&server));
    assert!(matches!(refused, Err(ReadError::UntrustedExporter)), "{refused:?}");
    assert_eq!(batch.samples.len(), 0);
}

#[test]
fn a_page_of_dcgm_is_about_devices_and_no_engine_that_serves() {
    let host = FakeHost::new();
    let page = include_str!("../../../../../tests/fixtures/dcgm/dcgm-exporter-4-documented.prom");
    let served = serve(vec![page.to_owned()]);
    let mut endpoint = endpoint(&host, served.port);
    let uuid = GpuUuid::new("GPU-6d5c0ac5-74d7-3130-46f1-e93ed57f469a");
    let gpu = endpoint.shared.inventory.put(GpuInfo::new(uuid, "nvidia", 0));
    let mut batch = Batch::of(SourcePart { source: NAME, part: 1 }, UNIX_EPOCH);
    endpoint.collect(&mut batch);
    let of_device = batch.samples.iter().filter(|(_, sample)| sample.subject == gpu.into());
    let names: Vec<_> = of_device.map(|(_, sample)| sample.metric.name).collect();
    assert_eq!(names.len(), 12, "{names:?}");
    assert!(names.contains(&"gpu.sm.active"), "{names:?}");
    let facts = endpoint.shared.engines.facts(endpoint.id).unwrap();
    assert_eq!(facts.name, Some("dcgm-exporter"));
    assert_eq!(endpoint.shared.engines.all(), []);
}
