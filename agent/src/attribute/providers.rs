//! The suppliers of names: who asks the node's runtimes and kubelet about its pods and containers.
//!
//! One thread, [`THREAD`], with a task for every supplier of [`SUPPLIERS`]. A task waits on its own
//! sockets only, so one that hangs keeps nobody else from asking, and nobody waits for the thread:
//! what it learns goes into the index of [`super::names`], which the resolvers read.

pub(crate) mod cri;
pub(crate) mod engine;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fake_kubelet;
pub(crate) mod pod_resources;
pub(crate) mod pods_api;

use super::names::{LookupKey, MetadataCache};
use super::ownership::Ownership;
use super::workload::WantedLabels;
use crate::collect::status::{Report, StatusRegistry};
use crate::paths::Paths;
use std::collections::HashSet;
use std::future::Future;
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};
use tokio::sync::broadcast;
use tokio::task::LocalSet;

/// The thread's name, and the name under which its cost is on the board.
pub const THREAD: &str = "names";

/// Questions kept for a supplier that cannot answer now; more are only known to have been.
const MAX_KEPT: usize = 4096;
/// How often [`Suppliers::wait`] looks.
const LOOK: Duration = Duration::from_millis(5);

/// How often the thread shows that no task keeps it.
const PULSE: Duration = Duration::from_secs(10);

/// A supplier's work: for as long as the agent runs.
type ProviderFn = fn(ProviderContext, LookupQueue) -> Task;
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Every supplier, by its name on the board.
const SUPPLIERS: &[(&str, ProviderFn)] = &[
    ("pods_api", |context, wants| Box::pin(pods_api::supply(context, wants))),
    ("cri", |context, wants| Box::pin(cri::supply(context, wants))),
    ("docker", |context, wants| Box::pin(engine::docker(context, wants))),
    ("podman", |context, wants| Box::pin(engine::podman(context, wants))),
    ("pod_resources", |context, wants| Box::pin(pod_resources::supply(context, wants))),
];

/// Whether a source on the board is one of these: that one is absent is what most hosts are like.
pub fn is_provider(source: &str) -> bool {
    SUPPLIERS.iter().any(|(name, _)| *name == source)
}

/// Whom to ask.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the host's files are.
    pub paths: Paths,
    /// The node's part in a cluster.
    pub kubernetes: Kubernetes,
    /// Containers outside pods.
    pub containers: Containers,
}

/// `[kubernetes]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    /// Sockets of container runtimes that speak CRI; those that are not there are looked for.
    pub cri: Vec<PathBuf>,
    /// The kubelet's socket for whole pods.
    pub pods_api: Option<PathBuf>,
    /// The kubelet's socket for what it has granted.
    pub pod_resources: Option<PathBuf>,
    /// Resources of device plugins, and drivers of claims, that are accelerators beside those
    /// that are known for it.
    pub resources: Vec<String>,
    /// What Kubernetes calls this node, where that was told.
    pub node_name: Option<String>,
    /// Which labels and annotations of pods are told.
    pub(crate) wanted: WantedLabels,
}

/// `[containers]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Containers {
    /// Docker's socket.
    pub docker: Option<PathBuf>,
    /// Podman's socket.
    pub podman: Option<PathBuf>,
}

/// What a supplier works with.
#[derive(Debug)]
pub(crate) struct ProviderContext {
    name: &'static str,
    settings: Arc<Settings>,
    ownership: Ownership,
    board: StatusRegistry,
    busy: Arc<AtomicUsize>,
    settled: bool,
}

/// What is asked of a supplier, from the moment it was hired on.
#[derive(Debug)]
pub(crate) struct LookupQueue {
    questions: broadcast::Receiver<Option<LookupKey>>,
    busy: Arc<AtomicUsize>,
}

/// Questions that came together.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// Each once.
    pub(crate) wants: HashSet<LookupKey>,
    /// There were more than could wait, or everything is asked for.
    pub(crate) missed: bool,
}

impl Lookups {
    fn take(&mut self, want: Option<LookupKey>) {
        match want {
            None => self.missed = true,
            Some(want) => drop(self.wants.insert(want)),
        }
    }
}

/// Questions a supplier is at work on, until this is dropped.
#[derive(Debug)]
pub(crate) struct LookupBatch {
    questions: Lookups,
    _work: Work,
}

#[derive(Debug)]
struct Work(Arc<AtomicUsize>);

