//! The same ticks twice: scraped by the real Prometheus, and received by the real Collector.

use crate::points::ALONE;
use gpuwho_model::catalog::{self, dcgm};
use gpuwho_tests::agent::{Agent, Config, Otlp};
use gpuwho_tests::collector::received::{ReceivedKind, ReceivedPoint, ReceivedValue};
use gpuwho_tests::collector::{Collector, translate};
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::or_skip;
use gpuwho_tests::prometheus::{Prometheus, free_address, get};
use gpuwho_tests::until::until;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A few ticks and scrapes of half a second, on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);

/// The queries of NVIDIA's dashboard (Grafana 12239), with any host and any GPU, those of its
/// variables, and how many series each has for eight GPUs.
const DASHBOARD: &[(&str, usize)] = &[
    ("max(DCGM_FI_DEV_GPU_TEMP{Hostname=~'.+',gpu=~'.+'}) by (Hostname, gpu, uuid)", 8),
    ("avg(DCGM_FI_DEV_GPU_TEMP{instance=~'.+',gpu=~'.+'})", 1),
    ("max(DCGM_FI_DEV_POWER_USAGE{Hostname=~'.+',gpu=~'.+'}) by (Hostname, gpu, uuid)", 8),
    ("sum(max(DCGM_FI_DEV_POWER_USAGE{Hostname=~'.+',gpu=~'.+'}) by (gpu))", 1),
    ("max(DCGM_FI_DEV_SM_CLOCK{Hostname=~'.+',gpu=~'.+'} * 1000000) by (Hostname, UUID, gpu)", 8),
    ("max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{Hostname=~'.+',gpu=~'.+'}) by (gpu, GPU_I_ID)", 8),
    ("max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{Hostname=~'.+',gpu=~'.+'}) by (gpu, GPU_I_ID)", 8),
    ("max(DCGM_FI_DEV_FB_USED{Hostname=~'.+',gpu=~'.+'}) by (Hostname, gpu, GPU_I_PROFILE)", 8),
    ("DCGM_FI_DEV_GPU_UTIL{instance=~'.+',gpu=~'.+'}", 8),
    ("group(DCGM_FI_DEV_FB_FREE{Hostname=~'.+'}) by (Hostname, gpu)", 8),
];

/// What `promtool check metrics` finds in names that end in OpenTelemetry's own word for a number of
/// things.
const COUNT: &str = "should not have \"_count\" suffix";

/// A sample's name and labels.
type Series = (String, BTreeMap<String, String>);

