//! The communicators of this host's processes: the identity of each membership, separate from its
//! values, so that several sources can complete it. The kernel probe adds memberships; other
//! sources that know a process's communicator by its hash (profiler files, NCCL's status socket)
//! add rank, size, name or device.
//!
//! Any process can load a library that claims another's communicator. So ranks are compared, and a
//! name is shared, only among processes of one user and owner ([`Group`]).

mod reported;

use crate::attribute::ownership::Ownership;
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::catalog::nccl::KnownBy;
use gpuwho_model::ids::MemberId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;
use parking_lot::RwLock;
pub use reported::{LocalRank, LocalRanks, ReportedRanks};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// NCCL's own 64-bit hash of a communicator, the same on all ranks and nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommunicatorHash(pub u64);

impl fmt::Display for CommunicatorHash {
    /// As NCCL's log and plugins write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A communicator among the processes of one user and owner: the same hash reported by others is
/// another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The communicator.
    pub hash: CommunicatorHash,
    /// User and owner of the processes; `None` if unknown.
    pub owner: Option<(u32, OwnerId)>,
}

/// Maximum length of a reported name in bytes; a longer name is cut and ends in `…`.
pub const MAX_NAME_LEN: usize = 64;

/// The printable form of a program's name for a communicator: UTF-8, of bounded length, without
/// control characters; `None` for an empty name.
pub fn name_of(text: &[u8]) -> Option<Arc<str>> {
    printable_name(String::from_utf8_lossy(text)).map(Arc::from)
}

/// The same for a name that is text already.
pub fn printable_name(name: Cow<'_, str>) -> Option<Cow<'_, str>> {
    const MARK: char = '…';
    if name.trim().is_empty() {
        return None;
    }
    let mut name = name;
    if name.chars().any(char::is_control) {
        // Replaced, not removed, so that a name that is too long is still seen as too long.
        name = name.replace(char::is_control, "\u{fffd}").into();
    }
    if name.len() > MAX_NAME_LEN {
        let name = name.to_mut();
        name.truncate(name.floor_char_boundary(MAX_NAME_LEN - MARK.len_utf8()));
        name.push(MARK);
    }
    Some(name)
}

/// Identifies a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberKey {
    /// The process.
    pub process: ProcKey,
    /// The probe's number of the communicator; 0 for all that existed before the probe.
    pub number: u64,
}

/// How a communicator was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It existed before the agent.
    Unknown,
    /// From a unique id.
    UniqueId,
    /// By one process for all its devices.
    InitAll,
    /// Split from another.
    Split,
    /// Another without some ranks.
    Shrink,
    /// Another with more ranks.
    Grow,
}

impl Origin {
    /// The attribute's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::UniqueId => "unique_id",
            Self::InitAll => "init_all",
            Self::Split => "split",
            Self::Shrink => "shrink",
            Self::Grow => "grow",
        }
    }
}

/// The facts about a membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFacts {
    /// The process.
    pub process: ProcKey,
    /// The communicator.
    pub hash: Option<CommunicatorHash>,
    /// Rank in it.
    pub rank: Option<u32>,
    /// Number of ranks.
    pub ranks: Option<u32>,
    /// The communicator it was made from.
    pub parent: Option<CommunicatorHash>,
    /// How it was made.
    pub origin: Origin,
    /// The library's version.
    pub version: Option<Arc<str>>,
    /// The library's file, as the process sees its path.
    pub library: Option<Arc<str>>,
    /// The name the program gave it.
    pub name: Option<Arc<str>>,
    /// Device ordinal in the process.
    pub device: Option<u32>,
    /// The hash's first 14 digits, if only those are known.
    pub prefix: Option<u64>,
    /// The source of its communicator and rank.
    pub known_by: KnownBy,
}

impl MemberFacts {
    /// A membership without facts except the process.
    pub fn new(process: ProcKey) -> Self {
        Self {
            process,
            hash: None,
            rank: None,
            ranks: None,
            parent: None,
            origin: Origin::Unknown,
            version: None,
            library: None,
            name: None,
            device: None,
            prefix: None,
            known_by: KnownBy::Unknown,
        }
    }

