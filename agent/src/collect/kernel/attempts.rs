//! Openings that were asked for and not yet seen to succeed.
//!
//! The cgroup hook runs before the driver answers, and also when another rule then refuses. So
//! what it tells is held back until the process is seen to have the device among its open files,
//! usually at the first look; a process that ends before that is told, since it cannot be asked
//! any more, also where the report of its end was lost. Waiting costs one listing of `/proc/PID/fd` a look, with the interval doubling.

use super::nodes::Device;
use crate::attribute::{Evidence, KernelCgroups};
use crate::ids::ProcKey;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first look after the one made at once.
const FIRST_WAIT: Duration = Duration::from_micros(500);
/// The slowest interval.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// A driver without persistence may take ten seconds to bring a device up inside `open`.
const GIVE_UP: Duration = Duration::from_secs(30);
/// Waiting openings at once; past this they are told unconfirmed.
const MAX_ATTEMPTS: usize = 4_096;

/// An opening that waits for its proof.
#[derive(Debug)]
pub(super) struct Attempt {
    /// What will be told.
    pub evidence: Evidence,
    /// Whose files prove it.
    pub process: ProcKey,
    /// The process's start as the kernel has it, nanoseconds.
    pub start_ns: u64,
    /// The device that proves it.
    pub device: Device,
}

#[derive(Debug)]
struct Waiting {
    attempt: Attempt,
    since: Instant,
    next: Instant,
    wait: Duration,
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Attempts(Vec<Waiting>);

/// What a look at a process shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenState {
    /// The device is among its open files.
    Holding,
    /// It is not, or not yet.
    Without,
    /// The process is no longer there to be asked.
    Gone,
}

/// What became of the attempts looked at.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Seen to hold the device, or gone: to be told.
    pub held: Vec<Attempt>,
    /// Never seen to hold it: to be forgotten.
    pub refused: Vec<Attempt>,
}

impl Attempts {
    /// Holds an attempt back; gives it back when there is no room.
    pub(super) fn hold(&mut self, attempt: Attempt, now: Instant) -> Option<Attempt> {
        if self.0.len() >= MAX_ATTEMPTS {
            return Some(attempt);
        }
        self.0.push(Waiting { attempt, since: now, next: now, wait: FIRST_WAIT });
        None
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|waiting| waiting.next).min()
    }

    /// What a process waits for: each device, and its node as it was seen.
    pub(super) fn open_nodes(&self, process: ProcKey) -> Vec<(Device, Arc<str>)> {
        let mine = self.0.iter().filter(|waiting| waiting.attempt.process == process);
        let opening = |waiting: &Waiting| match &waiting.attempt.evidence {
            Evidence::Opened(opened) => Some((waiting.attempt.device, Arc::clone(&opened.node))),
            _ => None,
        };
        mine.filter_map(opening).collect()
    }

    /// Looks at those that are due.
    pub(super) fn look(
        &mut self,
        now: Instant,
        mut see: impl FnMut(ProcKey, Device) -> OpenState,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut rest = Vec::with_capacity(self.0.len());
        for mut waiting in self.0.drain(..) {
            if now < waiting.next {
                rest.push(waiting);
                continue;
            }
            let seen = see(waiting.attempt.process, waiting.attempt.device);
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

    /// The process has ended: what it waited for is told.
    pub(super) fn ended(&mut self, process: ProcKey) -> Vec<Attempt> {
        let (ended, rest) =
            self.0.drain(..).partition(|waiting| waiting.attempt.process == process);
        self.0 = rest;
        let ended: Vec<Waiting> = ended;
        ended.into_iter().map(|waiting| waiting.attempt).collect()
    }

    /// The process has another name or other cgroups; true if it waits.
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
    use crate::attribute::Opened;

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
    fn refused_opening_is_forgotten_after_the_slowest_driver() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.hold(attempt(7), start).is_none());
        let early = attempts.look(start, |_, _| OpenState::Without);
        assert_eq!((early.held.len(), early.refused.len()), (0, 0));
        assert_eq!(attempts.next(), Some(start + FIRST_WAIT));
        let late = attempts.look(start + GIVE_UP, |_, _| OpenState::Without);
        assert_eq!((late.held.len(), late.refused.len()), (0, 1));
        assert_eq!(attempts.next(), None);
    }

    #[test]
    fn opening_is_told_once_it_is_seen() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.hold(attempt(7), start).is_none());
        assert!(attempts.hold(attempt(8), start).is_none());
        let seen = attempts.look(start, |process, _| {
            if process.pid == 8 { OpenState::Holding } else { OpenState::Without }
        });
        let pids: Vec<u32> = seen.held.iter().map(|held| held.process.pid).collect();
        assert_eq!(pids, vec![8]);
        let waiting = attempts.open_nodes(ProcKey { pid: 7, start_ticks: 1 });
        let devices: Vec<Device> = waiting.into_iter().map(|(device, _)| device).collect();
        assert_eq!(devices, vec![DEVICE]);
    }

    #[test]
    fn process_whose_end_was_lost_is_told_at_the_next_look() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        assert!(attempts.hold(attempt(7), start).is_none());
        let gone = attempts.look(start, |_, _| OpenState::Gone);
        assert_eq!((gone.held.len(), gone.refused.len()), (1, 0));
        assert_eq!(attempts.next(), None);
    }

    #[test]
    fn process_that_ended_before_the_look_is_told_with_its_last_name() {
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
