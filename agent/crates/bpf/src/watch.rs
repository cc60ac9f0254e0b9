//! The loop of the source `device_users`: waits for the ring, new nodes, due attempts and the slow
//! rescan, and emits evidence.

mod slow_scan;

use super::attempts::{Attempt, Attempts, OpenState};
use super::device_users::{OpenHook, Settings};
use super::load::{Loaded, fill};
use super::losses::{LossStatus, Losses};
use super::records::{Fact, fact, of_process};
use super::share::{LookBudget, follow, forget, unreported};
use super::wake::{Rings, drain, wait, watch_folders};
use gpuwho_common::device_users::SeenKey;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::attribute::{Evidence, Opened};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::nodes::{self, Device, Nodes};
use gpuwho_owners::proc_scan::{ScanPass, Tracker, holds, is_alive, opener};
use slow_scan::SlowScan;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records of each ring that are read between two looks at everything else: some 20 ms.
const AT_ONCE: usize = 256;

/// Processes that are followed and were not told, of which a scan looks at each: some 0.4 s.
const MAX_UNREPORTED: usize = 4_096;
/// Of these between two looks at the rings.
const UNREPORTED_AT_ONCE: usize = 128;

/// The state of the loop.
pub(super) struct Watch<E> {
    pub settings: Settings,
    pub watched: nodes::Settings,
    pub paths: Paths,
    pub nodes: Nodes,
    pub tracker: Tracker,
    pub attempts: Attempts,
    pub loss_status: LossStatus,
    pub looks: LookBudget,
    pub emit: E,
}

impl<E: FnMut(Evidence)> Watch<E> {
    /// Scans `/proc` repeatedly until the other end of `stopped` is closed.
    pub(super) fn scan_only(mut self, stopped: &OwnedFd) {
        let interval = Duration::from_secs(self.settings.scan_interval_s.max(1));
        loop {
            self.nodes = Nodes::read(&self.watched, &self.paths);
            let mut pass = self.begin_pass();
            while let Some(holders) = pass.step(&self.paths, &self.nodes) {
                for evidence in self.tracker.take(&holders, &self.nodes) {
                    (self.emit)(evidence);
                }
            }
            self.end_missing(&pass);
            if wait(stopped.as_fd(), None, None, interval).stop {
                return;
            }
        }
    }

    /// A pass over all processes, or over none where there is nothing that one could hold.
    fn begin_pass(&self) -> ScanPass {
        if self.nodes.is_empty() { ScanPass::default() } else { ScanPass::begin(&self.paths) }
    }

    /// Emits the programs' records until the other end of `stopped` is closed.
    pub(super) fn follow_ring(mut self, mut bpf: Loaded, stopped: &OwnedFd) {
        let interval = Duration::from_secs(self.settings.rescan_interval_s.max(1));
        let mut slow = SlowScan::new(interval, Instant::now());
        let mut appearing = watch_folders(&self.watched, &self.paths);
        self.loss_status.clock();
        let mut rings = Rings::new(Losses::new(Arc::clone(&bpf.lost), self.loss_status.clone()));
        // The programs are attached: later opens are in the ring, so this scan completes the
        // picture.
        if self.rescan(&mut bpf, &mut rings, stopped).is_break() {
            return;
        }
        loop {
            let timeout = rings.timeout([Some(slow.next), self.attempts.next()]);
            let nodes = appearing.as_ref().map(|inotify| inotify.as_fd());
            let woken = wait(stopped.as_fd(), Some(&bpf), nodes, timeout);
            if woken.stop {
                return;
            }
            if woken.nodes {
                drain(appearing.as_mut());
                self.refresh_nodes(&mut bpf);
                // Watches directories that have just appeared.
                appearing = watch_folders(&self.watched, &self.paths);
            }
            self.read_rings(&mut bpf, &mut rings);
            self.check_attempts(&mut bpf);
            let now = Instant::now();
            if rings.losses.have_grown(now) {
                self.take_left_out(&mut bpf);
            }
            if now >= slow.next {
                self.scan_slowly(&mut bpf, (&mut rings, &mut slow), now);
            }
            if rings.losses.needs_scan(now) {
                self.refresh_nodes(&mut bpf);
                if self.rescan(&mut bpf, &mut rings, stopped).is_break() {
                    return;
                }
            }
        }
    }

