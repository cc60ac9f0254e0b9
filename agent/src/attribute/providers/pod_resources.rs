//! The kubelet's pod-resources socket: which device it has granted to which container.
//!
//! One list (a few milliseconds of the kubelet's) soon after news of a pod, never more often than
//! every five seconds, and every five minutes; every ten seconds where nobody tells of pods as they
//! come and go, or the kubelet lists no pods. What the node has to grant is asked with each list and
//! every ten seconds: device plugins register late and take devices back, and nobody tells. A pod that nobody had told of before is
//! asked for alone and at once, where the kubelet offers that. The list before stays while the
//! kubelet does not answer or has no pods yet ([`missing`]), and is not worked up again while nothing
//! changes.

mod binding;
mod devices;
mod missing;
mod wire;

use super::{LookupQueue, ProviderContext};
use crate::attribute::ownership::Ownership;
use crate::catalog::agent::SourceState;
use crate::catalog::share::GrantKind;
use crate::collect::status::Report;
use crate::ids::PodUid;
use crate::local::{Cause, Grpc, LocalError};
use binding::{Binding, Outcome};
use missing::{Life, Missing};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until};
use wire::{
    ALLOCATABLE, AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, GET,
    GetPodResourcesRequest, GetPodResourcesResponse, LIST, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};

/// The list's name among the grants.
const SOURCE: &str = "kubelet";
/// New pods asked for one by one between two lists: more than a node starts in that time, fewer
/// than the kubelet's limit for all who ask.
const MAX_LOOKUPS: usize = 8;

/// How long things may take and how often they are done.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// For every answer.
    deadline: Duration,
    /// Between lists without news, and between questions about what the node has.
    every: Duration,
    /// The same where a supplier tells of every change: devices come and go with their pods.
    followed: Duration,
    /// Between lists in any case: the kubelet answers a node's agents at a limited rate together.
    soonest: Duration,
    /// From news to the list: of a pod's start most comes within this.
    gather: Duration,
    /// After a failure; doubled at each further one.
    first_retry: Duration,
    /// And no longer than this.
    last_retry: Duration,
}

const PACE: Timing = Timing {
    deadline: Duration::from_secs(5),
    every: Duration::from_secs(10),
    followed: Duration::from_mins(5),
    soonest: Duration::from_secs(5),
    gather: Duration::from_millis(300),
    first_retry: Duration::from_secs(1),
    last_retry: Duration::from_mins(1),
};

/// Asks the kubelet for as long as the agent runs.
pub(super) async fn supply(desk: ProviderContext, wants: LookupQueue) {
    // What is granted answers no question.
    drop(wants);
    at_pace(PACE, desk).await;
}

async fn at_pace(pace: Timing, desk: ProviderContext) {
    let Some(socket) = desk.settings().kubernetes.pod_resources.clone() else { return };
    let ownership = desk.ownership().clone();
    let names = ownership.names();
    let (news, followers, arrivals) = (names.changes(), names.followers(), names.arrivals());
    let told = ListState {
        binding: Binding::default(),
        list: Vec::new(),
        names: None,
        words: Outcome::default(),
        missing: Missing::default(),
    };
    let node = Allocatable { known: None, offered: true };
    let single = Single { arrivals, asked: 0, offered: true };
    let retry = pace.first_retry;
    Kubelet {
        pace,
        socket,
        context: desk,
        ownership,
        reported: told,
        news,
        followers,
        single,
        node,
        errors: 0,
        retry,
    }
    .run()
    .await;
}

struct Kubelet {
    pace: Timing,
    socket: PathBuf,
    context: ProviderContext,
    ownership: Ownership,
    reported: ListState,
    news: watch::Receiver<u64>,
    followers: watch::Receiver<usize>,
    single: Single,
    node: Allocatable,
    errors: u64,
    retry: Duration,
}

/// What the kubelet has listed, and what came of it.
struct ListState {
    binding: Binding,
    /// Sorted: the kubelet lists its pods, and a container's devices, in no order.
    list: Vec<PodResources>,
    /// The names' count of changes when the list was worked up.
    names: Option<u64>,
    words: Outcome,
    missing: Missing,
}

/// Questions about one pod.
struct Single {
    arrivals: broadcast::Receiver<PodUid>,
    /// Since the last list.
    asked: usize,
    /// The kubelet has the method, and it is not switched off.
    offered: bool,
}

/// What the node has to grant.
struct Allocatable {
    known: Option<usize>,
    /// The kubelet has the method.
    offered: bool,
}

