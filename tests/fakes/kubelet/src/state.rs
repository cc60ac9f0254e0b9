//! What the services answer from: the model, the faults, and who watches.

use crate::cri;
use crate::model::{Allocation, Pod};
use gpuwho_kubernetes::cri::ContainerEventResponse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::{Code, Status};

/// What goes wrong with every call of pod-resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Refused with a code and a message. The kubelet says `ResourceExhausted`, `rejected by rate
    /// limit` to who asks too often, and `FailedPrecondition`, `Kubelet is initializing` before it
    /// knows its pods.
    Refuse(Code, String),
    /// Answered late.
    Delay(Duration),
    /// Never answered.
    Hang,
}

/// All of it; lives as long as the test's kubelet, whatever becomes of its sockets.
#[derive(Debug, Default)]
pub(crate) struct State {
    known: Mutex<Known>,
    calls: AtomicU64,
    lists: AtomicUsize,
}

#[derive(Debug, Default)]
struct Known {
    pods: BTreeMap<String, Pod>,
    allocatable: Allocation,
    fault: Option<Fault>,
    /// It knows none of its API server's pods.
    is_apart: bool,
    watchers: Vec<UnboundedSender<Result<ContainerEventResponse, Status>>>,
    /// Calls of pod-resources that may still come at once, and since when that is so.
    tokens: Option<(f64, Instant)>,
}

/// Calls a second of pod-resources, all clients' together, and as many at once (`DefaultQPS` and
/// `DefaultBurstTokens` of `pkg/kubelet/apis/podresources`).
const PER_SECOND: f64 = 100.0;
const AT_ONCE: f64 = 10.0;

impl State {
    /// Counts a call of pod-resources, and does to it what was ordered.
    pub(crate) async fn gate(&self) -> Result<(), Status> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if !self.known().take_token(Instant::now()) {
            return Err(Status::resource_exhausted("rejected by rate limit"));
        }
        let fault = self.known().fault.clone();
        match fault {
            None => Ok(()),
            Some(Fault::Refuse(code, message)) => Err(Status::new(code, message)),
            Some(Fault::Delay(time)) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Lists of allocations given so far.
    pub(crate) fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }

    /// The number of the list that is given now.
    pub(crate) fn next_list(&self) -> usize {
        self.lists.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        self.known().fault = fault;
    }

    /// The pods that run, whatever the kubelet knows.
    pub(crate) fn running(&self) -> Vec<Pod> {
        self.known().pods.values().cloned().collect()
    }

    /// The pods that the kubelet knows, by UID.
    pub(crate) fn pods(&self) -> BTreeMap<String, Pod> {
        let known = self.known();
        if known.is_apart { BTreeMap::new() } else { known.pods.clone() }
    }

    /// Whether it knows its API server's pods.
    pub(crate) fn set_apart(&self, is_apart: bool) {
        self.known().is_apart = is_apart;
    }

    pub(crate) fn allocatable(&self) -> Allocation {
        self.known().allocatable.clone()
    }

    pub(crate) fn set_allocatable(&self, allocatable: Allocation) {
        self.known().allocatable = allocatable;
    }

    /// Adds a pod, or changes the one of the same UID.
    pub(crate) fn set_pod(&self, pod: Pod) {
        let mut known = self.known();
        known.notify(&cri::started(&pod));
        known.pods.insert(pod.uid.clone(), pod);
    }

    /// Forgets a pod.
    pub(crate) fn remove_pod(&self, uid: &str) -> Option<Pod> {
        let mut known = self.known();
        let pod = known.pods.remove(uid)?;
        for event in &cri::deleted(&pod) {
            known.notify(event);
        }
        Some(pod)
    }

    /// Whatever happens from now on.
    pub(crate) fn watch(&self) -> UnboundedReceiver<Result<ContainerEventResponse, Status>> {
        let (watcher, events) = unbounded_channel();
        self.known().watchers.push(watcher);
        events
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn take_token(&mut self, now: Instant) -> bool {
        let (left, since) = self.tokens.unwrap_or((AT_ONCE, now));
        let left = (left + PER_SECOND * now.duration_since(since).as_secs_f64()).min(AT_ONCE);
        let is_left = left >= 1.0;
        self.tokens = Some((if is_left { left - 1.0 } else { left }, now));
        is_left
    }

    fn notify(&mut self, event: &ContainerEventResponse) {
        self.watchers.retain(|watcher| watcher.send(Ok(event.clone())).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_calls_than_the_limit_are_refused_until_time_has_passed() {
        let (mut known, now) = (Known::default(), Instant::now());
        let given = (0..100).filter(|_| known.take_token(now)).count();
        assert_eq!(given, 10);
        let later = now + Duration::from_millis(25);
        assert_eq!((0..100).filter(|_| known.take_token(later)).count(), 2);
    }
}