    /// The small identity for every point.
    pub fn attributes(&self) -> AttrSet {
        let mut set = AttrSet::new();
        let text = |hash: Option<CommunicatorHash>| hash.map(|hash| Arc::from(hash.to_string()));
        set.set_some::<Arc<str>>(&attr::NCCL_COMMUNICATOR, text(self.hash));
        if self.hash.is_none() {
            let prefix = text(self.prefix.map(CommunicatorHash));
            set.set_some::<Arc<str>>(&attr::NCCL_COMMUNICATOR_PREFIX, prefix);
            // Without it, a process's communicators could not be distinguished.
            set.set_some(&attr::NCCL_NAME, self.name.clone());
        }
        set.set_some(&attr::NCCL_RANK, self.rank.map(i64::from));
        set.set_some(&attr::NCCL_RANKS, self.ranks.map(i64::from));
        set
    }

    /// All attributes, for `nccl.communicator.info`.
    pub fn details(&self) -> AttrSet {
        let mut set = self.attributes();
        let parent = self.parent.map(|parent| Arc::from(parent.to_string()));
        set.set_some::<Arc<str>>(&attr::NCCL_PARENT, parent);
        set.set(&attr::NCCL_ORIGIN, self.origin.as_str());
        set.set(&attr::NCCL_KNOWN_BY, self.known_by.as_str());
        set.set_some(&attr::NCCL_NAME, self.name.clone());
        set.set_some(&attr::NCCL_VERSION, self.version.clone());
        set.set_some(&attr::NCCL_LIBRARY, self.library.clone());
        set.set_some(&attr::NCCL_DEVICE, self.device.map(i64::from));
        set
    }
}

/// What a source other than the probe reports of a process's communicator; `None` leaves the known
/// value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommunicatorUpdate {
    /// Rank in it.
    pub rank: Option<u32>,
    /// Number of ranks.
    pub ranks: Option<u32>,
    /// The name the program gave it.
    pub name: Option<Arc<str>>,
    /// Device ordinal in the process.
    pub device: Option<u32>,
}

impl CommunicatorUpdate {
    /// Adds an update: new values replace known ones.
    fn add(&mut self, more: Self) {
        self.rank = more.rank.or(self.rank);
        self.ranks = more.ranks.or(self.ranks);
        self.device = more.device.or(self.device);
        self.name = more.name.or_else(|| self.name.take());
    }
}

/// All memberships.
#[derive(Debug, Default)]
pub struct Communicators(RwLock<MembershipIndex>);

#[derive(Debug, Default)]
struct MembershipIndex {
    ids: HashMap<MemberKey, MemberId>,
    facts: HashMap<MemberId, (MemberKey, Arc<MemberFacts>)>,
    learned: HashMap<(ProcKey, CommunicatorHash), CommunicatorUpdate>,
    /// The one name of a communicator among an owner's processes: the first reported.
    names: HashMap<Group, Arc<str>>,
    next: u32,
    /// What NCCL reports of the ranks here.
    reported: LocalRanks,
    /// Owners of processes.
    ownership: Option<Ownership>,
}

impl Communicators {
    /// Starts empty; groups memberships by the owners in `ownership`.
    pub fn with_ownership(ownership: &Ownership) -> Self {
        Self(RwLock::new(MembershipIndex {
            ownership: Some(ownership.clone()),
            ..MembershipIndex::default()
        }))
    }

    /// The group of a membership, if its communicator is known.
    pub fn group(&self, facts: &MemberFacts) -> Option<Group> {
        let known = self.0.read();
        Some(known.group(facts.process, facts.hash?))
    }

    /// Adds or updates a membership, completed with what other sources reported of it.
    pub fn put(&self, key: MemberKey, facts: MemberFacts) -> MemberId {
        let mut known = self.0.write();
        let id = known.ids.get(&key).copied().unwrap_or_else(|| known.number(key));
        known.take(id, key, facts);
        id
    }

