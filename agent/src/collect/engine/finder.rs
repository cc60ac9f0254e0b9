//! The part of the source that finds: starts and ends the others, and tells on which devices each
//! engine is.

use super::endpoint::{Endpoint, Link};
use super::find::{Finder, Server, ServerKey};
use super::{NAME, Shared};
use crate::attribute::quota::QuotaKey;
use crate::catalog::agent::OwnerLimit;
use crate::catalog::endpoint::{self as metric, PageOutcome};
use crate::collect::Collector;
use crate::collect::device::snapshot::Control;
use crate::collect::source::{Late, Readers};
use crate::collect::status::Report;
use crate::engines::EngineId;
use crate::sample::{Agent, Batch, EngineGpu};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Instant;

/// Engines of one owner that are read: a pod or a job has one for each of its devices at most.
pub(super) const MAX_OF_OWNER: usize = 16;
/// Engines that are read: each is a thread, a connection a request, and some hundred kB.
pub(super) const MAX_ENGINES: usize = 128;

/// The collector that finds engines.
#[derive(Debug)]
pub(super) struct EngineFinder {
    finder: Finder,
    shared: Shared,
    late: Late,
    readers: Readers,
    next_part: u32,
    running: BTreeMap<ServerKey, Running>,
    /// Those that found no room.
    refused: HashSet<ServerKey>,
}

/// An engine that is read.
#[derive(Debug)]
struct Running {
    id: EngineId,
    owner: QuotaKey,
    link: Link,
}

impl EngineFinder {
    /// Numbers the parts from `first_part` on.
    pub(super) fn new(
        finder: Finder,
        shared: &Shared,
        (late, readers): (&Late, &Readers),
        first_part: u32,
    ) -> Self {
        Self {
            finder,
            shared: shared.clone(),
            late: late.clone(),
            readers: readers.clone(),
            next_part: first_part,
            running: BTreeMap::new(),
            refused: HashSet::new(),
        }
    }

    /// Ends the parts of servers that are gone, and starts those of new ones.
    fn update(&mut self, servers: &[Server]) {
        let there: BTreeMap<ServerKey, &Server> =
            servers.iter().map(|server| (server.key(), server)).collect();
        self.running.retain(|key, running| {
            let server = there.get(key).map(|server| (*server).clone());
            let is_there = server.is_some();
            running.link.put(server);
            is_there
        });
        self.refused.retain(|key| there.contains_key(key));
        for (key, server) in there {
            if !self.running.contains_key(&key) {
                self.start(key, server);
            }
        }
        self.shared.endpoints.set_refused(self.refused.len());
    }

    fn start(&mut self, key: ServerKey, server: &Server) {
        let ownership = &self.shared.ownership;
        let owner = ownership.key_of(Some(&server.owner));
        let (mine, makes_way) = self.room(owner);
        if mine >= MAX_OF_OWNER || (self.running.len() >= MAX_ENGINES && makes_way.is_none()) {
            if self.refused.insert(key) {
                ownership.refuse(owner, OwnerLimit::Engines, 1);
            }
            return;
        }
        if let Some(gone) = makes_way.and_then(|key| self.running.remove(&key)) {
            gone.link.put(None);
            ownership.refuse(gone.owner, OwnerLimit::Engines, 1);
        }
        match Endpoint::found(self.next_part, server.clone(), &self.shared) {
            Ok((endpoint, link)) => {
                tracing::info!(engine = server.engine.name, process = %server.process, at = %server.at,
                    "reading an inference engine");
                self.next_part = self.next_part.wrapping_add(1).max(1);
                let id = endpoint.id();
                self.running.insert(key, Running { id, owner, link });
                self.refused.remove(&key);
                self.late.push(Box::new(endpoint));
            }
            // Tried again at the next reading.
            Err(error) => tracing::warn!(%error, "an inference engine is not read"),
        }
    }

    /// How many an owner has, and where there is no room, one of the owner that has the most, if
    /// it has more than this one will.
    fn room(&self, owner: QuotaKey) -> (usize, Option<ServerKey>) {
        let mut held: HashMap<QuotaKey, usize> = HashMap::new();
        for running in self.running.values() {
            *held.entry(running.owner).or_default() += 1;
        }
        let mine = held.get(&owner).copied().unwrap_or_default();
        if self.running.len() < MAX_ENGINES {
            return (mine, None);
        }
        let most = held.into_iter().max_by_key(|(_, count)| *count);
        let giver = most.filter(|(_, count)| *count > mine + 1).map(|(giver, _)| giver);
        let of_giver = |(_, running): &(&ServerKey, &Running)| Some(running.owner) == giver;
        let last = self.running.iter().rev().find(of_giver);
        (mine, last.map(|(key, _)| *key))
    }

    /// The devices of each engine, by what the drivers list.
    fn report_devices(&self, servers: &[Server], out: &mut Batch) {
        let snapshots = self.readers.all().iter().map(Control::snapshot).collect::<Vec<_>>();
        let devices = || snapshots.iter().flat_map(|snapshot| &snapshot.devices);
        for server in servers {
            let Some(running) = self.running.get(&server.key()) else { continue };
            let mut on = BTreeSet::new();
            for device in devices() {
                for process in &device.processes {
                    if process.process.is_some_and(|process| server.holders.contains(&process)) {
                        on.insert((device.gpu, process.instance));
                    }
                }
            }
            for (gpu, instance) in on {
                let subject = EngineGpu { engine: running.id, gpu, instance };
                out.push(metric::INFO.sample(subject, (), 1));
            }
        }
    }
}

impl Collector for EngineFinder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self, out: &mut Batch) {
        let servers = self.finder.find(Instant::now());
        self.update(&servers);
        self.report_devices(&servers, out);
        for (outcome, count) in PageOutcome::ALL.iter().zip(self.shared.endpoints.outcomes()) {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            out.push(metric::REQUESTS.sample(Agent, *outcome, count));
        }
    }

    fn report(&self) -> Report {
        self.shared.endpoints.report()
    }
}
