//! Finds each setting's text and parses it.

use super::{
    Compression, Endpoint, Protocol, RawOtlp, Settings, SettingsError, Signal, Temporality,
    is_loopback, trust,
};
use gpuwho_model::catalog::attributes::SERVICE_NAME;
use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

/// A setting as found, with the place it came from.
pub(super) struct Setting {
    pub(super) value: String,
    pub(super) origin: String,
    /// From a variable of this signal alone.
    specific: bool,
    from_env: bool,
}

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
        let setting = |value, origin| Setting { value, origin, specific: false, from_env: false };
        raw(self.flags)
            .map(|value| setting(value, "--otlp".to_owned()))
            .or_else(|| self.variable(variable))
            .or_else(|| raw(self.file).map(|value| setting(value, format!("otlp.{key}"))))
    }

    pub(super) fn path(
        &self,
        variable: &str,
        key: &str,
        raw: impl Fn(&RawOtlp) -> Option<PathBuf>,
    ) -> Option<Setting> {
        self.text(variable, key, |source| raw(source).map(|path| path.display().to_string()))
    }

    /// The headers of the first place that has any: places are not mixed.
    pub(super) fn headers(&self) -> Result<HeaderMap, SettingsError> {
        let written = |raw: &RawOtlp, origin: &str| {
            raw.headers.as_ref().map(|headers| {
                let pairs = headers.0.iter().map(|(name, value)| (name.clone(), value.clone()));
                collect_headers(origin, pairs.map(Some))
            })
        };
        if let Some(headers) = written(self.flags, "command line (headers)") {
            return headers;
        }
        if let Some(setting) = self.variable("HEADERS") {
            return collect_headers(&setting.origin, pairs(&setting.value));
        }
        written(self.file, "otlp.headers").unwrap_or_else(|| Ok(HeaderMap::new()))
    }

    /// What of a request is a secret, by its key.
    pub(super) fn secret(&self, settings: &Settings) -> Option<&'static str> {
        let files = &settings.header_files;
        let is_from_env = self.flags.headers.is_none() && self.variable("HEADERS").is_some();
        let found = [
            ("token_file", files.token.is_some()),
            ("headers_file", files.headers.is_some()),
            ("OTEL_EXPORTER_OTLP_HEADERS", is_from_env && !settings.headers.is_empty()),
            ("headers", settings.headers.keys().any(trust::is_secret)),
            ("the query of its URL", settings.endpoint.uri().query().is_some()),
        ];
        found.into_iter().find(|(_, is_there)| *is_there).map(|(name, _)| name)
    }

    fn variable(&self, name: &str) -> Option<Setting> {
        let specific = format!("OTEL_EXPORTER_OTLP_{}_{name}", self.signal);
        let general = format!("OTEL_EXPORTER_OTLP_{name}");
        [(specific, true), (general, false)].into_iter().find_map(|(origin, specific)| {
            let value = (self.env)(&origin)?.trim().to_owned();
            (!value.is_empty()).then_some(Setting { value, origin, specific, from_env: true })
        })
    }
}

impl Setting {
    fn unknown(&self, expected: &'static str) -> SettingsError {
        SettingsError::Word { origin: self.origin.clone(), value: self.value.clone(), expected }
    }
}

pub(super) fn protocol(setting: &Setting) -> Result<Protocol, SettingsError> {
    match setting.value.as_str() {
        "http/protobuf" => Ok(Protocol::Http),
        "http/json" => Ok(Protocol::HttpJson),
        "grpc" => Ok(Protocol::Grpc),
        _ => Err(setting.unknown("`http/protobuf`, `http/json` or `grpc`")),
    }
}

pub(super) fn compression(setting: &Setting) -> Result<Compression, SettingsError> {
    match setting.value.as_str() {
        "gzip" => Ok(Compression::Gzip),
        "zstd" => Ok(Compression::Zstd),
        "none" => Ok(Compression::None),
        _ => Err(setting.unknown("`gzip`, `zstd` or `none`")),
    }
}

