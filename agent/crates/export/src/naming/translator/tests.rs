use super::*;
use gpuwho_model::catalog::profile::{L9GPU, SEMCONV};
use gpuwho_model::catalog::{device, engine, event, gpm, health, host, wear};
use gpuwho_model::sample::Value;

const SECOND: u64 = 1_000_000_000;

/// One native series and its points.
struct Input {
    metric: &'static MetricDef,
    labels: Arc<Labels>,
}

type Attrs<'a> = &'a [(&'static AttrKey, &'a str)];

impl Input {
    fn new(metric: &'static MetricDef, attrs: Attrs<'_>) -> Self {
        let mut set = AttrSet::new();
        for (key, value) in attrs {
            set.set(key, *value);
        }
        Self { metric, labels: Arc::new(Labels::new(set)) }
    }

    fn of_gpu(metric: &'static MetricDef, uuid: &str, attrs: Attrs<'_>) -> Self {
        let all = [&[(&attr::GPU_UUID, uuid)], attrs].concat();
        Self::new(metric, &all)
    }

    fn at(&self, second: u64, value: impl Into<Option<Value>>) -> Point {
        let start_ns = if self.metric.kind == Kind::Gauge { 0 } else { 7 };
        let labels = Arc::clone(&self.labels);
        let time_ns = second * SECOND;
        Point { metric: self.metric, labels, value: value.into(), start_ns, time_ns }
    }
}

fn l9gpu() -> Translator {
    let mut host = AttrSet::new();
    host.set(&attr::HOST_NAME, "node");
    host.set(&attr::OS_TYPE, "linux");
    Translator::new(&L9GPU, false, &Resource::new(&host, &[]))
}

/// The points of a name: its attributes without the host, and the value.
fn sent(to: &mut Translator, name: &str, points: Vec<Point>) -> Vec<(String, Option<Value>)> {
    let mut out = EnrichedBatch::default();
    to.translate(&EnrichedBatch { points }, &mut out);
    let named = out.points.into_iter().filter(|point| point.metric.name == name);
    let sent = named.map(|point| {
        let set = point.labels.iter().filter(|(key, _)| key.name != "host.name");
        let set: Vec<_> = set.map(|(key, value)| format!("{}={value}", key.name)).collect();
        (set.join(" "), point.value)
    });
    sent.collect()
}

fn double(number: f64) -> Value {
    Value::Double(number)
}

#[test]
fn a_value_has_another_name_unit_and_attributes() {
    let watts = Input::of_gpu(device::POWER.def(), "GPU-1", &[]);
    let clock =
        Input::of_gpu(device::CLOCK_SPEED.def(), "GPU-1", &[(&attr::GPU_CLOCK_TYPE, "memory")]);
    let points = || vec![watts.at(1, Value::Double(300.0)), clock.at(1, Value::Double(2_619e6))];
    let mut to = l9gpu();
    let expected = vec![("gpu.uuid=GPU-1".to_owned(), Some(double(300.0)))];
    assert_eq!(sent(&mut to, "gpu.power.draw", points()), expected);
    assert_eq!(sent(&mut to, "gpu.power.watts", points()), expected);
    assert_eq!(
        sent(&mut to, "gpu.clock.frequency", points()),
        [("gpu.uuid=GPU-1 gpu.clock.type=memory".to_owned(), Some(double(2_619.0)))]
    );
    assert_eq!(sent(&mut to, "gpu.power", points()), [], "no native name");
}

#[test]
fn every_point_has_the_hosts_name() {
    let watts = Input::of_gpu(device::POWER.def(), "GPU-1", &[]);
    let mut out = EnrichedBatch::default();
    let points = vec![watts.at(1, Value::Double(1.0))];
    l9gpu().translate(&EnrichedBatch { points }, &mut out);
    assert!(!out.points.is_empty());
    for point in &out.points {
        let set = &point.labels;
        assert_eq!(set.get(&attr::HOST_NAME).and_then(|name| name.as_text()), Some("node"));
        assert_eq!(set.get(&attr::OS_TYPE), None);
    }
}

