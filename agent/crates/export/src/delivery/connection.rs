//! One persistent connection to the receiver: HTTP/1.1 or HTTP/2, plain or TLS, by hyper. Built at
//! first use and again when a certificate file changes.

use super::cause::Cause;
use super::secrets::CachedHeaders;
use super::settings::Settings;
use super::trust::Connector;
use bytes::Bytes;
use gpuwho_collect::tls::{self, Stamp};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{Builder, Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use std::time::Duration;

/// The part of the timeout for the TCP handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Largest answer in bytes. An answer is a status and a short message.
const ANSWER_BYTES: usize = 64 << 10;

type Direct = Client<HttpsConnector<Connector>, Full<Bytes>>;
type Proxied = Client<HttpsConnector<Tunnel<Connector>>, Full<Bytes>>;

/// A client, with or without a proxy.
#[derive(Debug)]
enum HyperClient {
    Direct(Direct),
    Proxied(Proxied),
}

impl HyperClient {
    async fn request(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        match self {
            Self::Direct(client) => client.request(request).await,
            Self::Proxied(client) => client.request(request).await,
        }
    }
}

/// A receiver as the transports see it.
#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    client: Option<(HyperClient, Stamp)>,
    /// Headers from files.
    from_files: CachedHeaders,
    /// Whether the endpoint has ever answered in our protocol.
    answered: bool,
}

/// A complete answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, up to a bound.
    pub body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Connection {
    /// A connection that is made at the first request.
    pub fn new(settings: Settings) -> Self {
        Self { settings, client: None, from_files: CachedHeaders::default(), answered: false }
    }

    /// Posts a body and reads the whole answer, within the timeout.
    pub async fn post(
        &mut self,
        body: Bytes,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, Cause> {
        let timeout = self.settings.timeout;
        let hint = self.settings.hint;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = self.settings.endpoint.uri().clone();
        let sent = request.headers_mut();
        sent.insert(USER_AGENT, agent_name());
        for (name, value) in headers {
            sent.insert(name, value.clone());
        }
        let from_files = self.from_files.of(&self.settings.header_files)?;
        for (name, value) in self.settings.headers.iter().chain(from_files) {
            sent.insert(name, value.clone());
        }
        if let Some(token) = sent.get_mut(AUTHORIZATION) {
            token.set_sensitive(true);
        }
        let client = self.client()?;
        let answer = match tokio::time::timeout(timeout, exchange(client, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(Cause::TimedOut(timeout)),
        };
        self.answered |= answer.is_ok();
        let answered = self.answered;
        answer.map_err(|cause| match cause {
            Cause::Lost(detail) if !answered => Cause::ClosedByReceiver { detail, hint },
            cause => cause,
        })
    }

    fn client(&mut self) -> Result<&HyperClient, Cause> {
        let stamp = tls::stamp(&self.settings.tls);
        let client = match self.client.take().filter(|(_, read)| *read == stamp) {
            Some((client, _)) => client,
            None => build(&self.settings)?,
        };
        Ok(&self.client.insert((client, stamp)).0)
    }
}

async fn exchange(client: &HyperClient, request: Request<Full<Bytes>>) -> Result<Answer, Cause> {
    let answer = client.request(request).await.map_err(|error| Cause::of(&error))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, ANSWER_BYTES)
        .collect()
        .await
        .map_err(|error| Cause::of(error.as_ref()))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes(), trailers })
}

fn build(settings: &Settings) -> Result<HyperClient, Cause> {
    let config =
        if settings.endpoint.is_tls() { tls::config(&settings.tls)? } else { tls::none()? };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let tcp = Connector::new(tcp, settings);
    Ok(match &settings.proxy {
        None => HyperClient::Direct(client(settings.is_http2, config, tcp)),
        Some(proxy) => {
            let mut tunnel = Tunnel::new(proxy.uri.clone(), tcp);
            if let Some(authorization) = &proxy.authorization {
                tunnel = tunnel.with_auth(authorization.clone());
            }
            HyperClient::Proxied(client(settings.is_http2, config, tunnel))
        }
    })
}

fn client<C>(
    is_http2: bool,
    config: ClientConfig,
    connector: C,
) -> Client<HttpsConnector<C>, Full<Bytes>>
where
    HttpsConnector<C>: Connect + Clone,
{
    let https = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    let mut builder: Builder = Client::builder(TokioExecutor::new());
    builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(1);
    if is_http2 {
        builder.http2_only(true).build(https.enable_http2().wrap_connector(connector))
    } else {
        builder.build(https.enable_http1().wrap_connector(connector))
    }
}

fn agent_name() -> HeaderValue {
    HeaderValue::from_static(concat!("gpuwho/", env!("CARGO_PKG_VERSION")))
}
