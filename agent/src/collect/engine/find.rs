//! Finds the engines' servers among the processes that hold a device and those that share their
//! cgroup: the API server of an engine often holds no device itself.
//!
//! A process is a server where it is an engine's by its program, title or arguments *and* listens on
//! the port that the engine was given or has by default; where the configuration says so, also where
//! it listens on the port that its pod's annotations name. Its sockets are looked up in its own
//! network namespace; nothing is sent to anybody. Processes that hold a device belong to the server
//! that is the nearest to them in the tree of processes; where two are as near, to neither.
//!
//! A cgroup is looked at when it appears, then after each of twice the time up to [`SELDOM`]: some
//! 60 µs a process, 15 µs one that is known to be no server, and at most [`LOOK_BUDGET`] an owner and
//! reading.

mod annotated;

pub(super) use annotated::Annotated;

use super::recognize::CommandLine;
use super::settings::Settings;
use super::table::Engine;
use crate::attribute::ProcessAttribution;
use crate::attribute::hierarchies::Hierarchies;
use crate::attribute::ownership::Ownership;
use crate::attribute::process::Living;
use crate::attribute::quota::QuotaKey;
use crate::attribute::slurm::inspect::pids;
use crate::collect::sockets::{held, listening, network_of, reachable};
use crate::ids::ProcKey;
use crate::tenant_files::{ProcFile, TenantFiles};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The second look at a cgroup comes after this, each later one after twice the time.
const SOON: Duration = Duration::from_secs(1);
/// The longest between two looks: an engine that loads a model for minutes is found this much later.
const SELDOM: Duration = Duration::from_secs(30);
/// Time in which the cgroups of one owner are looked at in a reading; the rest comes at the next.
const LOOK_BUDGET: Duration = Duration::from_millis(100);
/// How long a process is no server by what it runs, unless it executes another program or names
/// itself otherwise: a program can write over its arguments without either.
const NO_SERVER: Duration = Duration::from_mins(5);
/// Processes that are known to be no server; beyond that they are looked at again.
const MAX_OTHERS: usize = 4_096;
/// Processes of a cgroup that are looked at: a server has some per device.
const MAX_PROCESSES: usize = 512;
/// Bytes of a command line that are read.
const MAX_COMMAND_LINE: u64 = 32 << 10;
/// Parents of a process that are followed.
const MAX_PARENTS: usize = 16;

/// A server of an engine.
#[derive(Clone, Debug)]
pub(super) struct Server {
    /// Which engine its signs are of; unknown where only its pod names the port.
    pub engine: Option<&'static Engine>,
    /// The pod's annotations about its page.
    pub annotated: Option<Annotated>,
    /// The process that listens.
    pub process: ProcKey,
    /// The network namespace it is in, by inode.
    pub network: u64,
    /// Where its page is.
    pub at: SocketAddr,
    /// Where the processes are that may accept its connections.
    pub cgroup: Option<PathBuf>,
    /// The owner.
    pub owner: Arc<ProcessAttribution>,
    /// The processes of the engine that hold a device.
    pub holders: Vec<ProcKey>,
}

/// What makes a server one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ServerKey {
    process: ProcKey,
    network: u64,
    port: u16,
}

impl Server {
    /// Describes the server: engine, port, process and pod.
    pub(super) fn words(&self, engine: &str) -> String {
        let (port, pid) = (self.at.port(), self.process.pid);
        let pod = self.owner.workload.pod.as_ref();
        let pod = pod.and_then(|pod| Some((pod.namespace.as_ref()?, pod.name.as_ref()?)));
        let pod = pod.map(|(namespace, name)| format!(" of pod {namespace}/{name}"));
        format!("{engine} on port {port}{} (process {pid})", pod.unwrap_or_default())
    }

    pub(super) fn key(&self) -> ServerKey {
        let Self { process, network, at, .. } = self;
        ServerKey { process: *process, network: *network, port: at.port() }
    }
}

/// Processes that may belong together: those of a cgroup, or one of which no cgroup is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Group {
    Cgroup(Arc<str>),
    Process(ProcKey),
}

/// A group and what was found in it.
#[derive(Debug)]
struct Known {
    holders: Vec<ProcKey>,
    next: Instant,
    wait: Duration,
    servers: Vec<Server>,
}

/// Looks for servers.
#[derive(Debug)]
pub(super) struct Finder {
    files: TenantFiles,
    ownership: Ownership,
    mounts: Vec<PathBuf>,
    /// Kubernetes namespaces whose pods are searched; all if empty.
    namespaces: HashSet<String>,
    /// Whether pods name their pages themselves.
    by_annotations: bool,
    groups: BTreeMap<Group, Known>,
    /// Processes that are no server by what they run.
    others: HashMap<ProcKey, Other>,
}

