//! Servers on unix sockets and on TCP ports for tests, each on a thread of its own: gRPC like grpc-go (no header
//! before the first answer), HTTP/1.1, and bytes that are neither.

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status};

/// A running server. Dropping it closes its socket and its connections.
pub struct Server {
    socket: Option<PathBuf>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A gRPC call that arrived.
pub struct Call {
    pub path: String,
    pub message: Bytes,
    pub reply: Reply,
}

/// The answering side of a call. The call hangs until this answers or is dropped.
#[derive(Debug)]
pub struct Reply(mpsc::UnboundedSender<Frame<Bytes>>);

impl Call {
    /// The question.
    pub fn question<Q: prost::Message + Default>(&self) -> Q {
        Q::decode(self.message.clone()).unwrap()
    }
}

impl Reply {
    /// Sends one answer; returns whether the caller still waits.
    pub fn answer(&self, message: &impl prost::Message) -> bool {
        self.bytes(&message.encode_to_vec())
    }

    /// Sends bytes in place of a message.
    pub fn bytes(&self, message: &[u8]) -> bool {
        let mut framed = BytesMut::new();
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len()).unwrap());
        framed.put_slice(message);
        self.0.send(Frame::data(framed.freeze())).is_ok()
    }

    /// Ends the call.
    pub fn end(self, code: Code, words: &str) {
        let mut trailers = HeaderMap::new();
        Status::new(code, words).add_header(&mut trailers).unwrap();
        // An error means that the caller has left.
        let _ = self.0.send(Frame::trailers(trailers));
    }

    /// Sends one answer and ends the call.
    pub fn only(self, message: &impl prost::Message) {
        self.only_bytes(&message.encode_to_vec());
    }

    /// The same of bytes in place of a message.
    pub fn only_bytes(self, message: &[u8]) {
        self.bytes(message);
        self.end(Code::Ok, "");
    }
}

impl Server {
    /// Passes every gRPC call to `handle`.
    pub fn grpc(socket: &Path, handle: impl Fn(Call) + Send + Sync + 'static) -> Self {
        let handle: Handle = Arc::new(handle);
        Self::start(socket, move |stream| {
            let handle = Arc::clone(&handle);
            async move { serve(tokio::net::UnixStream::from_std(stream).unwrap(), handle).await }
        })
    }

    /// The same on a TCP port.
    pub fn grpc_on(
        listener: std::net::TcpListener,
        handle: impl Fn(Call) + Send + Sync + 'static,
    ) -> Self {
        let handle: Handle = Arc::new(handle);
        listener.set_nonblocking(true).unwrap();
        let (stop, mut stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                loop {
                    tokio::select! {
                        _ = &mut stopped => return,
                        stream = listener.accept() => {
                            tokio::spawn(serve(stream.unwrap().0, Arc::clone(&handle)));
                        }
                    }
                }
            });
        });
        Self { socket: None, stop: Some(stop), thread: Some(thread) }
    }

    /// Answers every GET with the result of `answer` for its path; `None` never answers.
    pub fn http(
        socket: &Path,
        answer: impl Fn(&str) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
    ) -> Self {
        let answer = Arc::new(answer);
        let respond = move |request: Request<Incoming>| {
            let answer = Arc::clone(&answer);
            async move {
                let Some((status, body)) = answer(request.uri().path()) else {
                    return std::future::pending().await;
                };
                let mut response = Response::new(Full::new(Bytes::from(body)));
                *response.status_mut() = status.try_into().unwrap();
                Ok::<_, Infallible>(response)
            }
        };
        Self::start(socket, move |stream| {
            let respond = respond.clone();
            async move {
                let io = TokioIo::new(tokio::net::UnixStream::from_std(stream).unwrap());
                let server = hyper::server::conn::http1::Builder::new();
                // An error is a client that left.
                let _ = server.serve_connection(io, service_fn(respond)).await;
            }
        })
    }

    /// Sends `bytes` to every client and closes the connection.
    pub fn noise(socket: &Path, bytes: &'static [u8]) -> Self {
        Self::start(socket, move |mut stream| async move {
            stream.set_nonblocking(false).unwrap();
            let mut question = [0; 16];
            // The request and the client do not matter.
            let _ = (stream.read(&mut question), stream.write_all(bytes));
        })
    }

    fn start<F>(
        socket: &Path,
        serve: impl Fn(std::os::unix::net::UnixStream) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, mut stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                loop {
                    tokio::select! {
                        _ = &mut stopped => return,
                        stream = listener.accept() => {
                            let stream = stream.unwrap().0.into_std().unwrap();
                            tokio::spawn(serve(stream));
                        }
                    }
                }
            });
        });
        Self { socket: Some(socket.to_owned()), stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.take().unwrap().join();
        self.socket.iter().for_each(|socket| fs::remove_file(socket).unwrap());
        assert!(thread.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

/// Takes the calls of a server.
type Handle = Arc<dyn Fn(Call) + Send + Sync>;

/// Serves gRPC on a connection.
async fn serve<S>(stream: S, handle: Handle)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let answer = move |request: Request<Incoming>| {
        let handle = Arc::clone(&handle);
        async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (reply, mut frames) = mpsc::unbounded_channel();
            handle(Call { path, message: body.slice(5..), reply: Reply(reply) });
            let first = frames.recv().await;
            let mut response = Response::new(Said { first, frames });
            let grpc = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(CONTENT_TYPE, grpc);
            Ok::<_, Infallible>(response)
        }
    };
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    // An error is a client that left.
    let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}

/// A body of frames as they are sent.
struct Said {
    first: Option<Frame<Bytes>>,
    frames: mpsc::UnboundedReceiver<Frame<Bytes>>,
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        self.frames.poll_recv(context).map(|frame| frame.map(Ok))
    }
}
