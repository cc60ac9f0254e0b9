//! A gRPC server on a unix socket for the provider tests: it writes frames by hand, so that the
//! client's libraries are not checked against themselves.

use super::{Kubernetes, LookupQueue, ProviderContext, Settings};
use crate::attribute::ownership::Ownership;
use crate::nodes::fixture::VENDORS;
use bytes::{BufMut as _, Bytes, BytesMut};
use gpuwho_model::paths::Paths;
use gpuwho_model::status::{Report, StatusRegistry};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

/// Deadline of anything in a test.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The answer to a call.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// One message.
    Message(Vec<u8>),
    /// One message after a delay.
    Slow(Duration, Vec<u8>),
    /// A gRPC status and its message.
    Status(u32, &'static str),
    /// No answer.
    Hang,
}

/// The server; it listens until dropped and leaves its socket file.
pub(super) struct Kubelet {
    state: Rc<State>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// The answer of every method, by the end of the method's path.
    replies: RefCell<Vec<(&'static str, Reply)>>,
    calls: RefCell<Vec<Call>>,
    count: watch::Sender<usize>,
    streams: RefCell<Vec<mpsc::UnboundedSender<Frame<Bytes>>>>,
    connections: RefCell<Vec<JoinHandle<()>>>,
}

struct Call {
    path: String,
    question: Vec<u8>,
    at: Instant,
}

struct Frames {
    waiting: VecDeque<Frame<Bytes>>,
    more: Option<mpsc::UnboundedReceiver<Frame<Bytes>>>,
}

impl Kubelet {
    pub(super) fn listen(socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let state = Rc::new(State::default());
        let serving = Rc::clone(&state);
        let task = spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let state = Rc::clone(&serving);
                let answer = service_fn(move |request| answer(Rc::clone(&state), request));
                let connection = hyper::server::conn::http2::Builder::new(LocalExecutor)
                    .serve_connection(TokioIo::new(stream), answer);
                let connection = spawn_local(async move { drop(connection.await) });
                serving.connections.borrow_mut().push(connection);
            }
        });
        Self { state, task }
    }

    /// Sets a method's answer.
    pub(super) fn reply(&self, method: &'static str, reply: Reply) -> &Self {
        let mut replies = self.state.replies.borrow_mut();
        replies.retain(|(known, _)| *known != method);
        replies.push((method, reply));
        self
    }

    /// The requests of a method so far.
    pub(super) fn calls(&self, method: &str) -> Vec<Vec<u8>> {
        self.pick(method, |call| call.question.clone())
    }

    /// The times of a method's calls.
    pub(super) fn times(&self, method: &str) -> Vec<Instant> {
        self.pick(method, |call| call.at)
    }

    fn pick<T>(&self, method: &str, part: impl Fn(&Call) -> T) -> Vec<T> {
        let calls = self.state.calls.borrow();
        calls.iter().filter(|call| call.path.ends_with(method)).map(part).collect()
    }

    /// Waits until a method was called this often.
    pub(super) async fn called(&self, method: &str, times: usize) {
        let mut count = self.state.count.subscribe();
        let enough = count.wait_for(|_| self.calls(method).len() >= times);
        tokio::time::timeout(TIMEOUT, enough).await.expect("no call").unwrap();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
        for connection in self.state.connections.borrow().iter() {
            connection.abort();
        }
    }
}

async fn answer(
    state: Rc<State>,
    request: Request<Incoming>,
) -> Result<Response<Frames>, Infallible> {
    let path = request.uri().path().to_owned();
    let question = request.into_body().collect().await.unwrap().to_bytes();
    let call = Call { path: path.clone(), question: question[5..].to_vec(), at: Instant::now() };
    state.calls.borrow_mut().push(call);
    state.count.send_modify(|count| *count += 1);
    let reply = state.replies.borrow().iter().find(|(method, _)| path.ends_with(method)).cloned();
    let reply = reply.map_or(Reply::Status(12, "unknown method"), |(_, reply)| reply);
    if let Reply::Slow(delay, _) = reply {
        tokio::time::sleep(delay).await;
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let (waiting, more) = match reply {
        Reply::Message(message) | Reply::Slow(_, message) => {
            let frames = [Frame::data(framed(&message)), Frame::trailers(status(0, ""))];
            (frames.into(), None)
        }
        Reply::Status(code, message) => ([Frame::trailers(status(code, message))].into(), None),
        Reply::Hang => {
            state.streams.borrow_mut().push(sender);
            (VecDeque::new(), Some(receiver))
        }
    };
    let mut response = Response::new(Frames { waiting, more });
    let json = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", json);
    Ok(response)
}

fn framed(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(message.len().try_into().unwrap());
    frame.put_slice(message);
    frame.freeze()
}

fn status(code: u32, message: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert(HeaderName::from_static("grpc-status"), code.into());
    trailers.insert(HeaderName::from_static("grpc-message"), HeaderValue::from_static(message));
    trailers
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(frame) = self.waiting.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.more {
            Some(more) => more.poll_recv(context).map(|frame| frame.map(Ok)),
            None => Poll::Ready(None),
        }
    }
}

#[derive(Clone)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        drop(spawn_local(task));
    }
}

/// An ownership table with a provider's context.
pub(super) struct Fixture {
    pub(super) dir: tempfile::TempDir,
    pub(super) ownership: Ownership,
    pub(super) status: StatusRegistry,
    name: &'static str,
}

impl Fixture {
    pub(super) fn new(name: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ownership = Ownership::new(&Paths::under(dir.path()));
        Self { dir, ownership, status: StatusRegistry::default(), name }
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.path().join("kubelet.sock")
    }

    /// The arguments of a provider.
    pub(super) fn context(&self, kubernetes: Kubernetes) -> (ProviderContext, LookupQueue) {
        let paths = Paths::under(self.dir.path());
        let containers = super::Containers::default();
        let busy = Arc::new(AtomicUsize::new(1));
        let context = ProviderContext {
            name: self.name,
            settings: Arc::new(Settings { paths, kubernetes, containers, vendors: VENDORS }),
            ownership: self.ownership.clone(),
            status: self.status.clone(),
            busy: Arc::clone(&busy),
            sockets: <_>::default(),
            is_ready: false,
        };
        let (requests, sockets) = (self.ownership.names().requests(), <_>::default());
        (context, LookupQueue { requests, busy, sockets })
    }

    pub(super) fn report(&self) -> Option<Report> {
        self.status.all().remove(self.name).map(|status| status.report)
    }

    /// Waits until a condition holds.
    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let wait = async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(TIMEOUT, wait).await;
        assert!(waited.is_ok(), "not {what}; the provider reports {:?}", self.report());
    }
}

/// Runs a test on one thread.
pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Bytes of a message that Kubernetes' own Go types wrote (`tests/kubernetes`).
pub(super) fn written(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/kubernetes");
    std::fs::read(format!("{folder}/{name}.binpb")).unwrap()
}
