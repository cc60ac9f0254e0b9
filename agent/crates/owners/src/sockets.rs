//! A process's network namespace and its TCP sockets, as the kernel lists them in
//! `/proc/PID/net/tcp`; and of the agent's own network, whose they are. Any process in the network can open as many as its limits allow, so the list
//! is read line by line and up to a bound: about a microsecond a socket, and no memory for irrelevant
//! ones. What several looks may cost together is the caller's [`Allowance`]. The other end of a connection of
//! the agent's own is asked for without the list (`sock_diag(7)`).

use crate::process::Living;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use rustix::fs::{Dir, readlinkat};
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

/// Limit on listening sockets; the kernel lists them first. A busy node has some hundreds in a
/// network.
const MAX_LISTENING: usize = 1 << 16;
/// Limit on all sockets: 0.3 s.
const MAX_SOCKETS: usize = 1 << 18;
/// Limit on the descriptors of a process: 0.1 s.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// How many lines and descriptors looks for sockets may read, together and until when: some 0.3 s by
/// default.
#[derive(Debug)]
pub struct Allowance {
    all: usize,
    left: Cell<usize>,
    until: Option<Instant>,
}

impl Allowance {
    /// Between two looks at the clock.
    const ENTRIES: usize = 256;

    /// So many entries, until an instant.
    pub fn new(all: usize, until: Option<Instant>) -> Self {
        Self { all, left: Cell::new(all), until }
    }

    /// Takes as many; false where there are no more, or the time is over.
    pub fn take(&self, entries: usize) -> bool {
        let before = self.left.get();
        let left = before.saturating_sub(entries);
        let is_looked_at = before == self.all || before / Self::ENTRIES != left / Self::ENTRIES;
        let is_late = is_looked_at && self.until.is_some_and(|until| Instant::now() >= until);
        self.left.set(if is_late { 0 } else { left });
        before >= entries && !is_late
    }

    /// Whether none is left.
    pub fn is_used_up(&self) -> bool {
        self.left.get() == 0
    }

    /// Whether at most half are left.
    pub fn is_half_used(&self) -> bool {
        self.left.get() <= self.all / 2
    }
}

impl Default for Allowance {
    fn default() -> Self {
        Self::new(MAX_SOCKETS, None)
    }
}

/// A line of the table: `0: 0100007F:6D7C 00000000:0000 0A … 0 0 12345 1 …`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    listens: bool,
    /// Of the process that made or accepted it; 0 without an inode.
    user: u32,
    inode: u64,
}

impl Socket {
    fn parse(line: &str) -> Option<Self> {
        const LISTENS: &str = "0A";
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
        let user = fields.nth(3)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        let (local, remote) = (address(local)?, address(remote)?);
        Some(Self { local, remote, listens: state == LISTENS, user, inode })
    }
}

/// The sockets of a table, without its heading; the kernel writes the lines, so none is long.
fn table<'a>(
    living: &Living,
    name: &str,
    looks: &'a Allowance,
) -> impl Iterator<Item = Socket> + use<'a> {
    sockets(living.open(name), looks)
}

fn sockets(table: Option<File>, looks: &Allowance) -> impl Iterator<Item = Socket> + use<'_> {
    let lines = table.map(|file| BufReader::with_capacity(1 << 16, file).lines());
    let lines = lines.into_iter().flatten().skip(1).map_while(Result::ok);
    let lines = lines.take_while(|_| looks.take(1));
    lines.filter_map(|line| Socket::parse(&line))
}

/// Addresses and inodes of the sockets that listen in a process's network.
pub fn listeners(living: &Living, looks: &Allowance) -> impl Iterator<Item = (SocketAddr, u64)> {
    let tables = ["net/tcp", "net/tcp6"].into_iter();
    let all = tables.flat_map(|name| {
        table(living, name, looks).take_while(|socket| socket.listens).take(MAX_LISTENING)
    });
    all.map(|socket| (socket.local, socket.inode))
}

