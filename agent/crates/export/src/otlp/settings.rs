//! Where and how to send: resolved once, from the command line, the `OTEL_*` environment and the
//! configuration file, in that order of precedence.
//!
//! Rules, all of them the OTLP exporter specification's unless marked:
//! - A signal's own variable (`OTEL_EXPORTER_OTLP_METRICS_…`) is taken before the general one. An
//!   empty variable is unset.
//! - Over HTTP, `/v1/metrics` is appended to the general endpoint, and nothing to the signal's own.
//!   (Ours) an endpoint from the file or the command line is general, but one that already ends
//!   with `/v1/metrics` is taken as it is.
//! - (Ours) without a protocol, port 4317 means `grpc` and everything else `http/protobuf`.
//! - (Ours) without a scheme, `insecure = true` or a loopback host means `http`, else `https`;
//!   without scheme and port, the port is the protocol's (4317 or 4318).
//! - (Ours) compression is gzip unless set to `zstd` or `none`.
//! - (Ours) a further receiver (`otlp.also`) has the settings of its own table only: neither the
//!   command line nor the environment, except for the resource and the proxy.

mod error;
mod parse;

pub use error::SettingsError;
pub(crate) use parse::resource_attributes;

use super::proxy;
pub use super::proxy::Proxy;
pub use super::secrets::HeaderFiles;
use super::trust::{self, RawUser, Trust};
use crate::filter::RawFilter;
use gpuwho_collect::tls::TlsFiles;
use hyper::Uri;
use hyper::header::HeaderMap;
use parse::{Lookup, Setting};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The specification's time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most further receivers: each has a thread and a queue.
const MAX_ALSO: usize = 8;
const MAX_NAME_LEN: usize = 32;
/// Half an hour or more of an eight-GPU node's compressed ticks at 10 s.
const QUEUE_BYTES: usize = 8 << 20;

/// The signal, which decides the variables, paths and methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Metrics.
    Metrics,
    /// Log records.
    Logs,
}

impl Signal {
    fn infix(self) -> &'static str {
        match self {
            Self::Metrics => "METRICS",
            Self::Logs => "LOGS",
        }
    }

    fn http_path(self) -> &'static str {
        match self {
            Self::Metrics => "/v1/metrics",
            Self::Logs => "/v1/logs",
        }
    }

    fn grpc_path(self) -> &'static str {
        match self {
            Self::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            Self::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        }
    }
}

/// The settings of one OTLP sink.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The receiver's address with its path.
    pub endpoint: Endpoint,
    /// The protocol of requests.
    pub protocol: Protocol,
    /// Headers of each request; every value is marked sensitive, so that `Debug` hides it.
    pub headers: HeaderMap,
    /// Files with further headers.
    pub header_files: HeaderFiles,
    /// Whom a secret may be sent to without TLS.
    pub trust: Trust,
    /// The proxy in front of the receiver.
    pub proxy: Option<Proxy>,
    /// Time for one attempt, from connecting to the complete answer.
    pub timeout: Duration,
    /// Compression of request bodies.
    pub compression: Compression,
    /// Certificates, for `https`.
    pub tls: TlsFiles,
    /// Largest number of bytes of encoded requests that wait for the receiver.
    pub queue_bytes: usize,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// The form of counters and distributions.
    pub temporality: Temporality,
    /// A request waits for a part of this, which is the same at each tick, so that many agents do not
    /// send together.
    pub spread: Duration,
    /// `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`.
    pub resource_attributes: Vec<(String, String)>,
}

/// A receiver's address. Prints without the query, which may hold a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(Uri);

/// The protocol of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP/HTTP with protobuf bodies over HTTP/1.1.
    Http,
    /// The same with JSON bodies.
    HttpJson,
    /// OTLP/gRPC.
    Grpc,
}

/// Compression of request bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip, level 1.
    Gzip,
    /// zstd, level 1; gzip for a receiver that does not know it.
    Zstd,
}

/// The form of counters and distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temporality {
    /// Since the start of the series.
    Cumulative,
    /// Since the point before.
    Delta,
}

/// Waits between attempts: they double from `first` to `max`, and half of each is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Before the first repetition.
    pub first: Duration,
    /// The longest wait, unless the receiver asks for a longer one.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(30) }
    }
}

/// The `[otlp]` table of the configuration file, and what the command line may set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawOtlp {
    /// URL or `host:port`.
    pub endpoint: Option<String>,
    /// `http/protobuf`, `http/json` or `grpc`.
    pub protocol: Option<String>,
    /// Literal names and values (not percent-encoded).
    pub headers: Option<RawHeaders>,
    /// Milliseconds for one attempt.
    pub timeout_ms: Option<u64>,
    /// File with a line `NAME: VALUE` for each header.
    pub headers_file: Option<PathBuf>,
    /// File with a bearer token.
    pub token_file: Option<PathBuf>,
    /// `http://HOST:PORT`, or `none`.
    pub proxy: Option<RawProxy>,
    /// `gzip`, `zstd` or `none`.
    pub compression: Option<String>,
    /// `cumulative` or `delta`.
    pub temporality: Option<String>,
    /// PEM file with the CAs to trust.
    pub certificate: Option<PathBuf>,
    /// PEM file with the agent's certificate.
    pub client_certificate: Option<PathBuf>,
    /// PEM file with the agent's key.
    pub client_key: Option<PathBuf>,
    /// Plain text where the endpoint has no scheme.
    pub insecure: Option<bool>,
    /// Secrets may be sent in plain text.
    pub insecure_secrets: Option<bool>,
    /// The receiver's user on this host.
    pub receiver_user: Option<RawUser>,
    /// Bytes of encoded requests that may wait for the receiver.
    pub queue_bytes: Option<usize>,
    /// What is sent there.
    pub filter: Option<RawFilter>,
    /// Naming profiles.
    pub names: Option<Vec<String>>,
    /// Whether a device's own points carry its owner.
    pub owner_on_devices: Option<bool>,
    /// Further receivers by name.
    #[serde(default)]
    pub also: BTreeMap<String, RawOtlp>,
}

