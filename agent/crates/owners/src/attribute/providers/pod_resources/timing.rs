//! How often the kubelet is asked, and how long an answer is waited for.

use std::time::Duration;

/// Deadlines and intervals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Deadline of every answer.
    pub(super) deadline: Duration,
    /// Time between lists without changes, and between reads of the allocatable devices.
    pub(super) every: Duration,
    /// Time between lists if a provider follows every change: allocations change with their pods.
    pub(super) followed: Duration,
    /// Minimum time between lists: the kubelet's rate limit is for all its clients together.
    pub(super) min_interval: Duration,
    /// Time from a change to the list: most changes of a pod's start come within this.
    pub(super) gather: Duration,
    /// Pause after a failure; doubled with each further one.
    pub(super) first_retry: Duration,
    /// Upper bound of the pause.
    pub(super) last_retry: Duration,
}

/// What the agent uses.
pub(super) const TIMING: Timing = Timing {
    deadline: Duration::from_secs(5),
    every: Duration::from_secs(10),
    followed: Duration::from_mins(5),
    min_interval: Duration::from_secs(5),
    gather: Duration::from_millis(300),
    first_retry: Duration::from_secs(1),
    last_retry: Duration::from_mins(1),
};
