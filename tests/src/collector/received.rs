//! OTLP's JSON, flat: one entry a data point or log record, with everything around it that says
//! what it is.

use serde_json::Value;
use std::collections::BTreeMap;

/// `DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK`.
pub const NO_RECORDED_VALUE: u64 = 1;

/// Attributes by name; numbers and booleans in their usual spelling.
pub type Attributes = BTreeMap<String, String>;

/// What kind of metric a point belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedKind {
    /// A level.
    Gauge,
    /// A cumulative sum that only grows.
    Counter,
    /// A cumulative sum that may fall.
    UpDownCounter,
    /// A cumulative distribution.
    Histogram,
    /// Anything else, which the agent never sends: delta sums, summaries, ….
    Other,
}

/// A point's value.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedValue {
    /// `asInt`.
    Int(i64),
    /// `asDouble`.
    Double(f64),
    /// A histogram's counts by bucket, bounds and sum.
    Histogram {
        /// Upper bounds.
        bounds: Vec<f64>,
        /// Counts.
        counts: Vec<u64>,
        /// Sum.
        sum: f64,
    },
    /// None: the series has ended.
    None,
}

/// One data point as the Collector received it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedPoint {
    /// Name.
    pub metric: String,
    /// Unit.
    pub unit: String,
    /// Kind.
    pub kind: ReceivedKind,
    /// The point's own attributes.
    pub attrs: Attributes,
    /// The resource's attributes.
    pub resource: Attributes,
    /// Value.
    pub value: ReceivedValue,
    /// Start in nanoseconds since the epoch; 0 without.
    pub start: u64,
    /// Time in nanoseconds since the epoch; 0 without.
    pub time: u64,
    /// Flags.
    pub flags: u64,
}

/// One log record as the Collector received it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceivedRecord {
    /// Event name.
    pub event: String,
    /// Severity number.
    pub severity: u64,
    /// Severity text.
    pub severity_text: String,
    /// Body.
    pub body: String,
    /// The record's own attributes.
    pub attrs: Attributes,
    /// The resource's attributes.
    pub resource: Attributes,
    /// Time in nanoseconds since the epoch; 0 without.
    pub time: u64,
    /// When it was seen, the same.
    pub observed: u64,
}

impl ReceivedPoint {
    /// Whether it has all of these attributes.
    pub fn has(&self, wanted: &[(&str, &str)]) -> bool {
        let found = |name: &str| self.attrs.get(name).map(String::as_str);
        wanted.iter().all(|(name, value)| found(name) == Some(value))
    }

    /// Whether it marks the end of its series.
    pub fn ended(&self) -> bool {
        self.flags & NO_RECORDED_VALUE != 0
    }

    /// The value as a number; `None` for a histogram or an end.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            // Exact for what tests compare: bytes below 2^53.
            ReceivedValue::Int(value) => Some(value as f64),
            ReceivedValue::Double(value) => Some(value),
            ReceivedValue::Histogram { .. } | ReceivedValue::None => None,
        }
    }
}

/// The points of a metric with these attributes, in the order of arrival.
pub fn of<'a>(
    points: &'a [ReceivedPoint],
    metric: &str,
    attrs: &[(&str, &str)],
) -> Vec<&'a ReceivedPoint> {
    points.iter().filter(|point| point.metric == metric && point.has(attrs)).collect()
}

/// Reads lines of export requests; those of logs have no points.
pub fn parse(lines: &str) -> Result<Vec<ReceivedPoint>, serde_json::Error> {
    let mut points = Vec::new();
    for line in lines.lines() {
        let request: Value = serde_json::from_str(line)?;
        for of_resource in list(&request["resourceMetrics"]) {
            let resource = attributes(&of_resource["resource"]["attributes"]);
            let scopes = list(&of_resource["scopeMetrics"]);
            for metric in scopes.iter().flat_map(|scope| list(&scope["metrics"])) {
                points.extend(points_of(metric, &resource));
            }
        }
    }
    Ok(points)
}

/// Reads the log records in lines of export requests; those of metrics have none.
pub fn records(lines: &str) -> Result<Vec<ReceivedRecord>, serde_json::Error> {
    let mut records = Vec::new();
    for line in lines.lines() {
        let request: Value = serde_json::from_str(line)?;
        for of_resource in list(&request["resourceLogs"]) {
            let resource = attributes(&of_resource["resource"]["attributes"]);
            let scopes = list(&of_resource["scopeLogs"]).iter();
            let of_scopes = scopes.flat_map(|scope| list(&scope["logRecords"]));
            records.extend(of_scopes.map(|record| ReceivedRecord {
                event: text(&record["eventName"]),
                severity: whole(&record["severityNumber"]).unwrap_or(0),
                severity_text: text(&record["severityText"]),
                body: text(&record["body"]["stringValue"]),
                attrs: attributes(&record["attributes"]),
                resource: resource.clone(),
                time: whole(&record["timeUnixNano"]).unwrap_or(0),
                observed: whole(&record["observedTimeUnixNano"]).unwrap_or(0),
            }));
        }
    }
    Ok(records)
}

