//! Receipts: what a job, pod or unit had of the devices, and what it got for it.
//!
//! The pipeline adds what each batch charged ([`Receipts::charge`]). An owner that has had no process on a
//! device and no allocation for some intervals has ended: its receipt becomes a log record and, where
//! configured, a file. The upkeep thread writes the open receipts to a state file, so that a restart of the
//! agent goes on with them and counts nothing twice; the time in between is unobserved, and the receipt
//! says so.
//!
//! Bounds: [`MAX_OPEN`] open receipts (the least recently active one ends early), [`MAX_FINISHED`]
//! finished ones for `gpuwho receipt` (the tenant with the most loses its oldest: thousands of short jobs
//! take no receipt of another's), and those of [`open`] and [`files`] within.
//!
//! Cost: for each owner on a device one look-up and some additions; no look-up of names unless an owner
//! changed.

mod additions;
mod advice;
mod files;
mod increase;
mod open;
mod record;
pub mod view;

pub use files::{SECTION, Settings};
pub use record::{NAME, record};
pub use view::{Receipt, ReceiptReport};

use super::Charge;
use crate::accounting::Amount;
use crate::event::Event;
use crate::event::recent::EventView;
use crate::identity::Registries;
use files::{Files, Stored};
use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::catalog::cost::{self as metric, ReceiptEnd};
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{Agent, Batch};
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::owner::OwnerFacts;
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use gpuwho_owners::inventory::GpuInfo;
use increase::Increases;
use open::{Open, key};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Open receipts: ten times the containers and jobs of a large node.
const MAX_OPEN: usize = 4096;
/// Finished receipts that `gpuwho receipt` still prints.
const MAX_FINISHED: usize = 256;
/// Receipts in one answer.
const MAX_ANSWER: usize = 16;
/// Finished receipts that wait for the pipeline's next turn to be sent.
const MAX_UNSENT: usize = 1024;
/// An owner ends after this many intervals without a process or an allocation.
const END_INTERVALS: u32 = 3;
/// At intervals of milliseconds a tick is often late by more than some intervals.
const MIN_END: Duration = Duration::from_secs(2);
/// An owner of the state file ends if it does not appear within this time after the start: readers and
/// the kubelet may be slow then.
const RESUME: Duration = Duration::from_mins(2);

/// The name under which the status registry has them, once something was lost or cannot be written.
pub const STATUS: &str = "receipts";

/// All receipts of this host.
#[derive(Debug)]
pub struct Receipts {
    enabled: bool,
    host: String,
    end_after: Duration,
    state: Mutex<State>,
    files: Mutex<Files>,
}

/// An owner of a receipt.
#[derive(Clone, Debug)]
struct OwnerKey {
    key: Arc<str>,
    facts: Arc<OwnerFacts>,
}

#[derive(Debug, Default)]
struct State {
    open: BTreeMap<Arc<str>, Open>,
    finished: VecDeque<Receipt>,
    unsent: VecDeque<Receipt>,
    /// Finished receipts that have no file yet.
    unwritten: VecDeque<Receipt>,
    /// The receipt of each owner; `None` for owners without one. Cleared when an owner changes.
    owners: HashMap<OwnerId, Option<OwnerKey>>,
    /// Users of the processes that hold a device, by owner.
    users: HashMap<OwnerId, Vec<u32>>,
    version: Option<Version>,
    increases: Increases,
    /// Receipts with something on each device in its last batch.
    on: HashMap<GpuId, Vec<Arc<str>>>,
    ended: u64,
    evicted: u64,
    /// Whether finished receipts have files.
    has_files: bool,
    /// Receipts that found no room on their way to the receivers or to their files.
    lost: u64,
    /// Figures that could not be.
    implausible: u64,
}

impl Receipts {
    /// Goes on with the receipts of the state file.
    pub fn open(settings: &Settings, host: String, interval: Duration) -> Self {
        let (files, stored) = Files::open(settings);
        let resumed = Instant::now() + RESUME;
        let has_files = settings.directory.is_some();
        let mut state = State { finished: stored.finished.into(), has_files, ..State::default() };
        for mut open in stored.open {
            open.resume(resumed);
            state.open.insert(Arc::clone(&open.key), open);
        }
        state.bound();
        Self {
            enabled: settings.enabled,
            host,
            end_after: (interval * END_INTERVALS).max(MIN_END),
            state: Mutex::new(state),
            files: Mutex::new(files),
        }
    }

