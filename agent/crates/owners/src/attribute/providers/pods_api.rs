//! The kubelet's Pods API (Kubernetes 1.37 and later): whole pods, with owner references, labels
//! and the ids of their containers, without the API server.
//!
//! A watch delivers every pod and then each change; requested pods are also read by UID, so that a
//! watch that hangs is noticed. Without a watch, the pods are listed. Pods stay while a kubelet
//! restarts; those missing from the next complete sync have ended. Costs a message for each change
//! of a pod on this node.

mod cache;
mod wire;

use super::{LookupQueue, Lookups, ProviderContext};
use crate::attribute::names::{LookupKey, Provider};
use crate::attribute::ownership::Ownership;
use crate::local::{Answers, Cause, Grpc, LocalError};
use cache::{MetadataUpdate, PodCache};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::status::Report;
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

/// Deadlines and intervals.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// Deadline of every answer, and of the first complete sync of a watch.
    deadline: Duration,
    /// Time between lists, without a watch.
    relist: Duration,
    /// Minimum time between lists: a request for an unknown pod brings the next list forward to
    /// this.
    min_interval: Duration,
    /// Time between attempts to reach an absent socket.
    reconnect: Duration,
    /// Pause after a failure; doubled with each further one.
    first_retry: Duration,
    /// Upper bound of the pause.
    last_retry: Duration,
    /// Time from the first pod that a kubelet knows again to the last.
    gather: Duration,
    /// How long pods stay if the kubelet knows none.
    doubt: Duration,
}

const TIMING: Timing = Timing {
    deadline: Duration::from_secs(5),
    relist: Duration::from_secs(10),
    min_interval: Duration::from_secs(1),
    reconnect: Duration::from_secs(5),
    first_retry: Duration::from_millis(250),
    last_retry: Duration::from_secs(30),
    gather: Duration::from_secs(10),
    // The length of an API server's outage.
    doubt: Duration::from_mins(30),
};
/// Maximum number of pods requested one by one; the others come with the watch.
const MAX_LOOKUPS: usize = 8;

/// Watches the kubelet's pods for as long as the agent runs.
pub(super) async fn provide(context: ProviderContext, lookups: LookupQueue) {
    provide_at(TIMING, context, lookups).await;
}

async fn provide_at(timing: Timing, context: ProviderContext, lookups: LookupQueue) {
    let settings = &context.settings().kubernetes;
    let Some(socket) = settings.pods_api.clone() else { return };
    let cache = PodCache::new(settings.wanted.clone());
    let ownership = context.ownership().clone();
    let retry = timing.first_retry;
    Kubelet { timing, socket, cache, ownership, context, lookups, errors: 0, retry }.run().await;
}

struct Kubelet {
    timing: Timing,
    socket: PathBuf,
    cache: PodCache,
    ownership: Ownership,
    context: ProviderContext,
    lookups: LookupQueue,
    errors: u64,
    retry: Duration,
}

