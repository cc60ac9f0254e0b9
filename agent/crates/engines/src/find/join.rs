//! Servers and the processes that hold a device: whose they are.

use super::tree::{Branches, Tree};
use super::{Finder, Server, is_one_tenant};
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::attribute::ProcessAttribution;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Finder {
    /// The servers whose owner and real user somebody has who holds a device, with those of them
    /// that are the nearest.
    pub(super) fn joined(
        &self,
        servers: impl Iterator<Item = Server>,
        holders: &[Arc<ProcessAttribution>],
        tree: &Tree,
    ) -> Vec<Server> {
        let is_one = holders.iter().all(|holder| is_one_tenant(holder));
        let user = |process: ProcKey| {
            if is_one {
                return Some(0);
            }
            tree.living.get(&process.pid).filter(|living| living.key == process)?.uid()
        };
        let mut by_user: BTreeMap<u32, Vec<&Arc<ProcessAttribution>>> = BTreeMap::new();
        for holder in holders {
            if let Some(user) = user(holder.process) {
                by_user.entry(user).or_default().push(holder);
            }
        }
        let mut joined: BTreeMap<u32, Vec<Server>> = BTreeMap::new();
        for server in servers {
            let Some(user) = user(server.process) else { continue };
            let owner = self.ownership.attribution(server.process).map(|known| known.owner);
            let is_of =
                |holder: &&&Arc<ProcessAttribution>| owner.is_none_or(|one| one == holder.owner);
            let Some(first) = by_user.get(&user).and_then(|all| all.iter().find(is_of)) else {
                continue;
            };
            let server = Server { owner: Arc::clone(first), holders: Vec::new(), ..server };
            joined.entry(user).or_default().push(server);
        }
        for (user, servers) in &mut joined {
            let branches = Branches::new(servers.iter().map(|server| server.process), tree);
            for holder in by_user.get(user).into_iter().flatten() {
                let nearest = branches.nearest(&tree.path(holder.process.pid));
                let is_it = |server: &&mut Server| {
                    Some(server.process) == nearest && server.owner.owner == holder.owner
                };
                if let Some(server) = servers.iter_mut().find(is_it) {
                    server.holders.push(holder.process);
                    server.owner = Arc::clone(holder);
                }
            }
        }
        joined.into_values().flatten().collect()
    }
}
