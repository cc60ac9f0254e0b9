//! Memory and busy time of processes from the kernel's accounting of each DRM client
//! (`Documentation/gpu/drm-usage-stats.rst`), which every DRM driver exposes in `/proc/PID/fdinfo`.
//!
//! Read once a tick for all devices of a vendor, only for processes known to have one of its nodes
//! open: one small file for each of their open DRM nodes. The files of other descriptors are not
//! opened: the kernel renders all of such a file, however little is read, and that of an epoll
//! descriptor has a line for each of thousands of entries. A reading takes [`MAX_CPU`] of a processor.

use super::files::{Files, numbered_to};
use super::wire::{ProcessValue, push};
use gpuwho_model::catalog::process::{self as metric, ProcessType};
use gpuwho_model::paths::Paths;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_sys::clock::thread_cpu;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// The devices of one tick are read one after the other within this time.
const FRESH_NS: u64 = 100_000_000;
/// Processor time of a reading; the processes that are left have no memory in it.
const MAX_CPU: Duration = Duration::from_millis(50);
/// How long a device waits for another one's reading of these files.
const WAIT: Duration = Duration::from_millis(200);
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
pub(super) struct Clients {
    known: Mutex<LastClients>,
    has_read: Condvar,
}

/// What was read last.
#[derive(Debug, Default)]
struct LastClients {
    /// When it was read.
    at_ns: u64,
    clients: Vec<Client>,
    /// The process that each client was first seen with, by the client's device and number.
    first: BTreeMap<(String, u64), u32>,
    /// Whether a device's reading is at it.
    is_reading: bool,
}

/// One DRM client; several files of several processes can share a client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Client {
    pid: u32,
    /// PCI address of its device.
    device: String,
    id: u64,
    /// Bytes of device memory; a device that uses the host's has none.
    memory: Option<i64>,
    /// Bytes of the host's memory that the device uses.
    host: Option<i64>,
    /// Bytes that the driver moved to the host.
    evicted: Option<i64>,
    /// Busy times by engine.
    engines: BTreeMap<String, EngineTime>,
}

/// The time that a client's work took on one class of engines: nanoseconds, or the engine's cycles
/// where the driver counts those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EngineTime {
    busy: u64,
    /// All cycles of the engine so far, where `busy` is cycles.
    total: Option<u64>,
    /// Number of engines.
    capacity: u64,
}

impl EngineTime {
    /// The busy fraction of the engines since an earlier time, `passed` nanoseconds ago.
    pub(super) fn busy_since(&self, then: &Self, passed: u64) -> f64 {
        let busy = self.busy.saturating_sub(then.busy);
        let all = match (self.total, then.total) {
            (Some(now), Some(then)) => now.saturating_sub(then),
            _ => passed,
        };
        let all = all.saturating_mul(self.capacity.max(1));
        #[expect(clippy::cast_precision_loss, reason = "a fraction")]
        let fraction = if all == 0 { 0.0 } else { busy as f64 / all as f64 };
        fraction.min(1.0)
    }
}

impl Clients {
    /// Reads the openers' files, the first ones first, unless another device's reading in this tick
    /// does. False if what is known is of an earlier tick: a file of another device's may hang.
    #[must_use]
    pub(super) fn refresh(
        &self,
        paths: &Paths,
        pids: &[u32],
        asked_ns: u64,
        files: &mut Files,
    ) -> bool {
        let is_fresh = |known: &LastClients| known.at_ns.saturating_add(FRESH_NS) > asked_ns;
        let is_reading = |known: &mut LastClients| known.is_reading;
        let mut known = self.known.lock();
        self.has_read.wait_while_for(&mut known, is_reading, WAIT);
        if known.is_reading || is_fresh(&known) {
            return is_fresh(&known);
        }
        known.is_reading = true;
        drop(known);
        let mut clients = read(paths, pids, files);
        let mut known = self.known.lock();
        keep_first(&mut known.first, &mut clients);
        (known.at_ns, known.clients, known.is_reading) = (boot_time_ns(), clients, false);
        drop(known);
        self.has_read.notify_all();
        true
    }

