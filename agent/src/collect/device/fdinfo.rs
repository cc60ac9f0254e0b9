//! Memory of processes from the kernel's accounting of each DRM client (`Documentation/gpu/
//! drm-usage-stats.rst`), which every DRM driver exposes in `/proc/PID/fdinfo`.
//!
//! Read once a tick for all devices of a vendor, only for processes known to have one of its nodes
//! open: one small file for each of their open DRM nodes. The files of other descriptors are not
//! opened: the kernel renders all of such a file, however little is read, and that of an epoll
//! descriptor has a line for each of thousands of entries.

use super::files::{Files, numbered};
use super::wire::{ProcessValue, push};
use crate::catalog::process::{self as metric, ProcessType};
use crate::paths::Paths;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The devices of one tick are read one after the other within this time.
const FRESH_NS: u64 = 100_000_000;
/// Limit on the processes. Memory beyond this and the other limits is left out.
const MAX_PROCESSES: usize = 256;
/// Limit on the descriptors whose type is looked up, a microsecond each.
const LOOKS: Share = Share { all: 65_536, least: 256, most: 4096 };
/// Limit on the files that are read.
const READS: Share = Share { all: 2048, least: 8, most: 64 };
/// The major number of DRM nodes.
const DRM_MAJOR: u32 = 226;

/// A limit that all processes share alike.
struct Share {
    all: usize,
    /// Limits of the share of one process.
    least: usize,
    most: usize,
}

impl Share {
    /// The share of each of some processes.
    fn of(&self, processes: usize) -> usize {
        (self.all / processes.max(1)).clamp(self.least, self.most)
    }
}

/// The clients of a vendor's devices.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<(u64, Vec<Client>)>);

/// One DRM client; several files of several processes can share a client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    pid: u32,
    /// PCI address of its device.
    device: String,
    id: u64,
    /// Bytes of device memory.
    memory: i64,
    /// Bytes that the driver moved to the host.
    evicted: Option<i64>,
}

impl Clients {
    /// Reads the openers' files unless another device's reading in this tick already did. The lock
    /// is not held meanwhile, because reading a file may hang.
    pub(super) fn refresh(&self, paths: &Paths, pids: &[u32], now: u64, files: &mut Files) {
        if self.lock().0.saturating_add(FRESH_NS) > now {
            return;
        }
        let mut clients = Vec::new();
        let count = pids.len().min(MAX_PROCESSES);
        for pid in pids.iter().take(count) {
            let folder = paths.proc.join(pid.to_string());
            let open = numbered(&folder.join("fd"), "").into_iter().take(LOOKS.of(count));
            let nodes = open.filter(|(_, path)| is_drm_node(path)).take(READS.of(count));
            for (number, _) in nodes {
                let text = files.text(&folder.join(format!("fdinfo/{number}")));
                clients.extend(text.and_then(|text| client(*pid, &text)));
            }
        }
        *self.lock() = (now, clients);
    }

