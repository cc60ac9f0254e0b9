//! Which of NCCL's status sockets a process listens on, found among its own sockets: nothing is
//! configured, and no port is asked that the process itself does not have open where NCCL would.
//!
//! Reads a process's descriptors and the part of its network's table of sockets that listens: about
//! a millisecond for a process with 500 descriptors, once when it is new and once a round.

use crate::attribute::process::Living;
use crate::collect::sockets::{held, listening, network_of, reachable};
use crate::ids::ProcKey;
use crate::tenant_files::{ProcFile, TenantFiles};
use std::collections::{BTreeSet, HashSet};
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};

/// `NCCL_RAS_CLIENT_PORT`.
const USUAL_PORT: u16 = 28_028;
/// Where it is said otherwise.
const ADDRESS: &str = "NCCL_RAS_ADDR";
/// Whether there is any.
const ENABLE: &str = "NCCL_RAS_ENABLE";
/// Bytes of an environment that are read, as of the other variables that the agent looks for.
const MAX_ENVIRONMENT: u64 = 128 << 10;
/// Addresses of a process that are kept. NCCL listens on one for each network interface it uses,
/// and on one for its peers.
const MAX_HOSTS: usize = 16;

/// Where a process is for NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RasEndpoint {
    /// Its network namespace, by inode.
    pub network: u64,
    /// Its number in its own PID namespace.
    pub inside: u32,
    /// Addresses it listens on: one of them is its node's for NCCL.
    pub hosts: BTreeSet<IpAddr>,
    /// Its status socket, as it can be connected to from its own network.
    pub client: Option<SocketAddr>,
}

/// Looks at a process; `None` if it is gone or not ours to look at.
pub(super) fn look(files: &TenantFiles, process: ProcKey) -> Option<RasEndpoint> {
    let paths = files.paths();
    let living = Living::same(paths, process)?;
    let network = network_of(paths, process)?;
    let status = living.read("status")?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inside = match numbers {
        Some(numbers) => numbers.split_ascii_whitespace().next_back()?.parse().ok()?,
        None => process.pid,
    };
    let mine: HashSet<u64> = held(&living).collect();
    let wanted = wanted_port(files, process);
    let (clients, others): (Vec<SocketAddr>, Vec<SocketAddr>) =
        listening(&living, &mine).into_iter().partition(|at| Some(at.port()) == wanted);
    // This very process, still: what was read is about it.
    Living::same(paths, process)?;
    let hosts = others.iter().map(|at| at.ip().to_canonical()).collect::<BTreeSet<_>>();
    Some(RasEndpoint {
        network,
        inside,
        hosts: hosts.into_iter().take(MAX_HOSTS).collect(),
        client: clients.into_iter().min().map(reachable),
    })
}

/// The port that a process's environment names; the usual one where it cannot be had: its pages may
/// be of a file system that never answers.
fn wanted_port(files: &TenantFiles, process: ProcKey) -> Option<u16> {
    let mut bytes = Vec::new();
    if let Ok(file) = files.proc_file(process, ProcFile::Environment) {
        // What was read before it failed counts.
        let _ = file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes);
    }
    let wanted = port(&String::from_utf8_lossy(&bytes));
    bytes.fill(0);
    wanted
}

/// The port that NCCL would use; `None` where it is told to use none.
fn port(environment: &str) -> Option<u16> {
    let variable = |name: &str| {
        let mut all = environment.split('\0').filter_map(|one| one.split_once('='));
        all.find(|(known, _)| *known == name).map(|(_, value)| value)
    };
    if variable(ENABLE).is_some_and(|value| value.trim() == "0") {
        return None;
    }
    let Some(address) = variable(ADDRESS) else { return Some(USUAL_PORT) };
    address.rsplit_once(':')?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_the_usual_one_unless_the_job_says_otherwise() {
        assert_eq!(port("A=1\0PATH=/\0"), Some(28_028));
        assert_eq!(port("NCCL_RAS_ADDR=localhost:29000\0"), Some(29_000));
        assert_eq!(port("A=1\0NCCL_RAS_ADDR=[::1]:29001"), Some(29_001));
        assert_eq!(port("NCCL_RAS_ENABLE=0\0NCCL_RAS_ADDR=localhost:29000\0"), None);
        assert_eq!(port("NCCL_RAS_ADDR=nonsense\0"), None);
    }
}
