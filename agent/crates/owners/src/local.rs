//! Calls over the node's own unix sockets: gRPC (container runtimes, the kubelet) and plain
//! HTTP/1.1 (Docker, Podman).
//!
//! Every call has a deadline and every answer a bound, so a socket that hangs or floods costs only
//! its own caller. A connection is made at the first call, kept, and made again after the server
//! restarts. No keep-alive pings: the servers (grpc-go with its default policy) disconnect clients
//! that ping more often than every five minutes.

mod error;

pub(crate) use error::{Cause, LocalError};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic_prost::ProstCodec;
use tower_service::Service;

/// Largest answer in bytes: the kubelet's and CRI's own limit. A list of 500 containers has 1 MB.
const ANSWER_BYTES: usize = 16 << 20;
/// The authority of every request; grpc-go refuses a socket's path as an authority.
const AUTHORITY: &str = "localhost";

/// A gRPC server on a unix socket. Belongs to the runtime that first calls it.
#[derive(Debug)]
pub(crate) struct Grpc {
    socket: PathBuf,
    client: Client<Connector, tonic::body::Body>,
    connections: Arc<AtomicUsize>,
}

/// The answers of a streaming call.
pub(crate) struct Answers<A> {
    socket: PathBuf,
    call: &'static str,
    state: State<A>,
}

enum State<A> {
    /// The server has not answered yet. It sends no header before the first answer.
    Connecting(PendingStream<A>),
    Open(Box<tonic::Streaming<A>>),
}

type PendingStream<A> =
    Pin<Box<dyn Future<Output = Result<tonic::Streaming<A>, tonic::Status>> + Send>>;

/// Connects to one socket, whatever the address, and counts the connections.
#[derive(Clone, Debug)]
struct Connector {
    socket: PathBuf,
    connections: Arc<AtomicUsize>,
}

impl Grpc {
    /// A client without a connection yet.
    pub(crate) fn new(socket: PathBuf) -> Self {
        let connections = Arc::default();
        let connector = Connector { socket: socket.clone(), connections: Arc::clone(&connections) };
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .pool_max_idle_per_host(1)
            .build(connector);
        Self { socket, client, connections }
    }

    /// Number of connections so far: a new one may reach another server.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Makes a unary call. `call` is the method's path, `/package.Service/Method`. The call is
    /// repeated once if the connection was lost: a kept one may belong to a server that has ended.
    pub(crate) async fn unary<Q, A>(
        &self,
        call: &'static str,
        question: Q,
        deadline: Duration,
    ) -> Result<A, LocalError>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let asked = async {
            match self.ask(call, question.clone(), deadline).await {
                Err(error) if matches!(error.cause, Cause::Lost(_)) => {
                    self.ask(call, question, deadline).await
                }
                answer => answer,
            }
        };
        let late = |_| Err(LocalError::late(&self.socket, call, deadline));
        tokio::time::timeout(deadline, asked).await.unwrap_or_else(late)
    }

    async fn ask<Q, A>(
        &self,
        call: &'static str,
        question: Q,
        deadline: Duration,
    ) -> Result<A, LocalError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let refused = |status: tonic::Status| LocalError::of_status(&self.socket, call, &status);
        let mut grpc = self.grpc();
        let ready = grpc.ready().await;
        ready.map_err(|error| refused(tonic::Status::from_error(error.into())))?;
        let mut request = tonic::Request::new(question);
        request.set_timeout(deadline);
        let path = PathAndQuery::from_static(call);
        let answer = grpc.unary(request, path, ProstCodec::default()).await;
        answer.map(tonic::Response::into_inner).map_err(refused)
    }

    /// Makes a server-streaming call. Nothing is sent before the first [`Answers::next`], and there
    /// is no deadline: a silent server and a hung one look the same, so a caller that must know
    /// makes a [`Grpc::unary`] call from time to time.
    pub(crate) fn stream<Q, A>(&self, call: &'static str, question: Q) -> Answers<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let connecting = async move {
            grpc.ready().await.map_err(|error| tonic::Status::from_error(error.into()))?;
            let (request, path) = (tonic::Request::new(question), PathAndQuery::from_static(call));
            let answer = grpc.server_streaming(request, path, ProstCodec::default()).await?;
            Ok(answer.into_inner())
        };
        Answers {
            socket: self.socket.clone(),
            call,
            state: State::Connecting(Box::pin(connecting)),
        }
    }

    fn grpc(&self) -> tonic::client::Grpc<Client<Connector, tonic::body::Body>> {
        let origin = Uri::builder().scheme("http").authority(AUTHORITY).path_and_query("/");
        // The parts are constants; the default is a relative address, which the server refuses.
        let origin = origin.build().unwrap_or_default();
        tonic::client::Grpc::with_origin(self.client.clone(), origin)
            .max_decoding_message_size(ANSWER_BYTES)
    }
}

impl<A> Answers<A> {
    /// The next answer; `None` when the server has ended the call. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<A>, LocalError> {
        self.advance()
            .await
            .map_err(|status| LocalError::of_status(&self.socket, self.call, &status))
    }

    async fn advance(&mut self) -> Result<Option<A>, tonic::Status> {
        loop {
            match &mut self.state {
                State::Connecting(connecting) => {
                    let open = connecting.await?;
                    self.state = State::Open(Box::new(open));
                }
                State::Open(answers) => return answers.message().await,
            }
        }
    }
}

/// Gets one resource over HTTP/1.1, on a connection of its own; `path` begins with a slash.
pub(crate) async fn http_get(
    socket: &Path,
    path: &str,
    deadline: Duration,
) -> Result<Bytes, LocalError> {
    match tokio::time::timeout(deadline, get(socket, path)).await {
        Ok(answer) => answer,
        Err(_) => Err(LocalError::late(socket, path, deadline)),
    }
}

async fn get(socket: &Path, path: &str) -> Result<Bytes, LocalError> {
    let lost = |error: &(dyn std::error::Error + 'static)| LocalError::of(socket, path, error);
    let stream = UnixStream::connect(socket).await.map_err(|error| lost(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| lost(&error))?;
    let mut request =
        Request::get(path).body(Empty::<Bytes>::new()).map_err(|error| lost(&error))?;
    request.headers_mut().insert(HOST, HeaderValue::from_static(AUTHORITY));
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| lost(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                LocalError::too_large(socket, path, ANSWER_BYTES)
            } else {
                LocalError::of(socket, path, error.as_ref())
            }
        })?;
        if status.is_success() {
            return Ok(body.to_bytes());
        }
        Err(LocalError::of_http(socket, path, status, &body.to_bytes()))
    };
    tokio::pin!(connection, exchange);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        // The server closed the connection; the exchange has what it sent.
        _ = &mut connection => exchange.await,
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { socket, connections } = self.clone();
        Box::pin(async move {
            let stream = UnixStream::connect(socket).await?;
            connections.fetch_add(1, Ordering::Relaxed);
            Ok(TokioIo::new(stream))
        })
    }
}

impl<A> std::fmt::Debug for Answers<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answers")
            .field("socket", &self.socket)
            .field("call", &self.call)
            .finish_non_exhaustive()
    }
}

#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "for tests only"
)]
pub mod fake;
#[cfg(test)]
mod tests;
