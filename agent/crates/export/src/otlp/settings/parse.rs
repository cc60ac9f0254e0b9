//! Finds each setting's text and parses it.

use super::{Protocol, RawOtlp, Signal, Temporality};
use crate::delivery::body::Compression;
use crate::delivery::settings::{Endpoint, Setting, headers, is_loopback};
use crate::resource::pairs;
use gpuwho_model::config::ConfigError;
use hyper::Uri;
use hyper::header::HeaderMap;

/// The variable of headers, for every signal.
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// The three places a setting can come from.
pub(super) struct Lookup<'a> {
    pub(super) signal: &'static str,
    pub(super) flags: &'a RawOtlp,
    pub(super) file: &'a RawOtlp,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
}

impl Lookup<'_> {
    pub(super) fn text(
        &self,
        variable: &str,
        key: &str,
        raw: impl Fn(&RawOtlp) -> Option<String>,
    ) -> Option<Setting> {
        let setting = |value, origin| Setting { value, origin };
        raw(self.flags)
            .map(|value| setting(value, "--otlp".to_owned()))
            .or_else(|| self.variable(variable))
            .or_else(|| raw(self.file).map(|value| setting(value, format!("otlp.{key}"))))
    }

    /// The headers of the first place that has any, because places are not mixed; and the variable that they
    /// are from.
    pub(super) fn headers(&self) -> Result<(HeaderMap, Option<&'static str>), ConfigError> {
        let written = |raw: &RawOtlp, origin| match &raw.headers {
            Some(headers) => headers.read(origin),
            None => Ok(HeaderMap::new()),
        };
        if self.flags.headers.is_some() {
            return Ok((written(self.flags, "command line (headers)")?, None));
        }
        Ok(match self.variable("HEADERS") {
            Some(setting) => (headers(&setting.origin, pairs(&setting.value))?, Some(HEADERS)),
            None => (written(self.file, "otlp.headers")?, None),
        })
    }

    fn variable(&self, name: &str) -> Option<Setting> {
        let specific = format!("OTEL_EXPORTER_OTLP_{}_{name}", self.signal);
        let general = format!("OTEL_EXPORTER_OTLP_{name}");
        [specific, general].into_iter().find_map(|origin| {
            let value = (self.env)(&origin)?.trim().to_owned();
            (!value.is_empty()).then_some(Setting { value, origin })
        })
    }
}

fn unknown(setting: &Setting, expected: &str) -> ConfigError {
    let problem = format!("unknown value `{}`; use {expected}", setting.value);
    ConfigError::at(&setting.origin, problem)
}

pub(super) fn protocol(setting: &Setting) -> Result<Protocol, ConfigError> {
    match setting.value.as_str() {
        "http/protobuf" => Ok(Protocol::Http),
        "http/json" => Ok(Protocol::HttpJson),
        "grpc" => Ok(Protocol::Grpc),
        _ => Err(unknown(setting, "`http/protobuf`, `http/json` or `grpc`")),
    }
}

pub(super) fn compression(setting: &Setting) -> Result<Compression, ConfigError> {
    match setting.value.as_str() {
        "gzip" => Ok(Compression::Gzip),
        "zstd" => Ok(Compression::Zstd),
        "none" => Ok(Compression::None),
        _ => Err(unknown(setting, "`gzip`, `zstd` or `none`")),
    }
}

/// OpenTelemetry's third word, `lowmemory`, is what costs least memory here.
pub(super) fn temporality(setting: &Setting) -> Result<Temporality, ConfigError> {
    match setting.value.to_ascii_lowercase().as_str() {
        "cumulative" | "lowmemory" => Ok(Temporality::Cumulative),
        "delta" => Ok(Temporality::Delta),
        _ => Err(unknown(setting, "`cumulative` or `delta`")),
    }
}

pub(super) fn boolean(setting: &Setting) -> Result<bool, ConfigError> {
    match setting.value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(unknown(setting, "`true` or `false`")),
    }
}

/// The endpoint with scheme, port and path as the rules at the top of `settings` complete it.
pub(super) fn endpoint(
    signal: Signal,
    setting: Option<Setting>,
    protocol: Option<Protocol>,
    insecure: Option<bool>,
) -> Result<(Endpoint, Protocol), ConfigError> {
    let default = || Setting { value: "localhost".to_owned(), origin: "default".to_owned() };
    let setting = setting.unwrap_or_else(default);
    let wrong = |reason: &str| {
        let problem = format!(
            "not an OTLP endpoint ({reason}); write http://HOST:4318, or https://HOST:4317"
        );
        ConfigError::at(&setting.origin, problem)
    };
    let (scheme, rest) = match setting.value.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, setting.value.as_str()),
    };
    // A scheme makes `http::Uri` take the rest for authority and path.
    let uri: Uri = format!("http://{rest}").parse().map_err(|_| wrong("not a URL"))?;
    let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
    if authority.as_str().contains('@') {
        return Err(wrong("credentials in the URL; set them as headers"));
    }
    if authority.host().is_empty() {
        return Err(wrong("no host"));
    }
    let port = uri.port_u16();
    if port.is_none() && authority.as_str() != authority.host() {
        return Err(wrong("the port is not a number from 1 to 65535"));
    }
    let protocol =
        protocol.unwrap_or(if port == Some(4317) { Protocol::Grpc } else { Protocol::Http });
    let authority = match (port, &scheme, protocol) {
        (Some(_), _, _) | (None, Some(_), _) => authority.to_string(),
        (None, None, Protocol::Grpc) => format!("{authority}:4317"),
        (None, None, Protocol::Http | Protocol::HttpJson) => format!("{authority}:4318"),
    };
    let scheme = match scheme.as_deref() {
        Some("http") => "http",
        Some("https") => "https",
        Some(_) => return Err(wrong("the scheme is neither http nor https")),
        None if insecure.unwrap_or_else(|| is_loopback(uri.host())) => "http",
        None => "https",
    };
    let path = path(signal, &setting, protocol, &uri);
    let endpoint = Endpoint::exact(&format!("{scheme}://{authority}{path}"));
    Ok((endpoint.ok_or_else(|| wrong("not a URL"))?, protocol))
}

fn path(signal: Signal, setting: &Setting, protocol: Protocol, uri: &Uri) -> String {
    if protocol == Protocol::Grpc {
        return signal.grpc_path().to_owned();
    }
    let base = uri.path();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let is_specific = setting.origin.contains(signal.infix());
    let is_complete = !setting.origin.starts_with("OTEL_") && base.ends_with(signal.http_path());
    if is_specific || is_complete {
        return format!("{base}{query}");
    }
    format!("{}{}{query}", base.trim_end_matches('/'), signal.http_path())
}
