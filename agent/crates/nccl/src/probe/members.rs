//! The member table: derives from the maps which process is a member of which communicator, and its
//! counts since it was first seen.
//!
//! Communicators without a known hash (older than the probe, or derived from such a one, and
//! unknown to other sources) cannot be distinguished; all of a process with the same rank and size
//! are one member, and so are all without rank and size.

mod arrivals;
pub(super) mod complete;
pub(super) mod host;
mod identity;
mod lost;
pub(super) mod peers;
pub(super) mod rank_status;
pub(super) mod report;

use super::libraries::library::VersionAndPath;
use super::maps::Snapshot;
use gpuwho_common::nccl::{
    BIRTH, BUCKETS, CallKey, Calls, Communicator, DEATH, IDLE, Open, QUESTION, SEEN, UNKNOWN,
};
use gpuwho_model::ids::{MemberId, ProcKey};
use gpuwho_owners::communicators::{Communicators, MemberFacts, MemberKey};
use identity::{IdentifiedCommunicator, Lineage};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Process lookups of the member table.
pub(super) trait Processes {
    /// The process with this PID and, unless 0, this start time.
    fn find(&self, pid: u32, start_ns: u64) -> Option<ProcKey>;
    /// Whether it is running.
    fn is_alive(&self, process: ProcKey) -> bool;
    /// Version and path of its library: of the file with this number, unless 0.
    fn library(&self, process: ProcKey, file: u32) -> Option<VersionAndPath>;
    /// Calls of the process in that file may have been missed before this time.
    fn gap_ns(&self, process: ProcKey, file: u32) -> u64;
}

/// A call whose return was not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenCall {
    pub since_ns: u64,
    pub operation: u32,
    pub bytes: u64,
    /// Its return would have been seen, so it is still open.
    pub is_certain: bool,
}

/// Calls by operation and size class.
pub(super) type Counted = BTreeMap<(u32, u32), Calls>;

/// A member at a reading.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub id: MemberId,
    pub facts: MemberFacts,
    /// The numbers of its communicators: one, unless their hash is unknown.
    pub numbers: Vec<u64>,
    /// Calls by operation and size class, since it was first seen.
    pub calls: Counted,
    pub errors: u64,
    pub async_error: Option<u32>,
    /// Number of collectives since its creation; `None` if some were missed.
    pub sequence: Option<u64>,
    pub last_ns: u64,
    pub last_operation: u32,
    pub last_bytes: u64,
    /// The oldest open call, else one that may be open.
    pub call: Option<OpenCall>,
    /// It ended, or its process did: this reading is its last.
    pub has_ended: bool,
    /// Its communicator was ended by a call: it is not missed.
    pub has_left: bool,
}

impl Member {
    /// The oldest call that is certainly open.
    pub(super) fn open(&self) -> Option<OpenCall> {
        self.call.filter(|call| call.is_certain)
    }

    /// A member without activity.
    pub(super) fn silent(id: MemberId, facts: MemberFacts) -> Self {
        Self {
            id,
            facts,
            numbers: Vec::new(),
            calls: Counted::new(),
            errors: 0,
            async_error: None,
            sequence: None,
            last_ns: 0,
            last_operation: 0,
            last_bytes: 0,
            call: None,
            has_ended: false,
            has_left: false,
        }
    }
}

/// The result of a reading.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub members: Vec<Member>,
    /// Communicators to remove from the maps, with their calls.
    pub gone: Vec<(u64, Vec<CallKey>)>,
    /// Members that disappeared without having ended.
    pub vanished: Vec<MemberId>,
    /// Threads to remove from the maps.
    pub gone_threads: Vec<u64>,
    /// Communicators whose size became known: handle, process and ranks.
    pub sized: Vec<(u64, u32, u32)>,
}

/// The state between readings.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    lineage: Lineage,
    /// Totals of the removed communicators of a member.
    before: HashMap<MemberKey, ForgottenTotals>,
    /// Members exported for the last time at the last reading.
    reported: Vec<(MemberKey, MemberId)>,
    /// Members at the last reading that had not ended.
    present: HashMap<MemberKey, MemberId>,
    /// Numbers that had calls but no communicator at the last reading.
    orphans: HashSet<u64>,
}

/// Totals of removed communicators.
#[derive(Debug)]
struct ForgottenTotals {
    calls: Counted,
    errors: u64,
    facts: MemberFacts,
}

