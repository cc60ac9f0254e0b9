//! Parses an answer in JSON (2.28.7 and later) as it arrives. Counts are accumulated while reading,
//! and only what concerns this node is stored, so that memory does not depend on the length of the
//! document: at most about 5 MB with [`MAX_ENTRIES`] ranks that are all absent.

use super::answer::{
    Answer, Communicator, LaunchCounts, LocalNames, LostProcess, MAX_ENTRIES, MAX_LOCAL,
    MissingRank, Process, Rank, count, device_bit, hash,
};
use super::tokens::Tokens;
use gpuwho_owners::communicators::CommunicatorHash;
use serde::de::{Deserialize, Visitor};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::net::IpAddr;

/// More devices than any process sees.
const MAX_DEVICES: u32 = 1_024;

/// Why a document is rejected.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    /// It has more communicators and ranks than the limit.
    #[error("more than {MAX_ENTRIES} communicators and ranks")]
    TooMany,
    /// It is not NCCL's format, or it did not arrive.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Parses an answer as it arrives.
pub(super) fn from_json(source: impl Read, here: &LocalNames) -> Result<Answer, JsonError> {
    let mut reading = Reading::new(here);
    let mut deserializer = serde_json::Deserializer::from_reader(Tokens::new(source));
    let read = Seed(Document(&mut reading)).deserialize(&mut deserializer);
    match read {
        Ok(()) => Ok(reading.end()),
        Err(_) if reading.left == 0 => Err(JsonError::TooMany),
        Err(error) => Err(error.into()),
    }
}

/// The state of the parser.
struct Reading<'a> {
    here: &'a LocalNames,
    /// Communicators and ranks left until the limit.
    left: usize,
    local: usize,
    answer: Answer,
    processes: BTreeSet<Process>,
    /// Devices of given-up processes, and of late ones.
    dead: BTreeMap<Process, u64>,
    late: BTreeMap<Process, u64>,
}

impl<'a> Reading<'a> {
    fn new(here: &'a LocalNames) -> Self {
        Self {
            here,
            left: MAX_ENTRIES,
            local: 0,
            answer: Answer::default(),
            processes: BTreeSet::new(),
            dead: BTreeMap::new(),
            late: BTreeMap::new(),
        }
    }

    /// Counts a communicator or a rank against the limit.
    fn count_entry<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 { Err(E::custom("too many")) } else { Ok(()) }
    }

    fn rank(&mut self, raw: &RawRank, to: &mut Communicator) {
        let total = raw.collective_counts.total();
        to.present = to.present.saturating_add(1);
        to.foremost = to.foremost.max(total);
        let Some(process) = raw.host.process(raw.pid) else { return };
        self.processes.insert(process);
        if self.here.others.contains(&process) {
            self.answer.claims += 1;
        }
        if !self.here.trusted.contains_key(&process) {
            return;
        }
        if self.local >= MAX_LOCAL {
            self.answer.claims += 1;
            return;
        }
        self.local += 1;
        let device = raw.cuda_dev.and_then(|device| u32::try_from(device).ok());
        let device = device.filter(|device| *device < MAX_DEVICES);
        let launched = raw.collective_counts;
        to.ranks.push(Rank { number: raw.rank, process, device, launched, total });
    }

    fn absent(&mut self, raw: &RawAbsent, to: &mut Communicator) {
        let RawStatus { unresponsive, considered_dead } = raw.status;
        let process = raw.host.process(raw.pid);
        if !unresponsive && !considered_dead {
            to.left = to.left.saturating_add(1);
        }
        to.absent.push(MissingRank {
            rank: raw.rank,
            process,
            is_unresponsive: unresponsive,
            is_dead: considered_dead,
        });
        let Some(process) = process else { return };
        self.processes.insert(process);
        let lost = match (considered_dead, unresponsive) {
            (true, _) => &mut self.dead,
            (false, true) => &mut self.late,
            (false, false) => return,
        };
        let device = raw.cuda_dev.and_then(|device| u32::try_from(device).ok());
        *lost.entry(process).or_insert(0) |= device.map_or(0, device_bit);
    }

    /// Builds the answer. Its own counts are of communicators only; those of processes come from
    /// their ranks.
    fn end(self) -> Answer {
        let lost = |all: BTreeMap<Process, u64>| -> Vec<LostProcess> {
            all.into_iter().map(|(process, devices)| LostProcess { process, devices }).collect()
        };
        // Sorted, so those of one node are adjacent.
        let mut hosts: Vec<IpAddr> = self.processes.iter().map(|process| process.host).collect();
        hosts.dedup();
        let (dead, late) = (lost(self.dead), lost(self.late));
        Answer {
            nodes: count(hosts.len()),
            processes: count(self.processes.len()),
            dead_count: count(dead.len()),
            dead,
            late_count: count(late.len()),
            late,
            ..self.answer
        }
    }
}

/// A rank as it arrives, without heap memory.
#[derive(serde::Deserialize)]
struct RawRank {
    rank: u32,
    host: Host,
    pid: i64,
    #[serde(default)]
    cuda_dev: Option<i64>,
    #[serde(default)]
    collective_counts: LaunchCounts,
}

