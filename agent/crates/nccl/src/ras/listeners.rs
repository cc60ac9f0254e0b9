//! Finds NCCL's status socket of a process among its own sockets: nothing is configured, and the
//! agent connects only to a port that the process itself has open where NCCL would.
//!
//! Reads a process's descriptors and the listening part of its network's socket table: about a
//! millisecond for a process with 500 descriptors, once when it is new and once a round.

use gpuwho_model::ids::ProcKey;
use gpuwho_owners::process::Living;
use gpuwho_owners::sockets::{Allowance, held, listening, network_of, reachable};
use gpuwho_owners::tenant_files::{ProcFile, TenantFiles};
use std::collections::{BTreeSet, HashSet};
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};

/// Default of `NCCL_RAS_CLIENT_PORT`.
const DEFAULT_PORT: u16 = 28_028;
/// The variable that overrides the address.
const ADDRESS: &str = "NCCL_RAS_ADDR";
/// The variable that disables the socket.
const ENABLE: &str = "NCCL_RAS_ENABLE";
/// Limit on the bytes of an environment, as for the other variables that the agent reads.
const MAX_ENVIRONMENT: u64 = 128 << 10;
/// Limit on the addresses of a process. NCCL listens on one for each network interface it uses, and
/// on one for its peers.
const MAX_HOSTS: usize = 16;

/// A process's identity and addresses for NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RasEndpoint {
    /// Inode of its network namespace.
    pub network: u64,
    /// Its PID in its own namespace.
    pub inside: u32,
    /// Addresses it listens on: one of them is its node's address for NCCL.
    pub hosts: BTreeSet<IpAddr>,
    /// Its status socket, as reachable from its own network namespace.
    pub client: Option<SocketAddr>,
}

/// Reads a process's endpoint; `None` if the process has ended or is not accessible.
pub(super) fn look(files: &TenantFiles, process: ProcKey) -> Option<RasEndpoint> {
    let paths = files.paths();
    let living = Living::same(paths, process)?;
    let network = network_of(paths, process)?;
    let inside = living.status()?.innermost_pid()?;
    let looks = Allowance::default();
    let mine: HashSet<u64> = held(&living, &looks).collect();
    let wanted = wanted_port(files, process);
    let (clients, others): (Vec<SocketAddr>, Vec<SocketAddr>) =
        listening(&living, &mine, &looks).into_iter().partition(|at| Some(at.port()) == wanted);
    // Still the same process, so everything read belongs to it.
    Living::same(paths, process)?;
    let hosts = others.iter().map(|at| at.ip().to_canonical()).collect::<BTreeSet<_>>();
    Some(RasEndpoint {
        network,
        inside,
        hosts: hosts.into_iter().take(MAX_HOSTS).collect(),
        client: clients.into_iter().min().map(reachable),
    })
}

/// The port that a process's environment names; the default if it cannot be read, because its pages
/// may be on a file system that never answers.
fn wanted_port(files: &TenantFiles, process: ProcKey) -> Option<u16> {
    let mut bytes = Vec::new();
    if let Ok(file) = files.proc_file(process, ProcFile::Environment) {
        // Whatever was read before an error counts.
        let _ = file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes);
    }
    let wanted = port(&String::from_utf8_lossy(&bytes));
    bytes.fill(0);
    wanted
}

/// The port that NCCL uses; `None` if the socket is disabled.
fn port(environment: &str) -> Option<u16> {
    let variable = |name: &str| {
        let mut all = environment.split('\0').filter_map(|one| one.split_once('='));
        all.find(|(known, _)| *known == name).map(|(_, value)| value)
    };
    if variable(ENABLE).is_some_and(|value| value.trim() == "0") {
        return None;
    }
    let Some(address) = variable(ADDRESS) else { return Some(DEFAULT_PORT) };
    address.rsplit_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_the_default_unless_the_job_overrides_it() {
        assert_eq!(port("A=1\0PATH=/\0"), Some(28_028));
        assert_eq!(port("NCCL_RAS_ADDR=localhost:29000\0"), Some(29_000));
        assert_eq!(port("A=1\0NCCL_RAS_ADDR=[::1]:29001"), Some(29_001));
        assert_eq!(port("NCCL_RAS_ENABLE=0\0NCCL_RAS_ADDR=localhost:29000\0"), None);
        assert_eq!(port("NCCL_RAS_ADDR=nonsense\0"), None);
    }
}
