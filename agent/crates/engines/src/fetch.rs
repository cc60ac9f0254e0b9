//! One GET of a page of metrics, from inside the network namespace of the process that serves it:
//! nothing is executed there, and no credential of the pod is used.
//!
//! The server is somebody's job. So an answer has a limit in bytes ([`Media::limit`]), the connection
//! one in all bytes that it brings ([`MAX_MORE`]) and in time ([`WITHIN`]), no redirect is followed, nothing is decompressed, and only the media types of the
//! text formats are read. Nothing is sent before the caller has found out who has accepted the
//! connection. Each request has a connection of its own: none of the server's sockets is held
//! between two requests.

mod error;
mod media;

pub(super) use error::FetchError;
pub(super) use media::Media;

use bytes::Bytes;
use gpuwho_collect::tls;
use gpuwho_collect::tls::TlsFiles;
use gpuwho_owners::sockets::Allowance;
use gpuwho_sys::namespace;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_TYPE, HOST, HeaderValue, LOCATION, USER_AGENT,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// For a whole request, from connecting to the last byte.
pub(super) const WITHIN: Duration = Duration::from_secs(5);
/// For a connection, of the whole time.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Between two looks at who has accepted a connection, the first and the longest.
const FIRST_LOOK: Duration = Duration::from_micros(200);
const LAST_LOOK: Duration = Duration::from_millis(50);
/// Lines and descriptors that a request reads to find out who has accepted its connection: 0.2 s.
/// Half of them before something is sent: four looks at a table of 19,000 sockets.
const MAX_LOOKED_AT: usize = 1 << 17;
/// Bytes that a connection may bring beyond its answer's body: heads, interim answers, chunks' sizes.
const MAX_MORE: usize = 1 << 20;
/// Bytes of a page above which only one is held at a time of all endpoints together, until it is
/// parsed: so many pages at once have no more memory than a page may have and this much each.
const LARGE_PAGE: usize = 1 << 20;
/// Bytes that a buffer keeps between two requests.
const KEPT_BYTES: usize = 256 << 10;
/// Bytes of an answer's head, and its fields.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 64;
/// Bytes of a bearer token's file.
const MAX_TOKEN: u64 = 16 << 10;

/// Where a page is.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub place: Place,
    /// The path, from its slash on.
    pub path: String,
    /// Certificates, where it is served over TLS.
    pub tls: Option<TlsFiles>,
    /// The file with the bearer token.
    pub token: Option<PathBuf>,
}

/// Whom to connect to.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// An address in some network namespace.
    At(SocketAddr),
    /// A host's name and a port, in the agent's own.
    Host(String, u16),
}

impl Place {
    fn authority(&self) -> String {
        match self {
            Self::At(at) => format!("localhost:{}", at.port()),
            Self::Host(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Self::Host(host, port) => format!("{host}:{port}"),
        }
    }
}

/// Memory for a large page, which all endpoints share.
#[derive(Clone, Debug)]
pub(super) struct LargePages(Arc<Semaphore>);

impl Default for LargePages {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// Whether a process of the engine's has accepted a connection, by the server's end of it and the
/// agent's; `None`: not accepted yet.
pub(super) type IsServer<'a> = &'a dyn Fn(&Allowance, (SocketAddr, SocketAddr)) -> Option<bool>;

/// Gets pages, one at a time; the buffer is kept.
#[derive(Debug)]
pub(super) struct Fetcher {
    runtime: Runtime,
    body: Vec<u8>,
    large: LargePages,
    /// Held as long as the body is large.
    held: Option<OwnedSemaphorePermit>,
    within: Duration,
}

/// Where an answer goes.
struct Answered<'a> {
    body: &'a mut Vec<u8>,
    large: &'a LargePages,
    held: &'a mut Option<OwnedSemaphorePermit>,
    media: Media,
}

impl Fetcher {
    pub(super) fn new(large: &LargePages, within: Duration) -> io::Result<Self> {
        // A host's name is looked up in the one blocking thread, which is started only for that.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?;
        let (large, within) = (large.clone(), within.min(WITHIN));
        Ok(Self { runtime, body: Vec::new(), large, held: None, within })
    }