impl MemberTable {
    /// Processes a snapshot.
    pub(super) fn read(
        &mut self,
        snapshot: &Snapshot,
        processes: &dyn Processes,
        communicators: &Communicators,
    ) -> Reading {
        self.remove_reported(communicators);
        let mut reading = Reading::default();
        let (identified, lost) = self.lineage.identify(snapshot, processes);
        let mut calls = calls_by_number(snapshot);
        let mut members: BTreeMap<MemberKey, Member> = BTreeMap::new();
        for one in &identified {
            let id = communicators.put(one.key, one.facts.clone());
            let member = members.entry(one.key).or_insert_with(|| {
                // Another source may have provided its name.
                let name = communicators.facts(id).and_then(|facts| facts.name.clone());
                self.member(id, one.key, &MemberFacts { name, ..one.facts.clone() })
            });
            let mine = calls.remove(&one.number).unwrap_or_default();
            let library = one.communicator.identity.library;
            member.add(one, &mine, processes.gap_ns(one.key.process, library));
            if let Some(ranks) = one.newly_sized {
                let identity = &one.communicator.identity;
                reading.sized.push((identity.handle, identity.pid, ranks));
            }
            if is_over(one, &mine, processes) {
                let keys: Vec<CallKey> = mine.iter().map(|(key, _)| *key).collect();
                if one.facts.hash.is_none() {
                    self.keep_totals(one, &mine);
                }
                self.lineage.remove(one.number);
                reading.gone.push((one.number, keys));
            }
        }
        reading.gone.extend(self.orphan(&lost, calls));
        reading.gone_threads = opened(snapshot, processes, communicators, &mut members);
        self.add_silent(communicators, &mut members);
        for member in members.values_mut() {
            let is_gone = |number: &u64| reading.gone.iter().any(|(gone, _)| gone == number);
            let is_over = member.facts.hash.is_some()
                && !member.numbers.is_empty()
                && member.numbers.iter().all(is_gone);
            member.has_ended = is_over || !processes.is_alive(member.facts.process);
        }
        reading.vanished = self.close(&members);
        reading.members = members.into_values().collect();
        reading
    }

    /// Adds members of removed communicators, whose totals are exported as long as the process
    /// runs.
    fn add_silent(&self, communicators: &Communicators, members: &mut BTreeMap<MemberKey, Member>) {
        for (key, totals) in &self.before {
            if !members.contains_key(key) {
                let id = communicators.put(*key, totals.facts.clone());
                members.insert(*key, self.member(id, *key, &totals.facts));
            }
        }
    }

    /// Records the members that are exported for the last time. Returns the members of the last
    /// reading that disappeared without having ended: they were identified in the meantime and have
    /// another key now, or are gone. Their names stay until their last points are enriched.
    fn close(&mut self, members: &BTreeMap<MemberKey, Member>) -> Vec<MemberId> {
        let ended = members.iter().filter(|(_, member)| member.has_ended);
        self.reported = ended.map(|(key, member)| (*key, member.id)).collect();
        let present = members.iter().filter(|(_, member)| !member.has_ended);
        let present = present.map(|(key, member)| (*key, member.id)).collect();
        let before = std::mem::replace(&mut self.present, present);
        let left: Vec<_> =
            before.into_iter().filter(|(key, _)| !members.contains_key(key)).collect();
        self.reported.extend(&left);
        left.into_iter().map(|(_, id)| id).collect()
    }

    fn member(&self, id: MemberId, key: MemberKey, facts: &MemberFacts) -> Member {
        let totals = self.before.get(&key);
        let (calls, errors) =
            totals.map(|totals| (totals.calls.clone(), totals.errors)).unwrap_or_default();
        Member { calls, errors, ..Member::silent(id, facts.clone()) }
    }

    /// Returns the communicators of unknown processes, and calls without a communicator at two
    /// readings in a row: at a single reading the communicator may have been created between
    /// reading the two maps.
    fn orphan(
        &mut self,
        lost: &[u64],
        calls: HashMap<u64, Vec<(CallKey, Calls)>>,
    ) -> Vec<(u64, Vec<CallKey>)> {
        let before = std::mem::take(&mut self.orphans);
        let mut gone = Vec::new();
        for (number, mine) in calls {
            if lost.contains(&number) || before.contains(&number) {
                gone.push((number, mine.iter().map(|(key, _)| *key).collect()));
            } else {
                self.orphans.insert(number);
            }
        }
        let uncalled = lost.iter().filter(|number| !gone.iter().any(|(one, _)| one == *number));
        let uncalled: Vec<_> = uncalled.map(|number| (*number, Vec::new())).collect();
        gone.extend(uncalled);
        gone
    }

    /// Adds a removed communicator's counts to its member's totals.
    fn keep_totals(&mut self, one: &IdentifiedCommunicator, calls: &[(CallKey, Calls)]) {
        let nothing =
            ForgottenTotals { calls: Counted::new(), errors: 0, facts: one.facts.clone() };
        let totals = self.before.entry(one.key).or_insert(nothing);
        for (key, counted) in calls {
            add(totals.calls.entry((key.operation, key.class)).or_insert(NO_CALLS), counted);
        }
        totals.errors += one.communicator.activity.errors;
    }

    /// Removed only now, because the enrich stage needed their names for the last points.
    fn remove_reported(&mut self, communicators: &Communicators) {
        for (key, id) in self.reported.drain(..) {
            communicators.remove(id);
            self.before.remove(&key);
        }
    }
}

