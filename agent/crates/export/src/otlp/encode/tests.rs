//! The encoder's bytes against the generated types of `opentelemetry-proto`.

use super::*;
use gpuwho_model::catalog::attributes::{self, AttrKey, GPU_INDEX, GPU_UUID, SERVICE_NAME};
use gpuwho_model::catalog::{agent, device};
use gpuwho_model::sample::Value;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue as Any, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    metric::Data, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource as ProtoResource;
use proptest::prelude::*;
use prost::Message as _;
use std::sync::Arc;

static BOUNDS: [f64; 3] = [0.001, 0.5, 30.0];

fn resource() -> Resource {
    Resource::new(&AttrSet::new(), &[("a".to_owned(), "b,c".to_owned())])
}

/// What the batch must decode to, built from the generated types alone.
fn model(points: &[Point]) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for point in points.iter().filter(|point| is_sendable(point)) {
        if metrics.last().is_none_or(|last| last.name != point.metric.name) {
            metrics.push(empty_metric(point.metric));
        }
        let metric = metrics.last_mut().unwrap();
        match metric.data.as_mut().unwrap() {
            Data::Gauge(gauge) => gauge.data_points.push(number(point)),
            Data::Sum(sum) => sum.data_points.push(number(point)),
            Data::Histogram(histogram) => histogram.data_points.push(distribution(point)),
            other => panic!("{other:?}"),
        }
    }
    metrics
}

fn is_sendable(point: &Point) -> bool {
    match &point.value {
        Some(Value::Double(number)) => number.is_finite(),
        Some(Value::Histogram(histogram)) => histogram.sum.is_finite(),
        Some(Value::Int(_)) | None => true,
    }
}

fn empty_metric(def: &MetricDef) -> Metric {
    let sum = |is_monotonic| {
        Data::Sum(Sum { data_points: vec![], aggregation_temporality: 2, is_monotonic })
    };
    let data = match def.kind {
        Kind::Gauge => Data::Gauge(Gauge::default()),
        Kind::UpDownCounter => sum(false),
        Kind::Counter => sum(true),
        Kind::Histogram => Data::Histogram(opentelemetry_proto::tonic::metrics::v1::Histogram {
            data_points: vec![],
            aggregation_temporality: 2,
        }),
    };
    Metric {
        name: def.name.to_owned(),
        description: def.description.split_whitespace().collect::<Vec<_>>().join(" "),
        unit: def.unit.to_owned(),
        metadata: vec![],
        data: Some(data),
    }
}

fn number(point: &Point) -> NumberDataPoint {
    NumberDataPoint {
        attributes: key_values(&point.labels.to_set()),
        start_time_unix_nano: point.start_ns,
        time_unix_nano: point.time_ns,
        exemplars: vec![],
        flags: u32::from(point.value.is_none()),
        value: match &point.value {
            Some(Value::Int(number)) => Some(number_data_point::Value::AsInt(*number)),
            Some(Value::Double(number)) => Some(number_data_point::Value::AsDouble(*number)),
            _ => None,
        },
    }
}

fn distribution(point: &Point) -> HistogramDataPoint {
    let mut data = HistogramDataPoint {
        attributes: key_values(&point.labels.to_set()),
        start_time_unix_nano: point.start_ns,
        time_unix_nano: point.time_ns,
        flags: u32::from(point.value.is_none()),
        ..HistogramDataPoint::default()
    };
    if let Some(Value::Histogram(histogram)) = &point.value {
        data.count = histogram.counts.iter().sum();
        data.sum = Some(histogram.sum);
        data.bucket_counts.clone_from(&histogram.counts);
        data.explicit_bounds = histogram.bounds.to_vec();
    }
    data
}

fn key_values(set: &AttrSet) -> Vec<KeyValue> {
    set.iter().map(|(key, value)| key_value(key.name, value)).collect()
}

fn key_value(key: &str, value: &AttrValue) -> KeyValue {
    let value = match value {
        AttrValue::Str(text) => AnyValue::StringValue(text.to_string()),
        AttrValue::Int(number) => AnyValue::IntValue(*number),
        AttrValue::Double(number) => AnyValue::DoubleValue(number.get()),
    };
    KeyValue { key: key.to_owned(), value: Some(Any { value: Some(value) }), ..KeyValue::default() }
}