impl Kubelet {
    async fn run(mut self) {
        let grpc = Grpc::new(self.socket.clone());
        loop {
            // Everything known until now is in this list.
            self.news.mark_unchanged();
            self.single.arrivals = self.single.arrivals.resubscribe();
            self.single.asked = 0;
            if let Err(error) = self.round(&grpc).await {
                let pause = self.failed(&error);
                sleep(pause).await;
            }
        }
    }

    /// A list, and the time until the next one is due.
    async fn round(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        let asked = Instant::now();
        self.list(grpc).await?;
        self.retry = self.pace.first_retry;
        self.rest(grpc, asked).await
    }

    async fn list(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        let question = ListPodResourcesRequest {};
        let answer: ListPodResourcesResponse =
            grpc.unary(LIST, question, self.pace.deadline).await?;
        let list = answer.pod_resources;
        self.reported.missing.connected(grpc.connections());
        let ownership = &self.ownership;
        let lives = |pod: &PodResources| match ownership.pod_named(&pod.namespace, &pod.name) {
            None => Life::Ended,
            Some(facts) if ownership.pod_class(&facts.uid).is_some() => Life::Running,
            Some(_) => Life::Unknown,
        };
        let mut list =
            self.reported.missing.complete(list, &self.reported.list, Instant::now(), lives);
        list.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for container in list.iter_mut().flat_map(|pod| &mut pod.containers) {
            let name = |devices: &ContainerDevices| {
                (devices.resource_name.clone(), devices.device_ids.clone())
            };
            container.devices.sort_by_cached_key(name);
        }
        self.take(list);
        self.look(grpc).await?;
        self.report_allocations();
        Ok(())
    }

    /// Works up a list, unless it says the same about the same pods as the one before.
    fn take(&mut self, list: Vec<PodResources>) {
        let names = Some(*self.news.borrow());
        let told = &mut self.reported;
        if told.names == names && told.list == list && told.words.waiting == 0 {
            return;
        }
        let settings = self.context.settings();
        let extra = &settings.kubernetes.resources;
        let devices = devices::NameContext { sys: &settings.paths.sys, extra };
        told.words = told.binding.bind(list.clone(), &devices, &self.ownership);
        (told.list, told.names) = (list, names);
        self.ownership.allocations().replace(SOURCE, told.words.allocations.clone());
        if self.reported.words.waiting > 0 {
            // A runtime without events tells of a new pod with its next list.
            self.ownership.names().want_all();
        }
    }

    /// Asks for a pod that has just become known; the list that follows says it again.
    async fn get(&mut self, grpc: &Grpc, uid: &PodUid) {
        let Some(pod) = self.ownership.names().pod(uid) else { return };
        self.single.asked += 1;
        let question = GetPodResourcesRequest {
            pod_name: pod.name.as_ref().to_owned(),
            pod_namespace: pod.namespace.as_ref().to_owned(),
        };
        let answer: Result<GetPodResourcesResponse, _> =
            grpc.unary(GET, question, self.pace.deadline).await;
        match answer {
            Ok(GetPodResourcesResponse { pod_resources: Some(pod) }) => {
                let name = |pod: &PodResources| (pod.namespace.clone(), pod.name.clone());
                let mut list = self.reported.list.clone();
                match list.binary_search_by(|known| name(known).cmp(&name(&pod))) {
                    Ok(place) => list.splice(place..=place, [pod]).for_each(drop),
                    Err(place) => list.insert(place, pod),
                }
                self.take(list);
                self.report_allocations();
            }
            Ok(_) => {}
            Err(error) => self.single.offered = is_offered(&error.cause),
        }
    }

