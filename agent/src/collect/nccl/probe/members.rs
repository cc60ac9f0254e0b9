//! The roll of memberships: from what the maps hold to who is in which communicator and what each
//! has done since it was first seen.
//!
//! A communicator whose hash is not known (it was there before the probe, or comes from one that
//! was, and no other source tells) cannot be told from its like by name; all of a process that have
//! the same rank and size are one membership, and so are all of which not even that is known.

mod arrivals;
pub(super) mod complete;
pub(super) mod host;
mod identity;
pub(super) mod peers;
pub(super) mod rank_status;
pub(super) mod report;

use super::libraries::library::VersionAndPath;
use super::maps::Snapshot;
use crate::communicators::{Communicators, MemberFacts, MemberId, MemberKey};
use crate::ids::ProcKey;
use gpuwho_common::nccl::{
    BIRTH, BUCKETS, CallKey, Calls, Communicator, DEATH, IDLE, Open, QUESTION, SEEN, UNKNOWN,
};
use identity::{IdentifiedCommunicator, Lineage};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What the processes of this host are, for the roll.
pub(super) trait Processes {
    /// The process that has this number and, where the kernel told, this start.
    fn find(&self, pid: u32, start_ns: u64) -> Option<ProcKey>;
    /// Whether it is still there.
    fn is_alive(&self, process: ProcKey) -> bool;
    /// Version and file of its library: of the file of this number, where that is not 0.
    fn library(&self, process: ProcKey, file: u32) -> Option<VersionAndPath>;
    /// Before this moment its calls in that file may have been missed.
    fn gap_ns(&self, process: ProcKey, file: u32) -> u64;
}

/// A call that was not seen returning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenCall {
    pub since_ns: u64,
    pub operation: u32,
    pub bytes: u64,
    /// Its return would have been seen: it is still open.
    pub is_certain: bool,
}

/// Calls by operation and class.
pub(super) type Counted = BTreeMap<(u32, u32), Calls>;

/// A membership at the time of a reading.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub id: MemberId,
    pub facts: MemberFacts,
    /// Its communicators by number: one, unless their hash is not known.
    pub numbers: Vec<u64>,
    /// Calls by operation and class, since it was first seen.
    pub calls: Counted,
    pub errors: u64,
    pub async_error: Option<u32>,
    /// Collectives so far, and when it was made; `None` where some were missed.
    pub sequence: Option<u64>,
    pub last_ns: u64,
    pub last_operation: u32,
    pub last_bytes: u64,
    /// The oldest that is open, else one of which nobody knows.
    pub call: Option<OpenCall>,
    /// Ended, or its process is gone: this reading is its last.
    pub has_ended: bool,
}

impl Member {
    /// The oldest call that is open.
    pub(super) fn open(&self) -> Option<OpenCall> {
        self.call.filter(|call| call.is_certain)
    }

    /// One of which nothing was seen yet.
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
        }
    }
}

/// What a reading of the roll gives.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub members: Vec<Member>,
    /// Communicators to take out of the maps, with their calls.
    pub gone: Vec<(u64, Vec<CallKey>)>,
    /// Memberships that are no more, without a last word.
    pub vanished: Vec<MemberId>,
    /// Threads to take out of the maps.
    pub gone_threads: Vec<u64>,
    /// Communicators whose size has become known: handle, process and ranks.
    pub sized: Vec<(u64, u32, u32)>,
}

/// What is kept between readings.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    lineage: Lineage,
    /// What forgotten communicators of a membership had counted.
    before: HashMap<MemberKey, ForgottenTotals>,
    /// Memberships told for the last time at the last reading.
    reported: Vec<(MemberKey, MemberId)>,
    /// Memberships at the last reading that had not ended.
    present: HashMap<MemberKey, MemberId>,
    /// Numbers that had calls at the last reading and were no communicator.
    strays: HashSet<u64>,
}

/// What is left of forgotten communicators.
#[derive(Debug)]
struct ForgottenTotals {
    calls: Counted,
    errors: u64,
    facts: MemberFacts,
}

impl MemberTable {
    /// Reads a snapshot.
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
                // Others may have told its name.
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
                    self.keep(one, &mine);
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

    /// What only forgotten communicators had counted is told as long as the process lives.
    fn add_silent(&self, communicators: &Communicators, members: &mut BTreeMap<MemberKey, Member>) {
        for (key, kept) in &self.before {
            if !members.contains_key(key) {
                let id = communicators.put(*key, kept.facts.clone());
                members.insert(*key, self.member(id, *key, &kept.facts));
            }
        }
    }

    /// Remembers who is told for the last time. Gives the memberships that were there at the last
    /// reading and are no more without having ended: made or completed meanwhile, and told by their
    /// own names from now on, or nobody's. The last points of all of them still have their names.
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
        let kept = self.before.get(&key);
        let (calls, errors) =
            kept.map(|kept| (kept.calls.clone(), kept.errors)).unwrap_or_default();
        Member { calls, errors, ..Member::silent(id, facts.clone()) }
    }

    /// Communicators of nobody, and calls that were without a communicator at two readings: at
    /// one, theirs may have been made between the two maps' turns.
    fn orphan(
        &mut self,
        lost: &[u64],
        calls: HashMap<u64, Vec<(CallKey, Calls)>>,
    ) -> Vec<(u64, Vec<CallKey>)> {
        let before = std::mem::take(&mut self.strays);
        let mut gone = Vec::new();
        for (number, mine) in calls {
            if lost.contains(&number) || before.contains(&number) {
                gone.push((number, mine.iter().map(|(key, _)| *key).collect()));
            } else {
                self.strays.insert(number);
            }
        }
        let uncalled = lost.iter().filter(|number| !gone.iter().any(|(one, _)| one == *number));
        let uncalled: Vec<_> = uncalled.map(|number| (*number, Vec::new())).collect();
        gone.extend(uncalled);
        gone
    }

    /// What a forgotten communicator had counted stays in its membership's sums.
    fn keep(&mut self, one: &IdentifiedCommunicator, calls: &[(CallKey, Calls)]) {
        let nothing =
            ForgottenTotals { calls: Counted::new(), errors: 0, facts: one.facts.clone() };
        let kept = self.before.entry(one.key).or_insert(nothing);
        for (key, counted) in calls {
            add(kept.calls.entry((key.operation, key.class)).or_insert(NO_CALLS), counted);
        }
        kept.errors += one.communicator.activity.errors;
    }

    /// Only now, since the enrich stage needed their names for their last points.
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

/// Ended, or its process is gone, or it never was: a handle that the library refused each time that
/// its answer was seen.
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

/// Puts the open calls on their memberships; a communicator that is being made has one of its own
/// until then. Gives the threads that are gone.
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

fn is_thread(processes: &dyn Processes, pid: u32, tid: u64) -> bool {
    // A thread's number is also a process's in `/proc`, though not listed.
    u32::try_from(tid).is_ok_and(|tid| tid == pid || processes.find(tid, 0).is_some())
}

fn on<'a>(
    members: &'a mut BTreeMap<MemberKey, Member>,
    open: &Open,
    process: ProcKey,
) -> Option<&'a mut Member> {
    debug_assert!(open.what != DEATH || open.communicator != 0, "ends nothing");
    members.values_mut().find(|member| {
        member.facts.process == process && member.numbers.contains(&open.communicator)
    })
}

/// Marks the number of a membership that is being made.
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

/// Nanoseconds in the catalogue's unit.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A number of the probe's, unless it means that it is not known.
pub(super) fn known(number: u32) -> Option<u32> {
    (number != UNKNOWN).then_some(number)
}
