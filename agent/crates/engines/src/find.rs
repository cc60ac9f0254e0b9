//! Finds the engines' servers among the processes that hold a device and those that share their
//! cgroup: the API server of an engine often holds no device itself.
//!
//! A process is a server where it is an engine's by its program, title or arguments *and* listens on
//! the port that the engine was given or has by default; where the configuration says so, also where
//! it listens on the port that its pod's annotations name. Its sockets are looked up in its own
//! network namespace; nothing is sent to anybody. Processes that hold a device belong to the server
//! of the same owner and real user that is the nearest to them in the tree of processes; where two are
//! as near, to neither. A server of whose owner and user nobody holds a device is none.
//!
//! A cgroup is looked at when it appears, then after each of twice the time up to [`SELDOM`]: some
//! 60 µs a process, 15 µs one that is known to be no server or a new fork of one, and at most a [`Budget`]
//! an owner and reading: the next reading goes on where it ended. One without a server, and with the same processes
//! since, is looked at after [`quiet::FIRST`], then after twice the time each, up to [`quiet::NO_SERVER`]: one
//! that becomes a server without starting a process is found so much later.

mod annotated;
mod budget;
mod join;
mod quiet;
mod tree;

pub(super) use annotated::Annotated;
pub(super) use quiet::members_of;

use super::recognize::CommandLine;
use super::settings::Settings;
use super::table::Engine;
use budget::Budget;
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::hierarchies::Hierarchies;
use gpuwho_owners::attribute::ownership::{Ownership, Version};
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::process::Living;
use gpuwho_owners::sockets::{Allowance, held, listeners, network_of, reachable};
use gpuwho_owners::tenant_files::{ProcFile, TenantFiles};
use quiet::{Others, Quiet, members};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tree::Tree;

/// The second look at a cgroup comes after this, each later one after twice the time.
const SOON: Duration = Duration::from_secs(1);
/// The longest between two looks: an engine that loads a model for minutes is found this much later.
const SELDOM: Duration = Duration::from_secs(30);
/// Bytes of a command line that are read.
const MAX_COMMAND_LINE: u64 = 32 << 10;

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
struct KnownGroup {
    holders: Vec<ProcKey>,
    next: Instant,
    wait: Duration,
    servers: Vec<Server>,
    /// The process with which the next look goes on, if the last did not come to the end.
    goes_on: Option<u32>,
    /// Where and when no process was a server by what it runs.
    quiet: Option<Quiet>,
}

/// What a look at a group gives.
struct Found {
    servers: Vec<Server>,
    goes_on: Option<u32>,
    quiet: Option<Quiet>,
}