fn encode(points: Vec<Point>, limits: Limits) -> (Vec<Vec<u8>>, Vec<usize>, u64) {
    let mut encoder = Encoder::new(&resource(), limits);
    let (mut bodies, mut counts) = (Vec::new(), Vec::new());
    encoder.encode(&EnrichedBatch { points }, &mut |body, points| {
        bodies.push(body.to_vec());
        counts.push(points);
    });
    (bodies, counts, encoder.not_finite())
}

/// The metrics of all requests, with those a split cut in two joined again.
fn decoded(bodies: &[Vec<u8>]) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    for body in bodies {
        let request = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
        let [resource_metrics] =
            <[ResourceMetrics; 1]>::try_from(request.resource_metrics).unwrap();
        let expected = resource();
        let expected = expected.iter().map(|(key, value)| key_value(key, value)).collect();
        let expected = ProtoResource { attributes: expected, ..ProtoResource::default() };
        assert_eq!(resource_metrics.resource, Some(expected));
        let [scope_metrics] =
            <[ScopeMetrics; 1]>::try_from(resource_metrics.scope_metrics).unwrap();
        let scope = InstrumentationScope {
            name: "gpuwho".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        assert_eq!(scope_metrics.scope, Some(scope));
        for metric in scope_metrics.metrics {
            join(&mut metrics, metric);
        }
    }
    metrics
}

fn join(metrics: &mut Vec<Metric>, metric: Metric) {
    let Some(last) = metrics.last_mut().filter(|last| last.name == metric.name) else {
        metrics.push(metric);
        return;
    };
    match (last.data.as_mut().unwrap(), metric.data.unwrap()) {
        (Data::Gauge(all), Data::Gauge(more)) => all.data_points.extend(more.data_points),
        (Data::Sum(all), Data::Sum(more)) => all.data_points.extend(more.data_points),
        (Data::Histogram(all), Data::Histogram(more)) => all.data_points.extend(more.data_points),
        (one, other) => panic!("{one:?} and {other:?} share a name"),
    }
}

fn attr_value() -> impl Strategy<Value = AttrValue> {
    prop_oneof![
        "\\PC{0,200}".prop_map(|text| AttrValue::from(text.as_str())),
        any::<i64>().prop_map(AttrValue::Int),
        any::<f64>().prop_map(AttrValue::from),
    ]
}

fn attr_set() -> impl Strategy<Value = AttrSet> {
    let key = prop::sample::select(attributes::ALL.to_vec());
    prop::collection::vec((key, attr_value()), 0..14).prop_map(|pairs| {
        let mut set = AttrSet::new();
        for (key, value) in pairs {
            let key: &'static AttrKey = key;
            set.set(key, value);
        }
        set
    })
}

fn value_of(kind: Kind) -> BoxedStrategy<Option<Value>> {
    if kind == Kind::Histogram {
        let counts = prop::collection::vec(0..u64::MAX >> 3, BOUNDS.len() + 1);
        let histogram = (counts, any::<f64>()).prop_map(|(counts, sum)| {
            Value::Histogram(Box::new(Histogram { bounds: (&BOUNDS).into(), counts, sum }))
        });
        return prop::option::weighted(0.9, histogram).boxed();
    }
    let number = prop_oneof![
        any::<i64>().prop_map(Value::Int),
        prop::num::f64::ANY.prop_map(Value::Double),
    ];
    prop::option::weighted(0.9, number).boxed()
}

/// The points of one metric, some of which share their labels.
fn run() -> impl Strategy<Value = Vec<Point>> {
    let metrics: Vec<&'static MetricDef> = gpuwho_model::catalog::all().collect();
    prop::sample::select(metrics).prop_flat_map(|metric| {
        let point = (value_of(metric.kind), any::<u64>(), any::<u64>(), 0..3_usize);
        let labels = prop::collection::vec(attr_set(), 3);
        (prop::collection::vec(point, 1..12), labels).prop_map(move |(points, sets)| {
            let labels: Vec<_> = sets.into_iter().map(|set| Arc::new(Labels::new(set))).collect();
            let point = |(value, start_ns, time_ns, index): (_, _, _, usize)| Point {
                metric,
                labels: Arc::clone(&labels[index]),
                value,
                start_ns,
                time_ns,
            };
            points.into_iter().map(point).collect()
        })
    })
}