    /// Reads a part of both rings. A process's opening is in the ring before what becomes of the
    /// process is in the other one, so of the latter only records are read that are older than all
    /// openings that wait.
    fn read_rings(&mut self, bpf: &mut Loaded, rings: &mut Rings) {
        bpf.bpf_log.flush();
        let mut until_ns = boot_time_ns();
        rings.is_full = true;
        for _ in 0..AT_ONCE {
            let Some(record) = bpf.openings.next() else {
                rings.is_full = false;
                break;
            };
            let opening = fact(&record, &self.nodes, &bpf.layout);
            drop(record);
            rings.are_active = true;
            if let Some(opening) = opening {
                rings.opened_ns = opening.at_ns;
                self.take(opening, bpf.hook);
            }
        }
        if rings.is_full {
            until_ns = rings.opened_ns;
        }
        for _ in 0..AT_ONCE {
            let next = if let Some(fact) = rings.next.take() {
                Some(fact)
            } else if let Some(record) = bpf.ring.next() {
                fact(&record, &self.nodes, &bpf.layout)
            } else {
                break;
            };
            rings.are_active = true;
            match next {
                Some(fact) if fact.at_ns > until_ns => {
                    rings.next = Some(fact);
                    break;
                }
                Some(fact) => self.take(fact, bpf.hook),
                None => {}
            }
        }
        if std::mem::take(&mut rings.are_active) {
            rings.losses.active(Instant::now());
        }
    }

