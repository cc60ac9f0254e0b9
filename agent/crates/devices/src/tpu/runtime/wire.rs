//! The gRPC calls: one connection a question, within one deadline and a bound of bytes for each
//! answer.

use super::Numbers;
use hyper::Uri;
use hyper::http::uri::PathAndQuery;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::TcpStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tonic_prost::ProstCodec;
use tower_service::Service;

/// The method.
const METHOD: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric";
/// Bytes of an answer; a metric of eight devices has 400.
const MAX_ANSWER: usize = 64 << 10;
/// Devices of a metric.
const MAX_DEVICES: usize = 512;
/// The attribute with the device's number.
const DEVICE: &str = "device-id";

/// `MetricRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricRequest {
    #[prost(string, tag = "1")]
    pub(super) metric_name: String,
}

/// `MetricResponse`, as far as it is read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MetricResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) metric: Option<TpuMetric>,
}

/// `TPUMetric`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TpuMetric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) metrics: Vec<Metric>,
}

/// `Metric`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metric {
    #[prost(message, optional, tag = "1")]
    pub(super) attribute: Option<Attribute>,
    #[prost(message, optional, tag = "3")]
    pub(super) gauge: Option<Gauge>,
}

/// `Attribute`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AttrValue>,
}

/// `AttrValue`: a number, or in newer versions a text.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AttrValue {
    #[prost(string, optional, tag = "1")]
    pub(super) string_attr: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(super) int_attr: Option<i64>,
}

/// `Gauge`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Gauge {
    #[prost(double, optional, tag = "1")]
    pub(super) as_double: Option<f64>,
    #[prost(int64, optional, tag = "2")]
    pub(super) as_int: Option<i64>,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("no runtime: {0}")]
    Runtime(#[from] io::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error("another process answers on its port")]
    Stranger,
    #[error("{0}")]
    Status(String),
}

/// Asks for metrics on a connection. A metric that the server does not have is left out; every other
/// failure ends the questions. The answers count if `is_its`: the right process has accepted the
/// connection.
pub(super) fn ask(
    stream: StdStream,
    names: &[&'static str],
    within: Duration,
    is_its: impl Fn() -> bool,
) -> Result<BTreeMap<&'static str, Numbers>, CallError> {
    stream.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let asked = async {
        let stream = TcpStream::from_std(stream)?;
        let connector = Connector(Arc::new(Mutex::new(Some(stream))));
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
        let origin = Uri::from_static("http://localhost/");
        let mut grpc =
            tonic::client::Grpc::with_origin(client, origin).max_decoding_message_size(MAX_ANSWER);
        let mut answers = BTreeMap::new();
        for name in names {
            let request = MetricRequest { metric_name: (*name).to_owned() };
            let ready = grpc.ready().await;
            ready.map_err(|error: hyper_util::client::legacy::Error| {
                CallError::Status(error.to_string())
            })?;
            let codec: ProstCodec<MetricRequest, MetricResponse> = ProstCodec::default();
            let path = PathAndQuery::from_static(METHOD);
            match grpc.unary(tonic::Request::new(request), path, codec).await {
                Ok(answer) => {
                    answers.insert(*name, numbers(&answer.into_inner()));
                }
                Err(status) if is_unknown(status.code()) => {}
                Err(status) => return Err(CallError::Status(status.code().to_string())),
            }
        }
        // Asked while the connection lasts, and after a server that is slow to accept it has answered.
        if is_its() { Ok(answers) } else { Err(CallError::Stranger) }
    };
    let whole = async { tokio::time::timeout(within, asked).await };
    let answers = runtime.block_on(whole).unwrap_or(Err(CallError::Late(within)));
    // A task of the connection may wait for ever.
    runtime.shutdown_background();
    answers
}

/// Whether the server does not have the metric.
fn is_unknown(code: tonic::Code) -> bool {
    matches!(
        code,
        tonic::Code::NotFound | tonic::Code::InvalidArgument | tonic::Code::Unimplemented
    )
}

/// The numbers by device; none of an answer in which a device has no number or is there twice.
fn numbers(answer: &MetricResponse) -> Numbers {
    let metrics = answer.metric.as_ref().map_or(&[][..], |metric| &metric.metrics);
    let one = |metric: &Metric| {
        let attribute = metric.attribute.as_ref().filter(|attribute| attribute.key == DEVICE)?;
        let value = attribute.value.as_ref()?;
        let device = match (&value.string_attr, value.int_attr) {
            (Some(text), _) => text.parse().ok()?,
            (None, number) => u64::try_from(number?).ok()?,
        };
        let gauge = metric.gauge.as_ref()?;
        #[expect(clippy::cast_precision_loss, reason = "bytes of a device")]
        let number = gauge.as_double.or_else(|| gauge.as_int.map(|number| number as f64))?;
        number.is_finite().then_some((device, number))
    };
    let found: Option<Vec<(u64, f64)>> = metrics.iter().take(MAX_DEVICES + 1).map(one).collect();
    let found = found.filter(|found| found.len() <= MAX_DEVICES).unwrap_or_default();
    let count = found.len();
    let numbers: Numbers = found.into_iter().collect();
    if numbers.len() == count { numbers } else { Numbers::new() }
}

/// Gives the one connection, once.
#[derive(Clone)]
struct Connector(Arc<Mutex<Option<TcpStream>>>);

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let stream = self.0.lock().take();
        let ended = || io::Error::from(io::ErrorKind::NotConnected);
        Box::pin(async move { stream.map(TokioIo::new).ok_or_else(ended) })
    }
}