proptest! {
    #[test]
    fn any_batch_decodes_to_its_model_however_it_is_split(
        runs in prop::collection::vec(run(), 0..8),
        bytes in 2_000..30_000_usize,
        most in 1..40_usize,
    ) {
        let points: Vec<Point> = runs.into_iter().flatten().collect();
        let expected = model(&points);
        let sendable = points.iter().filter(|point| is_sendable(point)).count();
        let left_out = (points.len() - sendable) as u64;
        let (bodies, counts, not_finite) = encode(points, Limits { bytes, points: most });
        prop_assert_eq!(not_finite, left_out);
        prop_assert_eq!(counts.iter().sum::<usize>(), sendable);
        for (body, count) in bodies.iter().zip(&counts) {
            prop_assert!(*count <= most);
            prop_assert!(body.len() <= bytes || *count == 1, "{} bytes", body.len());
        }
        prop_assert_eq!(decoded(&bodies), expected);
    }
}

fn gauge(uuid: &str, value: Value) -> Point {
    let mut set = AttrSet::new();
    set.set(&GPU_UUID, uuid);
    set.set(&GPU_INDEX, 300);
    let labels = Arc::new(Labels::new(set));
    Point { metric: device::POWER_STATE.def(), labels, value: Some(value), start_ns: 0, time_ns: 1 }
}

#[test]
fn small_batch_has_these_bytes() {
    let resource = {
        let mut set = AttrSet::new();
        set.set(&SERVICE_NAME, "g");
        set.set(&attributes::SERVICE_VERSION, "1");
        Resource::new(&set, &[])
    };
    let mut encoder = Encoder::new(&resource, Limits::default());
    let mut written = Vec::new();
    let points = vec![gauge("A", Value::Int(-2))];
    encoder.encode(&EnrichedBatch { points }, &mut |body, _| written = body.to_vec());
    // Lengths are for a version of five characters.
    let golden = [
        &b"\x0a\x91\x02"[..], // resource_metrics
        b"\x0a\x2d",          // .resource
        b"\x0a\x13\x0a\x0cservice.name\x12\x03\x0a\x01g",
        b"\x0a\x16\x0a\x0fservice.version\x12\x03\x0a\x011",
        b"\x1a\x27https://opentelemetry.io/schemas/1.44.0",
        b"\x12\xb6\x01", // .scope_metrics
        b"\x0a\x0f\x0a\x06gpuwho\x12\x05",
        env!("CARGO_PKG_VERSION").as_bytes(),
        b"\x1a\x27https://opentelemetry.io/schemas/1.44.0",
        b"\x12\x7a", // .metrics
        b"\x0a\x0fgpu.power.state",
        b"\x12\x25Performance state, 0 (fastest) to 15.",
        b"\x1a\x07{state}",
        b"\x2a\x37\x0a\x35",                     // .gauge.data_points
        b"\x19\x01\0\0\0\0\0\0\0",               // .time_unix_nano
        b"\x31\xfe\xff\xff\xff\xff\xff\xff\xff", // .as_int
        b"\x3a\x0f\x0a\x08gpu.uuid\x12\x03\x0a\x01A",
        b"\x3a\x10\x0a\x09gpu.index\x12\x03\x18\xac\x02",
    ];
    assert_eq!(written.escape_ascii().to_string(), golden.concat().escape_ascii().to_string());
}

#[test]
fn largest_ordinary_batch_stays_below_a_mebibyte_a_request() {
    let points: Vec<Point> =
        (0..9_600).map(|n| gauge(&format!("{n:0>400}"), Value::Int(n))).collect();
    let (bodies, counts, _) = encode(points, Limits::default());
    assert_eq!(counts.iter().sum::<usize>(), 9_600);
    assert_eq!(bodies.len(), 5, "{counts:?}");
    assert!(bodies.iter().all(|body| body.len() <= 1 << 20));
}

#[test]
fn batch_without_a_sendable_point_makes_no_request() {
    let (bodies, _, not_finite) =
        encode(vec![gauge("A", Value::Double(f64::NAN))], Limits::default());
    assert_eq!((bodies.len(), not_finite), (0, 1));
}

#[test]
fn labels_shared_by_a_gauge_and_a_histogram_serve_both() {
    let mut points = vec![gauge("A", Value::Int(1))];
    points.push(Point {
        metric: agent::SOURCE_DURATION.def(),
        value: Some(Value::Histogram(Box::new(Histogram::new(&BOUNDS)))),
        ..points[0].clone()
    });
    points.push(gauge("A", Value::Int(2)));
    points[2].labels = Arc::clone(&points[0].labels);
    let expected = model(&points);
    let (bodies, _, _) = encode(points, Limits::default());
    assert_eq!(decoded(&bodies), expected);
}
