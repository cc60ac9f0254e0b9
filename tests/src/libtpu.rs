//! What libtpu serves in a process that uses TPU chips, without either: `RuntimeMetricService` by gRPC on
//! the first free of its ports, with a scenario's values of those chips. Names and messages are those of
//! Google's tpu-info 0.14 (`tpu_metric_service.proto`).

use crate::fakes;
use crate::vendors::{BASES, TPU};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response, server, service};
use hyper_util::rt::{TokioExecutor, TokioIo};
use nvidia_ml::scenario::Scenario;
use prost::Message;
use std::io;
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use tokio::runtime::Builder;

/// libtpu's ports: the first, and one more for each further process of a host.
const PORTS: RangeInclusive<u16> = 8431..=8446;
/// Before a message: a byte that says that it is not compressed, and its length in four.
const PREFIX: usize = 5;
const OK: HeaderValue = HeaderValue::from_static("0");
const NOT_FOUND: HeaderValue = HeaderValue::from_static("5");
/// The attribute with the device's number.
const DEVICE: &str = "device-id";

/// `MetricRequest`.
#[derive(Clone, PartialEq, Message)]
struct MetricRequest {
    #[prost(string, tag = "1")]
    metric_name: String,
}

/// `MetricResponse`.
#[derive(Clone, PartialEq, Message)]
struct MetricResponse {
    #[prost(message, optional, tag = "1")]
    metric: Option<TpuMetric>,
}

#[derive(Clone, PartialEq, Message)]
struct TpuMetric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, optional, tag = "1")]
    attribute: Option<Attribute>,
    #[prost(message, optional, tag = "3")]
    gauge: Option<Gauge>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AttrValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AttrValue {
    #[prost(int64, optional, tag = "3")]
    int_attr: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(double, optional, tag = "1")]
    as_double: Option<f64>,
    #[prost(int64, optional, tag = "2")]
    as_int: Option<i64>,
}

/// The chips of one process, as libtpu numbers them: from 0.
struct Chips {
    scenario: Scenario,
    indexes: Vec<u32>,
    begun: Instant,
}

/// Serves until the process ends. The chips are what the worker's script calls them.
pub fn serve(scenario: &str, numbers: &[u32]) -> io::Result<()> {
    let scenario = fakes::load(scenario).map_err(io::Error::other)?.only(TPU.name);
    let (first, _) = BASES[2];
    let indexes = numbers.iter().filter_map(|number| number.checked_sub(first)).collect();
    let chips = Arc::new(Chips { scenario, indexes, begun: Instant::now() });
    let free = PORTS.clone().find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let listener = free.ok_or_else(|| io::Error::other(format!("none of {PORTS:?} is free")))?;
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || runtime.block_on(accept(listener, chips)));
    Ok(())
}

async fn accept(listener: TcpListener, chips: Arc<Chips>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let chips = Arc::clone(&chips);
        let service = service::service_fn(move |request| answer(request, Arc::clone(&chips)));
        let serving = server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(
    request: Request<Incoming>,
    chips: Arc<Chips>,
) -> Result<Response<impl Body<Data = Bytes, Error = hyper::Error>>, hyper::Error> {
    let message = request.into_body().collect().await?.to_bytes();
    let asked = message.get(PREFIX..).and_then(|message| MetricRequest::decode(message).ok());
    let metric = asked.and_then(|asked| chips.metric(&asked.metric_name));
    let status = if metric.is_some() { OK } else { NOT_FOUND };
    let body = metric.map(|metric| framed(&MetricResponse { metric: Some(metric) }));
    let trailers =
        HeaderMap::from_iter([(hyper::header::HeaderName::from_static("grpc-status"), status)]);
    let body = Full::new(body.unwrap_or_default())
        .map_err(|never| match never {})
        .with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

fn framed(message: &MetricResponse) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or_default();
    [&[0][..], &length.to_be_bytes(), &message].concat().into()
}

impl Chips {
    /// A metric of all chips; `None` if libtpu has none of this name, or the scenario does not say it.
    fn metric(&self, name: &str) -> Option<TpuMetric> {
        let each = self.indexes.iter().enumerate().map(|(number, index)| {
            let gauge = self.gauge(name, *index)?;
            let value = Some(AttrValue { int_attr: i64::try_from(number).ok() });
            let attribute = Some(Attribute { key: DEVICE.to_owned(), value });
            Some(Metric { attribute, gauge: Some(gauge) })
        });
        Some(TpuMetric { name: name.to_owned(), metrics: each.collect::<Option<_>>()? })
    }

    fn gauge(&self, name: &str, index: u32) -> Option<Gauge> {
        let device = self.scenario.device(index)?;
        let (group, seconds) = (device.group, self.begun.elapsed().as_secs_f64());
        let percent = |curve| Gauge { as_double: Some(device.value(curve, seconds)), as_int: None };
        let bytes = |bytes| Gauge { as_double: None, as_int: Some(bytes) };
        match name {
            "tpu.runtime.tensorcore.dutycycle.percent" => group.utilization.as_ref().map(percent),
            "tpu.runtime.hbm.utilization.percent" => group.memory_utilization.as_ref().map(percent),
            "tpu.runtime.hbm.memory.total.bytes" => {
                i64::try_from(group.memory.total).ok().map(bytes)
            }
            #[expect(clippy::cast_possible_truncation, reason = "bytes of a chip's memory")]
            "tpu.runtime.hbm.memory.usage.bytes" => {
                Some(bytes(device.value(&group.memory.used, seconds) as i64))
            }
            _ => None,
        }
    }
}
