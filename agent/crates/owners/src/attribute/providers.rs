//! The providers of metadata: they ask the node's runtimes and kubelet about its pods and
//! containers.
//!
//! One thread, [`THREAD`], with a task for every provider in [`PROVIDERS`]. A task waits only on
//! its own sockets, so one that hangs does not delay the others, and nothing waits for the thread:
//! results go to the index of [`super::names`], which the resolvers read.

mod absent;
pub(crate) mod cri;
pub(crate) mod engine;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fake_kubelet;
pub(crate) mod pod_resources;

use super::names::{LookupKey, MetadataCache};
use super::ownership::Ownership;
use super::workload::WantedLabels;
use crate::nodes::Vendors;
use absent::AbsentSockets;
use gpuwho_model::paths::Paths;
use gpuwho_model::status::{Report, StatusRegistry, Turn};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::future::Future;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{io, thread};
use tokio::sync::broadcast;
use tokio::task::LocalSet;

/// The thread's name, and the name of its cost in the status.
pub const THREAD: &str = "names";

/// Maximum number of requests stored for a provider that cannot answer now; beyond it, the provider
/// lists everything.
const MAX_STORED: usize = 4096;
/// Polling interval of [`MetadataProviders::wait`].
const WAIT_STEP: Duration = Duration::from_millis(5);

/// The shortest time between two attempts at a socket that has come and gone.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// A provider's task, which runs as long as the agent.
type ProviderFn = fn(ProviderContext, LookupQueue) -> Task;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Every provider, by its name in the status.
const PROVIDERS: &[(&str, ProviderFn)] = &[
    ("cri", |context, lookups| Box::pin(cri::provide(context, lookups))),
    ("docker", |context, lookups| Box::pin(engine::docker(context, lookups))),
    ("podman", |context, lookups| Box::pin(engine::podman(context, lookups))),
    ("pod_resources", |context, lookups| Box::pin(pod_resources::provide(context, lookups))),
];

/// Whether a source in the status is a provider: most hosts lack some of them, so that an absent
/// one is normal.
pub fn is_provider(source: &str) -> bool {
    PROVIDERS.iter().any(|(name, _)| *name == source)
}

/// Settings of the providers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Paths on the host.
    pub paths: Paths,
    /// `[kubernetes]`.
    pub kubernetes: Kubernetes,
    /// `[containers]`.
    pub containers: Containers,
    /// The vendors whose devices are allocated.
    pub vendors: Vendors,
}

/// `[kubernetes]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// Sockets of container runtimes that speak CRI; absent ones are tried again.
    pub cri: Vec<PathBuf>,
    /// The kubelet's socket for allocated devices.
    pub pod_resources: Option<PathBuf>,
    /// Device plugin resources and claim drivers that are accelerators, in addition to the known
    /// ones.
    pub resources: Vec<String>,
    /// Namespaces, and claims as `NAMESPACE/CLAIM`, whose devices are for administration: no
    /// allocations.
    pub administrative: Vec<String>,
    /// This node's name in Kubernetes, if configured.
    pub node_name: Option<String>,
    /// Which labels and annotations of pods become attributes.
    pub wanted: WantedLabels,
}

/// `[containers]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Containers {
    /// Docker's socket.
    pub docker: Option<PathBuf>,
    /// Podman's socket.
    pub podman: Option<PathBuf>,
}

/// A provider's access to the agent.
#[derive(Debug)]
pub(crate) struct ProviderContext {
    name: &'static str,
    settings: Arc<Settings>,
    ownership: Ownership,
    status: StatusRegistry,
    busy: Arc<AtomicUsize>,
    sockets: AbsentSockets,
    is_ready: bool,
}

/// The requests to a provider, from its creation on.
#[derive(Debug)]
pub(crate) struct LookupQueue {
    requests: broadcast::Receiver<Option<LookupKey>>,
    busy: Arc<AtomicUsize>,
    sockets: AbsentSockets,
}

