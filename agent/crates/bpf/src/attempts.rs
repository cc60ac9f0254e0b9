//! Open attempts that are not confirmed yet.
//!
//! The cgroup hook runs before the driver answers, and also when another rule then refuses the
//! open. So its evidence is held back until the device is among the process's open files, normally
//! at the first check. If the process ends before that, the evidence is emitted, because it cannot
//! be checked any more; a check also finds an end whose record was lost. Costs one listing of
//! `/proc/PID/fd` per check, with the interval doubling.

use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::{Evidence, KernelCgroups};
use gpuwho_owners::nodes::Device;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Delay between the immediate check and the next one.
const FIRST_WAIT: Duration = Duration::from_micros(500);
/// Longest interval between checks.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// A driver without persistence may take ten seconds to bring a device up inside `open`.
const GIVE_UP: Duration = Duration::from_secs(30);
/// Limit on waiting attempts; beyond it they are emitted unconfirmed.
const MAX_ATTEMPTS: usize = 4_096;

/// An attempt that waits for confirmation.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The evidence to emit.
    pub evidence: Evidence,
    /// The process to check.
    pub process: ProcKey,
    /// The kernel's start time of the process in nanoseconds.
    pub start_ns: u64,
    /// The device to look for.
    pub device: Device,
}

#[derive(Debug)]
struct Waiting {
    attempt: Attempt,
    since: Instant,
    next: Instant,
    wait: Duration,
}

/// All waiting attempts.
#[derive(Debug, Default)]
pub(super) struct Attempts(Vec<Waiting>);

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenState {
    /// The device is among the process's open files.
    Holding,
    /// It is not, or not yet.
    Without,
    /// The process has ended.
    Gone,
}

/// The result of checking the due attempts.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Confirmed, or the process has ended: to be emitted.
    pub held: Vec<Attempt>,
    /// Never confirmed: to be dropped.
    pub refused: Vec<Attempt>,
}

impl Attempts {
    /// Adds an attempt; returns it if the limit is reached.
    pub(super) fn hold(&mut self, attempt: Attempt, now: Instant) -> Option<Attempt> {
        if self.0.len() >= MAX_ATTEMPTS {
            return Some(attempt);
        }
        self.0.push(Waiting { attempt, since: now, next: now, wait: FIRST_WAIT });
        None
    }

    /// When the next check is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.next).min()
    }

    /// The devices that a process waits for, each with its node.
    pub(super) fn open_nodes(&self, process: ProcKey) -> Vec<(Device, Arc<str>)> {
        let mine = self.0.iter().filter(|waiting| waiting.attempt.process == process);
        let opening = |waiting: &Waiting| match &waiting.attempt.evidence {
            Evidence::Opened(opened) => Some((waiting.attempt.device, Arc::clone(&opened.node))),
            _ => None,
        };
        mine.filter_map(opening).collect()
    }

    /// Checks the due attempts.
    pub(super) fn check(
        &mut self,
        now: Instant,
        mut see: impl FnMut(&Attempt) -> OpenState,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut rest = Vec::with_capacity(self.0.len());
        for mut waiting in self.0.drain(..) {
            if now < waiting.next {
                rest.push(waiting);
                continue;
            }
            let seen = see(&waiting.attempt);
            if seen != OpenState::Without {
                outcome.held.push(waiting.attempt);
            } else if now.duration_since(waiting.since) >= GIVE_UP {
                outcome.refused.push(waiting.attempt);
            } else {
                waiting.next = now + waiting.wait;
                waiting.wait = (waiting.wait * 2).min(MAX_WAIT);
                rest.push(waiting);
            }
        }
        self.0 = rest;
        outcome
    }

    /// Removes and returns the attempts of an ended process.
    pub(super) fn ended(&mut self, process: ProcKey) -> Vec<Attempt> {
        let (ended, rest) =
            self.0.drain(..).partition(|waiting| waiting.attempt.process == process);
        self.0 = rest;
        let ended: Vec<Waiting> = ended;
        ended.into_iter().map(|waiting| waiting.attempt).collect()
    }

    /// Updates the name or the cgroups in the attempts of a process; true if it has any.
    pub(super) fn update(
        &mut self,
        process: ProcKey,
        comm: Option<&Arc<str>>,
        cgroups: Option<&KernelCgroups>,
    ) -> bool {
        let mut found = false;
        let mine = self.0.iter_mut().filter(|waiting| waiting.attempt.process == process);
        for waiting in mine {
            found = true;
            let Evidence::Opened(opened) = &mut waiting.attempt.evidence else { continue };
            if let Some(comm) = comm {
                opened.comm = Arc::clone(comm);
            }
            if let Some(cgroups) = cgroups {
                opened.cgroups = cgroups.clone();
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_owners::attribute::Opened;

    const DEVICE: Device = Device { major: 195, minor: 0 };

    fn attempt(pid: u32) -> Attempt {
        let process = ProcKey { pid, start_ticks: 1 };
        let opened = Opened {
            process,
            uid: 0,
            comm: Arc::from("train"),
            cgroups: KernelCgroups::default(),
            node: Arc::from("/dev/nvidia0"),
            at_ns: 1,
        };
        Attempt {
            evidence: Evidence::Opened(opened),
            process,
            start_ns: 10_000_000,
            device: DEVICE,
        }
    }

    #[test]
    fn refused_open_is_dropped_after_the_slowest_driver() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.hold(attempt(7), start).is_none());
        let early = attempts.check(start, |_| OpenState::Without);
        assert_eq!((early.held.len(), early.refused.len()), (0, 0));
        assert_eq!(attempts.next(), Some(start + FIRST_WAIT));
        let late = attempts.check(start + GIVE_UP, |_| OpenState::Without);
        assert_eq!((late.held.len(), late.refused.len()), (0, 1));
        assert_eq!(attempts.next(), None);
    }

    #[test]
    fn open_is_emitted_once_it_is_confirmed() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.hold(attempt(7), start).is_none());
        assert!(attempts.hold(attempt(8), start).is_none());
        let seen = attempts.check(start, |attempt| {
            if attempt.process.pid == 8 { OpenState::Holding } else { OpenState::Without }
        });
        let pids: Vec<u32> = seen.held.iter().map(|held| held.process.pid).collect();
        assert_eq!(pids, vec![8]);
        let waiting = attempts.open_nodes(ProcKey { pid: 7, start_ticks: 1 });
        let devices: Vec<Device> = waiting.into_iter().map(|(device, _)| device).collect();
        assert_eq!(devices, vec![DEVICE]);
    }

    #[test]
    fn process_whose_end_was_lost_is_emitted_at_the_next_check() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.hold(attempt(7), start).is_none());
        let gone = attempts.check(start, |_| OpenState::Gone);
        assert_eq!((gone.held.len(), gone.refused.len()), (1, 0));
        assert_eq!(attempts.next(), None);
    }

    #[test]
    fn process_that_ended_before_the_check_is_emitted_with_its_last_name() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        let process = attempt(7).process;
        assert!(attempts.hold(attempt(7), start).is_none());
        assert!(attempts.update(process, Some(&Arc::from("worker")), None));
        let reported = attempts.ended(process);
        let names: Vec<&str> = reported
            .iter()
            .filter_map(|attempt| match &attempt.evidence {
                Evidence::Opened(opened) => Some(&*opened.comm),
                _ => None,
            })
            .collect();
        assert_eq!(names, vec!["worker"]);
        assert!(attempts.ended(process).is_empty());
    }
}