#[test]
fn a_fraction_needs_both_and_its_series_ends_when_one_is_gone() {
    let used =
        Input::of_gpu(device::MEMORY_USAGE.def(), "GPU-1", &[(&attr::GPU_MEMORY_STATE, "used")]);
    let free =
        Input::of_gpu(device::MEMORY_USAGE.def(), "GPU-1", &[(&attr::GPU_MEMORY_STATE, "free")]);
    let limit = Input::of_gpu(device::MEMORY_LIMIT.def(), "GPU-1", &[]);
    let name = "gpu.memory.used.percent";
    let of = "gpu.uuid=GPU-1".to_owned();
    let mut to = l9gpu();
    let first = vec![used.at(1, Value::Int(30)), free.at(1, Value::Int(90))];
    assert_eq!(sent(&mut to, name, first), []);
    let both = vec![used.at(2, Value::Int(30)), limit.at(2, Value::Int(120))];
    assert_eq!(sent(&mut to, name, both), [(of.clone(), Some(double(25.0)))]);
    let zero = vec![used.at(3, Value::Int(30)), limit.at(3, Value::Int(0))];
    assert_eq!(sent(&mut to, name, zero), [(of.clone(), None)], "ended, not infinite");
    let both = vec![used.at(4, Value::Int(60)), limit.at(4, Value::Int(120))];
    assert_eq!(sent(&mut to, name, both), [(of.clone(), Some(double(50.0)))]);
    let gone = vec![used.at(5, None), limit.at(5, None)];
    assert_eq!(sent(&mut to, name, gone), [(of, None)]);
}

#[test]
fn what_has_ended_leaves_nothing_behind() {
    let watts = Input::of_gpu(device::POWER.def(), "GPU-1", &[]);
    let mut to = l9gpu();
    for at in 1..100 {
        sent(&mut to, "", vec![watts.at(2 * at, Value::Double(1.0))]);
        let ended = sent(&mut to, "gpu.power.draw", vec![watts.at(2 * at + 1, None)]);
        assert_eq!(ended.len(), 1);
        assert!(to.series.is_empty() && to.outputs.is_empty());
    }
    assert!(to.slots.len() <= 4, "{} places", to.slots.len());
    assert_eq!(sent(&mut to, "gpu.power.draw", vec![watts.at(1, None)]), [], "ends once");
}

#[test]
fn a_rate_is_the_increase_of_the_last_minute_and_a_restart_is_none() {
    let tokens = Input::new(
        engine::PROMPT_TOKENS.def(),
        &[(&attr::ENGINE_NAME, "vllm"), (&attr::GEN_AI_MODEL, "m")],
    );
    let name = "vllm.prompt.throughput";
    let of = "gpuwho.engine.name=vllm model.name=m".to_owned();
    let mut to = l9gpu();
    assert_eq!(sent(&mut to, name, vec![tokens.at(10, Value::Int(1_000))]), []);
    let second = vec![tokens.at(20, Value::Int(1_500))];
    assert_eq!(sent(&mut to, name, second), [(of.clone(), Some(double(50.0)))]);
    let mut restarted = tokens.at(30, Value::Int(1_600));
    restarted.start_ns = 25 * SECOND;
    assert_eq!(sent(&mut to, name, vec![restarted]), [(of, None)]);
    let other = Input::new(engine::PROMPT_TOKENS.def(), &[(&attr::ENGINE_NAME, "tgi")]);
    sent(&mut to, name, vec![other.at(40, Value::Int(1))]);
    assert_eq!(sent(&mut to, name, vec![other.at(50, Value::Int(9))]), [], "another engine's");
}

#[test]
fn a_quantile_is_of_the_requests_of_the_last_minute() {
    let latency = Input::new(engine::REQUEST_DURATION.def(), &[(&attr::ENGINE_NAME, "vllm")]);
    let at = |second, counts: [u64; 3]| {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        histogram.counts.copy_from_slice(&counts);
        latency.at(second, Value::Histogram(Box::new(histogram)))
    };
    let name = "vllm.request.latency";
    let mut to = l9gpu();
    assert_eq!(sent(&mut to, name, vec![at(0, [1_000_000, 0, 0])]), [], "of before");
    let found = sent(&mut to, name, vec![at(10, [1_000_000, 100, 0])]);
    let values: Vec<_> = found.iter().map(|(labels, value)| (labels.as_str(), value)).collect();
    assert_eq!(
        values,
        [
            ("gpuwho.engine.name=vllm quantile=p50", &Some(double(1.5))),
            ("gpuwho.engine.name=vllm quantile=p95", &Some(double(1.95))),
            ("gpuwho.engine.name=vllm quantile=p99", &Some(double(1.99))),
        ]
    );
    for second in 2..=8 {
        sent(&mut to, name, vec![at(second * 10, [1_000_000, 100, 0])]);
    }
    // A minute without requests ended the series.
    assert_eq!(sent(&mut to, name, vec![at(90, [1_000_000, 100, 0])]), []);
}