    /// Adds the processes on a device that are not in `out` already. `is_integrated`: the host's memory is
    /// the device's too; a device whose clients have no memory of another kind is one as well.
    pub(super) fn on(&self, address: &str, is_integrated: bool, out: &mut Vec<ProcessValue>) {
        let already: BTreeSet<u32> = out.iter().map(|on| on.pid).collect();
        let mut counted = BTreeSet::new();
        let mut all: BTreeMap<u32, OfProcess> = BTreeMap::new();
        let known = self.known.lock();
        let here = || known.clients.iter().filter(|client| client.device == address);
        let is_integrated = is_integrated || here().all(|client| client.memory.is_none());
        for client in here() {
            if !already.contains(&client.pid) && counted.insert(client.id) {
                all.entry(client.pid).or_default().add(client, is_integrated);
            }
        }
        drop(known);
        for (pid, of) in all {
            let mut values = Vec::new();
            push(&mut values, &metric::MEMORY_USAGE, of.kind(), of.memory);
            push(&mut values, &metric::MEMORY_EVICTED, (), of.evicted);
            out.extend(values.into_iter().map(|value| ProcessValue { pid, place: None, value }));
        }
    }

    /// The engines' times of each client on a device, and when they were read.
    pub(super) fn engines(&self, address: &str) -> (u64, Times) {
        let mut times = Times::new();
        let known = self.known.lock();
        for client in known.clients.iter().filter(|client| client.device == address) {
            for (name, time) in &client.engines {
                // Of a client that processes share, the first one's, as its memory.
                times.entry((client.id, name.clone())).or_insert((client.pid, *time));
            }
        }
        (known.at_ns, times)
    }

    /// How many processes have clients on a device.
    pub(super) fn processes(&self, address: &str) -> usize {
        let known = self.known.lock();
        let here = known.clients.iter().filter(|client| client.device == address);
        here.map(|client| client.pid).collect::<BTreeSet<_>>().len()
    }
}

/// The engines' times of clients, each with the client's process, by client and engine.
pub(super) type Times = BTreeMap<(u64, String), (u32, EngineTime)>;

/// What the clients of one process have on a device.
#[derive(Default)]
struct OfProcess {
    memory: Option<i64>,
    evicted: Option<i64>,
    /// Busy times so far of the engines that compute, and of those that draw.
    compute: u64,
    graphics: u64,
}