fn points_of(metric: &Value, resource: &Attributes) -> Vec<ReceivedPoint> {
    let forms = ["gauge", "sum", "histogram", "exponentialHistogram", "summary"];
    let form = forms.into_iter().find(|form| metric.get(form).is_some()).unwrap_or("gauge");
    let content = &metric[form];
    // 2 is AGGREGATION_TEMPORALITY_CUMULATIVE.
    let cumulative = content["aggregationTemporality"] == 2;
    let kind = match (form, cumulative, content["isMonotonic"] == true) {
        ("gauge", ..) => ReceivedKind::Gauge,
        ("sum", true, true) => ReceivedKind::Counter,
        ("sum", true, false) => ReceivedKind::UpDownCounter,
        ("histogram", true, _) => ReceivedKind::Histogram,
        _ => ReceivedKind::Other,
    };
    let point = |point: &Value| ReceivedPoint {
        metric: text(&metric["name"]),
        unit: text(&metric["unit"]),
        kind,
        attrs: attributes(&point["attributes"]),
        resource: resource.clone(),
        value: value(point),
        start: whole(&point["startTimeUnixNano"]).unwrap_or(0),
        time: whole(&point["timeUnixNano"]).unwrap_or(0),
        flags: whole(&point["flags"]).unwrap_or(0),
    };
    list(&content["dataPoints"]).iter().map(point).collect()
}

fn value(point: &Value) -> ReceivedValue {
    if let Ok(value) = text(&point["asInt"]).parse() {
        return ReceivedValue::Int(value);
    }
    if let Some(value) = double(&point["asDouble"]) {
        return ReceivedValue::Double(value);
    }
    let counts: Vec<_> = list(&point["bucketCounts"]).iter().filter_map(whole).collect();
    if counts.is_empty() {
        return ReceivedValue::None;
    }
    ReceivedValue::Histogram {
        bounds: list(&point["explicitBounds"]).iter().filter_map(double).collect(),
        counts,
        sum: double(&point["sum"]).unwrap_or(0.0),
    }
}

fn attributes(pairs: &Value) -> Attributes {
    let value = |value: &Value| {
        let any = value.as_object().and_then(|any| any.values().next());
        any.map(text).unwrap_or_default()
    };
    list(pairs).iter().map(|pair| (text(&pair["key"]), value(&pair["value"]))).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A string as it is, and anything else as JSON spells it; nothing for null.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// 64-bit numbers are strings in OTLP's JSON.
fn whole(value: &Value) -> Option<u64> {
    text(value).parse().ok()
}

fn double(value: &Value) -> Option<f64> {
    text(value).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name",
        "value":{"stringValue":"node1"}}]},"scopeMetrics":[{"scope":{"name":"gpuwho"},"metrics":[
        {"name":"a","unit":"By","gauge":{"dataPoints":[{"attributes":[{"key":"i","value":
        {"intValue":"7"}}],"timeUnixNano":"1700000000000000001","asInt":"-5"}]}},
        {"name":"b","unit":"J","sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[
        {"startTimeUnixNano":"3","timeUnixNano":"4","asDouble":1.5},
        {"timeUnixNano":"5","flags":1}]}},
        {"name":"c","unit":"s","histogram":{"aggregationTemporality":2,"dataPoints":[
        {"startTimeUnixNano":"3","timeUnixNano":"4","count":"3","sum":2.5,
        "bucketCounts":["1","2"],"explicitBounds":[1]}]}}]}]}]}"#;

    #[test]
    fn every_kind_of_point_is_read_with_all_that_surrounds_it() {
        let points = parse(&LINE.replace('\n', "")).unwrap();
        let resource = Attributes::from([("host.name".to_owned(), "node1".to_owned())]);
        let point = |metric: &str, unit: &str, kind, value| ReceivedPoint {
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            kind,
            attrs: Attributes::new(),
            resource: resource.clone(),
            value,
            start: 3,
            time: 4,
            flags: 0,
        };
        let distribution =
            ReceivedValue::Histogram { bounds: vec![1.0], counts: vec![1, 2], sum: 2.5 };
        let expected = [
            ReceivedPoint {
                attrs: Attributes::from([("i".to_owned(), "7".to_owned())]),
                start: 0,
                time: 1_700_000_000_000_000_001,
                ..point("a", "By", ReceivedKind::Gauge, ReceivedValue::Int(-5))
            },
            point("b", "J", ReceivedKind::Counter, ReceivedValue::Double(1.5)),
            ReceivedPoint {
                start: 0,
                time: 5,
                flags: 1,
                ..point("b", "J", ReceivedKind::Counter, ReceivedValue::None)
            },
            point("c", "s", ReceivedKind::Histogram, distribution),
        ];
        assert_eq!(points, expected);
        assert!(points[2].ended());
        assert_eq!(of(&points, "a", &[("i", "7")]).len(), 1);
        assert_eq!(of(&points, "a", &[("i", "8")]).len(), 0);
    }
}
