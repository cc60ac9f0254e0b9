//! The kubelet's Pods API (Kubernetes 1.37 and later): whole pods, with owner references, labels
//! and the ids of their containers, without the API server.
//!
//! A watch tells every pod there is and then each change; what a resolver misses is asked by its
//! UID as well, so that a watch that hangs is noticed. Where there is no watch the pods are listed.
//! A kubelet that restarts takes nothing back: after the next complete telling what was not in it
//! has ended. Costs a message for each change of a pod on this node.

mod cache;
mod wire;

use super::{LookupQueue, Lookups, ProviderContext};
use crate::attribute::names::{LookupKey, Provider};
use crate::attribute::ownership::Ownership;
use crate::catalog::agent::SourceState;
use crate::collect::status::Report;
use crate::local::{Answers, Cause, Grpc, LocalError};
use cache::{MetadataUpdate, PodCache};
use prost::Message as _;
use std::convert::Infallible;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};
use wire::{
    ADDED, DELETED, GET_POD, GetPodRequest, GetPodResponse, INITIAL_SYNC_COMPLETE, LIST_PODS,
    ListPodsRequest, ListPodsResponse, MODIFIED, Pod, UNSPECIFIED, WATCH_PODS, WatchPodsEvent,
    WatchPodsRequest,
};

/// How long things may take and how often they are done.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// For every answer, and for the first complete telling of a watch.
    deadline: Duration,
    /// Between lists, where there is no watch.
    relist: Duration,
    /// A question about an unknown pod brings the next list forward, but no nearer than this.
    soonest: Duration,
    /// How often a socket that is not there is looked for.
    look_again: Duration,
    /// After a failure; doubled at each further one.
    first_retry: Duration,
    /// And no longer than this.
    last_retry: Duration,
    /// From the first pod that a kubelet knows again to the last.
    gather: Duration,
    /// For how long the pods of a kubelet that knows none stay.
    doubt: Duration,
}

const PACE: Timing = Timing {
    deadline: Duration::from_secs(5),
    relist: Duration::from_secs(10),
    soonest: Duration::from_secs(1),
    look_again: Duration::from_secs(5),
    first_retry: Duration::from_millis(250),
    last_retry: Duration::from_secs(30),
    gather: Duration::from_secs(10),
    // An API server's outage.
    doubt: Duration::from_mins(30),
};
/// Pods asked for one by one at a time; the others come with the watch.
const FEW: usize = 8;

/// Watches the kubelet's socket for as long as the agent runs.
pub(super) async fn supply(desk: ProviderContext, wants: LookupQueue) {
    at_pace(PACE, desk, wants).await;
}

async fn at_pace(pace: Timing, desk: ProviderContext, wants: LookupQueue) {
    let settings = &desk.settings().kubernetes;
    let Some(socket) = settings.pods_api.clone() else { return };
    let book = PodCache::new(settings.wanted.clone());
    let ownership = desk.ownership().clone();
    let retry = pace.first_retry;
    Kubelet { pace, socket, book, ownership, context: desk, wants, errors: 0, retry }.run().await;
}

struct Kubelet {
    pace: Timing,
    socket: PathBuf,
    book: PodCache,
    ownership: Ownership,
    context: ProviderContext,
    wants: LookupQueue,
    errors: u64,
    retry: Duration,
}

/// Why the kubelet is asked anew.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Call(#[from] LocalError),
    #[error("{}: no complete list of pods within {within:?}", socket.display())]
    Late { socket: PathBuf, within: Duration },
    #[error("{}: the kubelet ended the watch", .0.display())]
    Ended(PathBuf),
}

impl Kubelet {
    async fn run(mut self) {
        loop {
            let Err(trouble) = self.serve().await;
            let report = trouble.report(self.book.pods() > 0);
            let pause = self.retry.min(match &trouble {
                Trouble::Call(error) if error.is_absent() => self.pace.look_again,
                _ => self.pace.last_retry,
            });
            self.retry = pause * 2;
            self.errors += u64::from(report.state != SourceState::Absent);
            self.tell(report);
            // What is asked meanwhile is in the list that comes first after the pause.
            drop(self.wants.until(Instant::now() + pause).await);
        }
    }

    /// Everything from the connection to the trouble that ends it.
    async fn serve(&mut self) -> Result<Infallible, Trouble> {
        let grpc = Grpc::new(self.socket.clone());
        let mut events = grpc.stream(WATCH_PODS, WatchPodsRequest {});
        self.book.begin_sync();
        match timeout(self.pace.deadline, self.sync(&mut events)).await {
            Err(_) => {
                let (socket, within) = (self.socket.clone(), self.pace.deadline);
                return Err(Trouble::Late { socket, within });
            }
            Ok(Ok(())) => {}
            Ok(Err(Trouble::Call(error))) if error.cause == Cause::Unimplemented => {
                return self.list_for_ever(&grpc).await;
            }
            Ok(Err(trouble)) => return Err(trouble),
        }
        self.retry = self.pace.first_retry;
        self.ready("watched");
        let _following = self.ownership.names().follow();
        let mut settled = Instant::now() + self.pace.doubt;
        loop {
            let known = self.book.pods();
            tokio::select! {
                biased;
                event = events.next() => {
                    let event = event?.ok_or_else(|| Trouble::Ended(self.socket.clone()))?;
                    self.event(&event);
                    if self.book.is_doubted() && self.book.has_seen_api() {
                        settled = settled.min(Instant::now() + self.pace.gather);
                    }
                }
                () = sleep_until(settled), if self.book.is_doubted() => {
                    let reported = self.book.settle();
                    self.learn(reported);
                    self.ready("watched");
                }
                asked = self.wants.next() => self.answer(&grpc, &asked.questions).await?,
            }
            if self.book.pods() != known {
                self.ready("watched");
            }
        }
    }