    /// Adds what a batch charged for a device, by owner.
    pub fn charge(&self, charges: &[Charge], at: SystemTime, context: &Registries<'_>) {
        let Some(gpu) = charges.first().map(|charge| charge.increment.gpu) else { return };
        if !self.enabled {
            return;
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        state.look_up_again(context.ownership);
        let info = context.inventory.get(gpu);
        let mut on: Vec<Arc<str>> = Vec::new();
        let has = |of: fn(&Amount) -> bool| charges.iter().any(|charge| of(&charge.increment.what));
        let has_memory = has(|what| matches!(what, Amount::Memory { .. }));
        let is_unknown = [!has_memory, !has(|what| matches!(what, Amount::Energy { .. }))];
        for same in charges.chunk_by(|a, b| a.increment.owner == b.increment.owner) {
            let device = (info.as_deref(), is_unknown);
            on.extend(state.add(same, device, (now, at), context.ownership));
        }
        state.on.insert(gpu, on);
    }

    /// Adds what a batch says, after what it charged, if it did.
    pub fn take(&self, has_charged: bool, batch: &mut Batch, context: &Registries<'_>) {
        if !self.enabled {
            return;
        }
        let mut state = self.state.lock();
        state.look_up_again(context.ownership);
        state.read(batch, context);
        if has_charged {
            state.bound();
            let open = i64::try_from(state.open.len()).unwrap_or(i64::MAX);
            batch.push(metric::RECEIPTS_OPEN.sample(Agent, (), open));
            for (end, count) in
                [(ReceiptEnd::Ended, state.ended), (ReceiptEnd::Evicted, state.evicted)]
            {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                batch.push(metric::RECEIPTS.sample(Agent, end, count));
            }
        }
    }

    /// Notes an event on the receipts of the owners it affected.
    pub fn note(&self, event: &Event, ownership: &Ownership) {
        if !self.enabled || event.affected_owners.is_empty() {
            return;
        }
        let title = EventView::of(event).title();
        let mut state = self.state.lock();
        for affected in &event.affected_owners {
            let Some(known) = state.known(affected.owner.owner, ownership) else { continue };
            if let Some(open) = state.open.get_mut(&known.key) {
                open.event(&title, event.count);
            }
        }
    }

    /// Ends the receipts of owners that have ended, and returns all that were finished since the last
    /// call.
    pub fn finish(&self) -> Vec<Receipt> {
        if !self.enabled {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let now = Instant::now();
        let over: Vec<Arc<str>> = state
            .open
            .iter()
            .filter(|(_, open)| open.is_over(now, self.end_after))
            .map(|(key, _)| Arc::clone(key))
            .collect();
        for key in over {
            state.end(&key, ReceiptEnd::Ended);
        }
        let finished: Vec<Receipt> = state.unsent.drain(..).collect();
        drop(state);
        finished.into_iter().map(|receipt| receipt.on(&self.host)).collect()
    }

    /// Writes the state file, if that is due, and files of finished receipts. Called by the upkeep
    /// thread; the pipeline waits for no file.
    pub fn save(&self, now: Instant, is_last: bool) {
        if !self.enabled {
            return;
        }
        let mut files = self.files.lock();
        if is_last || files.is_due(now) {
            let state = self.state.lock();
            let open: Vec<&Open> = state.open.values().collect();
            let text = Stored::text(&open, &state.finished);
            drop(state);
            files.store(&text, now);
        }
        let finished: Vec<Receipt> = self.state.lock().unwritten.drain(..).collect();
        for receipt in finished {
            files.queue(&receipt.on(&self.host));
        }
        files.write_receipts();
    }

    /// How the receipts' files are doing, and what was lost; `None` while all is well.
    pub fn status(&self) -> Option<Report> {
        let files = self.files.lock();
        let (of_state, implausible) = {
            let state = self.state.lock();
            (state.lost, state.implausible)
        };
        let (lost, trouble) = (files.lost() + of_state, files.trouble());
        if lost == 0 && implausible == 0 && trouble.is_none() {
            return None;
        }
        let mut report = trouble.map_or_else(Report::ready, |trouble| {
            let remedy = "make the directory writable, and give it room";
            Report::of(SourceState::Degraded, trouble, remedy)
        });
        let counts = [(DropReason::QueueFull, lost), (DropReason::Implausible, implausible)];
        report.dropped = counts.into_iter().filter(|(_, count)| *count > 0).collect();
        Some(report)
    }

    /// The receipts of a job, pod or unit by its name, as a user may see them; all of them without a
    /// user.
    pub fn report(&self, name: &str, viewer: Option<u32>) -> ReceiptReport {
        let state = self.state.lock();
        let running = state.open.values().rev().filter(|open| open.is_of(name));
        let finished = state.finished.iter().rev().filter(|receipt| receipt.is_of(name));
        let all = running.map(|open| open.receipt(None)).chain(finished.cloned());
        let is_visible = |receipt: &Receipt| viewer.is_none_or(|uid| receipt.is_visible_to(uid));
        // A user learns of others' receipts not even whether there are any.
        let visible = all.filter(is_visible).take(MAX_ANSWER);
        let receipts = visible.map(|receipt| receipt.on(&self.host)).collect();
        let (host, others_hidden) = (self.host.clone(), viewer.is_some());
        ReceiptReport { schema: view::SCHEMA, host, others_hidden, receipts }
    }
}

impl State {
    /// The receipt of an owner.
    fn known(&mut self, owner: OwnerId, ownership: &Ownership) -> Option<OwnerKey> {
        if let Some(known) = self.owners.get(&owner) {
            return known.clone();
        }
        let facts = ownership.owner(owner)?;
        let known = key(&facts.owner).map(|key| OwnerKey { key: key.into(), facts });
        self.owners.insert(owner, known.clone());
        known
    }

    /// Adds what one owner was charged for a device. Returns its receipt's key if it is on the device.
    fn add(
        &mut self,
        charges: &[Charge],
        (info, is_unknown): (Option<&GpuInfo>, [bool; 2]),
        (now, at): (Instant, SystemTime),
        ownership: &Ownership,
    ) -> Option<Arc<str>> {
        let first = charges.first()?;
        let owner = first.increment.owner;
        let known = self.known(owner, ownership)?;
        let open = self
            .open
            .entry(Arc::clone(&known.key))
            .or_insert_with(|| Open::new(Arc::clone(&known.key), known.facts.owner.kind(), at));
        if open.team.is_none() {
            open.team = first.rates.team.as_deref().map(str::to_owned);
        }
        let is_implausible = open.add(charges, info, (now, at), is_unknown);
        self.implausible += u64::from(is_implausible);
        let is_present = charges.iter().any(|charge| charge.increment.what == Amount::Present);
        is_present.then(|| {
            let users = self.users.get(&owner).map_or(&[][..], Vec::as_slice);
            open.describe(&known.facts, users);
            known.key
        })
    }

    /// Ends the least recently active receipts beyond the limit.
    fn bound(&mut self) {
        while self.open.len() > MAX_OPEN {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.last_ms);
            let Some(key) = oldest.map(|(key, _)| Arc::clone(key)) else { break };
            self.end(&key, ReceiptEnd::Evicted);
        }
        self.bound_finished();
    }

    fn bound_finished(&mut self) {
        while self.finished.len() > MAX_FINISHED {
            let tenants: Vec<_> = self.finished.iter().map(Receipt::tenant).collect();
            let place = view::makes_way(tenants.iter().map(|tenant| &**tenant));
            self.finished.remove(place.unwrap_or(0));
        }
    }

    fn end(&mut self, key: &Arc<str>, end: ReceiptEnd) {
        let Some(open) = self.open.remove(key) else { return };
        match end {
            ReceiptEnd::Ended => self.ended += 1,
            ReceiptEnd::Evicted => self.evicted += 1,
        }
        let receipt = open.receipt(Some(end));
        self.finished.push_back(receipt.clone());
        self.bound_finished();
        let files = self.has_files.then_some(&mut self.unwritten);
        for waiting in [&mut self.unsent].into_iter().chain(files) {
            if waiting.len() < MAX_UNSENT {
                waiting.push_back(receipt.clone());
            } else {
                self.lost += 1;
            }
        }
    }

    fn look_up_again(&mut self, ownership: &Ownership) {
        let version = ownership.version();
        if self.version != Some(version) || self.owners.len() > 2 * MAX_OPEN {
            self.version = Some(version);
            self.owners.clear();
            self.users.clear();
            for process in ownership.openers() {
                let users = self.users.entry(process.owner).or_default();
                if !users.contains(&process.uid) && users.len() < open::MAX_USERS {
                    users.push(process.uid);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
