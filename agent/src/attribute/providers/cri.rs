//! The container runtime's CRI socket (containerd, CRI-O, cri-dockerd): names, images and labels
//! of pods and containers.
//!
//! At each connection the version and one complete list. Then the runtime tells of itself where it
//! has an event stream (containerd 1.7, CRI-O with pod events), and what a resolver misses is asked
//! by its id in any case; a list a minute finds what was not told. `ListContainerStats` is never
//! called: it reads every cgroup (61 ms at 35 containers, where a list takes half a millisecond).
//! Nothing that was told is taken back when the runtime does not answer.

mod cache;
mod wire;
#[cfg(test)]
mod wire_tests;

use super::{LookupQueue, Lookups, ProviderContext};
use crate::attribute::names::LookupKey;
use crate::attribute::names::Provider;
use crate::attribute::ownership::Ownership;
use crate::catalog::agent::SourceState;
use crate::collect::status::Report;
use crate::local::{Answers, Cause, Grpc, LocalError};
use cache::{MetadataUpdate, POD_UID, PodCache};
use std::cell::RefCell;
use std::convert::Infallible;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use wire::{
    Container, ContainerFilter, EVENTS, Event, EventsRequest, LIST_CONTAINERS, LIST_IMAGES,
    LIST_SANDBOXES, ListContainersRequest, ListContainersResponse, ListImagesRequest,
    ListImagesResponse, ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox,
    PodSandboxFilter, VERSION, VersionRequest, VersionResponse,
};

/// For every answer: a list of 500 containers took no runtime longer than tens of milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// Between complete lists.
const RELIST: Duration = Duration::from_mins(1);
/// How often a socket that is not there is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// After a failure; doubled at each further one.
const FIRST_RETRY: Duration = Duration::from_millis(250);
/// And no longer than this.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Up to so many are asked one by one; more come cheaper with a complete list.
const FEW: usize = 8;

/// Asks every configured socket, each in a task of its own.
pub(super) async fn supply(desk: ProviderContext, wants: LookupQueue) {
    let settings = desk.settings().kubernetes.clone();
    let ownership = desk.ownership().clone();
    let standings = Rc::new(RefCell::new(SocketStates::new(desk, &settings.cri)));
    let mut runtimes = JoinSet::new();
    for (at, socket) in settings.cri.into_iter().enumerate() {
        let runtime = Runtime {
            at,
            socket,
            book: PodCache::new(settings.wanted.clone(), settings.node_name.as_deref()),
            ownership: ownership.clone(),
            wants: wants.fork(),
            statuses: Rc::clone(&standings),
            about: String::new(),
            errors: 0,
            retry: FIRST_RETRY,
        };
        runtimes.spawn_local(runtime.run());
    }
    // The tasks have their own; a question that waits here would seem to be unheard.
    drop((wants, standings));
    while runtimes.join_next().await.is_some() {}
}

/// One socket.
struct Runtime {
    at: usize,
    socket: PathBuf,
    book: PodCache,
    ownership: Ownership,
    wants: LookupQueue,
    statuses: Rc<RefCell<SocketStates>>,
    /// Name and version.
    about: String,
    errors: u64,
    retry: Duration,
}

impl Runtime {
    async fn run(mut self) {
        loop {
            let Err(error) = self.serve().await;
            let mut report = error.report_after(!self.about.is_empty());
            let longest = if error.is_absent() { LOOK_AGAIN } else { LAST_RETRY };
            let pause = self.retry.min(longest);
            self.retry = pause * 2;
            if error.cause == Cause::Unimplemented {
                // Docker's own containerd has CRI switched off: a runtime, but no kubelet's.
                report = Report::of(SourceState::Absent, error.to_string(), "");
            }
            self.errors += u64::from(report.state != SourceState::Absent);
            self.tell(report);
            // What is asked meanwhile is in the list that comes first after the pause.
            drop(self.wants.until(Instant::now() + pause).await);
        }
    }