    /// What the node has to grant.
    async fn look(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        if !self.node.offered {
            return Ok(());
        }
        let question = AllocatableResourcesRequest {};
        let answer: Result<AllocatableResourcesResponse, _> =
            grpc.unary(ALLOCATABLE, question, self.pace.deadline).await;
        match answer {
            Ok(answer) => {
                let settings = self.context.settings();
                let extra = &settings.kubernetes.resources;
                let names = devices::NameContext { sys: &settings.paths.sys, extra };
                let all = answer.devices.iter().flat_map(|devices| names.plugin(devices));
                let all: Vec<_> = all.collect();
                self.node.known = Some(all.len());
                let named = all.into_iter().filter_map(|offered| offered.device.ok());
                self.ownership.allocations().offer(named.collect());
                Ok(())
            }
            Err(error) if error.cause == Cause::Unimplemented => {
                self.node.offered = false;
                Ok(())
            }
            // Switched off or over the limit: the list is what counts.
            Err(error) if matches!(error.cause, Cause::Answered { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Until the next list is due; asks for new pods, and what the node has, meanwhile.
    async fn rest(&mut self, grpc: &Grpc, asked: Instant) -> Result<(), LocalError> {
        let mut soon: Option<Instant> = None;
        let mut look = asked + self.pace.every;
        loop {
            let is_followed = *self.followers.borrow_and_update() > 0;
            // A kubelet without pods has just started, or knows none yet: nobody tells when it does.
            let is_whole = !self.reported.list.is_empty() && self.reported.missing.kept == 0;
            let every = if is_followed && is_whole { self.pace.followed } else { self.pace.every };
            let due = soon.map_or(asked + every, |soon| soon.min(asked + every));
            let asks = self.single.offered && self.single.asked < MAX_LOOKUPS;
            tokio::select! {
                biased;
                () = sleep_until(due) => return Ok(()),
                () = sleep_until(look), if self.node.offered => {
                    self.look(grpc).await?;
                    self.report_allocations();
                    look = Instant::now() + self.pace.every;
                }
                Ok(uid) = self.single.arrivals.recv(), if asks => self.get(grpc, &uid).await,
                Ok(()) = self.news.changed() => {
                    let gathered = Instant::now() + self.pace.gather;
                    soon = soon.or(Some(gathered.max(asked + self.pace.soonest)));
                }
                Ok(()) = self.followers.changed() => {}
            }
        }
    }

    /// How long to leave the kubelet alone.
    fn failed(&mut self, error: &LocalError) -> Duration {
        let over_limit =
            matches!(&error.cause, Cause::Answered { status, .. } if status == "ResourceExhausted");
        let pause = if over_limit { self.retry.max(self.pace.soonest) } else { self.retry };
        self.retry = (pause * 2).min(self.pace.last_retry);
        // A kubelet that comes back may be another version.
        self.node.offered = true;
        self.single.offered = true;
        self.reported.missing.reconnected |= !over_limit;
        let report =
            error.report_after(self.node.known.is_some() || !self.reported.list.is_empty());
        let pause = if error.is_absent() { pause.min(self.pace.soonest) } else { pause };
        self.errors += u64::from(report.state != SourceState::Absent);
        let words = match self.ownership.allocations().count(SOURCE) {
            0 => report.reason,
            granted => {
                format!("{}; the {granted} devices of the last list stay granted", report.reason)
            }
        };
        let remedy = match report.state {
            SourceState::Absent => "on a Kubernetes node, mount the socket's directory".to_owned(),
            _ => report.remedy,
        };
        self.tell(Report::of(report.state, words, remedy));
        pause
    }

    fn report_allocations(&mut self) {
        let words = self.reported.words.details(&self.socket, self.node.known);
        let report = match self.reported.missing.kept {
            0 => Report::of(SourceState::Ready, words, ""),
            kept => Report::of(
                SourceState::Degraded,
                format!(
                    "{words}; the kubelet leaves out {kept} pods that run on: they keep theirs"
                ),
                "wait for the kubelet to reach its API server; see its log",
            ),
        };
        self.tell(report);
    }

    fn tell(&mut self, report: Report) {
        self.context.report(&Report { errors: self.errors, ..report });
        self.context.apply();
    }
}

/// Whether a question about one pod may be answered the next time. Where the method is switched off
/// the kubelet says so in words (`PodResources API Get method disabled`, v1.37 `server_v1.go`).
fn is_offered(cause: &Cause) -> bool {
    match cause {
        Cause::Unimplemented => false,
        Cause::Answered { message, .. } => !message.contains("disabled"),
        _ => true,
    }
}

impl Outcome {
    /// How it stands, in one sentence.
    fn details(&self, socket: &std::path::Path, allocatable: Option<usize>) -> String {
        // Claims are not counted among what device plugins have.
        let claims = self
            .allocations
            .iter()
            .filter(|allocation| allocation.kind == GrantKind::Claim)
            .count();
        let plugins = self.allocations.len() - claims;
        let of = allocatable.map_or_else(String::new, |all| format!(" of {all}"));
        let mut words = vec![format!("{}: {plugins} devices granted{of}", socket.display())];
        words.extend((claims > 0).then(|| format!("{claims} granted by claims")));
        for (count, why) in [
            (self.waiting, "wait for their pod to be known"),
            (self.contested, "are listed for two pods"),
        ] {
            if count > 0 {
                words.push(format!("{count} {why}"));
            }
        }
        let unnamed = self.unnamed.iter();
        words.extend(unnamed.map(|(why, count)| format!("{count} are {}", why.as_str())));
        words.join(", ")
    }
}

#[cfg(test)]
mod tests;
