//! One request to an endpoint, in its server's network, after it is known who has accepted the
//! connection.

use super::ReadError;
use crate::attribute::process::Living;
use crate::collect::engine::Shared;
use crate::collect::engine::fetch::{Fetcher, Media, Target};
use crate::collect::engine::find::{Server, members_of};
use crate::collect::sockets::{accepted, held, network};
use std::net::SocketAddr;

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
    let is_server = |at: SocketAddr, client: SocketAddr| {
        server.map_or(Some(true), |server| has_accepted(shared, server, (at, client)))
    };
    Ok(fetcher.get((target, media), namespace.as_ref(), &is_server)?)
}

/// Whether a process of the server's cgroup has accepted this connection: anybody of the same user
/// and network may share a port (`SO_REUSEPORT`). `None`: not accepted yet.
fn has_accepted(
    shared: &Shared,
    server: &Server,
    (at, client): (SocketAddr, SocketAddr),
) -> Option<bool> {
    let paths = &shared.paths;
    let Some(living) = Living::same(paths, server.process) else { return Some(false) };
    let inode = accepted(&living, at, client)?;
    let holds = |living: &Living| held(living).any(|one| one == inode);
    let others = || server.cgroup.as_deref().map(members_of).unwrap_or_default();
    let is_of_others =
        || others().into_iter().filter_map(|pid| Living::find(paths, pid)).any(|one| holds(&one));
    Some(holds(&living) || is_of_others())
}
