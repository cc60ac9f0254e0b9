//! Filters, one key after the other.

use super::*;
use gpuwho_model::catalog::attributes::{AttrSet, GPU_UUID, K8S_NAMESPACE_NAME};
use gpuwho_model::catalog::device;
use gpuwho_model::sample::Value;
use std::sync::Mutex;

/// What a sink got.
type Seen = Arc<Mutex<Vec<(&'static str, u64, bool)>>>;

#[derive(Debug, Default)]
struct Recorder(Seen, Arc<Mutex<Vec<&'static str>>>);

impl Sink for Recorder {
    fn export(&mut self, batch: &EnrichedBatch) {
        let of = |point: &Point| (point.metric.name, point.time_ns, point.value.is_none());
        self.0.lock().unwrap().extend(batch.points.iter().map(of));
    }
    fn export_events(&mut self, records: &[Record]) {
        self.1.lock().unwrap().extend(records.iter().map(|record| record.name));
    }
    fn flush(&mut self, _: Instant) {}
    fn report(&self) -> Report {
        Report::default()
    }
}

fn filter(text: &str) -> Result<Filter, String> {
    let raw: RawFilter = toml::from_str(text).unwrap();
    Filter::resolve("otlp.filter", Some(&raw)).map_err(|error| error.to_string())
}

fn labels(namespace: Option<&str>) -> Arc<Labels> {
    let mut set = AttrSet::new();
    set.set(&GPU_UUID, "GPU-1");
    set.set_some(&K8S_NAMESPACE_NAME, namespace);
    Arc::new(Labels::new(set))
}

fn point(metric: &'static MetricDef, labels: &Arc<Labels>, time_ns: u64) -> Point {
    let value = Some(Value::Double(1.0));
    Point { metric, labels: Arc::clone(labels), value, start_ns: 0, time_ns }
}

fn record(name: &'static str, namespace: Option<&str>) -> Record {
    let attributes = labels(namespace).to_set();
    let (severity, severity_text, body) = (9, "info", "".into());
    Record { name, severity, severity_text, time_ns: 1, observed_ns: 1, body, attributes }
}

fn passed(text: &str, points: Vec<Point>) -> Vec<&'static str> {
    let recorder = Recorder::default();
    let seen = Arc::clone(&recorder.0);
    let mut sink = filter(text).unwrap().before(Box::new(recorder), Duration::from_secs(1));
    sink.export(&EnrichedBatch { points });
    seen.lock().unwrap().iter().map(|(name, ..)| *name).collect()
}

#[test]
fn metrics_pass_by_name_and_not_those_that_are_excluded() {
    let one = labels(None);
    let points =
        || [device::POWER.def(), device::ENERGY.def()].map(|def| point(def, &one, 1)).into();
    assert_eq!(passed("metrics = [\"gpu.pow*\"]", points()), ["gpu.power"]);
    assert_eq!(passed("exclude = [\"gpu.power\"]", points()), ["gpu.energy"]);
    assert_eq!(passed("metrics = [\"gpu.*\"]\nexclude = [\"*\"]", points()), [""; 0]);
    assert!(!filter("metrics = []").unwrap().has_metrics());
    assert!(filter("metrics = []").unwrap().has_events());
}

#[test]
fn points_and_events_pass_by_attribute() {
    let [ours, theirs, none] = [Some("team-a"), Some("prod"), None].map(labels);
    let text = "attributes = { \"k8s.namespace.name\" = [\"team-*\", \"lab\"] }";
    let points = [&ours, &theirs, &none].map(|one| point(device::POWER.def(), one, 1)).to_vec();
    assert_eq!(passed(text, points), ["gpu.power"]);
    let recorder = Recorder::default();
    let seen = Arc::clone(&recorder.1);
    let mut sink = filter(text).unwrap().before(Box::new(recorder), Duration::from_secs(1));
    let names = [("a", Some("team-b")), ("b", Some("teams")), ("c", None), ("d", Some("lab"))];
    sink.export_events(&names.map(|(name, namespace)| record(name, namespace)));
    assert_eq!(*seen.lock().unwrap(), ["a", "d"]);
}

#[test]
fn events_pass_by_kind() {
    let recorder = Recorder::default();
    let seen = Arc::clone(&recorder.1);
    let only = filter("events = [\"gpu.xid\", \"nccl.*\"]").unwrap();
    let mut sink = only.before(Box::new(recorder), Duration::from_secs(1));
    sink.export_events(&["gpu.xid", "gpu.lost", "nccl.rank.hung"].map(|name| record(name, None)));
    assert_eq!(*seen.lock().unwrap(), ["gpu.xid", "nccl.rank.hung"]);
    assert!(!filter("events = []").unwrap().has_events());
}

#[test]
fn at_a_multiple_each_series_has_its_latest_point_and_no_end_is_missed() {
    let (steady, rare) = (labels(None), labels(Some("rare")));
    let second = Duration::from_secs(1);
    let mut latest = Latest::new(second * 3, second);
    let (start, mut sent) = (Instant::now(), Vec::new());
    for tick in 0_u32..7 {
        latest.put(&point(device::POWER.def(), &steady, u64::from(tick)));
        if tick == 1 {
            latest.put(&point(device::POWER.def(), &rare, 1));
        }
        if tick == 4 {
            latest.put(&Point { value: None, ..point(device::POWER.def(), &rare, 4) });
        }
        let mut out = Vec::new();
        // A tick may come a little early.
        let early = Duration::from_millis(999);
        latest.take_due(start + early * tick, &mut out);
        let mut times: Vec<_> = out.iter().map(|p| (p.time_ns, p.value.is_none())).collect();
        times.sort_unstable();
        sent.push(times);
    }
    let none = Vec::new();
    let expected = [
        vec![(0, false)],
        none.clone(),
        none.clone(),
        vec![(1, false), (3, false)],
        none.clone(),
        none,
        vec![(4, true), (6, false)],
    ];
    assert_eq!(sent, expected);
}

#[test]
fn the_end_of_the_agent_sends_what_the_multiple_held_back() {
    let recorder = Recorder::default();
    let seen = Arc::clone(&recorder.0);
    let mut sink = filter("every = 10").unwrap().before(Box::new(recorder), Duration::from_mins(1));
    let one = labels(None);
    for time in 1..4 {
        sink.export(&EnrichedBatch { points: vec![point(device::POWER.def(), &one, time)] });
    }
    sink.flush(Instant::now());
    assert_eq!(*seen.lock().unwrap(), [("gpu.power", 1, false), ("gpu.power", 3, false)]);
}

#[test]
fn a_wrong_filter_is_refused_with_what_is_there() {
    for (text, expected) in [
        ("metrics = [\"gpu.pwer\"]", "`otlp.filter.metrics`: no metric is called `gpu.pwer`"),
        ("exclude = [\"x\"]", "`otlp.filter.exclude`: no metric is called `x`"),
        ("events = [\"gpu.xids\"]", "`otlp.filter.events`: no event is called `gpu.xids`"),
        ("attributes = { namespace = [\"a\"] }", "there is no attribute `namespace`"),
        ("every = 0", "`otlp.filter.every`: 0 is no multiple"),
    ] {
        let error = filter(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let many = format!("events = [{}]", "\"*\",".repeat(513));
    assert!(filter(&many).unwrap_err().contains("more than 512 patterns"));
}