impl OfProcess {
    fn add(&mut self, client: &Client, is_integrated: bool) {
        let sum = |sum: Option<i64>, more: Option<i64>| match (sum, more) {
            (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
            (sum, more) => more.or(sum),
        };
        self.memory = sum(self.memory, client.memory);
        self.memory = sum(self.memory, client.host.filter(|_| is_integrated));
        self.evicted = sum(self.evicted, client.evicted);
        let busy = |names: &[&str]| {
            let of = client.engines.iter().filter(|(name, _)| names.contains(&name.as_str()));
            of.fold(0_u64, |sum, (_, time)| sum.saturating_add(time.busy))
        };
        self.compute = self.compute.saturating_add(busy(COMPUTE));
        self.graphics = self.graphics.saturating_add(busy(GRAPHICS));
    }

    /// The driver does not say what a client is for: what has worked most for it says so. Programs that
    /// compute on a device without engines of their own for that look like those that draw.
    fn kind(&self) -> ProcessType {
        if self.compute > self.graphics { ProcessType::Compute } else { ProcessType::Graphics }
    }
}

/// The clients of these processes.
fn read(paths: &Paths, pids: &[u32], files: &mut Files) -> Vec<Client> {
    let mut clients = Vec::new();
    let (count, end) = (pids.len().min(MAX_PROCESSES), thread_cpu() + MAX_CPU);
    for pid in pids.iter().take(count) {
        let folder = paths.proc.join(pid.to_string());
        // The kernel lists them in order.
        let open = numbered_to(LOOKS.of(count), &folder.join("fd"), "").into_iter();
        let open = open.take_while(|_| thread_cpu() < end);
        let nodes = open.filter(|(_, path)| is_drm_node(path)).take(READS.of(count));
        for (number, _) in nodes {
            let text = files.text(&folder.join(format!("fdinfo/{number}")));
            clients.extend(text.and_then(|text| client(*pid, &text)));
        }
        if thread_cpu() >= end {
            break;
        }
    }
    clients
}

/// Puts the process that a client was first seen with before the others that share it, as long as it has
/// it: a descriptor that is passed on passes no bill on.
fn keep_first(first: &mut BTreeMap<(String, u64), u32>, clients: &mut [Client]) {
    let mut holders: BTreeMap<(String, u64), Vec<u32>> = BTreeMap::new();
    for client in &*clients {
        holders.entry((client.device.clone(), client.id)).or_default().push(client.pid);
    }
    first.retain(|client, pid| holders.get(client).is_some_and(|pids| pids.contains(pid)));
    for (client, pids) in holders {
        if let Some(pid) = pids.first() {
            first.entry(client).or_insert(*pid);
        }
    }
    let is_other = |client: &Client| {
        first.get(&(client.device.clone(), client.id)).is_some_and(|pid| *pid != client.pid)
    };
    clients.sort_by_cached_key(is_other);
}

/// Whether an open file is a DRM node; asks no remote file system.
fn is_drm_node(descriptor: &Path) -> bool {
    let about = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    about.is_ok_and(|about| {
        let kind = FileType::from_raw_mode(about.stx_mode.into());
        kind == FileType::CharacterDevice && about.stx_rdev_major == DRM_MAJOR
    })
}

/// Regions of device memory by driver: amdgpu's, xe's by tile, i915's.
const REGIONS: &[&str] = &["vram", "vram0", "vram1", "local0", "local1"];
/// Regions of the host's memory that the device uses: amdgpu's and xe's, i915's.
const HOST_REGIONS: &[&str] = &["gtt", "system", "stolen", "system0", "stolen-system0"];
/// Engines that compute and engines that draw, by driver: i915's and amdgpu's, xe's.
const COMPUTE: &[&str] = &["compute", "ccs"];
const GRAPHICS: &[&str] = &["render", "gfx", "rcs"];
/// No device has more classes of engines.
const MAX_ENGINES: usize = 16;

/// Parses one file; `None` if it is not of a DRM client. `drm-memory-vram` is an older name of
/// `drm-resident-vram`; a file never has both.
fn client(pid: u32, text: &str) -> Option<Client> {
    let keys: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key, value.trim()))
        .collect();
    let of = |region: &&str| {
        let resident = keys.get(format!("drm-resident-{region}").as_str());
        resident.or_else(|| keys.get(format!("drm-memory-{region}").as_str()))
    };
    let sum = |regions: &[&str]| {
        let sizes = regions.iter().filter_map(of).map(|size| bytes(size));
        let sizes: Option<Vec<i64>> = sizes.collect();
        let sizes = sizes.filter(|sizes| !sizes.is_empty());
        sizes.map(|sizes| sizes.into_iter().fold(0, i64::saturating_add))
    };
    Some(Client {
        pid,
        device: (*keys.get("drm-pdev")?).to_owned(),
        id: keys.get("drm-client-id")?.parse().ok()?,
        memory: sum(REGIONS),
        host: sum(HOST_REGIONS),
        evicted: keys.get("amd-evicted-vram").and_then(|size| bytes(size)),
        engines: engines(&keys),
    })
}