/// Addresses on which one of these sockets listens.
#[expect(clippy::implicit_hasher, reason = "every caller has the standard one")]
pub fn listening(living: &Living, inodes: &HashSet<u64>, looks: &Allowance) -> Vec<SocketAddr> {
    let mine = listeners(living, looks).filter(|(_, inode)| inodes.contains(inode));
    mine.map(|(at, _)| at).collect()
}

/// The inode of the server's end of a connection from `client` to `server` in the same network,
/// once the server has accepted it.
pub fn accepted(
    living: &Living,
    (server, client): (SocketAddr, SocketAddr),
    looks: &Allowance,
) -> Option<u64> {
    let name = if server.is_ipv4() { "net/tcp" } else { "net/tcp6" };
    let is_same =
        |socket: &Socket| (socket.local, socket.remote, socket.listens) == (server, client, false);
    let found = table(living, name, looks).take(MAX_SOCKETS).find(is_same)?;
    (found.inode != 0).then_some(found.inode)
}

/// The sockets of the agent's own network, whose user the kernel tells as the agent's own namespace has it.
fn own(looks: &Allowance) -> impl Iterator<Item = Socket> + use<'_> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter();
    tables.flat_map(|path| sockets(File::open(path).ok(), looks))
}

/// The user of the process that accepted a connection of ours on this host; `None` until one has. The listener says
/// less: it may have been another's when the connection came. A socket that nobody has accepted has no inode, and
/// before Linux 6.17 root for its user.
pub fn accepting_user(ends: (SocketAddr, SocketAddr)) -> Option<u32> {
    // Who fills the list hides no socket from the first question.
    user_of(ends).unwrap_or_else(|_| listed_user(ends, &Allowance::default()))
}

fn listed_user((server, client): (SocketAddr, SocketAddr), looks: &Allowance) -> Option<u32> {
    let ends = (canonical(server), canonical(client));
    let is_other_end = |socket: &Socket| {
        !socket.listens
            && socket.inode != 0
            && (canonical(socket.local), canonical(socket.remote)) == ends
    };
    own(looks).find(is_other_end).map(|socket| socket.user)
}