    /// The last answer is not needed any more: gives its memory back.
    pub(super) fn finish(&mut self) {
        self.body.clear();
        self.body.shrink_to(KEPT_BYTES);
        self.held = None;
    }

    /// Gets a page; `network` is the namespace to connect in where that is not the agent's own.
    pub(super) fn get(
        &mut self,
        (target, media): (&Target, Media),
        network: Option<&File>,
        is_server: IsServer<'_>,
    ) -> Result<&[u8], FetchError> {
        self.finish();
        let within = self.within;
        let looks = Allowance::new(MAX_LOOKED_AT, Some(Instant::now() + within));
        let into =
            Answered { body: &mut self.body, large: &self.large, held: &mut self.held, media };
        let whole = async {
            let stream = connect(target, network, within).await?;
            let ends = ends(&stream)?;
            let request = request(target, media)?;
            let (reading, writing) = stream.into_split();
            let most = u64::try_from(media.limit() + MAX_MORE).unwrap_or(u64::MAX);
            let stream = tokio::io::join(reading.take(most), writing);
            let is_server = || is_server(&looks, ends);
            let is_known = wait_for_server(&is_server, &looks, within / 2).await?;
            // Of a server that accepts no connection before there is a request.
            let is_server = || is_known || is_server() == Some(true);
            match &target.tls {
                None => exchange(stream, request, &is_server, into).await,
                Some(files) => {
                    let stream = secured(stream, &target.place, files).await?;
                    exchange(stream, request, &is_server, into).await
                }
            }
        };
        let got = self.runtime.block_on(async { tokio::time::timeout(within, whole).await });
        match got.unwrap_or(Err(FetchError::Late(within))) {
            Err(FetchError::UnknownServer) if looks.is_used_up() => Err(FetchError::TooManySockets),
            got => got.map(|()| &*self.body),
        }
    }
}

async fn connect(
    target: &Target,
    network: Option<&File>,
    within: Duration,
) -> Result<TcpStream, FetchError> {
    let within = within.min(CONNECT_WITHIN);
    let (host, port) = match &target.place {
        Place::At(at) => {
            // In a thread that is in the namespace; the socket stays there.
            let made = || std::net::TcpStream::connect_timeout(at, within);
            let stream = match network {
                None => made(),
                Some(network) => {
                    namespace::in_network(network, || Ok(made())).map_err(FetchError::Namespace)?
                }
            };
            return stream.and_then(nonblocking).map_err(FetchError::Connect);
        }
        Place::Host(host, port) => (host, *port),
    };
    let unresolved = |source| FetchError::Resolve { host: host.clone(), source };
    let addresses = lookup_host((host.as_str(), port)).await.map_err(unresolved)?;
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match tokio::time::timeout(within, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(FetchError::Connect(last))
}

fn nonblocking(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

fn ends(stream: &TcpStream) -> Result<(SocketAddr, SocketAddr), FetchError> {
    let ends = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?)));
    ends.map_err(FetchError::Connect)
}

/// Waits until the engine's process has accepted the connection, and sends nothing before. False
/// if it does not in time, or for half of what looks may cost.
async fn wait_for_server(
    is_server: &dyn Fn() -> Option<bool>,
    looks: &Allowance,
    within: Duration,
) -> Result<bool, FetchError> {
    let until = Instant::now() + within;
    let (mut wait, mut is_other) = (FIRST_LOOK, false);
    loop {
        match is_server() {
            Some(true) => return Ok(true),
            _ if looks.is_used_up() => return Err(FetchError::UnknownServer),
            Some(false) if is_other => return Err(FetchError::UnknownServer),
            None if Instant::now() >= until || looks.is_half_used() => return Ok(false),
            // Between accepting it and having it, nobody has it: looked at again.
            other => is_other = other.is_some(),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_LOOK);
    }
}