/// The busy times in a file: `drm-engine-E: N ns`, or `drm-cycles-E` of `drm-total-cycles-E`.
fn engines(keys: &BTreeMap<&str, &str>) -> BTreeMap<String, EngineTime> {
    let number = |key: String| keys.get(key.as_str())?.split(' ').next()?.parse().ok();
    let one = |(key, value): (&&str, &&str)| {
        let cycles = key.strip_prefix("drm-cycles-");
        let name = cycles.or_else(|| key.strip_prefix("drm-engine-"))?;
        let busy = value.split(' ').next()?.parse().ok()?;
        let is_capacity = name.starts_with("capacity-");
        let total = cycles.and_then(|_| number(format!("drm-total-cycles-{name}")));
        let is_whole = cycles.is_none() || total.is_some();
        let capacity = number(format!("drm-engine-capacity-{name}")).unwrap_or(1);
        (!is_capacity && is_whole).then(|| (name.to_owned(), EngineTime { busy, total, capacity }))
    };
    keys.iter().filter_map(one).take(MAX_ENGINES).collect()
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
pub(super) mod fake {
    //! What clients' files say, as if it had been read.

    use super::{Clients, Times, client};

    pub(crate) fn times(address: &str, files: &[(u32, String)]) -> Times {
        let clients = Clients::default();
        clients.known.lock().clients =
            files.iter().filter_map(|(pid, text)| client(*pid, text)).collect();
        clients.engines(address).1
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, Clients, EngineTime, FRESH_NS, LOOKS, READS, client, keep_first};
    use crate::files::Files;
    use gpuwho_model::paths::Paths;
    use gpuwho_owners::host::boot_time_ns;
    use std::collections::BTreeMap;
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
        assert!(clients.refresh(&paths, &[7], u64::MAX, &mut files));
        assert_eq!(clients.known.lock().clients, []);
        assert_eq!(files.cost().calls, 0, "no file was opened");
    }

    #[test]
    fn devices_share_one_reading_and_one_that_hangs_leaves_the_others_without_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths { proc: folder.path().to_owned(), ..Paths::default() };
        let (clients, mut files) = (Clients::default(), Files::default());
        let mut refresh = |asked_ns| clients.refresh(&paths, &[], asked_ns, &mut files);
        let before = boot_time_ns();
        assert!(refresh(before));
        let first = clients.known.lock().at_ns;
        assert!(first >= before, "the time when it was read counts, not when it was begun");
        assert!(refresh(first), "of the same tick");
        assert_eq!(clients.known.lock().at_ns, first);
        clients.known.lock().is_reading = true;
        assert!(refresh(first), "while another one reads, those of the same tick are there");
        assert!(!refresh(first + FRESH_NS), "of an earlier tick");
        clients.known.lock().is_reading = false;
        assert!(refresh(first + FRESH_NS) && clients.known.lock().at_ns > first);
    }

    #[test]
    fn a_client_whose_descriptor_is_passed_on_stays_the_first_ones() {
        let of =
            |pid, id: u64| client(pid, &format!("drm-client-id:\t{id}\ndrm-pdev:\tx\n")).unwrap();
        let mut first = BTreeMap::new();
        let mut charged = |mut clients: Vec<Client>| {
            keep_first(&mut first, &mut clients);
            clients.iter().find(|client| client.id == 1).unwrap().pid
        };
        assert_eq!(charged(vec![of(9, 1)]), 9);
        // To one that is listed before it; another client of both stays where it is.
        assert_eq!(charged(vec![of(7, 1), of(7, 2), of(9, 1), of(9, 2)]), 9);
        assert_eq!(charged(vec![of(7, 1)]), 7, "it has ended or closed it");
        assert_eq!(charged(vec![of(7, 1), of(9, 1)]), 7);
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
            let (device, memory, engines) = ("0000:05:00.0".into(), Some(memory), BTreeMap::new());
            Some(Client { pid: 7, device, id: 58, memory, host: None, evicted: None, engines })
        };
        let unknown = of(0).map(|client| Client { memory: None, ..client });
        assert_eq!(reported("drm-memory-vram:\t2048 KiB\n"), of(2 << 20));
        let both = "drm-memory-vram:\t2048 KiB\ndrm-resident-vram:\t3 MiB\n";
        assert_eq!(reported(both), of(3 << 20), "one is the other's older name");
        assert_eq!(reported("drm-memory-vram:\t8589934592\n"), of(8 << 30), "plain bytes");
        let moved = reported("drm-memory-vram:\t1 KiB\namd-evicted-vram:\t5 MiB\n").unwrap();
        assert_eq!((moved.memory, moved.evicted), (Some(1 << 10), Some(5 << 20)));
        assert_eq!(reported("drm-memory-vram:\t-1 KiB\n"), unknown);
        assert_eq!(reported("drm-memory-vram:\t18446744073709551615 MiB\n"), unknown);
        assert_eq!(reported("drm-memory-vram:\t1 bananas\n"), unknown);
        let host = reported("drm-resident-system0:\t1 KiB\n").unwrap();
        assert_eq!((host.memory, host.host), (None, Some(1 << 10)), "the host's memory");
        assert_eq!(client(7, "pos:\t0\n"), None, "no client");
    }

    #[test]
    fn the_host_s_memory_counts_where_the_device_has_no_other() {
        let of = |is_integrated, regions: &str| {
            let start = "drm-client-id:\t1\ndrm-pdev:\tx\n";
            let (all, mut out) = (Clients::default(), Vec::new());
            all.known.lock().clients = vec![client(7, &format!("{start}{regions}")).unwrap()];
            all.on("x", is_integrated, &mut out);
            crate::sysfs::fake::values(&out.iter().map(|on| on.value).collect::<Vec<_>>())
                .into_values()
                .next()
        };
        let amd = "drm-memory-vram:\t1 KiB\ndrm-memory-gtt:\t4 KiB\ndrm-memory-cpu:\t8 KiB\n";
        assert_eq!(of(false, amd), Some(1024.0), "a card");
        assert_eq!(of(true, amd), Some(5120.0), "an APU");
        let i915 = "drm-resident-system0:\t4 KiB\ndrm-resident-stolen-system0:\t1 KiB\n";
        assert_eq!(of(false, i915), Some(5120.0), "an integrated one of i915");
        let xe = "drm-resident-system:\t0\ndrm-resident-gtt:\t4 KiB\ndrm-resident-vram0:\t2 KiB\n";
        assert_eq!(of(false, xe), Some(2048.0), "a card of xe");
        assert_eq!(of(false, "drm-driver:\ti915\n"), None, "a kernel without these");
    }

    #[test]
    fn a_process_computes_if_the_engines_for_that_have_worked_most_for_it() {
        let of = |id, engines: &str| {
            let start = format!("drm-client-id:\t{id}\ndrm-pdev:\tx\ndrm-memory-local0:\t1 KiB\n");
            client(7, &format!("{start}{engines}")).unwrap()
        };
        let kind = |clients: Vec<Client>| {
            let (all, mut out) = (Clients::default(), Vec::new());
            all.known.lock().clients = clients;
            all.on("x", false, &mut out);
            assert_eq!(all.processes("x"), 1);
            crate::sysfs::fake::values(&[out[0].value]).into_keys().next().unwrap()
        };
        let (draws, computes) = ("drm-engine-render:\t5 ns", "drm-engine-compute:\t6 ns");
        assert_eq!(kind(vec![of(1, "")]), "gpu.process.memory.usage{graphics}");
        assert_eq!(kind(vec![of(1, draws)]), "gpu.process.memory.usage{graphics}");
        let both = vec![of(1, draws), of(2, computes)];
        assert_eq!(kind(both), "gpu.process.memory.usage{compute}");
        let twice = vec![of(1, computes), of(1, computes), of(2, draws), of(3, draws)];
        assert_eq!(kind(twice), "gpu.process.memory.usage{graphics}", "a client counts once");
    }

    #[test]
    fn busy_time_is_of_time_or_of_cycles_and_by_the_number_of_engines() {
        let text = |ns: u64, cycles: u64| {
            format!(
                "drm-client-id:\t1\ndrm-pdev:\tx\ndrm-memory-local0:\t1 KiB\n\
                 drm-engine-render:\t{ns} ns\ndrm-engine-capacity-render:\t2\n\
                 drm-cycles-ccs:\t{cycles}\ndrm-total-cycles-ccs:\t{}\ndrm-cycles-odd:\t5\n",
                cycles * 4
            )
        };
        let engines = |text: &str| client(7, text).unwrap().engines;
        let (then, now) = (engines(&text(100, 1000)), engines(&text(600, 3000)));
        assert_eq!(now.keys().collect::<Vec<_>>(), ["ccs", "render"]);
        let busy = |name: &str| now[name].busy_since(&then[name], 1000);
        assert_eq!((Some(busy("render")), Some(busy("ccs"))), (Some(0.25), Some(0.25)));
        let back = then["render"].busy_since(&now["render"], 1000);
        assert_eq!(Some(back), Some(0.0), "a counter that fell");
        let none = EngineTime::default();
        assert_eq!(Some(none.busy_since(&none, 0)), Some(0.0), "no time has passed");
    }
}
