//! Finds engines: starts and ends a reader for each, and reports the devices of each.

use super::endpoint::{Endpoint, Link};
use super::find::{Finder, Server, ServerKey};
use super::{NAME, Shared};
use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::Importance;
use gpuwho_collect::snapshot::Control;
use gpuwho_collect::source::{Late, Readers};
use gpuwho_model::catalog::agent::OwnerLimit;
use gpuwho_model::catalog::endpoint as metric;
use gpuwho_model::catalog::endpoint::PageOutcome;
use gpuwho_model::ids::EngineId;
use gpuwho_model::sample::{Agent, Batch, EngineGpu};
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::quota::QuotaKey;
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
                let engine = server.engine.map_or("unknown", |engine| engine.name);
                tracing::info!(engine, process = %server.process, at = %server.at,
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

    fn importance(&self) -> Importance {
        Importance::Extra
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ENGINES;
    use crate::settings::Settings;
    use gpuwho_model::ids::ProcKey;
    use gpuwho_owners::attribute::Evidence;
    use gpuwho_owners::attribute::fake::{FakeHost, opened, v2};
    use gpuwho_owners::attribute::ownership::Ownership;
    use gpuwho_owners::tenant_files::TenantFiles;
    use std::sync::Arc;
    use std::time::Duration;

    /// A host with jobs whose servers are made up.
    struct Bench {
        finder: EngineFinder,
        late: Late,
        _host: FakeHost,
    }

    impl Bench {
        fn new() -> Self {
            let host = FakeHost::new();
            let ownership = Ownership::new(&host.paths);
            let settings = Settings::resolve(<_>::default()).unwrap();
            let interval = Duration::from_secs(10);
            let shared = settings.shared(&host.paths, &ownership, <_>::default(), interval);
            let finder = Finder::new(&TenantFiles::direct(&host.paths), &ownership, &settings);
            let (late, readers) = (Late::default(), Readers::default());
            let finder = EngineFinder::new(finder, &shared, (&late, &readers), 1);
            Self { finder, late, _host: host }
        }

        /// So many servers of a job.
        fn servers(&self, job: u64, count: u32) -> Vec<Server> {
            let ownership = &self.finder.shared.ownership;
            let path = format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0");
            ownership.observe(Evidence::CgroupMade { id: v2(job), path: Arc::from(path) });
            let server = |number: u32| {
                let pid = u32::try_from(job).unwrap() * 1_000 + number;
                let process = ProcKey { pid, start_ticks: 1 };
                ownership.observe(Evidence::Opened(opened(process, job, 1_000_000_000)));
                Server {
                    engine: Some(ENGINES[0]),
                    annotated: None,
                    process,
                    network: 1,
                    at: ([127, 0, 0, 1], 8000).into(),
                    cgroup: None,
                    owner: ownership.attribution(process).unwrap(),
                    holders: vec![process],
                }
            };
            (0..count).map(server).collect()
        }

        /// How many engines of a job are read.
        fn of(&self, job: u32) -> usize {
            let keys = self.finder.running.values();
            let pids = keys.filter_map(|running| running.link.get()).map(|one| one.process.pid);
            pids.filter(|pid| pid / 1_000 == job).count()
        }

        fn refused(&self) -> u64 {
            let all = self.finder.shared.ownership.refused().into_iter();
            all.filter(|(_, limit, _)| *limit == OwnerLimit::Engines).map(|(.., count)| count).sum()
        }
    }

    #[test]
    fn an_owner_has_so_many_engines_and_what_is_too_much_is_counted_once() {
        let mut bench = Bench::new();
        let count = u32::try_from(MAX_OF_OWNER).unwrap() + 4;
        let servers = bench.servers(1, count);
        bench.finder.update(&servers);
        bench.finder.update(&servers);
        assert_eq!((bench.of(1), bench.refused()), (MAX_OF_OWNER, 4));
        assert_eq!(bench.late.take().len(), MAX_OF_OWNER);
        // One that ends makes room.
        bench.finder.update(&servers[1..]);
        assert_eq!((bench.of(1), bench.refused()), (MAX_OF_OWNER, 4));
    }

    #[test]
    fn where_there_is_no_room_the_owner_with_the_most_gives_one() {
        let mut bench = Bench::new();
        let jobs = u64::try_from(MAX_ENGINES / MAX_OF_OWNER).unwrap();
        let count = u32::try_from(MAX_OF_OWNER).unwrap();
        let mut servers: Vec<Server> =
            (1..=jobs).flat_map(|job| bench.servers(job, count)).collect();
        bench.finder.update(&servers);
        servers.extend(bench.servers(99, 2));
        bench.finder.update(&servers);
        assert_eq!(bench.finder.running.len(), MAX_ENGINES);
        assert_eq!(bench.of(99), 2);
        // Nobody's place goes to and fro.
        let parts = bench.finder.next_part;
        bench.finder.update(&servers);
        assert_eq!((bench.of(99), bench.finder.next_part), (2, parts));
    }
}
