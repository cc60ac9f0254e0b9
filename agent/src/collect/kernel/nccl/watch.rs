//! The thread that finds libraries, attaches the probes to them and keeps them within their
//! budget. It sleeps while no process holds a device; a process that is new is looked at ten
//! times a second for a minute, because Python loads libraries late, then every five seconds. A
//! look is one line of `/proc/PID/status`; the mappings are read only when that has changed.

use super::Settings;
use super::governor::{Attach, Governor, LOOK_EVERY};
use super::libraries::{FileKey, Libraries};
use super::many::Way;
use super::price;
use super::probes::{Attached, Hold, ProbeError, Probes, task_layout};
use super::shared::Shared;
use super::state;
use crate::catalog::nccl::GovernorLevel;
use crate::collect::proc_scan::is_alive;
use crate::collect::status::Board;
use crate::host::boot_time_ns;
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::sys::memory;
use gpuwho_common::nccl::{COUNTERS, HIT_ENTRY, HIT_RETURN, TaskLayout};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The thread's name, also that of its CPU time among the agent's own figures.
pub(super) const THREAD: &str = "nccl:watch";
/// Between looks at a process that is new: a job loads its library when it begins.
const YOUNG_EVERY: Duration = Duration::from_millis(100);
/// Later, a tenth of the time that it has been known.
const PART_OF_AGE: u32 = 10;
/// And not less often than this.
const OLD_EVERY: Duration = Duration::from_secs(30);
/// How long links are closed before something else has its turn.
const DETACH_AT_ONCE: Duration = Duration::from_millis(100);
/// Between tries to load programs that the kernel has refused.
const AGAIN: Duration = Duration::from_mins(5);

/// The processes to look at: those that hold a device.
pub(super) type Candidates = Box<dyn Fn() -> Vec<ProcKey> + Send>;

/// The state of the thread.
pub(super) struct Watch {
    settings: Settings,
    paths: Paths,
    candidates: Candidates,
    shared: Shared,
    libraries: Libraries,
    seen: HashMap<ProcKey, Seen>,
    layout: TaskLayout,
    probes: Option<Probes>,
    attached: HashMap<FileKey, Attached>,
    /// Files that another one's probes are on, since both are the same.
    twins: HashMap<FileKey, FileKey>,
    refused: Option<(String, Instant)>,
    /// Links to close, when there is nothing better to do.
    detaching: Vec<Hold>,
    governor: Governor,
    in_force: Attach,
    looked: Looked,
}

/// A process as it was at the last look.
#[derive(Debug)]
struct Seen {
    since: Instant,
    code_kb: Option<u64>,
    looked: Instant,
}

impl Seen {
    /// How long until it is to be looked at again.
    fn due_in(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.since);
        let pause = (age / PART_OF_AGE).clamp(YOUNG_EVERY, OLD_EVERY);
        pause.saturating_sub(now.saturating_duration_since(self.looked))
    }
}

/// The counters at the last look.
struct Looked {
    at: Instant,
    hits: u64,
}

impl Watch {
    pub(super) fn new(
        settings: Settings,
        paths: Paths,
        candidates: Candidates,
        shared: Shared,
    ) -> Self {
        let budget = settings.budget.unwrap_or(price::budget(price::USUAL));
        let governor = Governor::new(budget, settings.patience);
        Self {
            settings,
            paths,
            candidates,
            shared,
            libraries: Libraries::default(),
            seen: HashMap::new(),
            layout: TaskLayout::UNKNOWN,
            probes: None,
            attached: HashMap::new(),
            twins: HashMap::new(),
            refused: None,
            detaching: Vec::new(),
            governor,
            in_force: Attach::Full,
            looked: Looked { at: Instant::now(), hits: 0 },
        }
    }