/// A process that is no server by what it runs, and what would change with that.
#[derive(Debug)]
struct Other {
    comm: Arc<str>,
    arguments_at: u64,
    until: Instant,
}

impl Finder {
    pub(super) fn new(files: &TenantFiles, ownership: &Ownership, settings: &Settings) -> Self {
        let mounts = Hierarchies::new(files.paths()).mounts().into_iter();
        Self {
            files: files.clone(),
            ownership: ownership.clone(),
            mounts: mounts.map(|(_, mount)| mount).collect(),
            namespaces: settings.namespaces.iter().cloned().collect(),
            by_annotations: settings.pod_annotations,
            groups: BTreeMap::new(),
            others: HashMap::new(),
        }
    }

    /// Every server there is now.
    pub(super) fn find(&mut self, now: Instant) -> Vec<Server> {
        let mut groups: BTreeMap<Group, Vec<Arc<ProcessAttribution>>> = BTreeMap::new();
        for holder in self.ownership.openers() {
            if self.is_wanted(&holder) {
                let group = holder.cgroup.clone().map(Group::Cgroup);
                let group = group.unwrap_or(Group::Process(holder.process));
                groups.entry(group).or_default().push(holder);
            }
        }
        self.groups.retain(|group, _| groups.contains_key(group));
        let mut spent: HashMap<QuotaKey, Duration> = HashMap::new();
        for (group, holders) in groups {
            let Some(first) = holders.first() else { continue };
            let spent = spent.entry(self.ownership.key_of(Some(first))).or_default();
            let begun = Instant::now();
            if *spent < LOOK_BUDGET {
                self.update(&group, &holders, now);
            }
            *spent += begun.elapsed();
        }
        self.groups.values().flat_map(|known| known.servers.iter().cloned()).collect()
    }

    fn is_wanted(&self, holder: &ProcessAttribution) -> bool {
        let namespace = || holder.workload.pod.as_ref()?.namespace.as_deref();
        self.namespaces.is_empty() || namespace().is_some_and(|name| self.namespaces.contains(name))
    }

    /// Looks at a group where it is its time, or who holds a device in it has changed.
    fn update(&mut self, group: &Group, holders: &[Arc<ProcessAttribution>], now: Instant) {
        let mut keys: Vec<ProcKey> = holders.iter().map(|holder| holder.process).collect();
        keys.sort_unstable();
        let known = self.groups.get(group);
        let has_changed = known.is_none_or(|known| known.holders != keys);
        let has_ended = |server: &Server| !Living::is_alive(self.files.paths(), server.process);
        let is_due = has_changed
            || known.is_some_and(|known| known.next <= now || known.servers.iter().any(has_ended));
        if !is_due {
            return;
        }
        let wait = match known {
            Some(known) if !has_changed => (known.wait * 2).min(SELDOM),
            _ => SOON,
        };
        let servers = self.look(group, holders, now);
        let known = Known { holders: keys, next: now + wait, wait, servers };
        self.groups.insert(group.clone(), known);
    }

    /// The servers of a group, each with its processes that hold a device.
    fn look(
        &mut self,
        group: &Group,
        holders: &[Arc<ProcessAttribution>],
        now: Instant,
    ) -> Vec<Server> {
        let cgroup = match group {
            Group::Cgroup(path) => self.directory(path, holders),
            Group::Process(_) => None,
        };
        let mut members: BTreeSet<u32> = holders.iter().map(|holder| holder.process.pid).collect();
        if let Some(cgroup) = &cgroup {
            members.extend(members_of(cgroup));
        }
        let tree = Tree::read(&self.files, members.iter().copied());
        let mut servers: BTreeMap<(u64, u16), Server> = BTreeMap::new();
        for living in tree.living.values() {
            let Some(owner) = holders.first() else { continue };
            let Some(found) = self.server(living, owner, cgroup.as_ref(), now) else { continue };
            // Of those that share a port the first one serves: the others are its children.
            let place = (found.network, found.at.port());
            let known = servers.entry(place).or_insert_with(|| found.clone());
            if order(found.process) < order(known.process) {
                *known = found;
            }
        }
        let mut servers: Vec<Server> = servers.into_values().collect();
        let keys: Vec<ProcKey> = servers.iter().map(|server| server.process).collect();
        for holder in holders {
            let Some(nearest) = tree.nearest(holder.process, &keys) else { continue };
            if let Some(server) = servers.iter_mut().find(|server| server.process == nearest) {
                server.holders.push(holder.process);
                server.owner = Arc::clone(holder);
            }
        }
        servers
    }