/// Asks the kernel for the one socket of the agent's own network that has these ends (`struct inet_diag_req_v2` and
/// `inet_diag_msg` of `linux/inet_diag.h`; a few microseconds). An error where there is none, none of an ordinary
/// device, or the kernel was built without the question.
fn user_of((server, client): (SocketAddr, SocketAddr)) -> io::Result<Option<u32>> {
    const BY_FAMILY: u16 = 20;
    const IS_REQUEST: u16 = 1;
    const TCP: u8 = 6;
    const LISTENS: u8 = 10;
    const REQUEST_BYTES: u32 = 72;
    let (server, client) = (canonical(server), canonical(client));
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }.as_raw();
    let mut request = Vec::with_capacity(REQUEST_BYTES as usize);
    request.extend(REQUEST_BYTES.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes().into_iter().chain(IS_REQUEST.to_ne_bytes()));
    // Number and sender of the question.
    request.extend([0; 8]);
    request.extend([u8::try_from(family).unwrap_or_default(), TCP, 0, 0]);
    // In every state.
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(server.port().to_be_bytes().into_iter().chain(client.port().to_be_bytes()));
    request.extend(diag_address(server).into_iter().chain(diag_address(client)));
    // Of every device, whatever its cookie.
    request.extend([0; 4].into_iter().chain([0xff; 8]));
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    let kernel = socket_with(family, SocketType::RAW, flags, Some(SOCK_DIAG))?;
    // From now on nobody else can send to it.
    connect(&kernel, &SocketAddrNetlink::new(0, 0))?;
    send(&kernel, &request, SendFlags::empty())?;
    let mut answer = [0; 512];
    // It is there when the question has been sent.
    let (bytes, _) = recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    let answer = answer.get(..bytes).unwrap_or_default();
    let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = answer.get(4..6).map(|kind| kind == BY_FAMILY.to_ne_bytes());
    match (kind, answer.get(17), word(80), word(84)) {
        (Some(true), Some(state), Some(user), Some(inode)) if *state != LISTENS => {
            Ok((inode != 0).then_some(user))
        }
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Sixteen bytes, of which IPv4 has the first four.
fn diag_address(at: SocketAddr) -> [u8; 16] {
    match at.ip() {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
    }
}

/// The users of the sockets that listen on an address, or on every address with its port.
pub fn listening_users(at: SocketAddr) -> BTreeSet<u32> {
    let at = canonical(at);
    let is_there = |socket: &Socket| {
        let ip = socket.local.ip().to_canonical();
        let is_address = ip == at.ip() || ip.is_unspecified() || at.ip().is_unspecified();
        socket.listens && is_address && socket.local.port() == at.port()
    };
    own(&Allowance::default()).filter(is_there).map(|socket| socket.user).collect()
}

/// IPv4 as such, also at a socket of IPv6.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

/// Inodes of the sockets among a process's descriptors.
pub fn held<'a>(living: &Living, looks: &'a Allowance) -> impl Iterator<Item = u64> + use<'a> {
    let folder = living.open("fd");
    let entries = folder.as_ref().and_then(|folder| Dir::read_from(folder).ok());
    let entries = entries.into_iter().flatten().flatten().take(MAX_DESCRIPTORS);
    let entries = entries.take_while(|_| looks.take(1));
    entries.filter_map(move |entry| {
        let link = readlinkat(folder.as_ref()?, entry.file_name(), Vec::new()).ok()?;
        link.to_str().ok()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

/// The network namespace of a process, by inode.
pub fn network_of(paths: &Paths, process: ProcKey) -> Option<u64> {
    let folder = paths.proc.join(process.pid.to_string());
    Some(fs::metadata(folder.join("ns/net")).ok()?.ino())
}

/// This very network namespace, to be entered, while a process is in it; the agent's own needs no
/// entering.
pub fn network(paths: &Paths, process: ProcKey, inode: u64) -> Option<File> {
    let file = Living::same(paths, process)?.open("ns/net")?;
    (file.metadata().ok()?.ino() == inode).then_some(file)
}

/// The agent's own network namespace.
pub fn own_network(paths: &Paths) -> Option<u64> {
    Some(fs::metadata(paths.proc.join("self/ns/net")).ok()?.ino())
}

/// Whoever listens on every address also listens on this host's own.
pub fn reachable(at: SocketAddr) -> SocketAddr {
    let ip = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, at.port())
}

fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    Some(SocketAddr::new(ip_of(ip)?, u16::from_str_radix(port, 16).ok()?))
}