    /// A membership's facts; the `Arc` changes with the facts.
    pub fn facts(&self, id: MemberId) -> Option<Arc<MemberFacts>> {
        let known = self.0.read();
        known.facts.get(&id).map(|(_, facts)| Arc::clone(facts))
    }

    /// Adds what another source reports of a process's communicator. The update stays until the
    /// process's memberships are removed, also before the probe reports the communicator.
    pub fn learn(&self, process: ProcKey, hash: CommunicatorHash, learned: CommunicatorUpdate) {
        let mut known = self.0.write();
        known.learned.entry((process, hash)).or_default().add(learned);
        known.take_again(hash, |key| key.process == process);
    }

    /// All members of a communicator on this host. If two sources made a membership of one rank,
    /// the one with the lower number (the probe's) counts.
    pub fn members(&self, hash: CommunicatorHash) -> Vec<MemberId> {
        let known = self.0.read();
        let of = known.facts.iter().filter(|(_, (_, facts))| facts.hash == Some(hash));
        let mut first: HashMap<(ProcKey, Option<u32>), (u64, MemberId)> = HashMap::new();
        for (id, (key, facts)) in of {
            let mine = (key.number, *id);
            let first = first.entry((facts.process, facts.rank)).or_insert(mine);
            *first = if mine.0 < first.0 { mine } else { *first };
        }
        first.into_values().map(|(_, id)| id).collect()
    }

    /// The known hashes of a process's communicators.
    pub fn hashes(&self, process: ProcKey) -> Vec<CommunicatorHash> {
        let known = self.0.read();
        let made = known.facts.values().filter(|(key, _)| key.process == process);
        let made = made.filter_map(|(_, facts)| facts.hash);
        let reported = known.learned.keys().filter(|(of, _)| *of == process).map(|(_, hash)| *hash);
        let mut hashes: Vec<_> = made.chain(reported).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes
    }

    /// The facts about a process's memberships.
    pub fn of(&self, process: ProcKey) -> Vec<Arc<MemberFacts>> {
        let known = self.0.read();
        let mine = known.facts.values().filter(|(key, _)| key.process == process);
        mine.map(|(_, facts)| Arc::clone(facts)).collect()
    }

    /// Removes a membership that has ended.
    pub fn remove(&self, id: MemberId) {
        let mut known = self.0.write();
        if let Some((key, facts)) = known.facts.remove(&id) {
            known.ids.remove(&key);
            if let Some(hash) = facts.hash {
                known.learned.remove(&(key.process, hash));
                let others = known.facts.values().filter(|(_, other)| other.hash == Some(hash));
                let left: HashSet<Group> =
                    others.map(|(_, other)| known.group(other.process, hash)).collect();
                known.names.retain(|group, _| group.hash != hash || left.contains(group));
            }
            if !known.facts.values().any(|(other, _)| other.process == key.process) {
                known.learned.retain(|(process, _), _| *process != key.process);
            }
        }
    }
}

impl MembershipIndex {
    fn group(&self, process: ProcKey, hash: CommunicatorHash) -> Group {
        let owner = self.ownership.as_ref().and_then(|ownership| ownership.attribution(process));
        Group { hash, owner: owner.map(|owner| (owner.uid, owner.owner)) }
    }

    fn number(&mut self, key: MemberKey) -> MemberId {
        let id = MemberId(self.next);
        self.next = self.next.wrapping_add(1);
        self.ids.insert(key, id);
        id
    }

    fn take(&mut self, id: MemberId, key: MemberKey, mut facts: MemberFacts) {
        let learned = facts.hash.and_then(|hash| self.learned.get(&(key.process, hash)));
        if let Some(learned) = learned {
            facts.rank = facts.rank.or(learned.rank);
            facts.ranks = facts.ranks.or(learned.ranks);
            facts.device = facts.device.or(learned.device);
            facts.name = facts.name.or_else(|| learned.name.clone());
        }
        let hash = facts.hash;
        let group = hash.map(|hash| self.group(facts.process, hash));
        let is_named_now = group.is_some_and(|group| self.name(group, &mut facts.name));
        // An exited process has no mappings: its version and library stay.
        if let Some((_, known)) = self.facts.get(&id) {
            facts.version = facts.version.or_else(|| known.version.clone());
            facts.library = facts.library.or_else(|| known.library.clone());
        }
        if self.facts.get(&id).is_none_or(|(_, known)| **known != facts) {
            self.facts.insert(id, (key, Arc::new(facts)));
        }
        if let Some(hash) = hash.filter(|_| is_named_now) {
            self.take_again(hash, |_| true);
        }
    }

