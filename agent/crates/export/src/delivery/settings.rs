//! Where and how to send. No error has a header's value or a proxy's password.

pub use super::proxy::Proxy;
use super::secrets::HeaderFiles;
use super::trust::{self, RawUser, Trust};
use gpuwho_collect::tls::TlsFiles;
use gpuwho_model::config::ConfigError;
use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Time for one request: that of OTLP's specification.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most further receivers of a section: each has a thread and a queue.
pub(crate) const MAX_ALSO: usize = 8;
const MAX_NAME_LEN: usize = 32;
/// Half an hour or more of an eight-GPU node's compressed ticks at 10 s.
const QUEUE_BYTES: usize = 8 << 20;

/// The settings of one receiver.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The receiver's address with its path.
    pub endpoint: Endpoint,
    /// HTTP/2, which gRPC needs, in place of HTTP/1.1.
    pub is_http2: bool,
    /// What a connection may mean that is closed before the first answer.
    pub hint: &'static str,
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
    /// Certificates, for `https`.
    pub tls: TlsFiles,
    /// Largest number of bytes of encoded requests that wait for the receiver.
    pub queue_bytes: usize,
    /// Waits between attempts.
    pub backoff: Backoff,
    /// A request waits for a part of this, which is the same at each tick, so that many agents do not
    /// send together.
    pub spread: Duration,
}

/// A receiver's address. Prints without the query, which may hold a token.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(Uri);

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

/// A setting as found, and where.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) value: String,
    /// Variable or key.
    pub(crate) origin: String,
}

/// The keys about its receiver that each section has.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawReceiver<'a> {
    /// The section.
    pub(crate) section: &'a str,
    pub(crate) headers: HeaderMap,
    /// The variable that they are from: what is there is taken for a secret.
    pub(crate) headers_variable: Option<&'static str>,
    pub(crate) header_files: HeaderFiles,
    pub(crate) insecure_secrets: Option<bool>,
    pub(crate) receiver_user: Option<RawUser>,
    pub(crate) proxy: Option<&'a RawProxy>,
    pub(crate) timeout: Option<Setting>,
    pub(crate) certificate: Option<Setting>,
    pub(crate) client_certificate: Option<Setting>,
    pub(crate) client_key: Option<Setting>,
    pub(crate) queue_bytes: Option<usize>,
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
    /// Those of a receiver over HTTP/1.1. `env` looks a variable about proxies up.
    pub(crate) fn resolve(
        endpoint: Endpoint,
        raw: RawReceiver<'_>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let section = raw.section;
        let secrets = [
            ("token_file", raw.header_files.token.is_some()),
            ("headers_file", raw.header_files.headers.is_some()),
            (
                raw.headers_variable.unwrap_or_default(),
                raw.headers_variable.is_some() && !raw.headers.is_empty(),
            ),
            ("headers", raw.headers.keys().any(trust::is_secret)),
            ("the query of its URL", endpoint.uri().query().is_some()),
        ];
        let secret = secrets.into_iter().find(|(_, is_there)| *is_there).map(|(name, _)| name);
        let queue_bytes = raw.queue_bytes.unwrap_or(QUEUE_BYTES);
        if queue_bytes < 65_536 {
            let problem = format!(
                "{queue_bytes} is too small for a request; the default is 8388608, the minimum 65536"
            );
            return Err(ConfigError::at(format!("{section}.queue_bytes"), problem));
        }
        let proxy = raw.proxy.map(|proxy| proxy.0.as_str());
        Ok(Self {
            proxy: super::proxy::proxy(section, proxy, &endpoint, env)?,
            endpoint,
            is_http2: false,
            hint: "",
            headers: raw.headers,
            header_files: raw.header_files,
            trust: Trust::new(secret, raw.insecure_secrets, raw.receiver_user),
            timeout: raw.timeout.map_or(Ok(TIMEOUT), timeout)?,
            tls: tls_files(raw.certificate, raw.client_certificate, raw.client_key)?,
            queue_bytes,
            backoff: Backoff::default(),
            spread: Duration::ZERO,
        })
    }
}

fn timeout(setting: Setting) -> Result<Duration, ConfigError> {
    let ms = setting.value.parse().ok().filter(|ms| *ms > 0);
    ms.map(Duration::from_millis).ok_or_else(|| {
        let value = setting.value;
        let problem =
            format!("`{value}` is not a number of milliseconds above 0; the default is 10000");
        ConfigError::at(setting.origin, problem)
    })
}

fn tls_files(
    ca: Option<Setting>,
    certificate: Option<Setting>,
    key: Option<Setting>,
) -> Result<TlsFiles, ConfigError> {
    let path = |setting: Setting| PathBuf::from(setting.value);
    let pair = |one: Setting, missing| {
        Err(ConfigError::at(one.origin, format!("set together with {missing}, or neither")))
    };
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((path(certificate), path(key))),
        (None, None) => None,
        (Some(certificate), None) => return pair(certificate, "the client key"),
        (None, Some(key)) => return pair(key, "the client certificate"),
    };
    Ok(TlsFiles { ca: ca.map(path), client })
}

/// Headers of names and values; `None` is an entry that is none.
pub(crate) fn headers(
    origin: &str,
    pairs: impl Iterator<Item = Option<(String, String)>>,
) -> Result<HeaderMap, ConfigError> {
    let mut headers = HeaderMap::new();
    for (entry, pair) in (1..).zip(pairs) {
        let found = pair.and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(&value).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let (name, value) = found.ok_or_else(|| {
            let problem = format!(
                "entry {entry} is not a header; write NAME=VALUE,NAME=VALUE with values percent-encoded"
            );
            ConfigError::at(origin, problem)
        })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Whether it can be a part of a metric's attribute and a folder's name.
pub(crate) fn is_name(name: &str) -> bool {
    let is_character = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(is_character)
}

/// Whether a URL's host is this one, as far as its text says.
pub(crate) fn is_loopback(host: Option<&str>) -> bool {
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
        let has_port = authority.port_u16().is_some() || authority.as_str() == authority.host();
        (is_http && is_plain && has_port).then_some(Self(uri))
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

impl RawHeaders {
    /// As they are sent.
    pub(crate) fn read(&self, origin: &str) -> Result<HeaderMap, ConfigError> {
        headers(origin, self.0.iter().map(|(name, value)| Some((name.clone(), value.clone()))))
    }
}

impl fmt::Debug for RawHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