/// OpenTelemetry's third word, `lowmemory`, is what costs least memory here.
pub(super) fn temporality(setting: &Setting) -> Result<Temporality, SettingsError> {
    match setting.value.to_ascii_lowercase().as_str() {
        "cumulative" | "lowmemory" => Ok(Temporality::Cumulative),
        "delta" => Ok(Temporality::Delta),
        _ => Err(setting.unknown("`cumulative` or `delta`")),
    }
}

pub(super) fn boolean(setting: &Setting) -> Result<bool, SettingsError> {
    match setting.value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(setting.unknown("`true` or `false`")),
    }
}

pub(super) fn timeout(setting: &Setting) -> Result<Duration, SettingsError> {
    match setting.value.parse::<u64>() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err(SettingsError::Timeout {
            origin: setting.origin.clone(),
            value: setting.value.clone(),
        }),
    }
}

/// The endpoint with scheme, port and path as the rules at the top of `settings` complete it.
pub(super) fn endpoint(
    signal: Signal,
    setting: Option<Setting>,
    protocol: Option<Protocol>,
    insecure: Option<bool>,
) -> Result<(Endpoint, Protocol), SettingsError> {
    let setting = setting.unwrap_or_else(|| Setting {
        value: "localhost".to_owned(),
        origin: "default".to_owned(),
        specific: false,
        from_env: false,
    });
    let wrong = |reason: &str| SettingsError::Endpoint {
        origin: setting.origin.clone(),
        reason: reason.to_owned(),
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
    format!("{scheme}://{authority}{path}")
        .parse()
        .map(|uri| (Endpoint(uri), protocol))
        .map_err(|_| wrong("not a URL"))
}

fn path(signal: Signal, setting: &Setting, protocol: Protocol, uri: &Uri) -> String {
    if protocol == Protocol::Grpc {
        return signal.grpc_path().to_owned();
    }
    let base = uri.path();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let complete = !setting.from_env && base.ends_with(signal.http_path());
    if setting.specific || complete {
        return format!("{base}{query}");
    }
    format!("{}{}{query}", base.trim_end_matches('/'), signal.http_path())
}

/// `OTEL_RESOURCE_ATTRIBUTES`, then `OTEL_SERVICE_NAME`, which wins.
pub(crate) fn resource_attributes(
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, String)>, SettingsError> {
    let origin = "OTEL_RESOURCE_ATTRIBUTES";
    let text = env(origin).unwrap_or_default();
    let mut attributes = Vec::new();
    for (entry, pair) in pairs(&text).enumerate() {
        let wrong =
            || SettingsError::ResourceAttributes { origin: origin.to_owned(), entry: entry + 1 };
        attributes.push(pair.ok_or_else(wrong)?);
    }
    if let Some(name) = env("OTEL_SERVICE_NAME").filter(|name| !name.trim().is_empty()) {
        attributes.push((SERVICE_NAME.name.to_owned(), name.trim().to_owned()));
    }
    Ok(attributes)
}

fn collect_headers(
    origin: &str,
    pairs: impl Iterator<Item = Option<(String, String)>>,
) -> Result<HeaderMap, SettingsError> {
    let mut headers = HeaderMap::new();
    for (entry, pair) in pairs.enumerate() {
        let (name, value) = pair
            .and_then(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
                let mut value = HeaderValue::from_str(&value).ok()?;
                value.set_sensitive(true);
                Some((name, value))
            })
            .ok_or_else(|| SettingsError::Headers {
                origin: origin.to_owned(),
                entry: entry + 1,
            })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Splits `key=value,key=value` and decodes the values; `None` for an entry that is neither a pair
/// nor empty.
fn pairs(list: &str) -> impl Iterator<Item = Option<(String, String)>> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(|entry| {
        let (key, value) = entry.split_once('=')?;
        let key = key.trim();
        if key.is_empty() {
            return None;
        }
        Some((key.to_owned(), percent_decoded(value.trim())?))
    })
}

/// `None` for a `%` that begins no escape, which the crate takes for itself.
fn percent_decoded(text: &str) -> Option<String> {
    let is_escape = |rest: &str| {
        rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let escapes = text.split('%').skip(1).all(is_escape);
    let decoded = percent_decode_str(text).decode_utf8().ok().filter(|_| escapes);
    decoded.map(Cow::into_owned)
}
