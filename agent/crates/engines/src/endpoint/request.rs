//! One request to an endpoint, in its server's network, after it is known who has accepted the
//! connection.

use super::ReadError;
use crate::Shared;
use crate::fetch::{Fetcher, Media, Target};
use crate::find::{Server, is_one_tenant, members_of};
use gpuwho_model::paths::Paths;
use gpuwho_owners::process::Living;
use gpuwho_owners::sockets::{Allowance, accepted, held, network};
use std::net::SocketAddr;

/// What a process costs beside its descriptors, in such.
const PROCESS_ENTRIES: usize = 16;

/// Gets a page or a document.
pub(super) fn get<'a>(
    fetcher: &'a mut Fetcher,
    shared: &Shared,
    server: Option<&Server>,
    target: &Target,
    media: Media,
) -> Result<&'a [u8], ReadError> {
    let paths = &shared.paths;
    let namespace = match server {
        Some(server) if shared.own_network != Some(server.network) => {
            let entered = network(paths, server.process, server.network);
            Some(entered.ok_or(ReadError::Gone)?)
        }
        _ => None,
    };
    let is_server = |looks: &Allowance, ends| {
        server.map_or(Some(true), |server| has_accepted(paths, server, ends, looks))
    };
    Ok(fetcher.get((target, media), namespace.as_ref(), &is_server)?)
}

/// Whether a process of the server's cgroup and user has accepted this connection: anybody of the same
/// user and network may share a port (`SO_REUSEPORT`). `None`: not accepted yet. The server itself and
/// its nearest are looked at first; what `looks` do not allow counts as no process of the server's.
fn has_accepted(
    paths: &Paths,
    server: &Server,
    ends: (SocketAddr, SocketAddr),
    looks: &Allowance,
) -> Option<bool> {
    let Some(living) = Living::same(paths, server.process) else { return Some(false) };
    let inode = accepted(&living, ends, looks)?;
    let holds = |living: &Living| held(living, looks).any(|one| one == inode);
    if holds(&living) {
        return Some(true);
    }
    let user = living.uid();
    let is_one = is_one_tenant(&server.owner);
    let is_of_user = |one: &Living| is_one || (user.is_some() && one.uid() == user);
    let find = |pid: u32| looks.take(PROCESS_ENTRIES).then(|| Living::find(paths, pid)).flatten();
    let others = server.cgroup.as_deref().map(members_of).unwrap_or_default().into_iter();
    let others = others.filter(|pid| *pid != living.key.pid).filter_map(find);
    let mut others: Vec<(u8, u32)> =
        others.map(|one| (distance(&one, &living), one.key.pid)).collect();
    others.sort_unstable();
    Some(
        others
            .into_iter()
            .filter_map(|(_, pid)| find(pid))
            .any(|one| is_of_user(&one) && holds(&one)),
    )
}

/// How far a process is from the server: its children come first, then its parent and siblings.
fn distance(one: &Living, server: &Living) -> u8 {
    match () {
        () if one.parent == server.key.pid => 0,
        () if one.key.pid == server.parent => 1,
        () if one.parent == server.parent => 2,
        () => 3,
    }
}

#[cfg(test)]
mod tests;
