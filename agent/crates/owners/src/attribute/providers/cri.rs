//! The container runtime's CRI socket (containerd, CRI-O, cri-dockerd): names, images and labels of
//! pods and containers.
//!
//! Each connection starts with the version and one complete list. After that, the runtime's event
//! stream delivers changes, if it has one (containerd 1.7, CRI-O with pod events); missing entries
//! are looked up by id in any case, and a list each minute finds what was not reported.
//! `ListContainerStats` is never called: it reads every cgroup (61 ms with 35 containers, while a
//! list takes half a millisecond). Facts stay when the runtime does not answer.

mod cache;
#[cfg(test)]
mod wire_tests;

use super::{LookupQueue, Lookups, ProviderContext};
use crate::attribute::names::LookupKey;
use crate::attribute::names::Provider;
use crate::attribute::ownership::Ownership;
use crate::local::{Answers, Cause, Grpc, LocalError};
use cache::{MetadataUpdate, POD_UID, PodCache};
use gpuwho_kubernetes::cri::{
    Container, ContainerEventResponse, ContainerFilter, GetEventsRequest, ListContainersRequest,
    ListContainersResponse, ListImagesRequest, ListImagesResponse, ListPodSandboxRequest,
    ListPodSandboxResponse, PodSandbox, PodSandboxFilter, VersionRequest, VersionResponse,
};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::status::Report;
use std::cell::RefCell;
use std::convert::Infallible;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const LIST_SANDBOXES: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
const LIST_IMAGES: &str = "/runtime.v1.ImageService/ListImages";

/// Deadline of every answer: a list of 500 containers took no runtime longer than tens of
/// milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// Time between complete lists.
const RELIST: Duration = Duration::from_mins(1);
/// Time between looks for an absent socket.
const RECONNECT: Duration = Duration::from_secs(5);
/// Pause after a failure; doubled with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// Upper bound of the pause.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Up to this many lookups are sent one by one; for more, a complete list is cheaper.
const MAX_LOOKUPS: usize = 8;

/// Serves every configured socket, each in its own task.
pub(super) async fn provide(context: ProviderContext, lookups: LookupQueue) {
    let settings = context.settings().kubernetes.clone();
    let ownership = context.ownership().clone();
    let statuses = Rc::new(RefCell::new(SocketStates::new(context, &settings.cri)));
    let mut runtimes = JoinSet::new();
    for (at, socket) in settings.cri.into_iter().enumerate() {
        let runtime = Runtime {
            at,
            socket,
            cache: PodCache::new(settings.wanted.clone(), settings.node_name.as_deref()),
            ownership: ownership.clone(),
            lookups: lookups.fork(),
            statuses: Rc::clone(&statuses),
            about: String::new(),
            errors: 0,
            retry: FIRST_RETRY,
        };
        runtimes.spawn_local(runtime.run());
    }
    // The tasks have their own queues; a request in this one would seem to be unanswered.
    drop((lookups, statuses));
    while runtimes.join_next().await.is_some() {}
}

/// The state of one socket.
struct Runtime {
    at: usize,
    socket: PathBuf,
    cache: PodCache,
    ownership: Ownership,
    lookups: LookupQueue,
    statuses: Rc<RefCell<SocketStates>>,
    /// The runtime's name and version.
    about: String,
    errors: u64,
    retry: Duration,
}

impl Runtime {
    async fn run(mut self) {
        loop {
            let Err(error) = self.serve().await;
            let mut report = error.report_after(!self.about.is_empty());
            let max = if error.is_absent() { RECONNECT } else { LAST_RETRY };
            let pause = self.retry.min(max);
            self.retry = pause * 2;
            if error.cause == Cause::Unimplemented {
                // Docker's own containerd has CRI disabled: this runtime is not a kubelet's.
                report = Report::of(SourceState::Absent, error.to_string(), "");
            }
            self.errors += u64::from(report.state != SourceState::Absent);
            self.report(report);
            // The first list after the pause answers requests made meanwhile.
            if error.cause == Cause::Absent {
                drop(self.lookups.until_socket(&self.socket, pause, RECONNECT).await);
            } else {
                drop(self.lookups.until(Instant::now() + pause).await);
            }
        }
    }