    /// Whether a process is a server, and where its page is: on the port that its pod names, else on
    /// its engine's.
    fn server(
        &mut self,
        living: &Living,
        owner: &Arc<ProcessAttribution>,
        cgroup: Option<&PathBuf>,
        now: Instant,
    ) -> Option<Server> {
        let process = living.key;
        let annotated = self.by_annotations.then(|| Annotated::of(owner)).flatten();
        let is_other = |other: &Other| other.is_still(living, now);
        if annotated.is_none() && self.others.get(&process).is_some_and(is_other) {
            return None;
        }
        let command = self.command_line(living)?;
        let engine = command.engine();
        if engine.is_none() && annotated.is_none() {
            self.remember(living, now);
            return None;
        }
        let ports = engine.map(|engine| command.ports(engine)).unwrap_or_default();
        let paths = self.files.paths();
        let network = network_of(paths, process)?;
        let sockets: HashSet<u64> = held(living).collect();
        let listening = listening(living, &sockets);
        // This very process, still: what was read is about it.
        Living::same(paths, process)?;
        let on = |port: u16| listening.iter().filter(move |at| at.port() == port).min();
        let named = annotated.as_ref().and_then(|annotated| on(annotated.port));
        let at = named.or_else(|| ports.iter().find_map(|port| on(*port)))?;
        Some(Server {
            engine,
            annotated: annotated.filter(|_| named.is_some()),
            process,
            network,
            at: reachable(*at),
            cgroup: cgroup.cloned(),
            owner: Arc::clone(owner),
            holders: Vec::new(),
        })
    }

    fn remember(&mut self, living: &Living, now: Instant) {
        if self.others.len() >= MAX_OTHERS {
            self.others.retain(|_, other| other.until > now);
        }
        if self.others.len() < MAX_OTHERS {
            let (comm, until) = (Arc::clone(&living.comm), now + NO_SERVER);
            let other = Other { comm, arguments_at: living.arguments_at, until };
            self.others.insert(living.key, other);
        }
    }

    /// What a process runs; its pages may be of a file system that never answers, so a helper reads.
    fn command_line(&self, living: &Living) -> Option<CommandLine> {
        let mut bytes = Vec::new();
        let file = self.files.proc_file(living.key, ProcFile::CommandLine).ok()?;
        // What was read before it failed counts.
        let _ = file.take(MAX_COMMAND_LINE).read_to_end(&mut bytes);
        let program = living.program();
        let program = program.as_deref().and_then(Path::file_name).unwrap_or_default();
        let command = CommandLine::new(&program.to_string_lossy(), &living.comm, &bytes);
        bytes.fill(0);
        Some(command)
    }

    /// The directory of a cgroup that has one of its holders: the path is one hierarchy's.
    fn directory(&self, path: &str, holders: &[Arc<ProcessAttribution>]) -> Option<PathBuf> {
        let directories = self.mounts.iter().map(|mount| mount.join(path.trim_start_matches('/')));
        let is_there = |directory: &PathBuf| {
            let members = members_of(directory);
            holders.iter().any(|holder| members.contains(&holder.process.pid))
        };
        directories.into_iter().find(is_there)
    }
}

impl Other {
    fn is_still(&self, living: &Living, now: Instant) -> bool {
        now < self.until && (&self.comm, self.arguments_at) == (&living.comm, living.arguments_at)
    }
}

/// The processes of a cgroup.
pub(super) fn members_of(directory: &Path) -> Vec<u32> {
    pids(&directory.join("cgroup.procs"), MAX_PROCESSES)
}

/// Parents come before their children.
fn order(process: ProcKey) -> (u64, u32) {
    (process.start_ticks, process.pid)
}

/// The processes of a group, and who started whom.
struct Tree {
    living: HashMap<u32, Living>,
    parents: HashMap<u32, u32>,
}

impl Tree {
    fn read(files: &TenantFiles, members: impl Iterator<Item = u32>) -> Self {
        let living = members.filter_map(|pid| Some((pid, Living::find(files.paths(), pid)?)));
        let living: HashMap<u32, Living> = living.collect();
        let parents = living.iter().map(|(pid, living)| (*pid, living.parent)).collect();
        Self { living, parents }
    }