#[test]
fn a_mean_counts_idle_devices_and_is_of_the_host() {
    let busy =
        |uuid| Input::of_gpu(device::UTILIZATION.def(), uuid, &[(&attr::GPU_TASK, "general")]);
    let (one, two) = (busy("GPU-1"), busy("GPU-2"));
    let points = || vec![one.at(1, Value::Double(0.0)), two.at(1, Value::Double(0.5))];
    let mut to = l9gpu();
    for (name, value) in
        [("gpu.utilization.avg", 0.25), ("gpu.utilization.min", 0.0), ("gpu.utilization.max", 0.5)]
    {
        assert_eq!(sent(&mut to, name, points()), [(String::new(), Some(double(value)))], "{name}");
    }
    let idle = sent(&mut to, "gpu.idle", points());
    let values: Vec<_> = idle.into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, [Some(Value::Int(1)), Some(Value::Int(0))]);
}

#[test]
fn bits_of_reasons_add_up_without_the_idle_one() {
    let reason = |name| {
        let attrs: Attrs<'_> = &[(&attr::GPU_THROTTLE_REASON, name)];
        Input::of_gpu(device::THROTTLE_ACTIVE.def(), "GPU-1", attrs)
    };
    let (idle, cap, thermal) = (reason("idle"), reason("power_cap"), reason("hardware_thermal"));
    let points =
        vec![idle.at(1, Value::Int(1)), cap.at(1, Value::Int(1)), thermal.at(1, Value::Int(1))];
    let found = sent(&mut l9gpu(), "gpu.throttle.reason", points);
    assert_eq!(found[0], ("gpu.uuid=GPU-1".to_owned(), Some(Value::Int(0x44))));
    let causes: Vec<_> = found[1..].iter().map(|(labels, _)| labels.as_str()).collect();
    assert_eq!(
        causes,
        [
            "gpu.uuid=GPU-1 gpu.throttle.cause=power_software",
            "gpu.uuid=GPU-1 gpu.throttle.cause=temp_hardware"
        ]
    );
}

#[test]
fn codes_of_a_device_add_up() {
    let xid = |code: &'static str| {
        let attrs: Attrs<'_> = &[(&attr::GPU_XID_CODE, code), (&attr::EVENT_SEVERITY, "critical")];
        Input::of_gpu(event::XID_ERRORS.def(), "GPU-1", attrs)
    };
    let points = vec![xid("79").at(1, Value::Int(2)), xid("31").at(1, Value::Int(3))];
    let found = sent(&mut l9gpu(), "gpu.xid.errors", points);
    assert_eq!(found, [("gpu.uuid=GPU-1".to_owned(), Some(Value::Int(5)))]);
}

#[test]
fn the_replacement_serves_where_the_first_is_missing() {
    let sampled =
        Input::of_gpu(gpm::PCIE_SAMPLED.def(), "GPU-1", &[(&attr::IO_DIRECTION, "transmit")]);
    let counted = Input::of_gpu(wear::PCIE_IO.def(), "GPU-1", &[(&attr::IO_DIRECTION, "transmit")]);
    let mut to = l9gpu();
    let only = sent(&mut to, "gpu.pcie.throughput", vec![sampled.at(1, Value::Double(5.0))]);
    assert_eq!(only[0].1, Some(double(5.0)));
    sent(&mut to, "", vec![counted.at(10, Value::Int(0)), sampled.at(10, Value::Double(5.0))]);
    let both = vec![counted.at(20, Value::Int(100)), sampled.at(20, Value::Double(5.0))];
    assert_eq!(sent(&mut to, "gpu.pcie.throughput", both)[0].1, Some(double(10.0)));
}

