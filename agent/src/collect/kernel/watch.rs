//! The loop of the source `device_users`: waits for the ring, new nodes, due attempts and the slow
//! rescan, and emits evidence.

use super::attempts::{Attempt, Attempts, OpenState};
use super::device_users::{OpenHook, Settings};
use super::load::{Loaded, fill};
use super::nodes::{Device, Nodes, folders};
use super::records::{Fact, fact};
use crate::attribute::{Evidence, Opened};
use crate::collect::proc_scan::{ScanPass, Tracker, holds, is_alive};
use crate::host::boot_time_ns;
use crate::ids::ProcKey;
use crate::paths::Paths;
use gpuwho_common::device_users::SeenKey;
use inotify::{Inotify, WatchMask};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Buffer for a burst of names in one read of the node watch.
const NODE_EVENT_BYTES: usize = 4_096;

/// The state of the loop.
pub(super) struct Watch<E> {
    pub settings: Settings,
    pub paths: Paths,
    pub nodes: Nodes,
    pub tracker: Tracker,
    pub attempts: Attempts,
    pub emit: E,
}

/// What woke the loop.
struct Woken {
    stop: bool,
    nodes: bool,
}

impl<E: FnMut(Evidence)> Watch<E> {
    /// Scans `/proc` repeatedly until the other end of `stopped` is closed.
    pub(super) fn scan_only(mut self, stopped: &OwnedFd) {
        let interval = Duration::from_secs(self.settings.scan_interval_s.max(1));
        loop {
            self.nodes = Nodes::read(&self.settings, &self.paths);
            for evidence in self.tracker.scan(&self.paths, &self.nodes) {
                (self.emit)(evidence);
            }
            if wait(stopped.as_fd(), None, None, interval).stop {
                return;
            }
        }
    }

    /// Emits the programs' records until the other end of `stopped` is closed.
    pub(super) fn follow_ring(mut self, mut bpf: Loaded, stopped: &OwnedFd) {
        let interval = Duration::from_secs(self.settings.rescan_interval_s.max(1));
        let mut appearing = watch_folders(&self.settings, &self.paths);
        // The programs are attached: later opens are in the ring, so this scan completes the
        // picture.
        if self.rescan(&mut bpf, stopped).is_break() {
            return;
        }
        let mut rescan_at = Instant::now() + interval;
        loop {
            let now = Instant::now();
            let due = self.attempts.next().map_or(rescan_at, |next| next.min(rescan_at));
            let nodes = appearing.as_ref().map(|inotify| inotify.as_fd());
            let ring = Some(bpf.ring.as_fd());
            let woken = wait(stopped.as_fd(), ring, nodes, due.saturating_duration_since(now));
            if woken.stop {
                return;
            }
            if woken.nodes {
                drain(appearing.as_mut());
                self.refresh_nodes(&mut bpf);
                // Watches directories that have just appeared.
                appearing = watch_folders(&self.settings, &self.paths);
            }
            self.read_ring(&mut bpf);
            self.check_attempts(&mut bpf);
            if Instant::now() >= rescan_at {
                self.refresh_nodes(&mut bpf);
                if self.rescan(&mut bpf, stopped).is_break() {
                    return;
                }
                rescan_at = Instant::now() + interval;
            }
        }
    }

    fn read_ring(&mut self, bpf: &mut Loaded) {
        bpf.bpf_log.flush();
        while let Some(record) = bpf.ring.next() {
            if let Some(fact) = fact(&record, &self.nodes, &bpf.layout) {
                self.take(fact, bpf.hook);
            }
        }
    }

    /// Handles a record. With the cgroup hook an open waits for confirmation. A child forked
    /// meanwhile inherits what its parent opens, so each waiting attempt of the parent is added for
    /// the child as well. Later changes of a waiting process update its attempts.
    fn take(&mut self, fact: Fact, hook: OpenHook) {
        match &fact.evidence {
            // A scan was faster.
            Evidence::Opened(opened) if self.tracker.knows_node(opened) => return,
            Evidence::Opened(opened) if hook == OpenHook::Cgroup => {
                let process = opened.process;
                if let Some(device) = fact.device {
                    return self.hold(fact.evidence, process, fact.start_ns, device);
                }
            }
            Evidence::Forked { parent, child } => {
                let waiting = self.attempts.open_nodes(*parent);
                for (device, node) in &waiting {
                    let opened = Opened { node: Arc::clone(node), ..child.clone() };
                    let evidence = Evidence::Opened(opened);
                    self.hold(evidence, child.process, fact.start_ns, *device);
                }
                if !waiting.is_empty() && !self.tracker.knows(*parent) {
                    return;
                }
            }
            Evidence::Execed { process, comm }
                if self.attempts.update(*process, Some(comm), None)
                    && !self.tracker.knows(*process) =>
            {
                return;
            }
            Evidence::Moved { process, cgroups }
                if self.attempts.update(*process, None, Some(cgroups))
                    && !self.tracker.knows(*process) =>
            {
                return;
            }
            Evidence::Exited { process, .. } => {
                for attempt in self.attempts.ended(*process) {
                    self.emit_once(attempt.evidence);
                }
            }
            _ => {}
        }
        self.send(fact.evidence);
    }

    fn hold(&mut self, evidence: Evidence, process: ProcKey, start_ns: u64, device: Device) {
        let attempt = Attempt { evidence, process, start_ns, device };
        if let Some(attempt) = self.attempts.hold(attempt, Instant::now()) {
            self.send(attempt.evidence);
        }
    }