/// Why a watch or a list ended.
#[derive(Debug, thiserror::Error)]
enum WatchError {
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
            let Err(error) = self.serve().await;
            let report = error.report(self.cache.pods() > 0);
            let is_absent = |error: &LocalError| error.cause == Cause::Absent;
            let is_missing = matches!(&error, WatchError::Call(error) if is_absent(error));
            let pause = self.retry.min(match &error {
                WatchError::Call(error) if error.is_absent() => self.timing.reconnect,
                _ => self.timing.last_retry,
            });
            self.retry = pause * 2;
            self.errors += u64::from(report.state != SourceState::Absent);
            self.report(report);
            // The first list after the pause answers requests made meanwhile.
            if is_missing {
                let every = self.timing.reconnect;
                drop(self.lookups.until_socket(&self.socket, pause, every).await);
            } else {
                drop(self.lookups.until(Instant::now() + pause).await);
            }
        }
    }

    /// Serves one connection until it fails.
    async fn serve(&mut self) -> Result<Infallible, WatchError> {
        let grpc = Grpc::new(self.socket.clone());
        let mut events = grpc.stream(WATCH_PODS, WatchPodsRequest {});
        self.cache.begin_sync();
        match timeout(self.timing.deadline, self.sync(&mut events)).await {
            Err(_) => {
                let (socket, within) = (self.socket.clone(), self.timing.deadline);
                return Err(WatchError::Late { socket, within });
            }
            Ok(Ok(())) => {}
            Ok(Err(WatchError::Call(error))) if error.cause == Cause::Unimplemented => {
                return self.list_for_ever(&grpc).await;
            }
            Ok(Err(error)) => return Err(error),
        }
        self.retry = self.timing.first_retry;
        self.report_ready("watched");
        let _follow_guard = self.ownership.names().follow();
        let mut decide_at = Instant::now() + self.timing.doubt;
        loop {
            let known = self.cache.pods();
            tokio::select! {
                biased;
                event = events.next() => {
                    let event = event?.ok_or_else(|| WatchError::Ended(self.socket.clone()))?;
                    self.event(&event);
                    if self.cache.is_doubted() && self.cache.has_seen_api() {
                        decide_at = decide_at.min(Instant::now() + self.timing.gather);
                    }
                }
                () = sleep_until(decide_at), if self.cache.is_doubted() => {
                    let updates = self.cache.end_unseen();
                    self.store(updates);
                    self.report_ready("watched");
                }
                batch = self.lookups.next() => self.answer(&grpc, &batch).await?,
            }
            if self.cache.pods() != known {
                self.report_ready("watched");
            }
        }
    }

    /// Applies events until the kubelet has sent all its pods.
    async fn sync(&mut self, events: &mut Answers<WatchPodsEvent>) -> Result<(), WatchError> {
        loop {
            let event = events.next().await?;
            let event = event.ok_or_else(|| WatchError::Ended(self.socket.clone()))?;
            if event.kind == INITIAL_SYNC_COMPLETE {
                let updates = self.cache.synced();
                self.store(updates);
                return Ok(());
            }
            if event.kind == UNSPECIFIED {
                // A draft of the protocol, with other numbers.
                return Err(WatchError::Call(LocalError {
                    socket: self.socket.clone(),
                    call: WATCH_PODS.to_owned(),
                    cause: Cause::Unimplemented,
                }));
            }
            self.event(&event);
        }
    }

    /// Applies an event; unknown kinds are skipped.
    fn event(&mut self, event: &WatchPodsEvent) {
        let Some(pod) = self.read(&event.pod) else { return };
        let updates = match event.kind {
            ADDED | MODIFIED => self.cache.pod(pod),
            DELETED => self.cache.deleted(&pod),
            _ => Vec::new(),
        };
        self.store(updates);
    }

    /// Lists the pods regularly, without a watch.
    async fn list_for_ever(&mut self, grpc: &Grpc) -> Result<Infallible, WatchError> {
        let mut doubted = None;
        loop {
            let answer: ListPodsResponse =
                grpc.unary(LIST_PODS, ListPodsRequest {}, self.timing.deadline).await?;
            let listed = Instant::now();
            self.cache.begin_sync();
            for pod in answer.pods {
                if let Some(pod) = self.read(&pod) {
                    let updates = self.cache.pod(pod);
                    self.store(updates);
                }
            }
            let mut updates = self.cache.synced();
            let since = *doubted.get_or_insert(listed);
            if !self.cache.is_doubted() {
                doubted = None;
            } else if since.elapsed() >= self.timing.doubt {
                updates = self.cache.end_unseen();
            }
            self.store(updates);
            self.retry = self.timing.first_retry;
            self.report_ready("listed");
            tokio::select! {
                () = sleep_until(listed + self.timing.relist) => {}
                batch = self.lookups.next() => {
                    sleep_until(listed + self.timing.min_interval).await;
                    drop(batch);
                }
            }
        }
    }

    /// Reads requested pods. The kubelet knows a pod before it makes the cgroup, so a request shows
    /// that the watch may hang.
    async fn answer(&mut self, grpc: &Grpc, lookups: &Lookups) -> Result<(), LocalError> {
        let names = self.ownership.names().clone();
        let pods = lookups.keys.iter().filter_map(|key| match key {
            LookupKey::Pod(uid) if names.pod(uid).is_none() => Some(uid.as_str().to_owned()),
            _ => None,
        });
        for pod_uid in pods.take(MAX_LOOKUPS).collect::<Vec<_>>() {
            let request = GetPodRequest { pod_uid };
            let answer: Result<GetPodResponse, _> =
                grpc.unary(GET_POD, request, self.timing.deadline).await;
            match answer {
                Ok(answer) => {
                    let updates = self.read(&answer.pod).map(|pod| self.cache.pod(pod));
                    self.store(updates.unwrap_or_default());
                }
                // Only this request was refused; the connection works.
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

    /// Passes updates to the ownership table.
    fn store(&self, updates: Vec<MetadataUpdate>) {
        for update in updates {
            match update {
                MetadataUpdate::Pod(facts) => self.ownership.put_pod(Provider::PodsApi, facts),
                MetadataUpdate::Container(facts) => {
                    self.ownership.put_container(Provider::PodsApi, facts);
                }
                MetadataUpdate::Gone(what) => self.ownership.gone(Provider::PodsApi, &what),
            }
        }
    }

    fn report_ready(&mut self, how: &str) {
        let (pods, socket) = (self.cache.pods(), self.socket.display());
        let facts = format!("{socket} is {how}: {pods} pods");
        self.report(if self.cache.is_doubted() {
            let reason =
                format!("{facts}, which the kubelet no longer lists and which may still run");
            let remedy = "wait for the kubelet to reach its API server; see its log";
            Report::of(SourceState::Degraded, reason, remedy)
        } else {
            Report::of(SourceState::Ready, facts, "")
        });
    }

    fn report(&mut self, report: Report) {
        self.context.report(&Report { errors: self.errors, ..report });
        self.context.mark_ready();
    }
}

fn is_refusal(cause: &Cause) -> bool {
    matches!(cause, Cause::NotFound | Cause::Unimplemented | Cause::Answered { .. })
}

impl WatchError {
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
                "see the kubelet's log; its pods as last read stay known",
            ),
            Self::Ended(_) => Report::of(SourceState::Failed, self.to_string(), ""),
        }
    }
}

#[cfg(test)]
mod tests;