    /// Takes events until the kubelet says that all there is has been told.
    async fn sync(&mut self, events: &mut Answers<WatchPodsEvent>) -> Result<(), Trouble> {
        loop {
            let event = events.next().await?;
            let event = event.ok_or_else(|| Trouble::Ended(self.socket.clone()))?;
            if event.kind == INITIAL_SYNC_COMPLETE {
                let reported = self.book.synced();
                self.learn(reported);
                return Ok(());
            }
            if event.kind == UNSPECIFIED {
                // A draft of the protocol: its numbers mean something else.
                return Err(Trouble::Call(LocalError {
                    socket: self.socket.clone(),
                    call: WATCH_PODS.to_owned(),
                    cause: Cause::Unimplemented,
                }));
            }
            self.event(&event);
        }
    }

    /// Kinds of tomorrow are skipped.
    fn event(&mut self, event: &WatchPodsEvent) {
        let Some(pod) = self.read(&event.pod) else { return };
        let reported = match event.kind {
            ADDED | MODIFIED => self.book.pod(pod),
            DELETED => self.book.deleted(&pod),
            _ => Vec::new(),
        };
        self.learn(reported);
    }

    /// Where there is no watch.
    async fn list_for_ever(&mut self, grpc: &Grpc) -> Result<Infallible, Trouble> {
        let mut doubted = None;
        loop {
            let answer: ListPodsResponse =
                grpc.unary(LIST_PODS, ListPodsRequest {}, self.pace.deadline).await?;
            let listed = Instant::now();
            self.book.begin_sync();
            for pod in answer.pods {
                if let Some(pod) = self.read(&pod) {
                    let reported = self.book.pod(pod);
                    self.learn(reported);
                }
            }
            let mut reported = self.book.synced();
            let since = *doubted.get_or_insert(listed);
            if !self.book.is_doubted() {
                doubted = None;
            } else if since.elapsed() >= self.pace.doubt {
                reported = self.book.settle();
            }
            self.learn(reported);
            self.retry = self.pace.first_retry;
            self.ready("listed");
            tokio::select! {
                () = sleep_until(listed + self.pace.relist) => {}
                asked = self.wants.next() => {
                    sleep_until(listed + self.pace.soonest).await;
                    drop(asked);
                }
            }
        }
    }

    /// Asks for the pods that a resolver misses: the kubelet knows of a pod before its cgroup is
    /// made, so one that has to be asked for is a sign that the watch hangs.
    async fn answer(&mut self, grpc: &Grpc, asked: &Lookups) -> Result<(), LocalError> {
        let names = self.ownership.names().clone();
        let pods = asked.wants.iter().filter_map(|want| match want {
            LookupKey::Pod(uid) if names.pod(uid).is_none() => Some(uid.as_str().to_owned()),
            _ => None,
        });
        for pod_uid in pods.take(FEW).collect::<Vec<_>>() {
            let question = GetPodRequest { pod_uid };
            let answer: Result<GetPodResponse, _> =
                grpc.unary(GET_POD, question, self.pace.deadline).await;
            match answer {
                Ok(answer) => {
                    let reported = self.read(&answer.pod).map(|pod| self.book.pod(pod));
                    self.learn(reported.unwrap_or_default());
                }
                // Refused is this question; the connection is well.
                Err(error) if is_refusal(&error.cause) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read(&mut self, bytes: &[u8]) -> Option<Pod> {
        let pod = Pod::decode(bytes).ok();
        self.errors += u64::from(pod.is_none());
        pod
    }

    fn learn(&self, reported: Vec<MetadataUpdate>) {
        for reported in reported {
            match reported {
                MetadataUpdate::Pod(facts) => self.ownership.put_pod(Provider::PodsApi, facts),
                MetadataUpdate::Container(facts) => {
                    self.ownership.put_container(Provider::PodsApi, facts);
                }
                MetadataUpdate::Gone(what) => self.ownership.gone(Provider::PodsApi, &what),
            }
        }
    }

    fn ready(&mut self, how: &str) {
        let (pods, socket) = (self.book.pods(), self.socket.display());
        let facts = format!("{socket} is {how}: {pods} pods");
        self.tell(if self.book.is_doubted() {
            let reason = format!("{facts}, which the kubelet knows no more and which may run on");
            let remedy = "wait for the kubelet to reach its API server; see its log";
            Report::of(SourceState::Degraded, reason, remedy)
        } else {
            Report::of(SourceState::Ready, facts, "")
        });
    }

    fn tell(&mut self, report: Report) {
        self.context.report(&Report { errors: self.errors, ..report });
        self.context.apply();
    }
}

fn is_refusal(cause: &Cause) -> bool {
    matches!(cause, Cause::NotFound | Cause::Unimplemented | Cause::Answered { .. })
}

impl Trouble {
    fn report(&self, answered: bool) -> Report {
        match self {
            Self::Call(error) if error.cause == Cause::Absent && !answered => Report::of(
                SourceState::Absent,
                error.to_string(),
                "owner references come with Kubernetes 1.37; mount the socket's directory",
            ),
            Self::Call(error) => error.report_after(answered),
            Self::Late { .. } => Report::of(
                SourceState::Hung,
                self.to_string(),
                "look at the kubelet's log; what it said before stays known",
            ),
            Self::Ended(_) => Report::of(SourceState::Failed, self.to_string(), ""),
        }
    }
}

#[cfg(test)]
mod tests;