    fn check_attempts(&mut self, bpf: &mut Loaded) {
        let paths = &self.paths;
        let outcome = self.attempts.check(Instant::now(), |process, device| {
            if holds(paths, process, device) {
                OpenState::Holding
            } else if is_alive(paths, process) {
                OpenState::Without
            } else {
                OpenState::Gone
            }
        });
        for attempt in outcome.held {
            self.emit_once(attempt.evidence);
        }
        for attempt in outcome.refused {
            self.remove(bpf, &attempt);
        }
    }

    /// Makes the programs report the next attempt of this process again. Removing an entry that is
    /// already gone fails, which is fine.
    fn remove(&self, bpf: &mut Loaded, attempt: &Attempt) {
        let seen = SeenKey {
            start_ns: attempt.start_ns,
            pid: attempt.process.pid,
            major: attempt.device.major,
            minor: attempt.device.minor,
            reserved: 0,
        };
        let _ = bpf.seen.remove(&seen);
        if !self.tracker.knows(attempt.process) {
            let _ = bpf.holders.remove(&attempt.process.pid);
        }
    }

    /// A scan may have found it in the meantime.
    fn emit_once(&mut self, evidence: Evidence) {
        if !matches!(&evidence, Evidence::Opened(opened) if self.tracker.knows_node(opened)) {
            self.send(evidence);
        }
    }

    fn send(&mut self, evidence: Evidence) {
        self.tracker.note(&evidence);
        (self.emit)(evidence);
    }

    /// Finds what no hook saw, in steps, between which it reads the ring. Breaks if the source is
    /// stopped.
    fn rescan(&mut self, bpf: &mut Loaded, stopped: &OwnedFd) -> ControlFlow<()> {
        let mut pass = ScanPass::begin(&self.paths);
        while let Some(holders) = pass.step(&self.paths, &self.nodes) {
            let found_now = self.tracker.take(&holders, &self.nodes);
            self.emit_found(bpf, found_now);
            self.read_ring(bpf);
            self.check_attempts(bpf);
            if wait(stopped.as_fd(), None, None, Duration::ZERO).stop {
                return ControlFlow::Break(());
            }
        }
        for evidence in self.tracker.end_missing(&self.paths, &pass) {
            (self.emit)(evidence);
        }
        ControlFlow::Continue(())
    }

    /// Makes the programs follow all that was found before the first is emitted: receivers may act
    /// on evidence, and emitting takes time in which a process can fork, execute another program or
    /// exit.
    fn emit_found(&mut self, bpf: &mut Loaded, found_now: Vec<Evidence>) {
        let found: BTreeSet<ProcKey> = found_now
            .iter()
            .filter_map(|evidence| match evidence {
                Evidence::Opened(opened) => Some(opened.process),
                _ => None,
            })
            .collect();
        for process in &found {
            follow(bpf, *process);
        }
        for evidence in found_now {
            (self.emit)(evidence);
        }
        for process in found {
            self.end_if_unseen(bpf, process);
        }
    }

    /// Emits the end of a process that ended before its map entry existed. If the entry is gone,
    /// the program saw the exit, and the ring has its record.
    fn end_if_unseen(&mut self, bpf: &mut Loaded, process: ProcKey) {
        if !is_alive(&self.paths, process) && bpf.holders.remove(&process.pid).is_ok() {
            self.send(Evidence::Exited { process, at_ns: boot_time_ns() });
        }
    }

    fn refresh_nodes(&mut self, bpf: &mut Loaded) {
        let nodes = Nodes::read(&self.settings, &self.paths);
        if nodes == self.nodes {
            return;
        }
        if let Err(error) = fill(&mut bpf.nodes, &nodes) {
            tracing::warn!(%error, "cannot watch every accelerator node");
        }
        self.nodes = nodes;
    }
}

fn follow(bpf: &mut Loaded, process: ProcKey) {
    if let Err(error) = bpf.holders.insert(process.pid, process.start_ticks, 0) {
        tracing::warn!(%process, %error, "cannot follow a process that holds a device");
    }
}

/// Sleeps until something is readable or the timeout expires.
fn wait(
    stopped: BorrowedFd<'_>,
    ring: Option<BorrowedFd<'_>>,
    nodes: Option<BorrowedFd<'_>>,
    timeout: Duration,
) -> Woken {
    let mut fds = vec![PollFd::from_borrowed_fd(stopped, PollFlags::empty())];
    let position = nodes.map(|nodes| {
        fds.push(PollFd::from_borrowed_fd(nodes, PollFlags::IN));
        fds.len() - 1
    });
    fds.extend(ring.map(|ring| PollFd::from_borrowed_fd(ring, PollFlags::IN)));
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // After a signal nothing is ready, and the caller waits again.
    let _ = poll(&mut fds, Some(&timeout));
    let ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
    Woken { stop: ready(0), nodes: position.is_some_and(ready) }
}

/// Without it (no inotify instance left) new nodes are found at the next rescan.
fn watch_folders(settings: &Settings, paths: &Paths) -> Option<Inotify> {
    let inotify = Inotify::init().ok()?;
    for folder in folders(settings, paths) {
        // A directory that does not exist yet will appear in a watched one.
        let _ = inotify.watches().add(folder, WatchMask::CREATE | WatchMask::MOVED_TO);
    }
    Some(inotify)
}

fn drain(inotify: Option<&mut Inotify>) {
    let mut names = [0; NODE_EVENT_BYTES];
    if let Some(inotify) = inotify {
        // Only the fact that something appeared matters.
        let _ = inotify.read_events(&mut names);
    }
}