/// Those that listen, by network, while a group is looked at.
type Listeners = HashMap<u64, Vec<(SocketAddr, u64)>>;

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
    groups: BTreeMap<Group, KnownGroup>,
    /// Processes that are no server by what they run.
    others: Others,
    /// Until when there is nothing to look at, while the table of holders is the same.
    rests: Option<(Version, Instant)>,
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
            others: Others::default(),
            rests: None,
        }
    }

    /// Every server there is now.
    pub(super) fn find(&mut self, now: Instant) -> Vec<Server> {
        let version = self.ownership.version();
        if self.rests.is_some_and(|(since, until)| since == version && now < until) {
            return Vec::new();
        }
        let mut groups: BTreeMap<Group, Vec<Arc<ProcessAttribution>>> = BTreeMap::new();
        for holder in self.ownership.openers() {
            if self.is_wanted(&holder) {
                let group = holder.cgroup.clone().map(Group::Cgroup);
                let group = group.unwrap_or(Group::Process(holder.process));
                groups.entry(group).or_default().push(holder);
            }
        }
        self.groups.retain(|group, _| groups.contains_key(group));
        let mut budgets: HashMap<QuotaKey, Budget> = HashMap::new();
        let all = groups.len();
        for (group, holders) in groups {
            let Some(first) = holders.first() else { continue };
            let owner = self.ownership.key_of(Some(first));
            let budget = budgets.entry(owner).or_insert_with(Budget::new);
            if !budget.is_used_up() {
                self.update(&group, &holders, now, budget);
            }
        }
        let servers: Vec<Server> =
            self.groups.values().flat_map(|known| known.servers.iter().cloned()).collect();
        let is_whole =
            self.groups.len() == all && self.groups.values().all(|one| one.goes_on.is_none());
        let until = self.groups.values().map(|known| known.next).min();
        self.rests =
            (servers.is_empty() && is_whole).then(|| (version, until.unwrap_or(now + SELDOM)));
        servers
    }

    fn is_wanted(&self, holder: &ProcessAttribution) -> bool {
        let namespace = || holder.workload.pod.as_ref()?.namespace.as_deref();
        self.namespaces.is_empty() || namespace().is_some_and(|name| self.namespaces.contains(name))
    }

    /// Looks at a group where it is its time, or who holds a device in it has changed.
    fn update(
        &mut self,
        group: &Group,
        holders: &[Arc<ProcessAttribution>],
        now: Instant,
        budget: &mut Budget,
    ) {
        let mut keys: Vec<ProcKey> = holders.iter().map(|holder| holder.process).collect();
        keys.sort_unstable();
        let known = self.groups.get(group);
        let has_changed = known.is_none_or(|known| known.holders != keys);
        let has_ended = |server: &Server| !Living::is_alive(self.files.paths(), server.process);
        let is_due = has_changed
            || known.is_some_and(|known| {
                known.goes_on.is_some() || known.next <= now || known.servers.iter().any(has_ended)
            });
        if !is_due {
            return;
        }
        let wait = match known {
            Some(known) if !has_changed => (known.wait * 2).min(SELDOM),
            _ => SOON,
        };
        let mut known = self.groups.remove(group);
        let before = known.as_mut().and_then(|known| known.quiet.take()).filter(|_| !has_changed);
        let is_quiet = before.as_ref().is_some_and(|quiet| quiet.lasts(holders, now));
        let found = if is_quiet {
            Found { servers: Vec::new(), goes_on: None, quiet: before }
        } else {
            let known = known.map(|known| (known.servers, known.goes_on)).unwrap_or_default();
            let found = self.look((group, holders), known, now, budget);
            Found { quiet: found.quiet.map(|quiet| quiet.after(before.as_ref())), ..found }
        };
        let Found { servers, goes_on, quiet } = found;
        let known = KnownGroup { holders: keys, next: now + wait, wait, servers, goes_on, quiet };
        self.groups.insert(group.clone(), known);
    }

    /// The servers of a group, each with its processes that hold a device; and with which process the
    /// next look goes on. `known`: what the last look gave.
    fn look(
        &mut self,
        (group, holders): (&Group, &[Arc<ProcessAttribution>]),
        (known, from): (Vec<Server>, Option<u32>),
        now: Instant,
        budget: &mut Budget,
    ) -> Found {
        let mut since = Instant::now();
        let cgroup = match group {
            Group::Cgroup(path) => self.directory(path, holders),
            Group::Process(_) => None,
        };
        let members = members(cgroup.as_deref(), holders);
        let tree = Tree::read(&self.files, members.iter().copied());
        let (mut found, mut listeners) = (Vec::new(), Listeners::new());
        let (mut is_first, mut goes_on) = (true, None);
        for pid in members.range(from.unwrap_or(0)..) {
            let (Some(living), Some(owner)) = (tree.living.get(pid), holders.first()) else {
                continue;
            };
            budget.spend(&mut since);
            if !is_first && budget.is_used_up() {
                goes_on = Some(*pid);
                break;
            }
            budget.take_process();
            let with = (&budget.entries, &mut listeners);
            let parent = tree.living.get(&living.parent);
            let of = (owner, cgroup.as_ref());
            found.extend(self.server((living, parent), of, now, with));
            if !is_first && budget.entries.is_used_up() {
                // Perhaps not whole: the next look begins with it.
                goes_on = Some(*pid);
                break;
            }
            is_first = false;
        }
        budget.spend(&mut since);
        // Those of processes that are looked at another time are there as long as they are.
        let is_looked_at =
            |pid: u32| pid >= from.unwrap_or(0) && goes_on.is_none_or(|next| pid < next);
        let is_there = |server: &Server| {
            tree.living.get(&server.process.pid).is_some_and(|one| one.key == server.process)
        };
        let known = known.into_iter();
        found.extend(known.filter(|one| !is_looked_at(one.process.pid) && is_there(one)));
        let mut servers: BTreeMap<(u64, u16), Server> = BTreeMap::new();
        for found in found {
            // Of those that share a port the first one serves: the others are its children.
            let place = (found.network, found.at.port());
            let known = servers.entry(place).or_insert_with(|| found.clone());
            if order(found.process) < order(known.process) {
                *known = found;
            }
        }
        let servers = self.joined(servers.into_values(), holders, &tree);
        let is_other =
            |pid: &u32| tree.living.get(pid).is_some_and(|living| self.others.has(living, now));
        let is_quiet = servers.is_empty() && goes_on.is_none() && members.iter().all(is_other);
        let quiet = is_quiet.then_some(Quiet { since: now, length: quiet::FIRST, cgroup, members });
        Found { servers, goes_on, quiet }
    }

    /// Whether a process is a server, and where its page is: on the port that its pod names, else on
    /// its engine's.
    fn server(
        &mut self,
        (living, parent): (&Living, Option<&Living>),
        (owner, cgroup): (&Arc<ProcessAttribution>, Option<&PathBuf>),
        now: Instant,
        (looks, tables): (&Allowance, &mut Listeners),
    ) -> Option<Server> {
        let process = living.key;
        let annotated = self.by_annotations.then(|| Annotated::of(owner)).flatten();
        if annotated.is_none() && self.others.knows(living, parent, now) {
            return None;
        }
        let command = self.command_line(living)?;
        let engine = command.engine();
        if engine.is_none() && annotated.is_none() {
            self.others.add(living, now);
            return None;
        }
        self.others.remove(process);
        let ports = engine.map(|engine| command.ports(engine)).unwrap_or_default();
        let paths = self.files.paths();
        let network = network_of(paths, process)?;
        // A network's table is the same for all of the group.
        let table = tables.entry(network).or_insert_with(|| listeners(living, looks).collect());
        let named = annotated.as_ref().map(|annotated| annotated.port);
        let is_asked = |port: u16| named == Some(port) || ports.contains(&port);
        let asked: Vec<_> = table.iter().filter(|(at, _)| is_asked(at.port())).collect();
        if asked.is_empty() {
            return None;
        }
        let mine: HashSet<u64> = held(living, looks).collect();
        // This very process, still: what was read is about it.
        Living::same(paths, process)?;
        let on = |port: u16| {
            let mine = asked.iter().filter(|(_, inode)| mine.contains(inode)).map(|(at, _)| at);
            mine.filter(|at| at.port() == port).min()
        };
        let named = named.and_then(on);
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

/// Whether a pod, a job or a container is the owner: whatever users it has, they are one tenant's.
pub(super) fn is_one_tenant(owner: &ProcessAttribution) -> bool {
    let workload = &owner.workload;
    workload.pod.is_some() || workload.slurm.is_some() || workload.container.is_some()
}

/// Parents come before their children.
fn order(process: ProcKey) -> (u64, u32) {
    (process.start_ticks, process.pid)
}

#[cfg(test)]
mod tests;
