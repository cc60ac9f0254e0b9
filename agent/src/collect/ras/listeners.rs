//! Which of NCCL's status sockets a process listens on, found among its own sockets: nothing is
//! configured, and no port is asked that the process itself does not have open where NCCL would.
//!
//! Reads a process's descriptors and its network's table of sockets: about a millisecond for a
//! process with 500 descriptors, once when it is new and once a round.

use crate::attribute::process::Living;
use crate::ids::ProcKey;
use crate::paths::Paths;
use std::collections::HashSet;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;

/// `NCCL_RAS_CLIENT_PORT`.
const USUAL_PORT: u16 = 28_028;
/// Where it is said otherwise.
const ADDRESS: &str = "NCCL_RAS_ADDR";
/// Whether there is any.
const ENABLE: &str = "NCCL_RAS_ENABLE";
/// Descriptors that are looked at.
const MOST_DESCRIPTORS: usize = 65_536;

/// Where a process is for NCCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// Its network namespace, by inode.
    pub network: u64,
    /// Its number in its own PID namespace.
    pub inside: u32,
    /// Addresses it listens on: one of them is its node's for NCCL.
    pub hosts: Vec<IpAddr>,
    /// Its status socket, as it can be connected to from its own network.
    pub client: Option<SocketAddr>,
}

/// Looks at a process; `None` if it is gone or not ours to look at.
pub(super) fn look(paths: &Paths, process: ProcKey) -> Option<Standing> {
    let living = Living::same(paths, process)?;
    let folder = paths.proc.join(process.pid.to_string());
    let network = fs::metadata(folder.join("ns/net")).ok()?.ino();
    let status = living.read("status")?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inside = match numbers {
        Some(numbers) => numbers.split_ascii_whitespace().next_back()?.parse().ok()?,
        None => process.pid,
    };
    let mine = sockets(&folder.join("fd"));
    // The kernel lists sockets that listen first, so what is cut off does not matter.
    let tables = [living.read("net/tcp"), living.read("net/tcp6")];
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let listening: Vec<SocketAddr> = lines.filter_map(|line| listener(line, &mine)).collect();
    let wanted = port(&living.read("environ").unwrap_or_default());
    let (client, others): (Vec<SocketAddr>, _) =
        listening.into_iter().partition(|at| Some(at.port()) == wanted);
    // This very process, still: what was read is about it.
    Living::same(paths, process)?;
    Some(Standing {
        network,
        inside,
        hosts: others.iter().map(|at: &SocketAddr| at.ip().to_canonical()).collect(),
        client: client.first().copied().map(reachable),
    })
}

/// A process's network namespace, to be entered; the agent's own needs no entering.
pub(super) fn network(paths: &Paths, process: ProcKey) -> Option<File> {
    Living::same(paths, process)?.open("ns/net")
}

/// The agent's own network namespace.
pub(super) fn own_network(paths: &Paths) -> Option<u64> {
    Some(fs::metadata(paths.proc.join("self/ns/net")).ok()?.ino())
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

/// Inodes of the sockets among a process's descriptors.
fn sockets(descriptors: &std::path::Path) -> HashSet<u64> {
    let Ok(entries) = fs::read_dir(descriptors) else { return HashSet::new() };
    let links = entries.take(MOST_DESCRIPTORS).flatten();
    links
        .filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect()
}

/// A line of `/proc/PID/net/tcp`: `0: 0100007F:6D7C 00000000:0000 0A … 0 0 12345 1 …`.
fn listener(line: &str, mine: &HashSet<u64>) -> Option<SocketAddr> {
    const LISTENS: &str = "0A";
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, _, state) = (fields.next()?, fields.next()?, fields.next()?);
    let inode = fields.nth(5)?.parse().ok()?;
    if state != LISTENS || !mine.contains(&inode) {
        return None;
    }
    let (ip, port) = address.split_once(':')?;
    Some(SocketAddr::new(ip_of(ip)?, u16::from_str_radix(port, 16).ok()?))
}

/// Words of 32 bits as this machine has them, in hex.
fn ip_of(digits: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = (0..digits.len() / 8)
        .map(|at| {
            let word = digits.get(8 * at..8 * at + 8)?;
            u32::from_str_radix(word, 16).ok().map(u32::to_ne_bytes)
        })
        .collect();
    match words?.as_slice() {
        [word] => Some(Ipv4Addr::from(*word).into()),
        [a, b, c, d] => {
            let bytes: [u8; 16] = [*a, *b, *c, *d].concat().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}

/// Whoever listens on every address also listens on this host's own.
fn reachable(at: SocketAddr) -> SocketAddr {
    let ip = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, at.port())
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

    #[test]
    fn only_listening_sockets_of_the_process_count() {
        let mine = HashSet::from([12_345]);
        let line = |state: &str, inode: u32| {
            format!(
                "   0: 0100007F:6D7C 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 \
                 0        0 {inode} 1 0000000000000000 100 0 0 10 0"
            )
        };
        let wanted = Some("127.0.0.1:28028".parse().unwrap());
        assert_eq!(listener(&line("0A", 12_345), &mine), wanted);
        assert_eq!(listener(&line("01", 12_345), &mine), None);
        assert_eq!(listener(&line("0A", 99), &mine), None);
        assert_eq!(listener("nonsense", &mine), None);
        let ip = ip_of("00000000000000000000000001000000");
        assert_eq!(ip, Some(Ipv6Addr::LOCALHOST.into()));
    }
}