    /// A process and its parents, itself first; those outside the group end it.
    fn path(&self, pid: u32) -> Vec<u32> {
        path(&self.parents, pid)
    }

    /// The server that is nearest to a process.
    fn nearest(&self, process: ProcKey, servers: &[ProcKey]) -> Option<ProcKey> {
        let paths: Vec<(ProcKey, Vec<u32>)> =
            servers.iter().map(|server| (*server, self.path(server.pid))).collect();
        nearest(&self.path(process.pid), &paths)
    }
}

fn path(parents: &HashMap<u32, u32>, pid: u32) -> Vec<u32> {
    let next = |pid: &u32| parents.get(pid).copied();
    std::iter::successors(Some(pid), next).take(MAX_PARENTS).collect()
}

/// Of servers with their parents the one whose branch a process is on: the first of its parents,
/// itself included, below which there is a server has exactly one there. The only server of a group
/// is everybody's.
fn nearest(process: &[u32], servers: &[(ProcKey, Vec<u32>)]) -> Option<ProcKey> {
    if let [(only, _)] = servers {
        return Some(*only);
    }
    let itself = |pid: &u32| servers.iter().find(|(server, _)| server.pid == *pid);
    for above in process {
        if let Some((server, _)) = itself(above) {
            return Some(*server);
        }
        let mut below = servers.iter().filter(|(_, path)| path.contains(above));
        match (below.next(), below.next()) {
            (Some((only, _)), None) => return Some(*only),
            (Some(_), Some(_)) => return None,
            (None, _) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::fake::FakeHost;

    fn key(pid: u32) -> ProcKey {
        ProcKey { pid, start_ticks: 1 }
    }

    /// The server of each process in a tree of parents.
    fn servers(parents: &[(u32, u32)], servers: &[u32], of: &[u32]) -> Vec<Option<u32>> {
        let parents: HashMap<u32, u32> = parents.iter().copied().collect();
        let servers: Vec<_> = servers.iter().map(|pid| (key(*pid), path(&parents, *pid))).collect();
        let nearest = |pid: &u32| nearest(&path(&parents, *pid), &servers);
        of.iter().map(|pid| nearest(pid).map(|server| server.pid)).collect()
    }

    #[test]
    fn what_is_no_server_is_looked_at_again_once_it_runs_or_calls_itself_something_else() {
        let host = FakeHost::new();
        let process = ProcKey { pid: 7, start_ticks: 100 };
        host.start(process, "python3", "0::/\n");
        let ownership = Ownership::new(&host.paths);
        let settings = Settings::resolve(<_>::default()).unwrap();
        let mut finder = Finder::new(&TenantFiles::direct(&host.paths), &ownership, &settings);
        let now = Instant::now();
        let living = || Living::find(&host.paths, 7).unwrap();
        finder.remember(&living(), now);
        let mut is_still = |later| finder.others[&process].is_still(&living(), now + later);
        assert_eq!([Duration::ZERO, NO_SERVER].map(&mut is_still), [true, false]);
        let stat = std::fs::read_to_string(host.paths.proc.join("7/stat")).unwrap();
        let mut fields: Vec<&str> = stat.split(' ').collect();
        fields[47] = "4711";
        for other in [stat.replace("python3", "VLLM::APIServer"), fields.join(" ")] {
            host.write(process, "stat", other);
            assert!(!is_still(Duration::ZERO));
        }
    }

    #[test]
    fn workers_belong_to_the_server_that_started_them() {
        // Two API servers in one container, each with an engine core and its workers.
        let parents = [(10, 1), (11, 10), (12, 11), (13, 11), (20, 1), (21, 20), (22, 21)];
        let found = servers(&parents, &[10, 20], &[12, 13, 22, 10]);
        assert_eq!(found, [Some(10), Some(10), Some(20), Some(10)]);
    }

    #[test]
    fn siblings_belong_together_below_a_launcher_of_their_own() {
        // Two launchers, each with a router that listens and a shard that holds the device.
        let parents = [(10, 1), (11, 10), (12, 10), (20, 1), (21, 20), (22, 20)];
        assert_eq!(servers(&parents, &[11, 21], &[12, 22]), [Some(11), Some(21)]);
    }

    #[test]
    fn a_process_between_two_servers_belongs_to_neither() {
        let parents = [(10, 1), (11, 10), (12, 10), (13, 10)];
        assert_eq!(servers(&parents, &[11, 12], &[13]), [None]);
        assert_eq!(servers(&parents, &[11], &[13, 99]), [Some(11), Some(11)], "the only one");
    }
}