#[test]
fn pull_and_push_agree_and_dcgm_s_dashboard_has_data() {
    let folder = tempfile::tempdir().unwrap();
    let collector = or_skip!(Collector::start(&folder.path().join("collector")));
    let address = free_address(folder.path()).unwrap();
    let prometheus = or_skip!(Prometheus::start(&folder.path().join("prometheus"), &address));
    let nvml = FakeNvml::install(folder.path(), "h200x8-nvlink").unwrap();
    let config = Config {
        interval: Some("500ms".to_owned()),
        deadline: Some("5s"),
        pod_logs: Some(folder.path().join("no-pod-logs")),
        otlp: Some(Otlp { endpoint: collector.http_endpoint(), protocol: None }),
        more: format!(
            "{ALONE}[prometheus]\nlisten = {address:?}\nnames = [\"native\", \"dcgm\"]\n"
        ),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();

    let scraped = until(WITHIN, || scrape(&prometheus));
    let scraped = scraped.unwrap_or_else(|| panic!("Prometheus has nothing: {:#?}", agent.log()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let now = u64::try_from(now).unwrap();
    let sent = collector.wait_for(WITHIN, |points| {
        // Every series has been sent again since.
        let has = |point: &ReceivedPoint| point.metric == "gpuwho.cpu.time" && point.time > now;
        points.iter().any(has).then(|| points.to_vec())
    });
    let sent = sent.unwrap().expect("the Collector receives what is scraped");
    let names = names(&sent);
    agree(&scraped, &sent, &names, now);
    kinds_agree(&prometheus, &sent, &names);
    names_are_prometheus_own(&names);
    is_clean(&get(&address, "/metrics").unwrap());
    dashboard_has_data(&prometheus);
}

/// The last samples of the agent, once all devices and the dashboards' metrics are there.
fn scrape(prometheus: &Prometheus) -> Option<HashMap<Series, f64>> {
    let count = |query: &str| prometheus.query(query).map_or(0, |found| found.len());
    let is_complete = count("gpu_energy_joules_total") == 8
        && count("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE") == 8
        && count("gpuwho_source_duration_seconds_count{gpuwho_source=\"nvidia\"}") == 1;
    if !is_complete {
        return None;
    }
    let all =
        prometheus.query("{job=\"gpuwho\",__name__!~\"DCGM_.*|up|scrape_.*|target_info\"}").ok()?;
    let samples = all.into_iter().map(|series| {
        let labels = series["metric"].as_object().unwrap().iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let mut labels: BTreeMap<_, _> =
            labels.map(|(key, value)| (key.clone(), text(value))).collect();
        let name = labels.remove("__name__").unwrap();
        // What a receiver promotes from the resource.
        assert!(labels.remove("host_name").is_some(), "{name} {labels:?}");
        labels.retain(|key, _| key != "job" && key != "instance");
        ((name, labels), text(&series["value"][1]).parse().unwrap())
    });
    Some(samples.collect())
}

/// Prometheus' own translation of what was received.
fn names(points: &[ReceivedPoint]) -> HashMap<String, String> {
    let metrics: BTreeMap<&str, &ReceivedPoint> =
        points.iter().map(|point| (point.metric.as_str(), point)).collect();
    let rows: Vec<[&str; 3]> =
        metrics.values().map(|point| [&point.metric, &point.unit, kind(point)]).collect();
    let names = translate(&rows).unwrap();
    assert_eq!(names.len(), rows.len());
    rows.iter().map(|[name, ..]| (*name).to_owned()).zip(names).collect()
}

fn kind(point: &ReceivedPoint) -> &'static str {
    match point.kind {
        ReceivedKind::Gauge => "gauge",
        ReceivedKind::UpDownCounter => "updowncounter",
        ReceivedKind::Counter => "counter",
        ReceivedKind::Histogram => "histogram",
        ReceivedKind::Other => panic!("{point:?}"),
    }
}

/// What a scrape shows of a received point; nothing of one that ends its series.
fn samples(point: &ReceivedPoint, names: &HashMap<String, String>) -> Vec<(Series, f64)> {
    let name = &names[&point.metric];
    let label = |key: &str| -> String {
        key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
    };
    // A label without a value is none.
    let attrs = point.attrs.iter().filter(|(_, value)| !value.is_empty());
    let labels: BTreeMap<_, _> = attrs.map(|(key, value)| (label(key), value.clone())).collect();
    let of = |suffix: &str| (format!("{name}{suffix}"), labels.clone());
    match &point.value {
        ReceivedValue::None => Vec::new(),
        ReceivedValue::Int(number) => vec![(of(""), *number as f64)],
        ReceivedValue::Double(number) => vec![(of(""), *number)],
        ReceivedValue::Histogram { bounds, counts, sum } => {
            let mut all = vec![(of("_sum"), *sum)];
            let mut count = 0;
            for (at, in_bucket) in counts.iter().enumerate() {
                count += in_bucket;
                let bound =
                    bounds.get(at).map_or_else(|| "+Inf".to_owned(), |le| format!("{le:?}"));
                let mut series = of("_bucket");
                series.1.insert("le".to_owned(), bound);
                all.push((series, count as f64));
            }
            all.push((of("_count"), count as f64));
            all
        }
    }
}

/// Each scraped value was sent under the same name and labels, and what was sent before and after
/// the scrape is in it.
fn agree(
    scraped: &HashMap<Series, f64>,
    sent: &[ReceivedPoint],
    names: &HashMap<String, String>,
    now: u64,
) {
    let mut values: HashMap<Series, (Vec<f64>, u64)> = HashMap::new();
    for point in sent {
        for (series, value) in samples(point, names) {
            let (all, first) = values.entry(series).or_insert((Vec::new(), point.time));
            all.push(value);
            *first = point.time.min(*first);
        }
    }
    let wrong: Vec<_> = scraped
        .iter()
        .filter(|(series, value)| {
            let all = values.get(*series).map_or(&[][..], |(all, _)| all);
            !all.iter().any(|sent| is_same(*sent, **value))
        })
        .map(|(series, value)| (series, value, values.get(series)))
        .take(5)
        .collect();
    assert!(wrong.is_empty(), "scraped, but not sent so: {wrong:#?}");
    // Prometheus scrapes twice a second: what is five seconds older was there.
    let old = now - 5_000_000_000;
    let ended: BTreeSet<&str> =
        sent.iter().filter(|point| point.ended()).map(|point| point.metric.as_str()).collect();
    let ended: BTreeSet<&String> = ended.into_iter().map(|metric| &names[metric]).collect();
    let missing: Vec<_> = values
        .iter()
        .filter(|((name, _), (_, first))| *first < old && !ended.contains(name))
        .filter(|(series, _)| !scraped.contains_key(*series))
        .take(5)
        .collect();
    assert!(missing.is_empty(), "sent, but not scraped: {missing:#?}");
    assert!(scraped.len() > 1000, "{} series of eight devices", scraped.len());
}

/// serde_json reads the last bit of a number as it likes.
fn is_same(sent: f64, scraped: f64) -> bool {
    (sent - scraped).abs() <= scraped.abs() * 1e-15
}

fn kinds_agree(prometheus: &Prometheus, sent: &[ReceivedPoint], names: &HashMap<String, String>) {
    let metadata = prometheus.metadata().unwrap();
    let mut checked = 0;
    for point in sent {
        // OpenMetrics names a counter without its suffix.
        let name = names[&point.metric].trim_end_matches("_total");
        let Some(found) = metadata[name][0]["type"].as_str() else { continue };
        let expected = match point.kind {
            ReceivedKind::UpDownCounter => "gauge",
            _ => kind(point),
        };
        assert_eq!(found, expected, "{name}");
        checked += 1;
    }
    assert!(checked > 1000, "{checked} points have metadata");
}

/// Of the whole catalogue, and not only of what was sent here.
fn names_are_prometheus_own(sent: &HashMap<String, String>) {
    let rows: Vec<_> = catalog::all().map(|def| [def.name, def.unit, def.kind.as_str()]).collect();
    let theirs = translate(&rows).unwrap();
    let ours: Vec<String> = gpuwho_export::prometheus::names().collect();
    assert_eq!(ours, theirs);
    assert!(sent.values().all(|name| ours.contains(name)));
}

fn is_clean(answer: &str) {
    let page = answer.split_once("\r\n\r\n").unwrap().1;
    let promtool = std::env::var_os("GPUWHO_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let page = page.to_owned();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(page.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    // dcgm-exporter's names are what they are.
    let is_ours = |line: &&str| !line.starts_with("DCGM_") && !line.ends_with(COUNT);
    let found: Vec<_> = said.lines().filter(is_ours).collect();
    assert!(found.is_empty(), "{found:#?}");
}

fn dashboard_has_data(prometheus: &Prometheus) {
    for (query, series) in DASHBOARD {
        let found = prometheus.query(query).unwrap();
        assert_eq!(found.len(), *series, "{query}: {found:#?}");
    }
    let old = |metric: &dcgm::DcgmMetric| metric.name(dcgm::Vocabulary::Old);
    for (name, metric) in dcgm::ALL.iter().filter_map(|metric| Some((old(metric)?, metric))) {
        let found = prometheus.query(name).unwrap();
        assert_eq!(!found.is_empty(), metric.from.is_ok(), "{name}");
    }
}