/// Parses 32-bit words in host byte order, in hex.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::fake::FakeHost;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_line_of_the_kernels_table_is_a_socket() {
        let line = |state: &str| {
            format!(
                "   0: 0100007F:6D7C 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 \
                 0        0 12345 1 0000000000000000 100 0 0 10 0"
            )
        };
        let (local, remote) = ("127.0.0.1:28028".parse().unwrap(), "0.0.0.0:0".parse().unwrap());
        let wanted = Socket { local, remote, listens: true, user: 0, inode: 12_345 };
        assert_eq!(Socket::parse(&line("0A")), Some(wanted));
        assert_eq!(Socket::parse(&line("01")), Some(Socket { listens: false, ..wanted }));
        assert_eq!(Socket::parse("nonsense"), None);
        let ip = ip_of("00000000000000000000000001000000");
        assert_eq!(ip, Some(Ipv6Addr::LOCALHOST.into()));
    }

    #[test]
    fn the_accepted_socket_is_found_in_its_process() {
        let living = Living::find(&Paths::default(), std::process::id()).unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let server = listener.local_addr().unwrap();
            let stream = TcpStream::connect(server).unwrap();
            let client = stream.local_addr().unwrap();
            let looks = &Allowance::default();
            assert_eq!(accepted(&living, (server, client), looks), None, "nobody has accepted it");
            let (_accepted, _) = listener.accept().unwrap();
            let inode = accepted(&living, (server, client), looks).unwrap();
            assert!(held(&living, looks).any(|one| one == inode));
            let inodes: HashSet<u64> = held(&living, looks).collect();
            assert!(listening(&living, &inodes, looks).contains(&server));
            assert_eq!(listening(&living, &HashSet::new(), looks), []);
        }
    }

    #[test]
    fn the_user_of_a_connection_is_known_once_it_is_accepted() {
        let own = rustix::process::geteuid().as_raw();
        // A listener of both protocols has sockets of IPv6 for connections of IPv4.
        let to = IpAddr::from([127, 0, 0, 1]);
        let six = Ipv6Addr::LOCALHOST.into();
        for (listen, to) in [("127.0.0.1:0", to), ("[::]:0", to), ("[::1]:0", six)] {
            let Ok(listener) = TcpListener::bind(listen) else { continue };
            let port = listener.local_addr().unwrap().port();
            let server = SocketAddr::from((to, port));
            let stream = TcpStream::connect(server).unwrap();
            let ends = (server, stream.local_addr().unwrap());
            assert_eq!(accepting_user(ends), None, "nobody has accepted it");
            let _accepted = listener.accept().unwrap();
            assert_eq!(accepting_user(ends), Some(own));
            assert_eq!(user_of(ends).unwrap(), Some(own));
            assert_eq!(listed_user(ends, &Allowance::default()), Some(own));
            assert_eq!(listening_users(server), BTreeSet::from([own]));
            assert_eq!(listening_users(SocketAddr::from((to, 1))), BTreeSet::new());
        }
    }

    #[test]
    fn who_accepted_is_known_whoever_fills_the_list() {
        let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { return };
        let server = listener.local_addr().unwrap();
        let stream = TcpStream::connect(server).unwrap();
        let ends = (server, stream.local_addr().unwrap());
        // Listeners stand before all connections.
        let flood: Vec<_> = (0..200).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        assert_eq!(user_of(ends).unwrap(), None, "nobody has accepted it");
        let _accepted = listener.accept().unwrap();
        let looks = Allowance::new(flood.len(), None);
        assert_eq!((listed_user(ends, &looks), looks.is_used_up()), (None, true));
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(accepting_user(ends), Some(own));
        assert_eq!(user_of(ends).unwrap(), Some(own), "without the list");
        // The listener is not the connection.
        assert!(user_of((server, "127.0.0.1:1".parse().unwrap())).is_err());
        assert!(user_of(("127.0.0.1:1".parse().unwrap(), server)).is_err());
    }

    #[test]
    fn no_more_is_read_than_is_allowed_nor_after_the_time() {
        let host = FakeHost::new();
        let process = ProcKey { pid: 7, start_ticks: 100 };
        host.start(process, "python3", "0::/\n");
        let folder = host.paths.proc.join("7");
        for name in ["fd", "net"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        for inode in 0..600 {
            let to = format!("socket:[{inode}]");
            std::os::unix::fs::symlink(to, folder.join(format!("fd/{inode}"))).unwrap();
        }
        let line =
            "0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1 1\n";
        fs::write(folder.join("net/tcp"), format!("heading\n{}", line.repeat(600))).unwrap();
        let living = Living::find(&host.paths, 7).unwrap();
        let looks = Allowance::new(700, None);
        // Several looks share it.
        assert_eq!((held(&living, &looks).count(), looks.is_half_used()), (600, true));
        // The folder's own two names count as descriptors.
        assert_eq!((listeners(&living, &looks).count(), looks.is_used_up()), (98, true));
        assert_eq!(held(&living, &looks).count(), 0);
        let late = Allowance::new(700, Some(Instant::now()));
        assert_eq!((held(&living, &late).count(), late.is_used_up()), (0, true));
    }
}