    /// Takes the examples of what the programs left out, and counts it with the owners.
    fn take_left_out(&mut self, bpf: &mut Loaded) {
        let keys: Vec<_> = bpf.left_out.keys().flatten().collect();
        let mut processes = Vec::with_capacity(keys.len());
        for key in keys {
            let Ok(event) = bpf.left_out.get(&key, 0) else { continue };
            // Another one may come at once.
            let _ = bpf.left_out.remove(&key);
            let Some(fact) = of_process(&event, &self.nodes) else { continue };
            let (process, opened) = match &fact.evidence {
                Evidence::Opened(opened) => (opened.process, Some(opened.clone())),
                Evidence::Forked { child, .. } => (child.process, Some(child.clone())),
                Evidence::Execed { process, .. }
                | Evidence::Moved { process, .. }
                | Evidence::Exited { process, .. } => (*process, None),
                Evidence::CgroupMade { .. } | Evidence::CgroupRemoved { .. } => continue,
            };
            let kind = usize::try_from(key.kind).unwrap_or_default();
            self.loss_status.refuse(process, event.process.uid, (kind, event.left_out));
            let is_followed = opened.is_some_and(|opened| follow(bpf, &opened));
            processes.push((process, is_followed));
            self.take(fact, bpf.hook);
        }
        // An opening may wait for it.
        self.check_attempts(bpf);
        for (process, is_followed) in processes {
            self.end_if_unseen(bpf, process, is_followed);
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
        let now = Instant::now();
        let (paths, looks) = (&self.paths, &mut self.looks);
        let outcome = self.attempts.check(now, |attempt| {
            let (process, device) = (attempt.process, attempt.device);
            let Evidence::Opened(opened) = &attempt.evidence else { return OpenState::Gone };
            let holds = |left: &mut usize| holds(paths, process, device, left);
            if looks.take(bpf.allowance.slots(opened), now, holds) {
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
            forget(bpf, attempt.process.pid);
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

    /// Finds at once what no hook saw, in steps between which it reads the ring. Breaks if the source is
    /// stopped.
    fn rescan(
        &mut self,
        bpf: &mut Loaded,
        rings: &mut Rings,
        stopped: &OwnedFd,
    ) -> ControlFlow<()> {
        let began = self.loss_status.spent();
        let mut pass = self.begin_pass();
        while let Some(holders) = pass.step(&self.paths, &self.nodes) {
            let found_now = self.tracker.take(&holders, &self.nodes);
            self.emit_found(bpf, found_now);
            self.read_rings(bpf, rings);
            self.check_attempts(bpf);
            if wait(stopped.as_fd(), None, None, Duration::ZERO).stop {
                return ControlFlow::Break(());
            }
        }
        self.find_unreported(bpf, rings);
        self.end_missing(&pass);
        let took = self.loss_status.spent().saturating_sub(began);
        rings.losses.scanned(Instant::now(), took);
        ControlFlow::Continue(())
    }

    /// Emits those whose opening the programs saw and did not tell, because the owner had had its share, where a
    /// pass has not found the device among all of the owner's descriptors. Their descriptors are looked at up
    /// to a bound; beyond it the opening is true, and of which device is not known.
    fn find_unreported(&mut self, bpf: &mut Loaded, rings: &mut Rings) {
        for (number, (pid, entry)) in unreported(bpf, MAX_UNREPORTED).into_iter().enumerate() {
            if number % UNREPORTED_AT_ONCE == UNREPORTED_AT_ONCE - 1 {
                self.read_rings(bpf, rings);
                self.check_attempts(bpf);
            }
            let process = ProcKey { pid, start_ticks: entry.start_ticks };
            let (paths, nodes) = (&self.paths, &self.nodes);
            let look = |left: &mut usize| opener(paths, nodes, process, left);
            let found = self.looks.take(entry.slots, Instant::now(), look);
            let Some((holder, is_complete)) = found else { continue };
            let mut news = self.tracker.take(std::slice::from_ref(&holder), &self.nodes);
            // The cgroup's hook runs before the driver, which may have refused it.
            let has_opened = bpf.hook != OpenHook::Cgroup || !is_complete;
            let opened = holder.opened(Arc::default(), boot_time_ns());
            if holder.devices.is_empty() && has_opened {
                news.extend(self.tracker.take_unseen(opened.clone()));
            }
            if self.tracker.knows(process) {
                follow(bpf, &opened);
            } else {
                // Its next attempt is seen.
                forget(bpf, pid);
            }
            self.emit_found(bpf, news);
        }
    }

    /// Emits the ends of those that a pass has not found, and counts those that it has not seen whole.
    fn end_missing(&mut self, pass: &ScanPass) {
        self.loss_status.count_incomplete(pass.incomplete());
        for evidence in self.tracker.end_missing(&self.paths, pass) {
            (self.emit)(evidence);
        }
    }

    /// Makes the programs follow all that was found before the first is emitted: receivers may act
    /// on evidence, and emitting takes time in which a process can fork, execute another program or
    /// exit.
    fn emit_found(&mut self, bpf: &mut Loaded, found_now: Vec<Evidence>) {
        let mut found: BTreeMap<ProcKey, bool> = BTreeMap::new();
        for evidence in &found_now {
            if let Evidence::Opened(opened) = evidence {
                found.entry(opened.process).or_insert_with(|| follow(bpf, opened));
            }
        }
        for evidence in found_now {
            (self.emit)(evidence);
        }
        for (process, is_followed) in found {
            self.end_if_unseen(bpf, process, is_followed);
        }
    }

    /// Emits the end of a process that ended before its map entry existed, or that has none. If the
    /// entry is gone, the program saw the exit, and the ring has its record.
    fn end_if_unseen(&mut self, bpf: &mut Loaded, process: ProcKey, is_followed: bool) {
        if !is_alive(&self.paths, process) && (!is_followed || forget(bpf, process.pid)) {
            self.send(Evidence::Exited { process, at_ns: boot_time_ns() });
        }
    }

    fn refresh_nodes(&mut self, bpf: &mut Loaded) {
        let nodes = Nodes::read(&self.watched, &self.paths);
        if nodes == self.nodes {
            return;
        }
        if let Err(error) = fill(&mut bpf.nodes, &nodes) {
            tracing::warn!(%error, "cannot watch every accelerator node");
        }
        self.nodes = nodes;
    }
}