    /// Completes the matching memberships of a communicator again.
    fn take_again(&mut self, hash: CommunicatorHash, is_meant: impl Fn(&MemberKey) -> bool) {
        let is_it = |(_, (key, facts)): &(&MemberId, &(MemberKey, Arc<MemberFacts>))| {
            facts.hash == Some(hash) && is_meant(key)
        };
        let mine = self.facts.iter().filter(is_it);
        let mine: Vec<_> = mine.map(|(id, (key, facts))| (*id, *key, (**facts).clone())).collect();
        for (id, key, facts) in mine {
            self.take(id, key, facts);
        }
    }

    /// Gives a membership its group's name; returns whether it is the first to report one.
    fn name(&mut self, group: Group, name: &mut Option<Arc<str>>) -> bool {
        if let Some(known) = self.names.get(&group) {
            *name = Some(Arc::clone(known));
            return false;
        }
        let Some(reported) = name else { return false };
        self.names.insert(group, Arc::clone(reported));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::Evidence;
    use crate::attribute::fake::{FakeHost, opened, v2};

    const PROCESS: ProcKey = ProcKey { pid: 7, start_ticks: 70 };
    const HASH: CommunicatorHash = CommunicatorHash(0x1db1_4a8a_713c_2fa5);

    fn facts() -> MemberFacts {
        MemberFacts { hash: Some(HASH), ..MemberFacts::new(PROCESS) }
    }

    #[test]
    fn another_source_completes_a_membership_before_and_after_it_is_made() {
        let communicators = Communicators::default();
        let (first, second) = (
            MemberKey { process: PROCESS, number: 1 },
            CommunicatorUpdate {
                rank: Some(3),
                name: Some(Arc::from("tensor")),
                ..CommunicatorUpdate::default()
            },
        );
        communicators.learn(PROCESS, HASH, second.clone());
        let id = communicators.put(first, facts());
        let known = communicators.facts(id).unwrap();
        assert_eq!((known.rank, known.name.as_deref()), (Some(3), Some("tensor")));
        communicators.learn(PROCESS, HASH, CommunicatorUpdate { ranks: Some(8), ..second });
        assert_eq!(communicators.facts(id).unwrap().ranks, Some(8));
        assert_eq!(communicators.members(HASH), vec![id]);
        communicators.remove(id);
        assert_eq!((communicators.facts(id), communicators.members(HASH)), (None, vec![]));
    }

    #[test]
    fn a_rank_that_two_sources_know_is_one_member_of_its_communicator() {
        let communicators = Communicators::default();
        let put = |number, rank| {
            let facts = MemberFacts { rank, ..facts() };
            communicators.put(MemberKey { process: PROCESS, number }, facts)
        };
        let (_inspected, probed, other) =
            (put(1 << 62 | 1, Some(3)), put(5, Some(3)), put(1 << 62 | 2, Some(4)));
        let mut members = communicators.members(HASH);
        members.sort_by_key(|id| communicators.facts(*id).unwrap().rank);
        assert_eq!(members, [probed, other]);
    }

    #[test]
    fn a_communicator_has_one_name_on_all_ranks_whichever_source_reports_it() {
        let communicators = Communicators::default();
        let other = ProcKey { pid: 8, start_ticks: 80 };
        let key = |process, number| MemberKey { process, number };
        let of_other = MemberFacts { process: other, ..facts() };
        let first = communicators.put(key(PROCESS, 1), facts());
        let second = communicators.put(key(other, 2), of_other.clone());
        let name = |id| communicators.facts(id).unwrap().name.clone();
        assert_eq!((name(first), name(second)), (None, None));
        // One source reports a name for one rank, another a different one for the other.
        let learned = |name: &str| CommunicatorUpdate {
            name: Some(Arc::from(name)),
            ..CommunicatorUpdate::default()
        };
        communicators.learn(other, HASH, learned("tensor"));
        let tensor: Option<Arc<str>> = Some(Arc::from("tensor"));
        assert_eq!((name(first), name(second)), (tensor.clone(), tensor.clone()));
        let probed = MemberFacts { name: Some(Arc::from("data")), ..facts() };
        communicators.put(key(PROCESS, 1), probed.clone());
        assert_eq!((name(first), name(second)), (tensor.clone(), tensor));
        // The name is removed with the last rank.
        communicators.remove(first);
        communicators.remove(second);
        let later = communicators.put(key(PROCESS, 3), probed);
        assert_eq!(name(later).as_deref(), Some("data"));
    }

    #[test]
    fn the_same_hash_of_another_owner_is_another_communicator() {
        let host = FakeHost::new();
        let ownership = Ownership::with_clock(&host.paths, || 1_000_000_000);
        let other = ProcKey { pid: 8, start_ticks: 80 };
        for (process, job) in [(PROCESS, 1), (other, 2)] {
            let path = format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0");
            host.start(process, "train", &format!("0::{path}\n"));
            ownership.observe(Evidence::CgroupMade { id: v2(job), path: Arc::from(path) });
            ownership.observe(Evidence::Opened(opened(process, job, 1)));
        }
        let communicators = Communicators::with_ownership(&ownership);
        let put = |process, name: Option<&str>| {
            let facts = MemberFacts { process, name: name.map(Arc::from), ..facts() };
            communicators.put(MemberKey { process, number: 1 }, facts)
        };
        let (mine, theirs) = (put(PROCESS, None), put(other, Some("theirs")));
        let name = |id| communicators.facts(id).unwrap().name.clone();
        assert_eq!((name(mine), name(theirs).as_deref()), (None, Some("theirs")));
        let group = |id| communicators.group(&communicators.facts(id).unwrap()).unwrap();
        assert_ne!(group(mine), group(theirs));
        assert_eq!(group(mine).hash, group(theirs).hash);
    }

    #[test]
    fn a_reported_name_is_printable() {
        let name = |text: &[u8]| name_of(text).as_deref().map(str::to_owned);
        let reported = |text: &str| Some(text.to_owned());
        assert_eq!(name(b"default_pg"), reported("default_pg"));
        assert_eq!((name(b""), name(b" \t")), (None, None));
        assert_eq!(name(b"a\xff\xfeb"), reported("a\u{fffd}\u{fffd}b"));
        assert_eq!(name(b"a\x1b[31mb\nc"), reported("a\u{fffd}[31mb\u{fffd}c"));
        let exact = "x".repeat(MAX_NAME_LEN);
        assert_eq!(name(exact.as_bytes()), Some(exact));
        assert_eq!(name("x".repeat(65).as_bytes()), Some("x".repeat(61) + "…"));
        // No character is cut in two.
        assert_eq!(name("é".repeat(33).as_bytes()), Some("é".repeat(30) + "…"));
    }

    #[test]
    fn the_same_facts_again_keep_the_identity() {
        let communicators = Communicators::default();
        let key = MemberKey { process: PROCESS, number: 1 };
        let id = communicators.put(key, facts());
        let before = communicators.facts(id).unwrap();
        assert_eq!(communicators.put(key, facts()), id);
        assert!(Arc::ptr_eq(&before, &communicators.facts(id).unwrap()));
    }

    #[test]
    fn a_hash_is_written_as_nccl_writes_it() {
        let attributes = MemberFacts { rank: Some(0), ranks: Some(2), ..facts() }.attributes();
        let text: Vec<String> =
            attributes.iter().map(|(key, value)| format!("{}={value}", key.name)).collect();
        assert_eq!(
            text,
            ["nccl.communicator.id=0x1db14a8a713c2fa5", "nccl.rank=0", "nccl.nranks=2"]
        );
    }
}
