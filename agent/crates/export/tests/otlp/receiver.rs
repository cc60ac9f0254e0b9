//! An OTLP/HTTP receiver that answers as it is told, on a thread of its own, with or without TLS.

use bytes::Bytes;
use flate2::read::GzDecoder;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use prost::Message as _;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A request as received.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The body, decompressed.
    pub(crate) raw: Vec<u8>,
}

/// How to answer.
pub(crate) enum Reply {
    /// Status, headers and body.
    Answer(u16, Vec<(&'static str, &'static str)>, Vec<u8>),
    /// Close the connection without an answer.
    Reset,
    /// Never answer.
    Hang,
}

pub(crate) const OK: Reply = Reply::Answer(200, Vec::new(), Vec::new());

/// A running receiver; it ends when dropped.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    received: mpsc::Receiver<Received>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

type Script = Arc<dyn Fn(usize) -> Reply + Send + Sync>;

impl Receiver {
    /// Answers the n-th request (from 0) with `script(n)`.
    pub(crate) fn start(script: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", None, script)
    }

    /// The same at a given address, behind TLS if there is a configuration.
    pub(crate) fn at(
        address: &str,
        tls: Option<rustls::ServerConfig>,
        script: impl Fn(usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, received) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let listener_task = serve(listener, tls, Arc::new(script), sender);
            runtime.unwrap().block_on(async {
                tokio::select! {
                    () = listener_task => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, received, _stop: stop }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request.
    pub(crate) fn next(&self) -> Received {
        self.received.recv_timeout(crate::TIMEOUT).expect("no request came")
    }

    /// Requests that came and were not looked at.
    pub(crate) fn rest(&self) -> Vec<Received> {
        self.received.try_iter().collect()
    }
}

impl Received {
    /// The points' times, in order.
    pub(crate) fn times(&self) -> Vec<u64> {
        times(&ExportMetricsServiceRequest::decode(self.raw.as_slice()).unwrap())
    }
}

/// The times of all gauge points of a request, in order.
pub(crate) fn times(request: &ExportMetricsServiceRequest) -> Vec<u64> {
    let scopes = request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    let data = scopes.flat_map(|scope| &scope.metrics).map(|metric| &metric.data);
    data.flat_map(|data| match data {
        Some(Data::Gauge(gauge)) => gauge.data_points.iter().map(|point| point.time_unix_nano),
        other => panic!("{other:?}"),
    })
    .collect()
}

async fn serve(
    listener: std::net::TcpListener,
    tls: Option<rustls::ServerConfig>,
    script: Script,
    sender: mpsc::Sender<Received>,
) {
    let listener = TcpListener::from_std(listener).unwrap();
    let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, script) = (tls.clone(), Arc::clone(&script));
        let (count, sender) = (Arc::clone(&count), sender.clone());
        tokio::spawn(async move {
            match tls {
                None => connection(stream, script, count, sender).await,
                // A client that does not trust us hangs up here.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, script, count, sender).await;
                    }
                }
            }
        });
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    script: Script,
    count: Arc<AtomicUsize>,
    sender: mpsc::Sender<Received>,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let reply = script(count.fetch_add(1, Ordering::SeqCst));
        let sender = sender.clone();
        async move {
            sender.send(read(request).await).map_err(io::Error::other)?;
            answer(reply).await
        }
    });
    // An error is a reset the script asked for, or a client that hung up.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn read(request: Request<Incoming>) -> Received {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let mut raw = Vec::new();
    if head.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding == "gzip") {
        GzDecoder::new(&body[..]).read_to_end(&mut raw).unwrap();
    } else if head.headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding == "zstd") {
        raw = zstd::decode_all(&body[..]).unwrap();
    } else {
        raw = body.to_vec();
    }
    Received { path: head.uri.path().to_owned(), headers: head.headers, raw }
}

async fn answer(reply: Reply) -> io::Result<Response<Full<Bytes>>> {
    match reply {
        Reply::Reset => Err(io::Error::other("reset, as told")),
        Reply::Hang => std::future::pending().await,
        Reply::Answer(status, headers, body) => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Full::new(body.into())).map_err(io::Error::other)
        }
    }
}
