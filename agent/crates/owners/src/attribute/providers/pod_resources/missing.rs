//! Running pods that a list leaves out.
//!
//! For about a second after its start, and as long as its API server is unreachable, a kubelet
//! lists no pods, or only static ones (seen with 1.34 and 1.36), while every container keeps
//! running. So pods with devices stay listed if a list is empty, or if the first list after a lost
//! connection names none of them: as long as their cgroup exists, else until a provider reports
//! their end, and for a bounded time.

use gpuwho_kubernetes::pod_resources::PodResources;
use std::time::Duration;
use tokio::time::Instant;

/// What is known of a pod apart from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its cgroup exists.
    Running,
    /// Its cgroup is not found, and its end is not reported.
    Unknown,
    /// The runtime or the kubelet reports its end.
    Ended,
}

/// How long a pod of unknown state stays listed by an empty list: an API server's outage.
const EMPTY_BOUND: Duration = Duration::from_mins(30);
/// The same for a list with other pods: a restarted kubelet has all of its pods sooner.
const PARTIAL_BOUND: Duration = Duration::from_mins(5);

/// State of the missing pods.
#[derive(Debug, Default)]
pub(super) struct Missing {
    since: Option<Instant>,
    /// Whether the connection was lost after the last complete list.
    pub(super) reconnected: bool,
    /// Number of connections until the last list.
    connections: usize,
    /// The number of missing pods that stay listed.
    pub(super) retained: usize,
}

impl Missing {
    /// Records the number of connections, the only sign of a kubelet that restarts between two
    /// lists.
    pub(super) fn connected(&mut self, connections: usize) {
        self.reconnected |= connections > self.connections;
        self.connections = connections;
    }

    /// Adds missing pods to a list: of the pods with devices in `before`, those that have not ended
    /// by `life`.
    pub(super) fn complete(
        &mut self,
        mut list: Vec<PodResources>,
        before: &[PodResources],
        now: Instant,
        life: impl Fn(&PodResources) -> Life,
    ) -> Vec<PodResources> {
        self.retained = 0;
        let is_listed = |pod: &PodResources| list.iter().any(|other| is_same(pod, other));
        let (there, missing): (Vec<_>, Vec<_>) =
            before.iter().filter(|pod| has_devices(pod)).partition(|pod| is_listed(pod));
        let is_doubtful = list.is_empty() || self.reconnected && there.is_empty();
        if missing.is_empty() || !is_doubtful {
            (self.since, self.reconnected) = (None, false);
            return list;
        }
        let since = *self.since.get_or_insert(now);
        let bound = if list.is_empty() { EMPTY_BOUND } else { PARTIAL_BOUND };
        let stays = |pod: &&PodResources| match life(pod) {
            Life::Running => true,
            Life::Unknown => now.duration_since(since) < bound,
            Life::Ended => false,
        };
        let retained: Vec<_> = missing.into_iter().filter(stays).cloned().collect();
        self.retained = retained.len();
        list.extend(retained);
        list
    }
}

fn is_same(one: &PodResources, other: &PodResources) -> bool {
    (&one.namespace, &one.name) == (&other.namespace, &other.name)
}

fn has_devices(pod: &PodResources) -> bool {
    pod.containers.iter().any(|one| !one.devices.is_empty() || !one.dynamic_resources.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_kubernetes::pod_resources::{ContainerDevices, ContainerResources};

    fn pod(name: &str, devices: usize) -> PodResources {
        let devices = vec![ContainerDevices::default(); devices];
        let main = ContainerResources { devices, ..ContainerResources::default() };
        PodResources { name: name.into(), containers: vec![main], ..PodResources::default() }
    }

    fn names(list: &[PodResources]) -> Vec<&str> {
        list.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn an_empty_list_ends_only_pods_with_a_reported_end() {
        let before = [pod("a", 1), pod("ended", 1), pod("without", 0)];
        let mut missing = Missing::default();
        let list = missing.complete(Vec::new(), &before, Instant::now(), |pod| {
            if pod.name == "ended" { Life::Ended } else { Life::Unknown }
        });
        assert_eq!((names(&list), missing.retained), (vec!["a"], 1));
        // A retained pod is also in the list before the next one.
        let list = missing.complete(Vec::new(), &list, Instant::now(), |_| Life::Unknown);
        assert_eq!(names(&list), ["a"]);
        let list = missing.complete(vec![pod("b", 1)], &list, Instant::now(), |_| Life::Unknown);
        assert_eq!((names(&list), missing.retained), (vec!["b"], 0));
    }

    #[test]
    fn only_static_pods_after_a_reconnect_are_like_an_empty_list() {
        let before = [pod("a", 1), pod("b", 1)];
        let mut missing = Missing { reconnected: true, ..Missing::default() };
        let list =
            missing.complete(vec![pod("proxy", 0)], &before, Instant::now(), |_| Life::Unknown);
        assert_eq!(names(&list), ["proxy", "a", "b"]);
        // One of them is back: the kubelet knows its pods again, and the other has ended.
        let list =
            missing.complete(vec![pod("proxy", 0), pod("a", 1)], &list, Instant::now(), |_| {
                Life::Unknown
            });
        assert_eq!((names(&list), missing.reconnected), (vec!["proxy", "a"], false));
    }

    #[test]
    fn a_list_without_a_pod_counts_while_the_connection_is_not_lost() {
        let list =
            Missing::default()
                .complete(vec![pod("b", 1)], &[pod("a", 1)], Instant::now(), |_| Life::Unknown);
        assert_eq!(names(&list), ["b"]);
    }

    #[test]
    fn a_pod_of_unknown_state_is_retained_for_a_bounded_time() {
        let (before, began) = ([pod("a", 1)], Instant::now());
        let mut missing = Missing { reconnected: true, ..Missing::default() };
        let mut after =
            |list, wait| missing.complete(list, &before, began + wait, |_| Life::Unknown).len();
        assert_eq!(after(vec![pod("proxy", 0)], Duration::ZERO), 2);
        assert_eq!(after(vec![pod("proxy", 0)], PARTIAL_BOUND), 1);
        assert_eq!(after(Vec::new(), PARTIAL_BOUND), 1);
        assert_eq!(after(Vec::new(), PARTIAL_BOUND + EMPTY_BOUND), 0);
    }

    #[test]
    fn a_pod_with_a_cgroup_stays_for_the_whole_outage() {
        let (before, began) = ([pod("a", 1)], Instant::now());
        let mut missing = Missing::default();
        for wait in [Duration::ZERO, EMPTY_BOUND, 10 * EMPTY_BOUND] {
            let list = missing.complete(Vec::new(), &before, began + wait, |_| Life::Running);
            assert_eq!(list.len(), 1, "{wait:?}");
        }
    }
}