#[test]
fn hardware_has_the_conventions_keys_and_a_sensor_is_a_part_of_it() {
    let mut to = Translator::new(&SEMCONV, true, &Resource::default());
    let heat = Input::of_gpu(
        device::TEMPERATURE.def(),
        "GPU-1",
        &[(&attr::GPU_INDEX, "0"), (&attr::GPU_TEMPERATURE_SENSOR, "memory")],
    );
    let found = sent(&mut to, "hw.temperature", vec![heat.at(1, Value::Double(70.0))]);
    let labels = "hw.id=GPU-1/memory hw.name=0 hw.sensor_location=memory hw.parent=GPU-1";
    assert_eq!(found, [(labels.to_owned(), Some(double(70.0)))]);
    let joules = Input::of_gpu(device::ENERGY.def(), "GPU-1", &[]);
    let mut out = EnrichedBatch::default();
    let points = vec![joules.at(1, Value::Double(2.5))];
    to.translate(&EnrichedBatch { points }, &mut out);
    let energy = &out.points[0];
    assert_eq!(
        (energy.metric.name, energy.metric.kind, energy.start_ns),
        ("hw.energy", Kind::Counter, 7)
    );
}

#[test]
fn memory_that_wears_out_predicts_a_failure() {
    let mut to = Translator::new(&SEMCONV, true, &Resource::default());
    let condition = |name| {
        let attrs = [(&attr::GPU_HEALTH_CONDITION, name), (&attr::GPU_HEALTH_SEVERITY, "warning")];
        Input::of_gpu(health::CONDITION.def(), "GPU-1", &attrs)
    };
    let (low, retired, hot) =
        (condition("memory_rows_low"), condition("memory_pages_retired"), condition("thermal_hot"));
    let mut status = |at, values: [(&Input, i64); 3]| {
        let points = values.map(|(input, value)| input.at(at, Value::Int(value)));
        let sent = sent(&mut to, "hw.status", points.to_vec());
        sent.into_iter()
            .map(|(attrs, value)| (attrs.contains("predicted_failure"), value))
            .collect::<Vec<_>>()
    };
    let is = |value| vec![(true, Some(double(value)))];
    assert_eq!(status(1, [(&low, 1), (&retired, 1), (&hot, 1)]), is(1.0), "once");
    assert_eq!(status(2, [(&low, 0), (&retired, 0), (&hot, 1)]), is(0.0), "heat is no wear");
}

#[test]
fn a_native_name_is_there_once() {
    let latency = Input::new(engine::REQUEST_DURATION.def(), &[(&attr::ENGINE_NAME, "vllm")]);
    let name = latency.metric.name;
    let point = || latency.at(1, Value::Histogram(Box::new(Histogram::new(&[1.0]))));
    let mut alone = Translator::new(&SEMCONV, false, &Resource::default());
    let found = sent(&mut alone, name, vec![point()]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "gen_ai.provider.name=vllm");
    let mut beside = Translator::new(&SEMCONV, true, &Resource::default());
    assert_eq!(sent(&mut beside, name, vec![point()]), []);
}

#[test]
fn the_points_of_a_metric_stand_together() {
    let mut points = Vec::new();
    for uuid in ["GPU-1", "GPU-2"] {
        points.push(Input::of_gpu(device::POWER.def(), uuid, &[]).at(1, Value::Double(1.0)));
        let used = &[(&attr::GPU_MEMORY_STATE, "used")];
        points.push(Input::of_gpu(device::MEMORY_USAGE.def(), uuid, used).at(1, Value::Int(1)));
    }
    points.push(Input::new(host::MEMORY_LIMIT.def(), &[]).at(1, Value::Int(1)));
    let mut out = EnrichedBatch::default();
    l9gpu().translate(&EnrichedBatch { points }, &mut out);
    let runs: Vec<_> =
        out.points.chunk_by(|a, b| a.metric == b.metric).map(|run| run[0].metric.name).collect();
    let names: std::collections::HashSet<_> = runs.iter().collect();
    assert_eq!(names.len(), runs.len(), "{runs:?}");
    assert!(runs.contains(&"gpu.memory.used") && runs.contains(&"gpu.memory.used.bytes"));
}
