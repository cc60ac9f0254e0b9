//! Writes an `ExportMetricsServiceRequest` from an enriched batch without building it first.
//!
//! Two passes over the points: the first adds up lengths (protobuf writes a message's length
//! before its content) and decides where one request ends and the next begins, the second writes
//! into one buffer. It is kept, unless a request was large: then it has room for the largest, so that the
//! allocator maps it alone, and is given back until the next tick. Attributes are encoded once, when the
//! first point with them is sent, and copied after that, so a tick allocates nothing per point.

use super::settings::Temporality;
use super::wire::{
    VARINT, framed_len, put_bytes, put_fixed64, put_frame, put_varint, retag, tag, varint_len,
};
use crate::resource::Resource;
use gpuwho_model::catalog::attributes::{AttrSet, AttrValue};
use gpuwho_model::catalog::{Kind, MetricDef};
use gpuwho_model::point::{EnrichedBatch, Labels, Point, Reading};
use gpuwho_model::sample::Histogram;
use std::collections::HashMap;

/// `AGGREGATION_TEMPORALITY_DELTA`.
const DELTA: u8 = 1;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;
/// The version of the semantic conventions from which `k8s.*`, `process.*` and the like are.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";
/// `DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK`.
const NO_RECORDED_VALUE: u8 = 1;
/// `NumberDataPoint.attributes`.
const NUMBER_ATTRIBUTES: u8 = 7;
/// `HistogramDataPoint.attributes`.
const HISTOGRAM_ATTRIBUTES: u8 = 9;
/// Upper bound in bytes of the tags and lengths around one metric's points, with its temporality.
const METRIC_OVERHEAD: usize = 32;

/// Bytes of the buffer that are kept between two ticks: what eight devices with 64 processes need.
const KEPT: usize = 768 << 10;

/// Largest size of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes before compression.
    pub bytes: usize,
    /// Points.
    pub points: usize,
}

impl Default for Limits {
    /// 1 MiB is below the 4 MiB that gRPC receivers accept by default, and bounds the memory of a
    /// request under construction; 8,000 points are below the limits of hosted receivers.
    fn default() -> Self {
        Self { bytes: 1 << 20, points: 8_000 }
    }
}

/// The encoder of one destination.
#[derive(Debug)]
pub struct Encoder {
    /// `ResourceMetrics.resource`, encoded.
    resource: Box<[u8]>,
    /// `ScopeMetrics.scope`, encoded.
    scope: Box<[u8]>,
    /// Name, description and unit of each metric sent so far, encoded.
    headers: HashMap<&'static str, Box<[u8]>>,
    limits: Limits,
    temporality: Temporality,
    plan: Plan,
    body: Vec<u8>,
    not_finite: u64,
}

/// The request under construction.
#[derive(Debug, Default)]
struct Plan {
    runs: Vec<Run>,
    points: usize,
    /// Upper bound of the request's bytes.
    bytes: usize,
}

/// Neighbouring points of one metric in one request.
#[derive(Debug)]
struct Run {
    metric: &'static MetricDef,
    first: usize,
    end: usize,
    /// Bytes of the points, each with its tag and length.
    points_len: usize,
    header_len: usize,
    /// The fields after the points.
    temporality: &'static [u8],
}

impl Encoder {
    /// An encoder that describes the sender as `resource`.
    pub fn new(resource: &Resource, limits: Limits) -> Self {
        let [resource, scope] = sender(resource);
        Self {
            resource,
            scope,
            headers: HashMap::new(),
            limits,
            temporality: Temporality::Cumulative,
            plan: Plan::default(),
            body: Vec::new(),
            not_finite: 0,
        }
    }

    /// The same, of points of this form.
    #[must_use]
    pub fn with_temporality(self, temporality: Temporality) -> Self {
        Self { temporality, ..self }
    }

    /// Encodes a batch and passes each request with its number of points to `emit`. A batch without
    /// sendable points makes no request.
    pub fn encode(&mut self, batch: &EnrichedBatch, emit: &mut dyn FnMut(&[u8], usize)) {
        for (index, point) in batch.points.iter().enumerate() {
            let Some(len) = point_len(point) else {
                self.not_finite += 1;
                continue;
            };
            let len = framed_len(len);
            let header_len = self.header_len(point.metric);
            let room = self.limits.bytes.saturating_sub(self.resource.len() + self.scope.len());
            let needed = len + header_len + METRIC_OVERHEAD;
            let full = self.plan.points >= self.limits.points || self.plan.bytes + needed > room;
            if full && self.plan.points > 0 {
                self.write(batch, emit);
            }
            let temporality = temporality(point.metric.kind, self.temporality);
            self.plan.add(index, point.metric, len, (header_len, temporality));
        }
        self.write(batch, emit);
        if self.body.capacity() > KEPT {
            self.body = Vec::new();
        }
    }