#[derive(serde::Deserialize)]
struct RawAbsent {
    rank: u32,
    host: Host,
    pid: i64,
    #[serde(default)]
    cuda_dev: Option<i64>,
    status: RawStatus,
}

#[derive(serde::Deserialize)]
struct RawStatus {
    unresponsive: bool,
    considered_dead: bool,
}

/// A node's address, if it is valid.
struct Host(Option<IpAddr>);

impl Host {
    fn process(&self, pid: i64) -> Option<Process> {
        let host = self.0?;
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
        Some(Process { host, pid })
    }
}

/// Passes any value to its visitor.
struct Seed<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Seed<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<V::Value, D::Error> {
        from.deserialize_any(self.0)
    }
}

/// Applies a function to a borrowed string.
struct Text<F>(F);

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        Ok(self.0(text))
    }
}

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let host = |text: &str| Process::named(text, 1).map(|process| process.host);
        from.deserialize_str(Text(host)).map(Self)
    }
}

impl<'de> Deserialize<'de> for LaunchCounts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Counts)
    }
}

struct Counts;

impl<'de> Visitor<'de> for Counts {
    type Value = LaunchCounts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counts by operation")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LaunchCounts, A::Error> {
        let mut all = LaunchCounts::default();
        while let Some(name) = map.next_key_seed(Seed(Text(super::answer::operation)))? {
            let count = map.next_value()?;
            if let Some(name) = name {
                all.put(name, count);
            }
        }
        Ok(all)
    }
}

struct Document<'r, 'a>(&'r mut Reading<'a>);

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NCCL's status")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let [mut has_version, mut has_communicators] = [false; 2];
        let which = |key: &str| (key == "nccl_version", key == "communicators");
        while let Some((is_version, are_communicators)) = map.next_key_seed(Seed(Text(which)))? {
            if are_communicators {
                map.next_value_seed(Seed(All(&mut *self.0)))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            has_version |= is_version;
            has_communicators |= are_communicators;
        }
        let is_whole = has_version && has_communicators;
        if is_whole { Ok(()) } else { Err(A::Error::custom("a part is missing")) }
    }
}

struct All<'r, 'a>(&'r mut Reading<'a>);

impl<'de> Visitor<'de> for All<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("communicators")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(one) = list.next_element_seed(Seed(One(&mut *self.0)))? {
            self.0.count_entry()?;
            // Communicators without listed ranks only add their processes.
            if !one.ranks.is_empty() || !one.absent.is_empty() {
                self.0.answer.communicators.push(one);
            }
        }
        Ok(())
    }
}

struct One<'r, 'a>(&'r mut Reading<'a>);

#[derive(Clone, Copy)]
enum Key {
    Hash,
    Size,
    Missing,
    Ranks,
    Absent,
    Other,
}

impl Key {
    fn of(name: &str) -> Self {
        match name {
            "hash" => Self::Hash,
            "size" => Self::Size,
            "missing_ranks_count" => Self::Missing,
            "ranks" => Self::Ranks,
            "missing_ranks" => Self::Absent,
            _ => Self::Other,
        }
    }
}

impl<'de> Visitor<'de> for One<'_, '_> {
    type Value = Communicator;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a communicator")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Communicator, A::Error> {
        let mut one = Communicator::new(CommunicatorHash(0));
        let (mut is_named, mut has_ranks) = (false, false);
        let number = |text: &str| hash(text.strip_prefix("0x")?);
        while let Some(key) = map.next_key_seed(Seed(Text(Key::of)))? {
            match key {
                Key::Hash => {
                    let known = map.next_value_seed(Seed(Text(number)))?;
                    one.hash = known.ok_or_else(|| A::Error::custom("an invalid hash"))?;
                    is_named = true;
                }
                Key::Size => one.size = Some(map.next_value()?),
                Key::Missing => one.missing = map.next_value()?,
                Key::Ranks => {
                    map.next_value_seed(Seed(Ranks(&mut *self.0, &mut one)))?;
                    has_ranks = true;
                }
                Key::Absent => map.next_value_seed(Seed(Missing(&mut *self.0, &mut one)))?,
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if !is_named || !has_ranks || one.size.is_none() {
            return Err(A::Error::custom("a communicator without hash, size or ranks"));
        }
        one.missing = one.missing.max(count(one.absent.len()));
        Ok(one)
    }
}

struct Ranks<'r, 'a>(&'r mut Reading<'a>, &'r mut Communicator);

impl<'de> Visitor<'de> for Ranks<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ranks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(raw) = list.next_element::<RawRank>()? {
            self.0.count_entry()?;
            self.0.rank(&raw, self.1);
        }
        Ok(())
    }
}

struct Missing<'r, 'a>(&'r mut Reading<'a>, &'r mut Communicator);

impl<'de> Visitor<'de> for Missing<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ranks that are missing")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(raw) = list.next_element::<RawAbsent>()? {
            self.0.count_entry()?;
            self.0.absent(&raw, self.1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