/// A proxy's URL, which may have a password; `Debug` shows nothing of it.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct RawProxy(pub String);

impl fmt::Debug for RawProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a proxy)")
    }
}

/// Headers from the file; `Debug` shows the names only.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct RawHeaders(pub BTreeMap<String, String>);

impl Settings {
    /// Resolves `signal`'s settings: `flags` before the environment before `file`. `env` looks a
    /// variable up.
    pub fn resolve(
        signal: Signal,
        flags: &RawOtlp,
        file: &RawOtlp,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingsError> {
        let lookup = Lookup { signal: signal.infix(), flags, file, env };
        let address = lookup.text("ENDPOINT", "endpoint", |raw| raw.endpoint.clone());
        let protocol = lookup
            .text("PROTOCOL", "protocol", |raw| raw.protocol.clone())
            .map(|setting| parse::protocol(&setting))
            .transpose()?;
        let insecure = lookup
            .text("INSECURE", "insecure", |raw| raw.insecure.map(|value| value.to_string()))
            .map(|setting| parse::boolean(&setting))
            .transpose()?;
        let (endpoint, protocol) = parse::endpoint(signal, address, protocol, insecure)?;
        let proxy = flags.proxy.as_ref().or(file.proxy.as_ref()).map(|proxy| proxy.0.as_str());
        let proxy = proxy::proxy(proxy, &endpoint, env)?;
        let queue_bytes = flags.queue_bytes.or(file.queue_bytes).unwrap_or(QUEUE_BYTES);
        if queue_bytes < 65_536 {
            return Err(SettingsError::QueueBytes { value: queue_bytes });
        }
        let trust = Trust::new(file.insecure_secrets, file.receiver_user.clone());
        let mut settings = Self {
            endpoint,
            protocol,
            headers: lookup.headers()?,
            header_files: HeaderFiles {
                headers: flags.headers_file.clone().or_else(|| file.headers_file.clone()),
                token: flags.token_file.clone().or_else(|| file.token_file.clone()),
            },
            trust,
            proxy,
            timeout: lookup
                .text("TIMEOUT", "timeout_ms", |raw| raw.timeout_ms.map(|ms| ms.to_string()))
                .map_or(Ok(TIMEOUT), |setting| parse::timeout(&setting))?,
            compression: lookup
                .text("COMPRESSION", "compression", |raw| raw.compression.clone())
                .map_or(Ok(Compression::Gzip), |setting| parse::compression(&setting))?,
            tls: tls_files(&lookup)?,
            queue_bytes,
            backoff: Backoff::default(),
            temporality: lookup
                .text("TEMPORALITY_PREFERENCE", "temporality", |raw| raw.temporality.clone())
                .map_or(Ok(Temporality::Cumulative), |setting| parse::temporality(&setting))?,
            spread: Duration::ZERO,
            resource_attributes: resource_attributes(env)?,
        };
        settings.trust.secret = lookup.secret(&settings);
        Ok(settings)
    }
}

/// Checks the names of further receivers, and that each has an address.
pub(crate) fn check_also(file: &RawOtlp) -> Result<(), SettingsError> {
    let count = file.also.len();
    if count > MAX_ALSO {
        return Err(SettingsError::TooMany { count });
    }
    for (name, raw) in &file.also {
        if !is_name(name) {
            return Err(SettingsError::Name { name: name.clone() });
        }
        let wrong = |problem| Err(SettingsError::Also { name: name.clone(), problem });
        if raw.endpoint.is_none() {
            return wrong("set its endpoint");
        }
        if !raw.also.is_empty() {
            return wrong("put its receivers beside it, into otlp.also itself");
        }
    }
    Ok(())
}

/// Whether it can be a part of a metric's attribute and a folder's name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_character = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(is_character)
}

fn tls_files(lookup: &Lookup<'_>) -> Result<TlsFiles, SettingsError> {
    let path = |setting: Setting| PathBuf::from(setting.value);
    let ca = lookup.path("CERTIFICATE", "certificate", |raw| raw.certificate.clone());
    let certificate = lookup
        .path("CLIENT_CERTIFICATE", "client_certificate", |raw| raw.client_certificate.clone());
    let key = lookup.path("CLIENT_KEY", "client_key", |raw| raw.client_key.clone());
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((path(certificate), path(key))),
        (None, None) => None,
        (Some(certificate), None) => {
            return Err(SettingsError::ClientPair {
                origin: certificate.origin,
                missing: "the client key",
            });
        }
        (None, Some(key)) => {
            return Err(SettingsError::ClientPair {
                origin: key.origin,
                missing: "the client certificate",
            });
        }
    };
    Ok(TlsFiles { ca: ca.map(path), client })
}

/// Whether a URL's host is this one, as far as its text says.
pub(super) fn is_loopback(host: Option<&str>) -> bool {
    let host = host.unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl Endpoint {
    /// The complete URL.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// An address that is used as it is.
    pub(crate) fn exact(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority()?;
        let is_plain = !authority.as_str().contains('@') && !authority.host().is_empty();
        (is_http && is_plain).then_some(Self(uri))
    }

    /// Whether it is on this host.
    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(self.0.host())
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.0.scheme_str() == Some("https")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let authority = self.0.authority().map_or("", |authority| authority.as_str());
        write!(f, "{scheme}://{authority}{}", self.0.path())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for RawHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests;