/// The suppliers from outside.
#[derive(Debug)]
pub struct MetadataProviders {
    names: MetadataCache,
    board: StatusRegistry,
    /// Suppliers that have not had their first look, or are at work on a question.
    busy: Arc<AtomicUsize>,
    hired: Vec<(ProviderContext, LookupQueue, ProviderFn)>,
}

impl MetadataProviders {
    /// Ready to be started; what is asked from now on is theirs to answer.
    pub fn start_for(settings: Settings, ownership: &Ownership, board: &StatusRegistry) -> Self {
        let settings = Arc::new(settings);
        let busy = Arc::new(AtomicUsize::new(SUPPLIERS.len()));
        let hire = |(name, supply): &(&'static str, ProviderFn)| {
            let context = ProviderContext {
                name,
                settings: Arc::clone(&settings),
                ownership: ownership.clone(),
                board: board.clone(),
                busy: Arc::clone(&busy),
                settled: false,
            };
            let wants =
                LookupQueue { questions: ownership.names().wants(), busy: Arc::clone(&busy) };
            (context, wants, *supply)
        };
        let hired = SUPPLIERS.iter().map(hire).collect();
        Self { names: ownership.names().clone(), board: board.clone(), busy, hired }
    }

    /// Starts the thread. It ends with the process.
    pub fn start(&mut self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (hired, board) = (std::mem::take(&mut self.hired), self.board.clone());
        let work = move || {
            board.clock(THREAD);
            let tasks = LocalSet::new();
            tasks.spawn_local(pulse(board));
            for (context, wants, supply) in hired {
                tasks.spawn_local(supply(context, wants));
            }
            tasks.block_on(&runtime, std::future::pending::<()>());
        };
        thread::Builder::new().name(THREAD.into()).spawn(work).map(drop)
    }

    /// Waits until every supplier has had its first look and has answered what was asked, but not
    /// longer than `most`.
    pub fn wait(&self, most: Duration) {
        let deadline = Instant::now() + most;
        while Instant::now() < deadline {
            if self.names.unanswered() == 0 && self.busy.load(Ordering::Acquire) == 0 {
                return;
            }
            thread::sleep(LOOK);
        }
    }
}

/// The board sees by this that a task which blocks the thread does not come back.
async fn pulse(board: StatusRegistry) {
    loop {
        let _turn = board.turn(THREAD, Duration::ZERO);
        tokio::time::sleep(PULSE).await;
    }
}

impl ProviderContext {
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// How the supplier stands.
    pub(crate) fn report(&self, report: &Report) {
        self.board.put(self.name, report);
    }

    /// The first look is over, whatever it found.
    pub(crate) fn apply(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.busy.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for ProviderContext {
    /// A supplier that is switched off keeps nobody waiting.
    fn drop(&mut self) {
        self.apply();
    }
}

impl LookupQueue {
    /// The same from now on, for another task of the supplier.
    pub(crate) fn fork(&self) -> Self {
        Self { questions: self.questions.resubscribe(), busy: Arc::clone(&self.busy) }
    }

    /// The next questions, all that wait. Never comes back when nobody can ask any more.
    pub(crate) async fn next(&mut self) -> LookupBatch {
        let first = self.questions.recv().await;
        let work = Work::begin(&self.busy);
        let mut questions = Lookups::default();
        match first {
            Ok(want) => questions.take(want),
            Err(broadcast::error::RecvError::Lagged(_)) => questions.missed = true,
            Err(broadcast::error::RecvError::Closed) => {
                drop(work);
                return std::future::pending().await;
            }
        }
        loop {
            match self.questions.try_recv() {
                Ok(want) => questions.take(want),
                Err(broadcast::error::TryRecvError::Lagged(_)) => questions.missed = true,
                Err(_) => return LookupBatch { questions, _work: work },
            }
        }
    }

    /// What is asked until then of a supplier that cannot answer now; nobody need wait for it.
    pub(crate) async fn until(&mut self, moment: tokio::time::Instant) -> Lookups {
        let mut all = Lookups::default();
        while let Ok(LookupBatch { questions, .. }) =
            tokio::time::timeout_at(moment, self.next()).await
        {
            all.missed |= questions.missed || all.wants.len() >= MAX_KEPT;
            if !all.missed {
                all.wants.extend(questions.wants);
            }
        }
        all
    }
}

impl Deref for LookupBatch {
    type Target = Lookups;

    fn deref(&self) -> &Lookups {
        &self.questions
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