/// Requests taken together.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// The requested keys, each once.
    pub(crate) keys: HashSet<LookupKey>,
    /// More requests than could wait, or a request for everything.
    pub(crate) missed: bool,
}

impl Lookups {
    fn take(&mut self, key: Option<LookupKey>) {
        match key {
            None => self.missed = true,
            Some(key) => drop(self.keys.insert(key)),
        }
    }
}

/// Requests that a provider works on, until this is dropped.
#[derive(Debug)]
pub(crate) struct LookupBatch {
    requests: Lookups,
    _work: Work,
}

#[derive(Debug)]
struct Work(Arc<AtomicUsize>);

/// The providers, before and after their start.
#[derive(Debug)]
pub struct MetadataProviders {
    names: MetadataCache,
    status: StatusRegistry,
    /// Providers without a first result, plus those that work on requests.
    busy: Arc<AtomicUsize>,
    sockets: AbsentSockets,
    waiting: Vec<(ProviderContext, LookupQueue, ProviderFn)>,
}

impl MetadataProviders {
    /// Creates the providers; they answer requests from now on, once started.
    pub fn start_for(settings: Settings, ownership: &Ownership, status: &StatusRegistry) -> Self {
        let settings = Arc::new(settings);
        let busy = Arc::new(AtomicUsize::new(PROVIDERS.len()));
        let sockets = AbsentSockets::default();
        let create = |(name, run): &(&'static str, ProviderFn)| {
            let context = ProviderContext {
                name,
                settings: Arc::clone(&settings),
                ownership: ownership.clone(),
                status: status.clone(),
                busy: Arc::clone(&busy),
                sockets: sockets.clone(),
                is_ready: false,
            };
            let (requests, busy) = (ownership.names().requests(), Arc::clone(&busy));
            let lookups = LookupQueue { requests, busy, sockets: sockets.clone() };
            (context, lookups, *run)
        };
        let waiting = PROVIDERS.iter().map(create).collect();
        Self { names: ownership.names().clone(), status: status.clone(), busy, sockets, waiting }
    }

    /// Starts the thread. It ends with the process.
    pub fn start(&mut self) -> io::Result<()> {
        let (waiting, status) = (std::mem::take(&mut self.waiting), self.status.clone());
        let runtime = in_turns(&status).build()?;
        let sockets = self.sockets.clone();
        let work = move || {
            status.clock(THREAD);
            let tasks = LocalSet::new();
            tasks.spawn_local(sockets.follow());
            for (context, lookups, run) in waiting {
                tasks.spawn_local(run(context, lookups));
            }
            tasks.block_on(&runtime, std::future::pending::<()>());
        };
        thread::Builder::new().name(THREAD.into()).spawn(work).map(drop)
    }

    /// Waits until every provider has a first result and has answered all requests, at most for
    /// `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if self.names.unanswered() == 0 && self.busy.load(Ordering::Acquire) == 0 {
                return;
            }
            thread::sleep(WAIT_STEP);
        }
    }
}

/// A runtime of one thread whose turns, which the status registry watches, are what it does between
/// two sleeps: a task that blocks the thread shows.
fn in_turns(status: &StatusRegistry) -> tokio::runtime::Builder {
    let (status, turn) = (status.clone(), Arc::new(Mutex::new(None)));
    let ended = Arc::clone(&turn);
    let set = |slot: &Mutex<Option<Turn>>, turn| {
        *slot.lock() = turn;
    };
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_all()
        .on_thread_park(move || set(&ended, None))
        .on_thread_unpark(move || set(&turn, Some(status.turn(THREAD, Duration::ZERO))));
    builder
}

impl ProviderContext {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// Waits until the socket's file exists.
    pub(crate) async fn socket(&self, socket: &Path, every: Duration) {
        self.sockets.appears(socket, every).await;
    }

    /// Reports the provider's status.
    pub(crate) fn report(&self, report: &Report) {
        self.status.put(self.name, report);
    }