    /// Runs until nobody can wake it any more.
    pub(super) fn run(mut self, woken: &Receiver<()>, board: &Board) {
        // Now, because a job that loads a library uses it within a moment.
        self.layout = task_layout(&self.paths);
        memory::give_back();
        board.clock(THREAD);
        loop {
            let now = Instant::now();
            if self.look_at_processes(now) {
                self.follow_libraries();
            }
            self.govern(now);
            self.detach_some();
            self.publish();
            match woken.recv_timeout(self.next(now)) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next(&self, now: Instant) -> Duration {
        if !self.detaching.is_empty() {
            return Duration::ZERO;
        }
        let longest = if self.attached.is_empty() { OLD_EVERY } else { LOOK_EVERY };
        let soonest = self.seen.values().map(|seen| seen.due_in(now)).min();
        soonest.map_or(longest, |soonest| soonest.clamp(YOUNG_EVERY, longest))
    }

    /// True if somebody maps a library that did not, or the other way round.
    fn look_at_processes(&mut self, now: Instant) -> bool {
        let candidates: HashSet<ProcKey> = (self.candidates)().into_iter().collect();
        let mut changed = false;
        for process in self.libraries.processes() {
            if !candidates.contains(&process) || !is_alive(&self.paths, process) {
                changed |= self.libraries.forget(process);
                self.seen.remove(&process);
            }
        }
        self.seen.retain(|process, _| candidates.contains(process));
        for process in candidates {
            let seen =
                self.seen.entry(process).or_insert(Seen { since: now, code_kb: None, looked: now });
            if seen.code_kb.is_some() && !seen.due_in(now).is_zero() {
                continue;
            }
            seen.looked = now;
            let code_kb = code_kb(&self.paths, process);
            if code_kb.is_some() && code_kb != seen.code_kb {
                seen.code_kb = code_kb;
                changed |= self.libraries.look(&self.paths, process);
            }
        }
        changed
    }

    /// Attaches to what is new and detaches from what nobody maps any more.
    fn follow_libraries(&mut self) {
        let in_use: HashSet<FileKey> =
            self.libraries.in_use().map(|(key, _)| key.clone()).collect();
        let gone: Vec<FileKey> =
            self.attached.keys().filter(|key| !in_use.contains(*key)).cloned().collect();
        // What was on a file that is gone is attached to one of its twins.
        self.twins.retain(|key, of| in_use.contains(key) && !gone.contains(of));
        for key in gone {
            let links = self.attached.remove(&key).map(Attached::into_holds);
            self.detaching.extend(links.unwrap_or_default());
        }
        let is_tried_again = |until: &Instant| Instant::now() >= *until;
        if self.refused.as_ref().is_some_and(|(_, until)| !is_tried_again(until)) {
            return;
        }
        self.refused = None;
        if let Err(error) = self.attach_new() {
            tracing::warn!(%error, "collective calls cannot be counted");
            self.refused = Some((error.to_string(), Instant::now() + AGAIN));
        }
    }

    fn attach_new(&mut self) -> Result<(), ProbeError> {
        let wanted = self.governor.attach();
        if wanted == Attach::Nothing {
            return Ok(());
        }
        let mut new = Vec::new();
        let mut is_first = false;
        for (key, library) in self.libraries.in_use() {
            if self.attached.contains_key(key) || self.twins.contains_key(key) {
                continue;
            }
            let mut probed =
                self.libraries.in_use().filter(|(other, _)| self.attached.contains_key(*other));
            if let Some((twin, _)) = probed.find(|(_, other)| library.is_twin(other)) {
                self.twins.insert(key.clone(), twin.clone());
                continue;
            }
            if self.probes.is_none() {
                let (probes, maps) = Probes::load(self.layout, Way::Session)?;
                self.probes = Some(probes);
                is_first = true;
                self.shared.with(|known| known.maps = Some(maps));
            }
            let Some(probes) = &mut self.probes else { continue };
            let timed = wanted == Attach::Full;
            let attached = probes.attach(&library.file, &library.exports, timed)?;
            for (name, why) in &attached.refused {
                tracing::warn!(path = %library.path, name, why, "a function cannot be probed");
            }
            self.attached.insert(key.clone(), attached);
            new.push(key.clone());
        }
        for key in new {
            self.libraries.tell_version(&key);
            let library = self.libraries.in_use().find(|(known, _)| **known == key);
            let (Some(attached), Some((_, library))) = (self.attached.get(&key), library) else {
                continue;
            };
            let (functions, returns) = (attached.functions(), attached.returns());
            let (path, version) = (&library.path, &library.exports.version);
            let stepped = library.exports.stepped;
            tracing::info!(%path, %version, functions, returns, stepped, "counting collective calls");
        }
        if is_first {
            self.set_budget();
        }
        Ok(())
    }

    /// The budget that was asked for, or one by the price of a hit, which is tried now.
    fn set_budget(&mut self) {
        let Some(many) = self.probes.as_ref().and_then(Probes::many) else { return };
        if self.settings.budget.is_some() {
            return;
        }
        match price::of_a_hit(many, &self.paths) {
            Ok((hit, link)) => {
                self.detaching.push(Hold::Many(link));
                self.governor.allow(price::budget(hit));
                let (hit_ns, budget) = (hit.as_nanos(), self.governor.budget());
                tracing::info!(hit_ns, budget, "hits a second and process are allowed");
            }
            Err(error) => tracing::debug!(%error, "the price of a hit is not known"),
        }
    }

    /// Once a second, while something is attached or waits to be.
    fn govern(&mut self, now: Instant) {
        let passed = now.duration_since(self.looked.at);
        if passed < LOOK_EVERY {
            return;
        }
        let counts = self.counts();
        let place = |counter: u32| counts.get(counter as usize).copied().unwrap_or(0);
        let hits = place(HIT_ENTRY) + place(HIT_RETURN);
        let new = hits.saturating_sub(self.looked.hits);
        self.looked = Looked { at: now, hits };
        let is_wanted = self.libraries.in_use().next().is_some();
        let callers = self.shared.with(|known| {
            let ns = u64::try_from(passed.as_nanos()).unwrap_or(0);
            let [entries, returns] = &mut known.attached_ns;
            if is_wanted {
                known.wanted_ns += ns;
                *entries += if self.attached.is_empty() { 0 } else { ns };
                let timed = self.in_force == Attach::Full && !self.attached.is_empty();
                *returns += if timed { ns } else { 0 };
            }
            known.counts = counts;
            known.callers
        });
        let users = self.libraries.in_use().map(|(_, library)| library.users.len() as u64);
        let processes = callers.max(users.sum::<u64>().min(1)).max(1);
        let rate = u128::from(new) * 1_000 / passed.as_millis().max(1) / u128::from(processes);
        if self.in_force == self.governor.attach() {
            self.governor.look(u64::try_from(rate).unwrap_or(u64::MAX), now);
        }
        self.enforce();
    }

    /// Makes what is attached what the governor allows.
    fn enforce(&mut self) {
        let wanted = self.governor.attach();
        if wanted == self.in_force {
            return;
        }
        let level = self.governor.level().as_str();
        tracing::warn!(level, budget = self.governor.budget(), "the probes' cost is adjusted");
        // What is attached twice would count twice.
        if self.in_force == Attach::Nothing && !self.detaching.is_empty() {
            return;
        }
        let before = std::mem::replace(&mut self.in_force, wanted);
        let Some(probes) = &mut self.probes else { return };
        if wanted != Attach::Full {
            // An error means that the map is gone, and with it everything.
            let _ = probes.control(wanted);
        }
        match wanted {
            Attach::Nothing => {
                self.twins.clear();
                let all = self.attached.drain().map(|(_, attached)| attached);
                self.detaching.extend(all.flat_map(Attached::into_holds));
            }
            Attach::Entries => {
                self.detaching.extend(self.attached.values_mut().flat_map(Attached::untime));
            }
            Attach::Full => {
                for (key, library) in self.libraries.in_use() {
                    if let Some(attached) = self.attached.get_mut(key) {
                        probes.time_calls(&library.file, &library.exports, attached);
                    }
                }
                // As above.
                let _ = probes.control(wanted);
            }
        }
        if before == Attach::Nothing {
            self.follow_libraries();
            self.shared.with(|known| known.gap_ns = boot_time_ns());
        }
    }

    /// A few at a time: a library that comes meanwhile is attached first.
    fn detach_some(&mut self) {
        let end = Instant::now() + DETACH_AT_ONCE;
        while Instant::now() < end
            && let Some(link) = self.detaching.pop()
        {
            drop(link);
        }
    }

    fn counts(&self) -> [u64; COUNTERS as usize] {
        let mut counts = [0; COUNTERS as usize];
        if let Some(probes) = &self.probes {
            for (counter, slot) in (0_u32..).zip(&mut counts) {
                let read = probes.counts.get(&counter, 0);
                *slot = read.map_or(0, |values| values.iter().sum());
            }
        }
        counts
    }

    fn publish(&self) {
        let (mut libraries, mut fields) = (HashMap::new(), HashMap::new());
        for process in self.libraries.processes() {
            if let Some(library) = self.libraries.of(process) {
                let version = library.exports.version.split('+').next().unwrap_or_default();
                libraries.insert(process, (version.into(), Arc::clone(&library.path)));
                fields.extend(self.libraries.fields_of(process).map(|fields| (process, fields)));
            }
        }
        let files = self.libraries.in_use().filter(|(key, _)| !self.twins.contains_key(*key));
        let files = files.count() as u64;
        let level = if self.attached.is_empty() && self.in_force == Attach::Full {
            GovernorLevel::Off
        } else {
            self.governor.level()
        };
        let refused = self.refused.as_ref().map(|(why, _)| why.as_str());
        let state = state::of(refused, files, &self.governor);
        let (detaching, budget) = (self.detaching.len(), self.governor.budget());
        let budget = if self.probes.is_some() { budget } else { 0 };
        self.shared.with(|known| {
            known.detaching = detaching;
            known.budget = budget;
            known.state = state;
            known.level = level;
            known.files = files;
            known.looked += 1;
            known.libraries = libraries;
            known.fields = fields;
        });
    }
}

/// Size of the code that a process maps from libraries: changes when one is loaded.
fn code_kb(paths: &Paths, process: ProcKey) -> Option<u64> {
    let status =
        fs::read_to_string(paths.proc.join(process.pid.to_string()).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmLib:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_at_less_often_the_longer_it_is_known() {
        let since = Instant::now();
        let due = |age: u64| {
            let now = since + Duration::from_secs(age);
            Seen { since, code_kb: None, looked: now }.due_in(now)
        };
        assert_eq!(
            [0, 1, 20, 300, 3600].map(due),
            [0.1, 0.1, 2.0, 30.0, 30.0].map(Duration::from_secs_f64)
        );
        let now = since + Duration::from_secs(30);
        let late = Seen { since, code_kb: None, looked: since };
        assert_eq!(late.due_in(now), Duration::ZERO);
    }
}
