//! The kubelet's pod-resources socket: the devices allocated to each container.
//!
//! One list (a few milliseconds of the kubelet's time) soon after a change of a pod, never more
//! often than every five seconds, and every five minutes; every ten seconds if no provider follows
//! pods, or if the kubelet lists no pods. The node's allocatable devices are read with each list
//! and every ten seconds: device plugins register late and withdraw devices without notice. A new
//! pod is requested alone and at once, if the kubelet offers that. The previous list stays while
//! the kubelet does not answer or has no pods yet ([`missing`]); an unchanged one is skipped.

mod binding;
mod devices;
mod missing;
mod timing;
#[cfg(test)]
mod wire_tests;

use super::{LookupQueue, ProviderContext, next_of};
use crate::attribute::allocations::{Allocation, Disputes};
use crate::attribute::ownership::Ownership;
use crate::local::{Cause, Grpc, LocalError};
use binding::{Binding, Outcome};
use gpuwho_kubernetes::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices,
    GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
};
use gpuwho_kubernetes::pods::Pods;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::share::GrantKind;
use gpuwho_model::ids::PodUid;
use gpuwho_model::status::Report;
use missing::{Life, Missing};
use std::path::PathBuf;
use std::time::Duration;
use timing::{TIMING, Timing};
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until};

const LIST: &str = "/v1.PodResourcesLister/List";
const GET: &str = "/v1.PodResourcesLister/Get";
const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

/// The source's name in the allocation registry.
const SOURCE: &str = "kubelet";
/// Maximum number of new pods requested one by one between two lists: more than a node starts in
/// that time, and fewer than the kubelet's limit for all its clients.
const MAX_LOOKUPS: usize = 8;

/// Reads the kubelet's allocations for as long as the agent runs.
pub(super) async fn provide(context: ProviderContext, lookups: LookupQueue) {
    // Allocations answer no lookups.
    drop(lookups);
    provide_at(TIMING, context).await;
}