    /// Everything from the connection to the failure that ends it.
    async fn serve(&mut self) -> Result<Infallible, LocalError> {
        let grpc = Grpc::new(self.socket.clone());
        let (mut events, mut offered) = (None, true);
        let mut _following = None;
        let mut relist = interval(RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connections = 0;
        loop {
            let known = self.book.containers();
            tokio::select! {
                biased;
                event = next(&mut events) => match event {
                    Ok(Some(event)) => self.learn(|book| book.event(event)),
                    Ok(None) => (events, _following) = (None, None),
                    Err(error) if error.cause == Cause::Unimplemented => {
                        (events, offered, _following) = (None, false, None);
                        self.ready(false);
                    }
                    Err(error) => return Err(error),
                },
                _ = relist.tick() => {
                    // A runtime that was upgraded under its socket, or restarted with another
                    // configuration, may offer what it did not.
                    offered |= self.is_another(&grpc).await? || grpc.connections() > connections;
                    // What falls between the list and the stream is asked for by its id.
                    if offered && events.is_none() {
                        events = Some(grpc.stream(EVENTS, EventsRequest {}));
                    }
                    self.list(&grpc).await?;
                    self.retry = FIRST_RETRY;
                    _following = events.is_some().then(|| self.ownership.names().follow());
                    self.ready(offered);
                    connections = grpc.connections();
                }
                // Not before the first list, by which it is known whose containers they are.
                asked = self.wants.next(), if connections > 0 => {
                    self.answer(&grpc, &asked).await?;
                }
            }
            if grpc.connections() > connections {
                relist.reset_immediately();
            }
            if self.book.containers() != known {
                self.ready(offered);
            }
        }
    }

    /// Asks for name and version; whether they are others than before.
    async fn is_another(&mut self, grpc: &Grpc) -> Result<bool, LocalError> {
        let question = VersionRequest { version: "v1".to_owned() };
        let version: VersionResponse = grpc.unary(VERSION, question, DEADLINE).await?;
        self.book.is_about(&version.runtime_name);
        let about = format!("{} {}", version.runtime_name, version.runtime_version);
        let before = std::mem::replace(&mut self.about, about);
        Ok(before != self.about)
    }

    /// A complete list.
    async fn list(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        // Sandboxes first: the containers' pods are told by them.
        let pods = sandboxes(grpc, None).await?;
        let containers = containers(grpc, None).await?;
        self.tags(grpc, &containers).await?;
        self.learn(|book| book.list(pods, containers));
        Ok(())
    }

    /// What resolvers miss.
    async fn answer(&mut self, grpc: &Grpc, asked: &Lookups) -> Result<(), LocalError> {
        let names = self.ownership.names();
        let is_open = |want: &&LookupKey| match want {
            LookupKey::Pod(uid) => names.pod(uid).is_none(),
            LookupKey::Container(id) => names.container(id).is_none(),
        };
        let open: Vec<_> = asked.wants.iter().filter(is_open).cloned().collect();
        if asked.missed || open.len() > FEW {
            return self.list(grpc).await;
        }
        for want in open {
            match self.look_up(grpc, want).await {
                // Refused is this question; the connection is well.
                Err(error) if is_refusal(&error.cause) => self.errors += 1,
                other => other?,
            }
        }
        Ok(())
    }

    async fn look_up(&mut self, grpc: &Grpc, want: LookupKey) -> Result<(), LocalError> {
        let (mut pods, mut found) = (Vec::new(), Vec::new());
        match want {
            LookupKey::Pod(uid) => {
                let label_selector = [(POD_UID.to_owned(), uid.as_str().to_owned())].into();
                let filter = PodSandboxFilter { id: String::new(), label_selector };
                pods = sandboxes(grpc, Some(filter)).await?;
            }
            LookupKey::Container(id) => {
                let filter = |id: &str| Some(ContainerFilter { id: id.to_owned() });
                found = containers(grpc, filter(id.as_str())).await?;
                // A sandbox is no container to CRI, though it has a cgroup like one.
                let sandbox = found.first().map_or(id.as_str(), |found| &found.pod_sandbox_id);
                if !self.book.has_sandbox(sandbox) {
                    let id = sandbox.to_owned();
                    let filter = PodSandboxFilter { id, ..PodSandboxFilter::default() };
                    pods = sandboxes(grpc, Some(filter)).await?;
                }
            }
        }
        self.tags(grpc, &found).await?;
        self.learn(|book| book.some(pods, found));
        Ok(())
    }

    /// Names for images that the containers name by digest.
    async fn tags(&mut self, grpc: &Grpc, containers: &[Container]) -> Result<(), LocalError> {
        if !self.book.lacks_tags(containers) {
            return Ok(());
        }
        let question = ListImagesRequest {};
        let answer = grpc.unary::<_, ListImagesResponse>(LIST_IMAGES, question, DEADLINE).await;
        match answer {
            Ok(answer) => self.book.tags(answer.images, containers),
            Err(error) if is_refusal(&error.cause) => self.errors += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn learn(&mut self, say: impl FnOnce(&mut PodCache) -> Vec<MetadataUpdate>) {
        for reported in say(&mut self.book) {
            match reported {
                MetadataUpdate::Pod(facts) => self.ownership.put_pod(Provider::Cri, facts),
                MetadataUpdate::Container(facts) => {
                    self.ownership.put_container(Provider::Cri, facts);
                }
                MetadataUpdate::Gone(what) => self.ownership.gone(Provider::Cri, &what),
            }
        }
    }

    fn ready(&mut self, events: bool) {
        let how = if events { "tells of changes" } else { "is asked" };
        let (about, socket) = (&self.about, self.socket.display());
        let count = self.book.containers();
        let facts = format!("{about} at {socket} {how}: {count} containers and sandboxes");
        self.tell(Report::of(SourceState::Ready, facts, ""));
    }

    fn tell(&mut self, report: Report) {
        let report = Report { errors: self.errors, ..report };
        self.statuses.borrow_mut().put(self.at, report);
    }
}

/// How every socket stands: one line on the board.
struct SocketStates {
    context: ProviderContext,
    none: String,
    each: Vec<Option<Report>>,
}

impl SocketStates {
    fn new(desk: ProviderContext, sockets: &[PathBuf]) -> Self {
        let names: Vec<_> = sockets.iter().map(|socket| socket.display().to_string()).collect();
        let none = format!("no runtime answers at {}", names.join(", "));
        Self { context: desk, none, each: vec![None; sockets.len()] }
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
        let settled = self.each.iter().all(Option::is_some);
        match worst {
            Some(worst) => self.context.report(&Report { errors, ..worst.clone() }),
            None if settled => {
                let remedy = "on a Kubernetes node, mount the runtime's socket directory and set kubernetes.cri";
                let absent = Report::of(SourceState::Absent, self.none.as_str(), remedy);
                self.context.report(&Report { errors, ..absent });
            }
            None => {}
        }
        if settled {
            self.context.apply();
        }
    }
}

/// Whether it is the question that was refused, over a connection that is well.
fn is_refusal(cause: &Cause) -> bool {
    matches!(cause, Cause::Answered { .. } | Cause::NotFound | Cause::Unimplemented)
}

/// The next event; never without a stream.
async fn next(events: &mut Option<Answers<Event>>) -> Result<Option<Event>, LocalError> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

async fn sandboxes(
    grpc: &Grpc,
    filter: Option<PodSandboxFilter>,
) -> Result<Vec<PodSandbox>, LocalError> {
    let question = ListPodSandboxRequest { filter };
    let answer: ListPodSandboxResponse = grpc.unary(LIST_SANDBOXES, question, DEADLINE).await?;
    Ok(answer.items)
}

async fn containers(
    grpc: &Grpc,
    filter: Option<ContainerFilter>,
) -> Result<Vec<Container>, LocalError> {
    let question = ListContainersRequest { filter };
    let answer: ListContainersResponse = grpc.unary(LIST_CONTAINERS, question, DEADLINE).await?;
    Ok(answer.containers)
}

#[cfg(test)]
mod tests;