async fn secured<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    place: &Place,
    files: &TlsFiles,
) -> Result<tokio_rustls::client::TlsStream<S>, FetchError> {
    let failed = |error: &dyn std::fmt::Display| FetchError::Tls(shown(&error.to_string()));
    let config = tls::config(files).map_err(|error| failed(&error))?;
    let name = match place {
        Place::At(at) => ServerName::from(at.ip()),
        Place::Host(host, _) => {
            ServerName::try_from(host.clone()).map_err(|error| failed(&error))?
        }
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.map_err(|error| failed(&error))
}

fn request(target: &Target, media: Media) -> Result<Request<Empty<Bytes>>, FetchError> {
    let not_http = |error: hyper::http::Error| FetchError::NotHttp(shown(&error.to_string()));
    let mut request = Request::get(&target.path)
        .header(HOST, target.place.authority())
        .header(USER_AGENT, concat!("gpuwho/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, media.accepted())
        .header(ACCEPT_ENCODING, "identity")
        .header(CONNECTION, "close")
        .body(Empty::new())
        .map_err(not_http)?;
    if let Some(path) = &target.token {
        request.headers_mut().insert(AUTHORIZATION, token(path)?);
    }
    Ok(request)
}

/// Read at each request, as such files are renewed.
fn token(path: &Path) -> Result<HeaderValue, FetchError> {
    let failed = |source| FetchError::Token { path: path.to_owned(), source };
    let mut token = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_TOKEN).read_to_string(&mut token).map_err(failed)?;
    let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut value = value.map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Sends the request, and reads the answer into the buffer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
    is_server: &dyn Fn() -> bool,
    into: Answered<'_>,
) -> Result<(), FetchError> {
    let not_http = |error: hyper::Error| FetchError::NotHttp(shown(&error.to_string()));
    let path = request.uri().path().to_owned();
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let (mut sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(not_http)?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(not_http)?;
        if !is_server() {
            return Err(FetchError::UnknownServer);
        }
        check(&answer, &path, into.media)?;
        read(answer.into_body(), into).await
    };
    tokio::pin!(connection, answered);
    tokio::select! {
        biased;
        answer = &mut answered => answer,
        // The other side hung up; what it had said is in the exchange's hands.
        _ = &mut connection => answered.await,
    }
}

/// Whether the answer is a page.
fn check(answer: &Response<Incoming>, path: &str, asked: Media) -> Result<(), FetchError> {
    let status = answer.status();
    let field = |name| {
        let value = answer.headers().get(name).map(HeaderValue::as_bytes);
        value.map(|value| String::from_utf8_lossy(value).into_owned())
    };
    if status.is_redirection() {
        let to = field(LOCATION).unwrap_or_default();
        let adds_slash = !path.ends_with('/') && to.ends_with(&format!("{path}/"));
        return Err(FetchError::Redirect { status: status.as_u16(), adds_slash });
    }
    if status != StatusCode::OK {
        return Err(FetchError::Status(status));
    }
    if let Some(encoding) = field(CONTENT_ENCODING).filter(|name| name != "identity") {
        return Err(FetchError::Compressed(shown(&encoding)));
    }
    let media = field(CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
    if !asked.is_it(media.split(';').next().unwrap_or_default().trim()) {
        return Err(FetchError::MediaType(shown(&media)));
    }
    let length = field(CONTENT_LENGTH).and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| length > asked.limit()) {
        return Err(FetchError::TooLarge(asked.limit()));
    }
    Ok(())
}

async fn read(mut page: Incoming, into: Answered<'_>) -> Result<(), FetchError> {
    let Answered { body, large, held, media } = into;
    while let Some(frame) = page.frame().await {
        let frame = frame.map_err(|error| FetchError::NotHttp(shown(&error.to_string())))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = body.len() + data.len();
        if length > media.limit() {
            return Err(FetchError::TooLarge(media.limit()));
        }
        if length > LARGE_PAGE && held.is_none() {
            let only = Arc::clone(&large.0).try_acquire_owned();
            *held = Some(only.map_err(|_| FetchError::Busy)?);
        }
        body.extend_from_slice(&data);
    }
    Ok(())
}

/// The first printable characters of a server's text, for the log.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').take(64).collect()
}

#[cfg(test)]
mod tests;