    /// Number of points left out because they were not finite.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }

    fn header_len(&mut self, metric: &'static MetricDef) -> usize {
        if let Some(run) = self.plan.runs.last().filter(|run| run.metric.name == metric.name) {
            return run.header_len;
        }
        self.headers.entry(metric.name).or_insert_with(|| header(metric)).len()
    }

    /// Writes the planned request, passes it to `emit` and starts the next one.
    fn write(&mut self, batch: &EnrichedBatch, emit: &mut dyn FnMut(&[u8], usize)) {
        if self.plan.points == 0 {
            return;
        }
        let metrics: usize = self.plan.runs.iter().map(|run| framed_len(run.len())).sum();
        let scope_metrics = self.scope.len() + metrics;
        let resource_metrics = self.resource.len() + framed_len(scope_metrics);
        let out = &mut self.body;
        out.clear();
        let needed = framed_len(resource_metrics);
        // The next tick's may be a little longer.
        let room = needed + needed / 8;
        out.reserve_exact(if room > KEPT { needed.max(self.limits.bytes) } else { room });
        put_frame(out, 1, resource_metrics);
        out.extend_from_slice(&self.resource);
        put_frame(out, 2, scope_metrics);
        out.extend_from_slice(&self.scope);
        for run in &self.plan.runs {
            put_frame(out, 2, run.len());
            out.extend_from_slice(self.headers.get(run.metric.name).map_or(&[], |header| header));
            run.put_data(out, batch.points.get(run.first..run.end).unwrap_or_default());
        }
        emit(out, self.plan.points);
        self.plan.runs.clear();
        self.plan.points = 0;
        self.plan.bytes = 0;
    }
}

impl Plan {
    fn add(
        &mut self,
        index: usize,
        metric: &'static MetricDef,
        len: usize,
        (header_len, temporality): (usize, &'static [u8]),
    ) {
        if let Some(run) = self.runs.last_mut().filter(|run| run.metric.name == metric.name) {
            run.end = index + 1;
            run.points_len += len;
            self.bytes += len;
        } else {
            let (first, end) = (index, index + 1);
            let run = Run { metric, first, end, points_len: len, header_len, temporality };
            self.runs.push(run);
            self.bytes += len + header_len + METRIC_OVERHEAD;
        }
        self.points += 1;
    }
}

impl Run {
    /// Bytes of the `Metric` message.
    fn len(&self) -> usize {
        self.header_len + framed_len(self.data_len())
    }

    /// Bytes of the `Gauge`, `Sum` or `Histogram` message.
    fn data_len(&self) -> usize {
        self.points_len + self.temporality.len()
    }

    fn put_data(&self, out: &mut Vec<u8>, points: &[Point]) {
        let field = match self.metric.kind {
            Kind::Gauge => 5,
            Kind::UpDownCounter | Kind::Counter => 7,
            Kind::Histogram => 9,
        };
        put_frame(out, field, self.data_len());
        for point in points {
            put_point(out, point);
        }
        out.extend_from_slice(self.temporality);
    }
}

/// `aggregation_temporality` (field 2) and `is_monotonic` (field 3) of a kind.
fn temporality(kind: Kind, of: Temporality) -> &'static [u8] {
    const TEMPORALITY: u8 = tag(2, VARINT);
    const MONOTONIC: u8 = tag(3, VARINT);
    match (kind, of) {
        (Kind::Gauge, _) => &[],
        (Kind::Histogram, Temporality::Delta) => &[TEMPORALITY, DELTA],
        (Kind::Counter, Temporality::Delta) => &[TEMPORALITY, DELTA, MONOTONIC, 1],
        // A level has no delta.
        (Kind::UpDownCounter | Kind::Histogram, _) => &[TEMPORALITY, CUMULATIVE],
        (Kind::Counter, Temporality::Cumulative) => &[TEMPORALITY, CUMULATIVE, MONOTONIC, 1],
    }
}

/// Bytes of the data point message.
fn point_len(point: &Point) -> Option<usize> {
    let value = match point.reading()? {
        Reading::Ended => 2,
        Reading::Int(_) | Reading::Double(_) => 9,
        Reading::Histogram(histogram) => {
            18 + framed_len(8 * histogram.counts.len()) + framed_len(8 * histogram.bounds.len())
        }
    };
    let start = if point.start_ns == 0 { 0 } else { 9 };
    Some(start + 9 + value + attributes(&point.labels).map(<[u8]>::len).sum::<usize>())
}

