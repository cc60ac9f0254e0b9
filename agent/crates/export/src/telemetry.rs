//! Sends the agent's own log as OTLP log records, beside its metrics.
//!
//! Off by default; it then has no thread, no queue and no connection. When it is on, the
//! OpenTelemetry SDK's batch processor (one thread, at most 256 records) sends through the agent's
//! own HTTP connection. Only log records of the agent itself are sent; records of its libraries
//! could be caused by the sending itself.

use crate::delivery::connection::Connection;
use crate::otlp::settings::{Protocol, Settings};
use crate::resource::Resource;
use gpuwho_model::catalog::attributes::AttrValue;
use hyper::header::{HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::logs::{BatchConfigBuilder, BatchLogProcessor, SdkLoggerProvider};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// Largest number of waiting records.
const QUEUE: usize = 256;

/// The log cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// gRPC is not supported for the log.
    #[error(
        "the agent's own log goes over http/protobuf only; set OTEL_EXPORTER_OTLP_LOGS_ENDPOINT and OTEL_EXPORTER_OTLP_LOGS_PROTOCOL=http/protobuf"
    )]
    Grpc,
    /// The runtime of the connection cannot be started.
    #[error("cannot start the log exporter's runtime ({0})")]
    Runtime(#[from] io::Error),
    /// The SDK's exporter refuses a setting.
    #[error("cannot make the log exporter ({0})")]
    Exporter(#[from] ExporterBuildError),
    /// Records were left when the agent ended.
    #[error("the last log records were not sent ({0})")]
    Shutdown(#[from] OTelSdkError),
}

/// The running exporter. Keep it until the agent ends.
#[derive(Debug)]
pub struct Telemetry {
    provider: SdkLoggerProvider,
}

/// Starts sending: returns the exporter and the layer for the agent's subscriber. `settings` are
/// those of [`crate::otlp::settings::Signal::Logs`].
pub fn logs<S>(
    settings: &Settings,
    resource: &Resource,
) -> Result<(Telemetry, impl Layer<S> + Send + Sync + use<S>), TelemetryError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    if settings.protocol == Protocol::Grpc {
        return Err(TelemetryError::Grpc);
    }
    let exporter = LogExporter::builder()
        .with_http()
        .with_http_client(Client::new(settings)?)
        .with_endpoint(settings.receiver.endpoint.to_string())
        .with_timeout(settings.receiver.timeout)
        .build()?;
    let limits =
        BatchConfigBuilder::default().with_max_queue_size(QUEUE).with_max_export_batch_size(QUEUE);
    let processor = BatchLogProcessor::builder(exporter).with_batch_config(limits.build()).build();
    let provider = SdkLoggerProvider::builder()
        .with_resource(described(resource))
        .with_log_processor(processor)
        .build();
    // The names of all crates of the agent begin with it.
    let own = Targets::new().with_target("gpuwho", LevelFilter::INFO);
    let layer = OpenTelemetryTracingBridge::new(&provider).with_filter(own);
    Ok((Telemetry { provider }, layer))
}

impl Telemetry {
    /// Sends what waits, for at most `timeout`, and ends the thread.
    pub fn shutdown(self, timeout: Duration) -> Result<(), TelemetryError> {
        Ok(self.provider.shutdown_with_timeout(timeout)?)
    }
}

fn described(resource: &Resource) -> opentelemetry_sdk::Resource {
    let attributes = resource.iter().map(|(key, value)| match value {
        AttrValue::Str(text) => KeyValue::new(key.to_owned(), text.to_string()),
        AttrValue::Int(number) => KeyValue::new(key.to_owned(), *number),
        AttrValue::Double(number) => KeyValue::new(key.to_owned(), number.get()),
    });
    opentelemetry_sdk::Resource::builder_empty().with_attributes(attributes).build()
}

/// Connects the SDK to the agent's own connection. The batch processor's thread has no tokio
/// runtime, so the client has one that runs on that thread while it sends.
struct Client {
    runtime: Runtime,
    /// Never contended: only the processor's thread calls.
    connection: Mutex<Connection>,
}

impl Client {
    fn new(settings: &Settings) -> Result<Self, io::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .thread_name("telemetry-dns")
            .build()?;
        Ok(Self { runtime, connection: Mutex::new(Connection::new(settings.receiver.clone())) })
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let headers: Vec<(HeaderName, HeaderValue)> =
            head.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let answer = self
            .runtime
            .block_on(async { self.connection.lock().await.post(body, &headers).await })?;
        let mut response = Response::new(answer.body);
        *response.status_mut() = answer.status;
        *response.headers_mut() = answer.headers;
        Ok(response)
    }
}

impl HttpClient for Client {
    /// Blocks, as its one caller expects. The signature is the expansion of `async_trait`.
    fn send_bytes<'life, 'future>(
        &'life self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'life: 'future,
        Self: 'future,
    {
        Box::pin(async move { self.post(request) })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