impl Member {
    fn add(&mut self, one: &IdentifiedCommunicator, calls: &[(CallKey, Calls)], gap_ns: u64) {
        let activity = &one.communicator.activity;
        self.numbers.push(one.number);
        for (key, counted) in calls {
            add(self.calls.entry((key.operation, key.class)).or_insert(NO_CALLS), counted);
        }
        self.errors += activity.errors;
        self.has_left |= activity.ended_ns != 0;
        if activity.async_error != 0 {
            self.async_error = Some(activity.async_error);
        }
        let identity = &one.communicator.identity;
        let is_followed =
            one.facts.hash.is_some() && identity.origin != SEEN && identity.born_ns > gap_ns;
        self.sequence = is_followed.then_some(activity.sequence);
        if activity.last_ns > self.last_ns {
            self.last_ns = activity.last_ns;
            self.last_operation = activity.last_operation;
            self.last_bytes = activity.last_bytes;
        }
    }
}

/// Whether it ended, its process ended, or it never existed: a handle that the library refused at
/// every observed return.
fn is_over(
    one: &IdentifiedCommunicator,
    calls: &[(CallKey, Calls)],
    processes: &dyn Processes,
) -> bool {
    let Communicator { identity, activity, .. } = &one.communicator;
    let seen: u64 = calls.iter().flat_map(|(_, counted)| counted.enqueue).sum();
    let is_refused = identity.origin == SEEN && seen != 0 && activity.errors >= seen;
    activity.ended_ns != 0 || is_refused || !processes.is_alive(one.key.process)
}

fn calls_by_number(snapshot: &Snapshot) -> HashMap<u64, Vec<(CallKey, Calls)>> {
    let mut by_number: HashMap<u64, Vec<(CallKey, Calls)>> = HashMap::new();
    for (key, calls) in &snapshot.calls {
        by_number.entry(key.communicator).or_default().push((*key, *calls));
    }
    by_number
}

/// Assigns the open calls to members; a communicator that is being created has its own member until
/// then. Returns the threads that are gone.
fn opened(
    snapshot: &Snapshot,
    processes: &dyn Processes,
    communicators: &Communicators,
    members: &mut BTreeMap<MemberKey, Member>,
) -> Vec<u64> {
    let mut gone = Vec::new();
    for (task, thread) in &snapshot.threads {
        let (pid, tid) = (u32::try_from(task >> 32).unwrap_or(0), *task & u64::from(u32::MAX));
        let process = processes.find(pid, 0);
        let Some(process) = process.filter(|_| is_thread(processes, pid, tid)) else {
            gone.push(*task);
            continue;
        };
        let open = &thread.open;
        if open.since_ns == 0 || matches!(open.what, IDLE | QUESTION) {
            continue;
        }
        let call = OpenCall {
            since_ns: open.since_ns,
            operation: open.operation,
            bytes: open.bytes,
            is_certain: open.unseen == 0,
        };
        if open.what == BIRTH {
            let facts = identity::expected(process, thread, snapshot.coming.get(task));
            let member = unborn(*task, facts, communicators);
            members.entry(MemberKey { process, number: *task | UNBORN }).or_insert(member).call =
                Some(OpenCall { bytes: 0, ..call });
        } else if let Some(member) = on(members, open, process) {
            let order = |call: &OpenCall| (!call.is_certain, call.since_ns);
            member.call = member.call.into_iter().chain([call]).min_by_key(order);
        }
    }
    gone
}

/// `/proc` has an unlisted entry for each thread id too.
fn is_thread(processes: &dyn Processes, pid: u32, tid: u64) -> bool {
    u32::try_from(tid).is_ok_and(|tid| tid == pid || processes.find(tid, 0).is_some())
}

fn on<'a>(
    members: &'a mut BTreeMap<MemberKey, Member>,
    open: &Open,
    process: ProcKey,
) -> Option<&'a mut Member> {
    let number = &open.communicator;
    debug_assert!(open.what != DEATH || *number != 0, "ends nothing");
    members.values_mut().find(|one| one.facts.process == process && one.numbers.contains(number))
}

/// Marks the number of a member whose communicator is being created.
const UNBORN: u64 = 1 << 63;

fn unborn(task: u64, facts: MemberFacts, communicators: &Communicators) -> Member {
    let key = MemberKey { process: facts.process, number: task | UNBORN };
    Member::silent(communicators.put(key, facts.clone()), facts)
}

pub(super) const NO_CALLS: Calls = Calls {
    count: 0,
    bytes: 0,
    last_ns: 0,
    enqueue_ns: 0,
    interval_ns: 0,
    enqueue: [0; BUCKETS],
    interval: [0; BUCKETS],
};

fn add(to: &mut Calls, more: &Calls) {
    to.count += more.count;
    to.bytes = to.bytes.wrapping_add(more.bytes);
    to.enqueue_ns += more.enqueue_ns;
    to.interval_ns += more.interval_ns;
    to.last_ns = to.last_ns.max(more.last_ns);
    to.enqueue.iter_mut().zip(more.enqueue).for_each(|(to, more)| *to += more);
    to.interval.iter_mut().zip(more.interval).for_each(|(to, more)| *to += more);
}

/// Converts nanoseconds to the catalogue's unit.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A number of the probe, unless it is the value for unknown.
pub(super) fn known(number: u32) -> Option<u32> {
    (number != UNKNOWN).then_some(number)
}
