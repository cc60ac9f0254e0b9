//! Pods that a list leaves out though they may still run.
//!
//! For about a second after its start, and as long as its API server is away, a kubelet lists no
//! pods, or static ones alone (seen with 1.34 and 1.36), while every container runs on. So pods that
//! had devices stay listed when a list is empty, or comes after the connection was lost and names
//! none of them: while their cgroup is there, else as long as nobody says that they have ended, and
//! for a bounded time.

use super::wire::PodResources;
use std::time::Duration;
use tokio::time::Instant;

/// What is known of a pod beside the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its cgroup is there.
    Running,
    /// Nobody says that it has ended.
    Unknown,
    /// The runtime or the kubelet says so.
    Ended,
}

/// An API server's outage; a pod of which nothing is known is granted its devices so long at most.
const EMPTY: Duration = Duration::from_mins(30);
/// A list with other pods in it: a kubelet that was restarted has all of them sooner.
const OTHERS: Duration = Duration::from_mins(5);

/// Since when pods are missing.
#[derive(Debug, Default)]
pub(super) struct Missing {
    since: Option<Instant>,
    /// The connection was lost after the last list that was believed.
    pub(super) reconnected: bool,
    /// Connections made until the last list.
    connections: usize,
    /// How many pods stay listed.
    pub(super) kept: usize,
}

impl Missing {
    /// Takes how many connections have been made: a kubelet that restarts between two lists is
    /// noticed by nothing else.
    pub(super) fn connected(&mut self, connections: usize) {
        self.reconnected |= connections > self.connections;
        self.connections = connections;
    }

    /// A list with the pods that stay: of those `before` that had devices, the ones that have not
    /// ended by `life`.
    pub(super) fn complete(
        &mut self,
        mut list: Vec<PodResources>,
        before: &[PodResources],
        now: Instant,
        life: impl Fn(&PodResources) -> Life,
    ) -> Vec<PodResources> {
        self.kept = 0;
        let is_listed = |pod: &PodResources| list.iter().any(|other| is_same(pod, other));
        let (there, missing): (Vec<_>, Vec<_>) =
            before.iter().filter(|pod| has_devices(pod)).partition(|pod| is_listed(pod));
        let is_doubtful = list.is_empty() || self.reconnected && there.is_empty();
        if missing.is_empty() || !is_doubtful {
            (self.since, self.reconnected) = (None, false);
            return list;
        }
        let since = *self.since.get_or_insert(now);
        let bound = if list.is_empty() { EMPTY } else { OTHERS };
        let stays = |pod: &&PodResources| match life(pod) {
            Life::Running => true,
            Life::Unknown => now.duration_since(since) < bound,
            Life::Ended => false,
        };
        let kept: Vec<_> = missing.into_iter().filter(stays).cloned().collect();
        self.kept = kept.len();
        list.extend(kept);
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
    use super::super::wire::{ContainerDevices, ContainerResources};
    use super::*;

    fn pod(name: &str, devices: usize) -> PodResources {
        let devices = vec![ContainerDevices::default(); devices];
        let main = ContainerResources { devices, ..ContainerResources::default() };
        PodResources { name: name.into(), containers: vec![main], ..PodResources::default() }
    }

    fn names(list: &[PodResources]) -> Vec<&str> {
        list.iter().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn an_empty_list_ends_only_what_somebody_else_says_has_ended() {
        let before = [pod("a", 1), pod("ended", 1), pod("without", 0)];
        let mut missing = Missing::default();
        let list = missing.complete(Vec::new(), &before, Instant::now(), |pod| {
            if pod.name == "ended" { Life::Ended } else { Life::Unknown }
        });
        assert_eq!((names(&list), missing.kept), (vec!["a"], 1));
        // What stays is in the list before the next one, too.
        let list = missing.complete(Vec::new(), &list, Instant::now(), |_| Life::Unknown);
        assert_eq!(names(&list), ["a"]);
        let list = missing.complete(vec![pod("b", 1)], &list, Instant::now(), |_| Life::Unknown);
        assert_eq!((names(&list), missing.kept), (vec!["b"], 0));
    }

    #[test]
    fn static_pods_alone_after_a_reconnect_are_as_good_as_none() {
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
    fn a_list_that_leaves_a_pod_out_is_believed_while_the_kubelet_was_never_away() {
        let list =
            Missing::default()
                .complete(vec![pod("b", 1)], &[pod("a", 1)], Instant::now(), |_| Life::Unknown);
        assert_eq!(names(&list), ["b"]);
    }

    #[test]
    fn nobody_s_word_is_waited_for_without_a_bound() {
        let (before, began) = ([pod("a", 1)], Instant::now());
        let mut missing = Missing { reconnected: true, ..Missing::default() };
        let mut after =
            |list, wait| missing.complete(list, &before, began + wait, |_| Life::Unknown).len();
        assert_eq!(after(vec![pod("proxy", 0)], Duration::ZERO), 2);
        assert_eq!(after(vec![pod("proxy", 0)], OTHERS), 1);
        assert_eq!(after(Vec::new(), OTHERS), 1);
        assert_eq!(after(Vec::new(), OTHERS + EMPTY), 0);
    }

    #[test]
    fn a_pod_whose_cgroup_is_there_stays_for_the_whole_outage() {
        let (before, began) = ([pod("a", 1)], Instant::now());
        let mut missing = Missing::default();
        for wait in [Duration::ZERO, EMPTY, 10 * EMPTY] {
            let list = missing.complete(Vec::new(), &before, began + wait, |_| Life::Running);
            assert_eq!(list.len(), 1, "{wait:?}");
        }
    }
}
