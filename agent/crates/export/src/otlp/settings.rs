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

mod parse;

use crate::delivery::body::{Compression, Encoding, Format};
use crate::delivery::secrets::HeaderFiles;
use crate::delivery::settings::{
    self as delivery, MAX_ALSO, RawHeaders, RawProxy, RawReceiver, is_name,
};
use crate::delivery::trust::RawUser;
use crate::filter::RawFilter;
use crate::resource::attributes;
use gpuwho_model::config::ConfigError;
use parse::Lookup;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
    /// Those of every receiver.
    pub receiver: delivery::Settings,
    /// The protocol of requests.
    pub protocol: Protocol,
    /// Compression of request bodies.
    pub compression: Compression,
    /// The form of counters and distributions.
    pub temporality: Temporality,
    /// `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`.
    pub resource_attributes: Vec<(String, String)>,
}

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

/// The form of counters and distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Temporality {
    /// Since the start of the series.
    Cumulative,
    /// Since the point before.
    Delta,
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

impl Settings {
    /// Resolves `signal`'s settings: `flags` before the environment before `file`. `env` looks a
    /// variable up.
    pub fn resolve(
        signal: Signal,
        flags: &RawOtlp,
        file: &RawOtlp,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
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
        let (headers, headers_variable) = lookup.headers()?;
        let path = |variable, key, raw: fn(&RawOtlp) -> Option<&PathBuf>| {
            lookup.text(variable, key, |source| raw(source).map(|path| path.display().to_string()))
        };
        let receiver = RawReceiver {
            section: "otlp",
            headers,
            headers_variable,
            header_files: HeaderFiles {
                headers: flags.headers_file.clone().or_else(|| file.headers_file.clone()),
                token: flags.token_file.clone().or_else(|| file.token_file.clone()),
            },
            insecure_secrets: file.insecure_secrets,
            receiver_user: file.receiver_user.clone(),
            proxy: flags.proxy.as_ref().or(file.proxy.as_ref()),
            timeout: lookup
                .text("TIMEOUT", "timeout_ms", |raw| raw.timeout_ms.map(|ms| ms.to_string())),
            certificate: path("CERTIFICATE", "certificate", |raw| raw.certificate.as_ref()),
            client_certificate: path("CLIENT_CERTIFICATE", "client_certificate", |raw| {
                raw.client_certificate.as_ref()
            }),
            client_key: path("CLIENT_KEY", "client_key", |raw| raw.client_key.as_ref()),
            queue_bytes: flags.queue_bytes.or(file.queue_bytes),
        };
        let receiver = delivery::Settings {
            is_http2: protocol == Protocol::Grpc,
            hint: protocol.hint(),
            ..delivery::Settings::resolve(endpoint, receiver, env)?
        };
        Ok(Self {
            receiver,
            protocol,
            compression: lookup
                .text("COMPRESSION", "compression", |raw| raw.compression.clone())
                .map_or(Ok(Compression::Gzip), |setting| parse::compression(&setting))?,
            temporality: lookup
                .text("TEMPORALITY_PREFERENCE", "temporality", |raw| raw.temporality.clone())
                .map_or(Ok(Temporality::Cumulative), |setting| parse::temporality(&setting))?,
            resource_attributes: attributes(env)?,
        })
    }

    /// See [`delivery::Settings::with_trust`].
    pub(crate) fn with_trust(self, key: &str, passwd: &Path) -> Result<Self, ConfigError> {
        Ok(Self { receiver: self.receiver.with_trust(key, passwd)?, ..self })
    }

    /// What a body is: the one of two formats that the protocol takes.
    pub(super) fn encoding(&self, binary: Format, json: Format) -> Encoding {
        let format = if self.protocol == Protocol::HttpJson { json } else { binary };
        Encoding { format, compression: self.compression }
    }
}

impl Protocol {
    /// A connection that is lost before the first answer is most often one to a port of the other
    /// protocol: neither side understands the other's first bytes.
    fn hint(self) -> &'static str {
        match self {
            Self::Http | Self::HttpJson => {
                "; if this is an OTLP/gRPC port, set protocol = \"grpc\""
            }
            Self::Grpc => "; if this is an OTLP/HTTP port, set protocol = \"http/protobuf\"",
        }
    }
}

/// Checks the names of further receivers, and that each has an address.
pub(super) fn check_also(file: &RawOtlp) -> Result<(), ConfigError> {
    let count = file.also.len();
    if count > MAX_ALSO {
        let problem = format!("{count} receivers are too many; the most are {MAX_ALSO}");
        return Err(ConfigError::at("otlp.also", problem));
    }
    for (name, raw) in &file.also {
        if !is_name(name) {
            let problem = format!("`{name}` is no name; use up to 32 of a-z, 0-9 and -");
            return Err(ConfigError::at("otlp.also", problem));
        }
        let wrong = |problem| Err(ConfigError::at(format!("otlp.also.{name}"), problem));
        if raw.endpoint.is_none() {
            return wrong("set its endpoint");
        }
        if !raw.also.is_empty() {
            return wrong("put its receivers beside it, into otlp.also itself");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