    /// States that the first attempt is over, with any result.
    pub(crate) fn mark_ready(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for ProviderContext {
    /// A provider that ends does not delay [`MetadataProviders::wait`].
    fn drop(&mut self) {
        self.mark_ready();
    }
}

impl LookupQueue {
    /// A second queue with the same requests from now on, for another task of the provider.
    pub(crate) fn fork(&self) -> Self {
        let (requests, busy) = (self.requests.resubscribe(), Arc::clone(&self.busy));
        Self { requests, busy, sockets: self.sockets.clone() }
    }

    /// Waits for requests and returns all that are queued. Never returns once no request can come.
    pub(crate) async fn next(&mut self) -> LookupBatch {
        let first = self.requests.recv().await;
        let work = Work::begin(&self.busy);
        let mut requests = Lookups::default();
        match first {
            Ok(key) => requests.take(key),
            Err(broadcast::error::RecvError::Lagged(_)) => requests.missed = true,
            Err(broadcast::error::RecvError::Closed) => {
                drop(work);
                return std::future::pending().await;
            }
        }
        loop {
            match self.requests.try_recv() {
                Ok(key) => requests.take(key),
                Err(broadcast::error::TryRecvError::Lagged(_)) => requests.missed = true,
                Err(_) => return LookupBatch { requests, _work: work },
            }
        }
    }

    /// Collects the requests until the socket's file exists, for a provider that has found none, and
    /// for at least `pause`, a second at the most. Without inotify, looks for the file every `every`.
    pub(crate) async fn until_socket(
        &mut self,
        socket: &Path,
        pause: Duration,
        every: Duration,
    ) -> Lookups {
        let sockets = self.sockets.clone();
        let exists = async {
            tokio::time::sleep(pause.min(FIRST_PAUSE)).await;
            sockets.appears(socket, every).await;
        };
        self.during(exists).await
    }

    /// Collects the requests until a deadline, for a provider that cannot answer now; nothing waits
    /// for them.
    pub(crate) async fn until(&mut self, moment: tokio::time::Instant) -> Lookups {
        self.during(tokio::time::sleep_until(moment)).await
    }

    async fn during(&mut self, ended: impl Future<Output = ()>) -> Lookups {
        let (mut ended, mut all) = (pin!(ended), Lookups::default());
        loop {
            let LookupBatch { requests, .. } = tokio::select! {
                biased;
                () = &mut ended => return all,
                more = self.next() => more,
            };
            all.missed |= requests.missed || all.keys.len() >= MAX_STORED;
            if !all.missed {
                all.keys.extend(requests.keys);
            }
        }
    }
}

/// The next multiple of a period since the first call in this process.
fn next_of(period: Duration) -> tokio::time::Instant {
    static ORIGIN: OnceLock<tokio::time::Instant> = OnceLock::new();
    let now = tokio::time::Instant::now();
    let passed = now.saturating_duration_since(*ORIGIN.get_or_init(|| now)).as_nanos();
    let into = passed.checked_rem(period.as_nanos()).unwrap_or_default();
    let left = period.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or_default()));
    now + left
}

impl Deref for LookupBatch {
    type Target = Lookups;

    fn deref(&self) -> &Lookups {
        &self.requests
    }
}

impl Work {
    fn begin(busy: &Arc<AtomicUsize>) -> Self {
        busy.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(busy))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_absent_socket_is_waited_for_and_requests_are_kept_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cri.sock");
        let (sender, requests) = broadcast::channel(8);
        let (busy, sockets) = (Arc::default(), AbsentSockets::default());
        let mut lookups = LookupQueue { requests, busy, sockets };
        let every = Duration::from_millis(10);
        let appears = async {
            tokio::time::sleep(every * 3).await;
            sender.send(None).unwrap();
            tokio::time::sleep(every * 3).await;
            std::fs::write(&socket, "").unwrap();
        };
        let (all, ()) = tokio::join!(lookups.until_socket(&socket, every, every), appears);
        assert!(all.missed && socket.exists());
    }
}