    /// Serves one connection until it fails.
    async fn serve(&mut self) -> Result<Infallible, LocalError> {
        let grpc = Grpc::new(self.socket.clone());
        let (mut events, mut offered) = (None, true);
        let mut _follow_guard = None;
        let mut relist = interval(RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connections = 0;
        loop {
            let known = self.cache.containers();
            tokio::select! {
                biased;
                event = next(&mut events) => match event {
                    Ok(Some(event)) => self.update(|cache| cache.event(event)),
                    Ok(None) => (events, _follow_guard) = (None, None),
                    Err(error) if error.cause == Cause::Unimplemented => {
                        (events, offered, _follow_guard) = (None, false, None);
                        self.report_ready(false);
                    }
                    Err(error) => return Err(error),
                },
                _ = relist.tick() => {
                    // A runtime that was upgraded under its socket, or restarted with another
                    // configuration, may offer events now.
                    offered |= self.is_another(&grpc).await? || grpc.connections() > connections;
                    // Changes between the list and the stream are looked up by id.
                    if offered && events.is_none() {
                        events = Some(grpc.stream(EVENTS, GetEventsRequest {}));
                    }
                    self.list(&grpc).await?;
                    self.retry = FIRST_RETRY;
                    _follow_guard = events.is_some().then(|| self.ownership.names().follow());
                    self.report_ready(offered);
                    connections = grpc.connections();
                }
                // Not before the first list, which shows the pods of containers.
                batch = self.lookups.next(), if connections > 0 => {
                    self.answer(&grpc, &batch).await?;
                }
            }
            if grpc.connections() > connections {
                relist.reset_immediately();
            }
            if self.cache.containers() != known {
                self.report_ready(offered);
            }
        }
    }

    /// Reads name and version; returns whether they changed.
    async fn is_another(&mut self, grpc: &Grpc) -> Result<bool, LocalError> {
        let request = VersionRequest { version: "v1".to_owned() };
        let version: VersionResponse = grpc.unary(VERSION, request, DEADLINE).await?;
        self.cache.set_runtime(&version.runtime_name);
        let about = format!("{} {}", version.runtime_name, version.runtime_version);
        let previous = std::mem::replace(&mut self.about, about);
        Ok(previous != self.about)
    }

    /// Reads a complete list.
    async fn list(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        // Sandboxes first: they show the containers' pods.
        let pods = sandboxes(grpc, None).await?;
        let containers = containers(grpc, None).await?;
        self.tags(grpc, &containers).await?;
        self.update(|cache| cache.list(pods, containers));
        Ok(())
    }

    /// Looks up requested entries.
    async fn answer(&mut self, grpc: &Grpc, lookups: &Lookups) -> Result<(), LocalError> {
        let names = self.ownership.names();
        let is_missing = |key: &&LookupKey| match key {
            LookupKey::Pod(uid) => names.pod(uid).is_none(),
            LookupKey::Container(id) => names.container(id).is_none(),
        };
        let missing: Vec<_> = lookups.keys.iter().filter(is_missing).cloned().collect();
        if lookups.missed || missing.len() > MAX_LOOKUPS {
            return self.list(grpc).await;
        }
        for key in missing {
            match self.look_up(grpc, key).await {
                // Only this request was refused; the connection works.
                Err(error) if is_refusal(&error.cause) => self.errors += 1,
                other => other?,
            }
        }
        Ok(())
    }

    async fn look_up(&mut self, grpc: &Grpc, key: LookupKey) -> Result<(), LocalError> {
        let (mut pods, mut found) = (Vec::new(), Vec::new());
        match key {
            LookupKey::Pod(uid) => {
                let label_selector = [(POD_UID.to_owned(), uid.as_str().to_owned())].into();
                let filter = PodSandboxFilter { id: String::new(), label_selector };
                pods = sandboxes(grpc, Some(filter)).await?;
            }
            LookupKey::Container(id) => {
                let filter = |id: &str| Some(ContainerFilter { id: id.to_owned() });
                found = containers(grpc, filter(id.as_str())).await?;
                // CRI does not list a sandbox as a container, although it has a cgroup like one.
                let sandbox = found.first().map_or(id.as_str(), |found| &found.pod_sandbox_id);
                if !self.cache.has_sandbox(sandbox) {
                    let id = sandbox.to_owned();
                    let filter = PodSandboxFilter { id, ..PodSandboxFilter::default() };
                    pods = sandboxes(grpc, Some(filter)).await?;
                }
            }
        }
        self.tags(grpc, &found).await?;
        self.update(|cache| cache.some(pods, found));
        Ok(())
    }

    /// Reads names of images that containers reference by digest.
    async fn tags(&mut self, grpc: &Grpc, containers: &[Container]) -> Result<(), LocalError> {
        if !self.cache.lacks_tags(containers) {
            return Ok(());
        }
        let request = ListImagesRequest {};
        let answer = grpc.unary::<_, ListImagesResponse>(LIST_IMAGES, request, DEADLINE).await;
        match answer {
            Ok(answer) => self.cache.tags(answer.images, containers),
            Err(error) if is_refusal(&error.cause) => self.errors += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Updates the cache and passes its results to the ownership table.
    fn update(&mut self, change: impl FnOnce(&mut PodCache) -> Vec<MetadataUpdate>) {
        for update in change(&mut self.cache) {
            match update {
                MetadataUpdate::Pod(facts) => self.ownership.put_pod(Provider::Cri, facts),
                MetadataUpdate::Container(facts) => {
                    self.ownership.put_container(Provider::Cri, facts);
                }
                MetadataUpdate::Gone(what) => self.ownership.gone(Provider::Cri, &what),
            }
        }
    }

    fn report_ready(&mut self, events: bool) {
        let how = if events { "sends events" } else { "is polled" };
        let (about, socket) = (&self.about, self.socket.display());
        let count = self.cache.containers();
        let facts = format!("{about} at {socket} {how}: {count} containers and sandboxes");
        self.report(Report::of(SourceState::Ready, facts, ""));
    }

    fn report(&mut self, report: Report) {
        let report = Report { errors: self.errors, ..report };
        self.statuses.borrow_mut().put(self.at, report);
    }
}

/// The status of every socket; together they are one line of the status.
struct SocketStates {
    context: ProviderContext,
    none: String,
    each: Vec<Option<Report>>,
}

impl SocketStates {
    fn new(context: ProviderContext, sockets: &[PathBuf]) -> Self {
        let names: Vec<_> = sockets.iter().map(|socket| socket.display().to_string()).collect();
        let none = format!("no runtime answers at {}", names.join(", "));
        Self { context, none, each: vec![None; sockets.len()] }
    }

    fn put(&mut self, at: usize, report: Report) {
        if let Some(place) = self.each.get_mut(at) {
            *place = Some(report);
        }
        let known = || self.each.iter().flatten();
        let errors = known().map(|report| report.errors).sum();
        let worst = known().filter(|one| one.state != SourceState::Absent).max_by_key(|one| {
            match one.state {
                SourceState::Hung => 3,
                SourceState::Failed => 2,
                SourceState::Degraded => 1,
                SourceState::Ready | SourceState::Absent => 0,
            }
        });
        let is_ready = self.each.iter().all(Option::is_some);
        match worst {
            Some(worst) => self.context.report(&Report { errors, ..worst.clone() }),
            None if is_ready => {
                let remedy = "on a Kubernetes node, mount the runtime's socket directory and set kubernetes.cri";
                let absent = Report::of(SourceState::Absent, self.none.as_str(), remedy);
                self.context.report(&Report { errors, ..absent });
            }
            None => {}
        }
        if is_ready {
            self.context.mark_ready();
        }
    }
}

/// Whether only the request was refused, over a working connection.
fn is_refusal(cause: &Cause) -> bool {
    matches!(cause, Cause::Answered { .. } | Cause::NotFound | Cause::Unimplemented)
}

/// The next event; waits for ever without a stream.
async fn next(
    events: &mut Option<Answers<ContainerEventResponse>>,
) -> Result<Option<ContainerEventResponse>, LocalError> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

async fn sandboxes(
    grpc: &Grpc,
    filter: Option<PodSandboxFilter>,
) -> Result<Vec<PodSandbox>, LocalError> {
    let request = ListPodSandboxRequest { filter };
    let answer: ListPodSandboxResponse = grpc.unary(LIST_SANDBOXES, request, DEADLINE).await?;
    Ok(answer.items)
}

async fn containers(
    grpc: &Grpc,
    filter: Option<ContainerFilter>,
) -> Result<Vec<Container>, LocalError> {
    let request = ListContainersRequest { filter };
    let answer: ListContainersResponse = grpc.unary(LIST_CONTAINERS, request, DEADLINE).await?;
    Ok(answer.containers)
}

#[cfg(test)]
mod tests;
