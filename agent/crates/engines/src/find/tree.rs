//! The tree of a group's processes: which server is the nearest to each.

use gpuwho_model::ids::ProcKey;
use gpuwho_owners::process::Living;
use gpuwho_owners::tenant_files::TenantFiles;
use std::collections::HashMap;

/// Parents of a process that are followed.
const MAX_PARENTS: usize = 16;

/// The processes of a group, and who started whom.
pub(super) struct Tree {
    pub(super) living: HashMap<u32, Living>,
    parents: HashMap<u32, u32>,
}

impl Tree {
    pub(super) fn read(files: &TenantFiles, members: impl Iterator<Item = u32>) -> Self {
        let living = members.filter_map(|pid| Some((pid, Living::find(files.paths(), pid)?)));
        let living: HashMap<u32, Living> = living.collect();
        let parents = living.iter().map(|(pid, living)| (*pid, living.parent)).collect();
        Self { living, parents }
    }

    /// A process and its parents, itself first; those outside the group end it.
    pub(super) fn path(&self, pid: u32) -> Vec<u32> {
        path(&self.parents, pid)
    }
}

fn path(parents: &HashMap<u32, u32>, pid: u32) -> Vec<u32> {
    let next = |pid: &u32| parents.get(pid).copied();
    std::iter::successors(Some(pid), next).take(MAX_PARENTS).collect()
}

/// The servers of a group, by the branches that they are on.
pub(super) struct Branches {
    /// The only server of a group is everybody's.
    only: Option<ProcKey>,
    at: HashMap<u32, ProcKey>,
    /// Below each process: the server, or that there are several.
    below: HashMap<u32, Option<ProcKey>>,
}

impl Branches {
    pub(super) fn new(servers: impl Iterator<Item = ProcKey>, tree: &Tree) -> Self {
        let at: HashMap<u32, ProcKey> = servers.map(|server| (server.pid, server)).collect();
        let only = at.values().next().copied().filter(|_| at.len() == 1);
        let mut below: HashMap<u32, Option<ProcKey>> = HashMap::new();
        for server in at.values() {
            for pid in tree.path(server.pid) {
                let one = below.entry(pid).or_insert(Some(*server));
                *one = one.filter(|one| one == server);
            }
        }
        Self { only, at, below }
    }

    /// Of servers the one whose branch a process is on: the first of its parents, itself included,
    /// below which there is a server has exactly one there.
    pub(super) fn nearest(&self, process: &[u32]) -> Option<ProcKey> {
        let of = |pid: &u32| {
            self.at.get(pid).copied().map(Some).or_else(|| self.below.get(pid).copied())
        };
        self.only.or_else(|| process.iter().find_map(of).flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: u32) -> ProcKey {
        ProcKey { pid, start_ticks: 1 }
    }

    /// The server of each process in a tree of parents.
    fn servers(parents: &[(u32, u32)], servers: &[u32], of: &[u32]) -> Vec<Option<u32>> {
        let tree = Tree { living: HashMap::new(), parents: parents.iter().copied().collect() };
        let branches = Branches::new(servers.iter().map(|pid| key(*pid)), &tree);
        let nearest = |pid: &u32| branches.nearest(&tree.path(*pid));
        of.iter().map(|pid| nearest(pid).map(|server| server.pid)).collect()
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