    /// Adds the processes on a device that are not in `out` already.
    pub(super) fn on(&self, address: &str, out: &mut Vec<ProcessValue>) {
        let already: BTreeSet<u32> = out.iter().map(|on| on.pid).collect();
        let mut counted = BTreeSet::new();
        let mut memory: BTreeMap<u32, (i64, Option<i64>)> = BTreeMap::new();
        for client in self.lock().1.iter().filter(|client| client.device == address) {
            if !already.contains(&client.pid) && counted.insert(client.id) {
                let (sum, evicted) = memory.entry(client.pid).or_default();
                *sum = sum.saturating_add(client.memory);
                let more = client.evicted.map(|more| more.saturating_add(evicted.unwrap_or(0)));
                *evicted = more.or(*evicted);
            }
        }
        for (pid, (bytes, evicted)) in memory {
            let mut values = Vec::new();
            push(&mut values, &metric::MEMORY_USAGE, ProcessType::Graphics, Some(bytes));
            push(&mut values, &metric::MEMORY_EVICTED, (), evicted);
            out.extend(values.into_iter().map(|value| ProcessValue { pid, place: None, value }));
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Vec<Client>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an open file is a DRM node; asks no remote file system.
fn is_drm_node(descriptor: &Path) -> bool {
    let about = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    about.is_ok_and(|about| {
        let kind = FileType::from_raw_mode(about.stx_mode.into());
        kind == FileType::CharacterDevice && about.stx_rdev_major == DRM_MAJOR
    })
}

/// Parses one file; `None` if it is not of a DRM client. `drm-memory-vram` is an older name of
/// `drm-resident-vram`; a file never has both.
fn client(pid: u32, text: &str) -> Option<Client> {
    let keys: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key, value.trim()))
        .collect();
    let memory = keys.get("drm-resident-vram").or_else(|| keys.get("drm-memory-vram"));
    Some(Client {
        pid,
        device: (*keys.get("drm-pdev")?).to_owned(),
        id: keys.get("drm-client-id")?.parse().ok()?,
        memory: memory.and_then(|size| bytes(size))?,
        evicted: keys.get("amd-evicted-vram").and_then(|size| bytes(size)),
    })
}

/// Parses `7 KiB`.
fn bytes(size: &str) -> Option<i64> {
    let (number, unit) = size.split_once(' ').unwrap_or((size, ""));
    let unit: u64 = match unit.trim() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    i64::try_from(number.parse::<u64>().ok()?.checked_mul(unit)?).ok()
}

#[cfg(test)]
mod tests {
    use super::{Client, Clients, LOOKS, READS, client};
    use crate::collect::device::files::Files;
    use crate::paths::Paths;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_descriptor_that_is_no_drm_node_is_not_read_whatever_its_file_says() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths { proc: folder.path().to_owned(), ..Paths::default() };
        for name in ["fd", "fdinfo"] {
            fs::create_dir_all(folder.path().join("7").join(name)).unwrap();
        }
        symlink("/dev/null", folder.path().join("7/fd/3")).unwrap();
        let forged = "drm-client-id: 1\ndrm-pdev: 0000:05:00.0\ndrm-resident-vram: 1 KiB\n";
        fs::write(folder.path().join("7/fdinfo/3"), forged).unwrap();
        let (clients, mut files) = (Clients::default(), Files::default());
        clients.refresh(&paths, &[7], u64::MAX, &mut files);
        assert_eq!(clients.lock().1, []);
        assert_eq!(files.cost().calls, 0, "no file was opened");
    }

    #[test]
    fn processes_share_the_looks_and_the_reads() {
        assert_eq!([1, 32, 256].map(|count| LOOKS.of(count)), [4096, 2048, 256]);
        assert_eq!([1, 64, 256].map(|count| READS.of(count)), [64, 32, 8]);
    }

    #[test]
    fn a_clients_memory_is_its_resident_one_in_bytes() {
        let start = "pos:\t0\nflags:\t02100002\ndrm-driver:\tamdgpu\ndrm-client-id:\t58\n\
                     drm-pdev:\t0000:05:00.0\n";
        let reported = |memory: &str| client(7, &format!("{start}{memory}"));
        let of = |memory| {
            Some(Client { pid: 7, device: "0000:05:00.0".into(), id: 58, memory, evicted: None })
        };
        assert_eq!(reported("drm-memory-vram:\t2048 KiB\n"), of(2 << 20));
        let both = "drm-memory-vram:\t2048 KiB\ndrm-resident-vram:\t3 MiB\n";
        assert_eq!(reported(both), of(3 << 20), "one is the other's older name");
        assert_eq!(reported("drm-memory-vram:\t8589934592\n"), of(8 << 30), "plain bytes");
        let moved = reported("drm-memory-vram:\t1 KiB\namd-evicted-vram:\t5 MiB\n").unwrap();
        assert_eq!((moved.memory, moved.evicted), (1 << 10, Some(5 << 20)));
        assert_eq!(reported("drm-memory-vram:\t-1 KiB\n"), None);
        assert_eq!(reported("drm-memory-vram:\t18446744073709551615 MiB\n"), None);
        assert_eq!(reported("drm-memory-vram:\t1 bananas\n"), None);
        assert_eq!(reported(""), None, "it has none, or does not tell");
        assert_eq!(client(7, "pos:\t0\n"), None, "no client");
    }
}