async fn provide_at(timing: Timing, context: ProviderContext) {
    let Some(socket) = context.settings().kubernetes.pod_resources.clone() else { return };
    let ownership = context.ownership().clone();
    let names = ownership.names();
    let (changes, followers, arrivals) = (names.changes(), names.followers(), names.arrivals());
    let state = ListState {
        binding: Binding::default(),
        list: Vec::new(),
        names: None,
        outcome: Outcome::default(),
        missing: Missing::default(),
    };
    let node = Allocatable { known: None, offered: true };
    let single = Single { arrivals, requested: 0, offered: true };
    let retry = timing.first_retry;
    Kubelet {
        timing,
        socket,
        context,
        ownership,
        state,
        changes,
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
    timing: Timing,
    socket: PathBuf,
    context: ProviderContext,
    ownership: Ownership,
    state: ListState,
    changes: watch::Receiver<u64>,
    followers: watch::Receiver<usize>,
    single: Single,
    node: Allocatable,
    errors: u64,
    retry: Duration,
}

/// The last list, and its result.
struct ListState {
    binding: Binding,
    /// Sorted: the kubelet lists its pods, and a container's devices, in no order.
    list: Vec<PodResources>,
    /// The metadata's change count when the list was processed.
    names: Option<u64>,
    outcome: Outcome,
    missing: Missing,
}

/// Requests for single pods.
struct Single {
    arrivals: broadcast::Receiver<PodUid>,
    /// Number of requests since the last list.
    requested: usize,
    /// Whether the kubelet has the method, and has not disabled it.
    offered: bool,
}

/// The node's allocatable devices.
struct Allocatable {
    known: Option<usize>,
    /// Whether the kubelet has the method.
    offered: bool,
}

impl Kubelet {
    async fn run(mut self) {
        let grpc = Grpc::new(self.socket.clone());
        loop {
            // The next list includes every change until now.
            self.changes.mark_unchanged();
            self.single.arrivals = self.single.arrivals.resubscribe();
            self.single.requested = 0;
            if let Err(error) = self.round(&grpc).await {
                let pause = self.failed(&error);
                match error.cause {
                    Cause::Absent => {
                        sleep(pause.min(self.timing.first_retry)).await;
                        self.context.socket(&self.socket, pause).await;
                    }
                    // As the other providers do.
                    _ if error.is_absent() => sleep_until(next_of(pause)).await,
                    _ => sleep(pause).await,
                }
            }
        }
    }

    /// Reads a list and waits until the next one is due.
    async fn round(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        let listed_at = Instant::now();
        self.list(grpc).await?;
        self.retry = self.timing.first_retry;
        self.wait_for_next(grpc, listed_at).await
    }

    async fn list(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        let (request, deadline) = (ListPodResourcesRequest {}, self.timing.deadline);
        let Pods(list) = grpc.unary(LIST, request, deadline).await?;
        self.state.missing.connected(grpc.connections());
        let ownership = &self.ownership;
        let life = |pod: &PodResources| match ownership.pod_named(&pod.namespace, &pod.name) {
            None => Life::Ended,
            Some(facts) if ownership.pod_class(&facts.uid).is_some() => Life::Running,
            Some(_) => Life::Unknown,
        };
        let mut list = self.state.missing.complete(list, &self.state.list, Instant::now(), life);
        list.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        for container in list.iter_mut().flat_map(|pod| &mut pod.containers) {
            let name = |devices: &ContainerDevices| {
                (devices.resource_name.clone(), devices.device_ids.clone())
            };
            container.devices.sort_by_cached_key(name);
            for claim in &mut container.dynamic_resources {
                // Only its drivers are in no order: the CDI names of a driver's devices tell them apart.
                claim.claim_resources.sort_by(|a, b| a.driver_name.cmp(&b.driver_name));
            }
        }
        self.process(list);
        self.read_allocatable(grpc).await?;
        self.report_allocations();
        Ok(())
    }

    /// Processes a list, unless it and the pods are the same as before.
    fn process(&mut self, list: Vec<PodResources>) {
        let names = Some(*self.changes.borrow());
        let state = &mut self.state;
        if state.names == names && state.list == list && state.outcome.waiting == 0 {
            return;
        }
        let settings = self.context.settings();
        let devices = devices::NameContext::new(
            &settings.paths,
            settings.vendors,
            &settings.kubernetes.resources,
        );
        // The copy has no room for more, as the decoded lists of each pod have.
        (state.list, state.names) = (list.clone(), names);
        let administrative = &settings.kubernetes.administrative;
        state.outcome = state.binding.bind(list, &devices, administrative, &self.ownership);
        self.ownership.allocations().replace(SOURCE, state.outcome.allocations.clone());
        if self.state.outcome.waiting > 0 {
            // A runtime without events reports a new pod with its next list.
            self.ownership.names().request_all();
        }
    }

    /// Requests a new pod alone; the next list contains it again.
    async fn get(&mut self, grpc: &Grpc, uid: &PodUid) {
        let Some(pod) = self.ownership.names().pod(uid) else { return };
        self.single.requested += 1;
        let request = GetPodResourcesRequest {
            pod_name: pod.name.as_ref().to_owned(),
            pod_namespace: pod.namespace.as_ref().to_owned(),
        };
        match grpc.unary(GET, request, self.timing.deadline).await.map(|Pods(mut pods)| pods.pop())
        {
            Ok(Some(pod)) => {
                let name = |pod: &PodResources| (pod.namespace.clone(), pod.name.clone());
                let mut list = self.state.list.clone();
                match list.binary_search_by(|known| name(known).cmp(&name(&pod))) {
                    Ok(place) => list.splice(place..=place, [pod]).for_each(drop),
                    Err(place) => list.insert(place, pod),
                }
                self.process(list);
                self.report_allocations();
            }
            Ok(None) => {}
            Err(error) => self.single.offered = is_offered(&error.cause),
        }
    }

    /// Reads the node's allocatable devices.
    async fn read_allocatable(&mut self, grpc: &Grpc) -> Result<(), LocalError> {
        if !self.node.offered {
            return Ok(());
        }
        let request = AllocatableResourcesRequest {};
        let answer: Result<AllocatableResourcesResponse, _> =
            grpc.unary(ALLOCATABLE, request, self.timing.deadline).await;
        match answer {
            Ok(answer) => {
                let settings = self.context.settings();
                let extra = &settings.kubernetes.resources;
                let names = devices::NameContext::new(&settings.paths, settings.vendors, extra);
                let all = answer.devices.iter().flat_map(|devices| names.plugin(devices));
                let mut count = 0;
                let named = all.inspect(|_| count += 1).filter_map(|offered| offered.device.ok());
                self.ownership.allocations().offer(named);
                self.node.known = Some(count);
                Ok(())
            }
            Err(error) if error.cause == Cause::Unimplemented => {
                self.node.offered = false;
                Ok(())
            }
            // Disabled or over the rate limit: the list is what matters.
            Err(error) if matches!(error.cause, Cause::Answered { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until the next list is due; meanwhile requests new pods and the allocatable devices.
    async fn wait_for_next(&mut self, grpc: &Grpc, listed_at: Instant) -> Result<(), LocalError> {
        let mut soon: Option<Instant> = None;
        let mut next_read = listed_at + self.timing.every;
        loop {
            let is_followed = *self.followers.borrow_and_update() > 0;
            // A kubelet without pods has just started, or knows none yet: it does not announce
            // them.
            let is_whole = !self.state.list.is_empty() && self.state.missing.retained == 0;
            let every =
                if is_followed && is_whole { self.timing.followed } else { self.timing.every };
            let due = soon.map_or(listed_at + every, |soon| soon.min(listed_at + every));
            let may_request = self.single.offered && self.single.requested < MAX_LOOKUPS;
            tokio::select! {
                biased;
                () = sleep_until(due) => return Ok(()),
                () = sleep_until(next_read), if self.node.offered => {
                    self.read_allocatable(grpc).await?;
                    self.report_allocations();
                    next_read = Instant::now() + self.timing.every;
                }
                Ok(uid) = self.single.arrivals.recv(), if may_request => self.get(grpc, &uid).await,
                Ok(()) = self.changes.changed() => {
                    let gathered = Instant::now() + self.timing.gather;
                    soon = soon.or(Some(gathered.max(listed_at + self.timing.min_interval)));
                }
                Ok(()) = self.followers.changed() => {}
            }
        }
    }

    /// Records a failure; returns the pause before the next attempt.
    fn failed(&mut self, error: &LocalError) -> Duration {
        let over_limit =
            matches!(&error.cause, Cause::Answered { status, .. } if status == "ResourceExhausted");
        let pause = if over_limit { self.retry.max(self.timing.min_interval) } else { self.retry };
        self.retry = (pause * 2).min(self.timing.last_retry);
        // A kubelet that returns may be another version.
        self.node.offered = true;
        self.single.offered = true;
        self.state.missing.reconnected |= !over_limit;
        let report = error.report_after(self.node.known.is_some() || !self.state.list.is_empty());
        let pause = if error.is_absent() { pause.min(self.timing.min_interval) } else { pause };
        self.errors += u64::from(report.state != SourceState::Absent);
        let reason = match self.ownership.allocations().count(SOURCE) {
            0 => report.reason,
            allocated => {
                format!(
                    "{}; the {allocated} devices of the last list stay allocated",
                    report.reason
                )
            }
        };
        let remedy = match report.state {
            SourceState::Absent => "on a Kubernetes node, mount the socket's directory".to_owned(),
            _ => report.remedy,
        };
        self.report(Report::of(report.state, reason, remedy));
        pause
    }

    fn report_allocations(&mut self) {
        let disputes = self.ownership.allocations().disputes();
        let summary = self.state.outcome.summary(&self.socket, self.node.known, disputes);
        let report = match self.state.missing.retained {
            0 => Report::of(SourceState::Ready, summary, ""),
            retained => Report::of(
                SourceState::Degraded,
                format!(
                    "{summary}; the kubelet leaves out {retained} running pods: their devices stay allocated"
                ),
                "wait for the kubelet to reach its API server; see its log",
            ),
        };
        self.report(report);
    }

    fn report(&mut self, report: Report) {
        self.context.report(&Report { errors: self.errors, ..report });
        self.context.mark_ready();
    }
}

/// Whether a request for a single pod may be answered the next time. A kubelet with the method
/// disabled reports that in the message (`PodResources API Get method disabled`, v1.37
/// `server_v1.go`).
fn is_offered(cause: &Cause) -> bool {
    match cause {
        Cause::Unimplemented => false,
        Cause::Answered { message, .. } => !message.contains("disabled"),
        _ => true,
    }
}

impl Outcome {
    /// The result in one sentence, for the status.
    fn summary(
        &self,
        socket: &std::path::Path,
        allocatable: Option<usize>,
        disputes: Disputes,
    ) -> String {
        // Claims are not among the device plugins' allocatable devices.
        let claims = self
            .allocations
            .iter()
            .filter(|allocation| allocation.kind == GrantKind::Claim)
            .count();
        // Replicas are parts, as the allocatable ones are.
        let parts = |of: &Allocation| of.details.replicas.unwrap_or(1);
        let plugins = self.allocations.iter().map(parts).sum::<usize>() - claims;
        let of = allocatable.map_or_else(String::new, |all| format!(" of {all}"));
        let mut parts = vec![format!("{}: {plugins} devices allocated{of}", socket.display())];
        parts.extend((claims > 0).then(|| format!("{claims} allocated by claims")));
        for (count, why) in [
            (self.waiting, "wait for their pod's metadata"),
            (self.contested, "are listed for two pods"),
            (disputes.contested, "are claimed twice, and no owner has them"),
            (disputes.unbound, "name no device that the agent reads, or several"),
            (disputes.administrative, "are claimed for administration, which is no allocation"),
            (self.administrative, "are for administration by configuration"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {why}"));
            }
        }
        parts.extend(self.unnamed.iter().map(|(why, n)| format!("{n} are {}", why.as_str())));
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests;