/// Writes a data point with its tag and length, fields in ascending order.
fn put_point(out: &mut Vec<u8>, point: &Point) {
    let (Some(body), Some(len)) = (point.reading(), point_len(point)) else { return };
    put_frame(out, 1, len);
    if point.start_ns != 0 {
        put_fixed64(out, 2, point.start_ns.to_le_bytes());
    }
    put_fixed64(out, 3, point.time_ns.to_le_bytes());
    match body {
        Reading::Ended => {}
        Reading::Double(number) => put_fixed64(out, 4, number.to_le_bytes()),
        Reading::Int(number) => put_fixed64(out, 6, number.to_le_bytes()),
        Reading::Histogram(histogram) => put_distribution(out, histogram),
    }
    let from = out.len();
    attributes(&point.labels).for_each(|part| out.extend_from_slice(part));
    let distribution = point.metric.kind == Kind::Histogram;
    if distribution && let Some(written) = out.get_mut(from..) {
        retag(written, HISTOGRAM_ATTRIBUTES);
    }
    if matches!(body, Reading::Ended) {
        let flags = if distribution { 10 } else { 8 };
        out.extend_from_slice(&[tag(flags, VARINT), NO_RECORDED_VALUE]);
    }
}

/// `count`, `sum`, `bucket_counts` and `explicit_bounds` of a `HistogramDataPoint`.
fn put_distribution(out: &mut Vec<u8>, histogram: &Histogram) {
    put_fixed64(out, 4, histogram.count().to_le_bytes());
    put_fixed64(out, 5, histogram.sum.to_le_bytes());
    put_frame(out, 6, 8 * histogram.counts.len());
    for count in &histogram.counts {
        out.extend_from_slice(&count.to_le_bytes());
    }
    put_frame(out, 7, 8 * histogram.bounds.len());
    for bound in &*histogram.bounds {
        out.extend_from_slice(&bound.to_le_bytes());
    }
}

/// The labels' attributes as `NumberDataPoint.attributes`, each part encoded at first use.
fn attributes(labels: &Labels) -> impl Iterator<Item = &[u8]> {
    labels.parts().iter().map(|part| part.otlp(encode_attributes))
}

fn encode_attributes(set: &AttrSet) -> Box<[u8]> {
    let mut out = Vec::new();
    for (key, value) in set.iter() {
        put_attribute(&mut out, NUMBER_ATTRIBUTES, key.name, value);
    }
    out.into()
}

/// The resource and the scope of every request, each as field 1 of the message around it.
pub(super) fn sender(resource: &Resource) -> [Box<[u8]>; 2] {
    let mut attributes = Vec::new();
    for (key, value) in resource.iter() {
        put_attribute(&mut attributes, 1, key, value);
    }
    let mut resource = Vec::new();
    put_bytes(&mut resource, 1, &attributes);
    // `schema_url` of the messages around both.
    put_bytes(&mut resource, 3, SCHEMA_URL.as_bytes());
    let mut name = Vec::new();
    put_bytes(&mut name, 1, gpuwho_model::NAME.as_bytes());
    put_bytes(&mut name, 2, env!("CARGO_PKG_VERSION").as_bytes());
    let mut scope = Vec::new();
    put_bytes(&mut scope, 1, &name);
    put_bytes(&mut scope, 3, SCHEMA_URL.as_bytes());
    [resource.into(), scope.into()]
}

/// Writes a `KeyValue` as the given field.
pub(super) fn put_attribute(out: &mut Vec<u8>, field: u8, key: &str, value: &AttrValue) {
    let any_len = match value {
        AttrValue::Str(text) => framed_len(text.len()),
        AttrValue::Int(number) => 1 + varint_len(number.cast_unsigned()),
        AttrValue::Double(_) => 1 + size_of::<f64>(),
    };
    put_frame(out, field, framed_len(key.len()) + framed_len(any_len));
    put_bytes(out, 1, key.as_bytes());
    put_frame(out, 2, any_len);
    match value {
        AttrValue::Str(text) => put_bytes(out, 1, text.as_bytes()),
        AttrValue::Int(number) => {
            out.push(tag(3, VARINT));
            put_varint(out, number.cast_unsigned());
        }
        AttrValue::Double(number) => put_fixed64(out, 4, number.get().to_le_bytes()),
    }
}

/// `Metric.name`, `.description` and `.unit`. The description is the catalogue's doc comment in
/// one line.
fn header(metric: &MetricDef) -> Box<[u8]> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, metric.name.as_bytes());
    let lines: Vec<&str> = metric.description.lines().map(str::trim).collect();
    put_bytes(&mut out, 2, lines.join(" ").trim_end().as_bytes());
    put_bytes(&mut out, 3, metric.unit.as_bytes());
    out.into()
}

#[cfg(test)]
mod tests;
