//! The kubelet of the provider tests: what it answers to each method is set by the test.

use super::{Kubernetes, LookupQueue, ProviderContext, Settings};
use crate::attribute::ownership::Ownership;
use crate::local::fake::{self, Server};
use crate::nodes::fixture::VENDORS;
use gpuwho_model::paths::Paths;
use gpuwho_model::status::{Report, StatusRegistry};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tonic::Code;

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
    Status(Code, &'static str),
    /// No answer.
    Hang,
}

/// The server; it listens until dropped.
pub(super) struct Kubelet {
    state: Arc<State>,
    _server: Server,
}

#[derive(Default)]
struct State {
    /// The answer of every method, by the end of the method's path.
    replies: Mutex<Vec<(&'static str, Reply)>>,
    calls: Mutex<Vec<Call>>,
    count: watch::Sender<usize>,
    hung: Mutex<Vec<fake::Reply>>,
}

struct Call {
    path: String,
    question: Vec<u8>,
    at: Instant,
}

impl Kubelet {
    pub(super) fn listen(socket: &Path) -> Self {
        let state = Arc::new(State::default());
        let serving = Arc::clone(&state);
        let server = Server::grpc(socket, move |call| serving.answer(call));
        Self { state, _server: server }
    }

    /// Sets a method's answer.
    pub(super) fn reply(&self, method: &'static str, reply: Reply) -> &Self {
        let mut replies = self.state.replies.lock().unwrap();
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
        let calls = self.state.calls.lock().unwrap();
        calls.iter().filter(|call| call.path.ends_with(method)).map(part).collect()
    }

    /// Waits until a method was called this often.
    pub(super) async fn called(&self, method: &str, times: usize) {
        let mut count = self.state.count.subscribe();
        let enough = count.wait_for(|_| self.calls(method).len() >= times);
        tokio::time::timeout(TIMEOUT, enough).await.expect("no call").unwrap();
    }
}

impl State {
    fn answer(&self, call: fake::Call) {
        let fake::Call { path, message, reply } = call;
        let replies = self.replies.lock().unwrap();
        let set = replies.iter().find(|(method, _)| path.ends_with(method));
        match set.map(|(_, reply)| reply.clone()) {
            Some(Reply::Message(message)) => reply.only_bytes(&message),
            Some(Reply::Slow(delay, message)) => {
                let late = move || {
                    thread::sleep(delay);
                    reply.only_bytes(&message);
                };
                drop(thread::spawn(late));
            }
            Some(Reply::Status(code, words)) => reply.end(code, words),
            Some(Reply::Hang) => self.hung.lock().unwrap().push(reply),
            None => reply.end(Code::Unimplemented, "unknown method"),
        }
        let call = Call { path, question: message.to_vec(), at: Instant::now() };
        self.calls.lock().unwrap().push(call);
        self.count.send_modify(|count| *count += 1);
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
