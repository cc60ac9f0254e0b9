//! Finding device holders in `/proc`: at start, where BPF cannot be loaded, and now and then for
//! what no hook sees (a descriptor passed over a socket, an open through io_uring).
//!
//! Reads every open file's type and number without touching the file itself, so a hung network
//! mount does not hang the scan. Costs one `statx` an open file of the host: about 1 µs each, within
//! the limits of a [`ScanPass`].

mod pass;

use crate::attribute::{Evidence, KernelCgroups, Opened};
use crate::host::boot_time_ns;
use crate::nodes::{Device, Nodes};
use crate::process::{Folder, Living, ProcStat};
use gpuwho_model::ids::{CgroupId, Hierarchy, ProcKey};
use gpuwho_model::paths::Paths;
use gpuwho_sys::process::share_files;
pub use pass::{PARTS, ScanPass};
use rustix::fs::{AtFlags, Dir, DirEntry, FileType, StatxFlags, statx};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

/// A process found to hold watched devices.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Who.
    pub process: ProcKey,
    /// Its parent's number.
    pub parent: u32,
    /// Real user id.
    pub uid: u32,
    /// Command name.
    pub comm: Arc<str>,
    /// Where it is.
    pub cgroups: KernelCgroups,
    /// What it holds.
    pub devices: BTreeSet<Device>,
}

impl Holder {
    /// Its opening of a node; of one that is not known, an empty one.
    pub fn opened(&self, node: Arc<str>, at_ns: u64) -> Opened {
        Opened {
            process: self.process,
            uid: self.uid,
            comm: Arc::clone(&self.comm),
            cgroups: self.cgroups.clone(),
            node,
            at_ns,
        }
    }
}

/// Descriptors and threads that are looked at for one device.
const MAX_LOOKS: usize = 4096;

/// Whether a process has a device among its open files, within so many looks, which are taken off; also
/// true if it has too many to look at.
pub fn holds(paths: &Paths, process: ProcKey, device: Device, looks: &mut usize) -> bool {
    let Some(folder) = Folder::open(paths, process.pid) else { return false };
    let is_same = |stat: ProcStat| stat.start_ticks == process.start_ticks && !stat.has_ended();
    let open = OpenDevices::of((process.pid, &folder), Some(device), &mut limited(looks));
    let may_hold = open.devices.contains(&device) || !open.is_complete;
    may_hold && folder.stat("").is_some_and(is_same)
}

/// A process that is known to have opened a device, with what it holds as far as so many looks see, which are
/// taken off, and whether they see all; `None` once it has ended.
pub fn opener(
    paths: &Paths,
    nodes: &Nodes,
    process: ProcKey,
    looks: &mut usize,
) -> Option<(Holder, bool)> {
    let folder = Folder::open(paths, process.pid)?;
    let open = OpenDevices::of((process.pid, &folder), None, &mut limited(looks));
    let is_complete = open.is_complete;
    let holder = describe(paths, (process.pid, &folder), watched(open, nodes))?;
    (holder.process == process).then_some((holder, is_complete))
}

fn limited(looks: &mut usize) -> impl FnMut(usize) -> bool {
    let left = *looks;
    move |number| {
        *looks = left.saturating_sub(number + 1);
        number < MAX_LOOKS.min(left)
    }
}

/// Whether this very process is alive.
pub fn is_alive(paths: &Paths, process: ProcKey) -> bool {
    Living::is_alive(paths, process)
}

/// The process that has a number now.
pub fn living(paths: &Paths, pid: u32) -> Option<ProcKey> {
    Living::find(paths, pid).map(|living| living.key)
}

/// Everything through one handle: a number reused in between mixes no two processes.
fn holder(
    paths: &Paths,
    nodes: &Nodes,
    (pid, folder): (u32, &Folder),
    open: OpenDevices,
) -> Option<Holder> {
    let devices = watched(open, nodes);
    if devices.is_empty() { None } else { describe(paths, (pid, folder), devices) }
}

fn watched(open: OpenDevices, nodes: &Nodes) -> BTreeSet<Device> {
    let mut devices = open.devices;
    devices.retain(|device| nodes.contains(*device));
    devices
}

fn describe(
    paths: &Paths,
    (pid, folder): (u32, &Folder),
    devices: BTreeSet<Device>,
) -> Option<Holder> {
    let [uid, ..] = folder.status("")?.uids()?;
    let (stat, cgroup) = folder.stat_and_cgroup().filter(|(stat, _)| !stat.has_ended())?;
    // None of one that is exiting: where it was stays what is known of it.
    let cgroups = cgroup.map(|text| cgroups(paths, &text)).unwrap_or_default();
    let process = ProcKey { pid, start_ticks: stat.start_ticks };
    Some(Holder { process, parent: stat.parent, uid, comm: stat.comm, cgroups, devices })
}

/// The devices among a process's open files.
#[derive(Debug, Default)]
struct OpenDevices {
    devices: BTreeSet<Device>,
    /// Whether every open file was looked at.
    is_complete: bool,
}

impl OpenDevices {
    /// Looks at the open files as long as `may_look` returns true for the number of those before, and
    /// no further than to one device if only that is wanted. A thread may have a table of its own
    /// (`unshare(CLONE_FILES)`), and a first thread that has ended has none: each table is looked at
    /// that is not the one before. Every descriptor and every thread is a look.
    fn of(
        (pid, folder): (u32, &Folder),
        wanted: Option<Device>,
        may_look: &mut dyn FnMut(usize) -> bool,
    ) -> Self {
        let mut looks = 0;
        let mut may_look = |_| {
            looks += 1;
            may_look(looks - 1)
        };
        // A process that is gone or not ours to look at holds nothing that we can see.
        let mut open = Self { is_complete: true, ..Self::default() };
        let mut table = None;
        if let Some(first) = Self::of_thread(folder, "", &mut may_look) {
            (open, table) = (first, Some(pid));
        }
        for thread in folder.threads().filter(|thread| *thread != pid) {
            if !open.is_complete || wanted.is_some_and(|wanted| open.devices.contains(&wanted)) {
                break;
            }
            if !may_look(0) {
                open.is_complete = false;
            } else if table.and_then(|table| share_files(table, thread)) != Some(true)
                && let Some(other) =
                    Self::of_thread(folder, &format!("task/{thread}/"), &mut may_look)
            {
                open.devices.extend(other.devices);
                open.is_complete = other.is_complete;
                table.get_or_insert(thread);
            }
        }
        open
    }

    /// The devices among a thread's files; `None` if no file is seen.
    fn of_thread(
        folder: &Folder,
        thread: &str,
        may_look: &mut dyn FnMut(usize) -> bool,
    ) -> Option<Self> {
        let files = folder.file(&format!("{thread}fd"))?;
        let mut entries = Dir::read_from(&files)
            .ok()?
            .flatten()
            .filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
            .peekable();
        entries.peek()?;
        let device = |entry: &DirEntry| {
            let file = statx(&files, entry.file_name(), AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)
                .ok()?;
            (FileType::from_raw_mode(file.stx_mode.into()) == FileType::CharacterDevice)
                .then_some(Device { major: file.stx_rdev_major, minor: file.stx_rdev_minor })
        };
        let mut devices = BTreeSet::new();
        for (number, entry) in entries.enumerate() {
            if !may_look(number) {
                return Some(Self { devices, is_complete: false });
            }
            devices.extend(device(&entry));
        }
        Some(Self { devices, is_complete: true })
    }
}

/// The numbers of a process's cgroups: the inodes of their directories. A hierarchy that is not
/// mounted here, or a path outside our cgroup namespace, is left out.
fn cgroups(paths: &Paths, text: &str) -> KernelCgroups {
    let ids = text
        .lines()
        .flat_map(|line| cgroup_folders(paths, line))
        .filter_map(|(hierarchy, folder)| {
            let id = fs::metadata(folder).ok()?.ino();
            Some(CgroupId { hierarchy, id })
        })
        .collect();
    KernelCgroups(ids)
}

fn cgroup_folders(paths: &Paths, line: &str) -> Vec<(Hierarchy, PathBuf)> {
    let mut fields = line.splitn(3, ':');
    let (Some(number), Some(controllers), Some(path)) =
        (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    if path.starts_with("/..") {
        return Vec::new();
    }
    let below = path.trim_start_matches('/');
    if number == "0" {
        return unified_root(paths)
            .map(|root| (Hierarchy::V2, root.join(below)))
            .into_iter()
            .collect();
    }
    controllers
        .split(',')
        .filter_map(|controller| {
            let hierarchy = match controller {
                "devices" => Hierarchy::Devices,
                "memory" => Hierarchy::Memory,
                "freezer" => Hierarchy::Freezer,
                _ => return None,
            };
            Some((hierarchy, paths.cgroup.join(controller).join(below)))
        })
        .collect()
}

/// Where the unified hierarchy is mounted: everywhere or, on hybrid hosts, in a folder of its own.
pub fn unified_root(paths: &Paths) -> Option<PathBuf> {
    [paths.cgroup.clone(), paths.cgroup.join("unified")]
        .into_iter()
        .find(|root| root.join("cgroup.procs").exists())
}

#[derive(Clone, Debug, Default)]
struct ScannedProcess {
    comm: Arc<str>,
    nodes: BTreeSet<Arc<str>>,
    cgroups: KernelCgroups,
}

/// What has been told so far, to tell only what is new.
#[derive(Debug, Default)]
pub struct Tracker(HashMap<ProcKey, ScannedProcess>);

impl Tracker {
    /// Takes note of evidence from elsewhere.
    pub fn note(&mut self, evidence: &Evidence) {
        match evidence {
            Evidence::Opened(opened) => self.add(opened),
            Evidence::Forked { parent, child } => {
                let inherited =
                    self.0.get(parent).map(|known| known.nodes.clone()).unwrap_or_default();
                self.add(child);
                if let Some(known) = self.0.get_mut(&child.process) {
                    known.nodes.extend(inherited);
                }
            }
            Evidence::Moved { process, cgroups } => {
                if let Some(known) = self.0.get_mut(process) {
                    known.cgroups = cgroups.clone();
                }
            }
            Evidence::Execed { process, comm } => {
                if let Some(known) = self.0.get_mut(process) {
                    known.comm = Arc::clone(comm);
                }
            }
            Evidence::Exited { process, .. } => {
                self.0.remove(process);
            }
            Evidence::CgroupMade { .. } | Evidence::CgroupRemoved { .. } => {}
        }
    }

    /// Whether a process has been told to hold a device.
    pub fn knows(&self, process: ProcKey) -> bool {
        self.0.contains_key(&process)
    }

    /// Whether this very opening has been told.
    pub fn knows_node(&self, opened: &Opened) -> bool {
        self.0.get(&opened.process).is_some_and(|known| known.nodes.contains(&opened.node))
    }

    /// Scans, and gives what differs from what is known.
    pub fn scan(&mut self, paths: &Paths, nodes: &Nodes) -> Vec<Evidence> {
        let mut pass = ScanPass::begin(paths);
        let mut reported = Vec::new();
        while let Some(holders) = pass.step(paths, nodes) {
            reported.extend(self.take(&holders, nodes));
        }
        reported.extend(self.end_missing(paths, &pass));
        reported
    }

    /// Who opened a device that is not seen; nothing where the process is known.
    pub fn take_unseen(&mut self, opened: Opened) -> Option<Evidence> {
        let evidence = (!self.knows(opened.process)).then_some(Evidence::Opened(opened))?;
        self.note(&evidence);
        Some(evidence)
    }

    /// What the holders found in a step have that is not known yet.
    pub fn take(&mut self, holders: &[Holder], nodes: &Nodes) -> Vec<Evidence> {
        let at_ns = boot_time_ns();
        let new = holders.iter().flat_map(|holder| self.news(holder, nodes, at_ns));
        let reported: Vec<_> = new.collect();
        for evidence in &reported {
            self.note(evidence);
        }
        reported
    }

    /// The ends of the processes that a complete pass, or a part of one, has not found.
    pub fn end_missing(&mut self, paths: &Paths, pass: &ScanPass) -> Vec<Evidence> {
        if pass.incomplete() > 0 {
            let processes = pass.incomplete();
            tracing::warn!(processes, "not all open files of these processes were looked at");
        }
        let at_ns = boot_time_ns();
        // Who holds a device is alive.
        let others = self.0.keys().filter(|process| pass.misses(**process));
        let gone = others.filter(|process| !is_alive(paths, **process));
        let reported: Vec<_> =
            gone.map(|process| Evidence::Exited { process: *process, at_ns }).collect();
        for evidence in &reported {
            self.note(evidence);
        }
        reported
    }

    fn add(&mut self, opened: &Opened) {
        let known = self.0.entry(opened.process).or_default();
        known.comm = Arc::clone(&opened.comm);
        if !opened.cgroups.0.is_empty() {
            known.cgroups = opened.cgroups.clone();
        }
        if !opened.node.is_empty() {
            known.nodes.insert(Arc::clone(&opened.node));
        }
    }

    fn news(&self, holder: &Holder, nodes: &Nodes, at_ns: u64) -> Vec<Evidence> {
        let known = self.0.get(&holder.process);
        let mut news: Vec<Evidence> = holder
            .devices
            .iter()
            .map(|device| nodes.name(*device))
            .filter(|node| known.is_none_or(|known| !known.nodes.contains(node)))
            .map(|node| Evidence::Opened(holder.opened(node, at_ns)))
            .collect();
        if known.is_some_and(|known| known.cgroups.have_moved(&holder.cgroups)) {
            let (process, cgroups) = (holder.process, holder.cgroups.clone());
            news.push(Evidence::Moved { process, cgroups });
        }
        // It has become another program, or calls itself otherwise.
        if known.is_some_and(|known| known.comm != holder.comm) {
            let (process, comm) = (holder.process, Arc::clone(&holder.comm));
            news.push(Evidence::Execed { process, comm });
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::fake::FakeHost;
    use std::fs::File;

    fn holders(paths: &Paths, nodes: &Nodes) -> Vec<Holder> {
        let mut pass = ScanPass::begin(paths);
        std::iter::from_fn(|| pass.step(paths, nodes)).flatten().collect()
    }

    fn own_key() -> ProcKey {
        living(&Paths::default(), std::process::id()).unwrap()
    }

    #[test]
    fn earlier_process_of_the_same_number_is_not_alive() {
        let own = own_key();
        assert!(is_alive(&Paths::default(), own));
        let earlier = ProcKey { start_ticks: own.start_ticks - 1, ..own };
        assert!(!is_alive(&Paths::default(), earlier));
    }

    #[test]
    fn open_device_is_found_with_its_holder_and_told_once() {
        let _zero = File::open("/dev/zero").unwrap();
        let settings = crate::nodes::Settings {
            nodes: vec!["/dev/zero".to_owned()],
            drivers: Vec::new(),
            vendors: &[],
        };
        let paths = Paths::default();
        let nodes = Nodes::read(&settings, &paths);
        let mut tracker = Tracker::default();
        let me = own_key();
        let mine = |evidence: Vec<Evidence>| -> Vec<Arc<str>> {
            let opened = evidence.into_iter().filter_map(|evidence| match evidence {
                Evidence::Opened(opened) if opened.process == me => Some(opened.node),
                _ => None,
            });
            opened.collect()
        };
        assert_eq!(mine(tracker.scan(&paths, &nodes)), vec![Arc::from("/dev/zero")]);
        assert_eq!(mine(tracker.scan(&paths, &nodes)), Vec::<Arc<str>>::new());
    }

    #[test]
    fn process_with_a_name_that_is_no_text_is_alive() {
        let host = FakeHost::new();
        host.start(LEADER, "NAME", "0::/\n");
        let stat = fs::read(host.paths.proc.join("7/stat")).unwrap();
        let stat: Vec<u8> =
            stat.iter().map(|byte| if *byte == b'N' { 0xff } else { *byte }).collect();
        host.write(LEADER, "stat", stat);
        assert!(is_alive(&host.paths, LEADER));
        assert_eq!(living(&host.paths, LEADER.pid), Some(LEADER));
    }

    const LEADER: ProcKey = ProcKey { pid: 7, start_ticks: 100 };

    /// A host where a process of a job holds `/dev/zero`, with what the scan looks for.
    fn job_that_holds() -> (FakeHost, Nodes) {
        let host = FakeHost::new();
        for group in ["", "job"] {
            fs::create_dir_all(host.paths.cgroup.join("memory").join(group)).unwrap();
        }
        host.start(LEADER, "train", "4:memory:/job\n");
        host.hold(LEADER, "", "/dev/zero");
        let settings = crate::nodes::Settings {
            nodes: vec!["/dev/zero".to_owned()],
            drivers: Vec::new(),
            vendors: &[],
        };
        let dev = Paths { dev: PathBuf::from("/dev"), ..host.paths.clone() };
        let nodes = Nodes::read(&settings, &dev);
        (host, nodes)
    }

    fn place(host: &FakeHost, group: &str) -> KernelCgroups {
        let id = fs::metadata(host.paths.cgroup.join("memory").join(group)).unwrap().ino();
        KernelCgroups(vec![CgroupId { hierarchy: Hierarchy::Memory, id }])
    }

    #[test]
    fn holder_that_moves_or_becomes_another_program_is_told_so_once() {
        let (host, nodes) = job_that_holds();
        fs::create_dir_all(host.paths.cgroup.join("memory/other")).unwrap();
        let mut tracker = Tracker::default();
        tracker.scan(&host.paths, &nodes);
        host.start(LEADER, "vllm", "4:memory:/other\n");
        let expected = [
            Evidence::Moved { process: LEADER, cgroups: place(&host, "other") },
            Evidence::Execed { process: LEADER, comm: Arc::from("vllm") },
        ];
        assert_eq!(tracker.scan(&host.paths, &nodes), expected);
        assert_eq!(tracker.scan(&host.paths, &nodes), []);
    }

    #[test]
    fn process_that_is_exiting_is_not_told_to_have_moved_to_the_root() {
        let (host, nodes) = job_that_holds();
        let mut tracker = Tracker::default();
        let reported = tracker.scan(&host.paths, &nodes);
        let [Evidence::Opened(opened)] = reported.as_slice() else { panic!("{reported:?}") };
        assert_eq!(opened.cgroups, place(&host, "job"));
        // So the kernel shows it from the moment it begins to exit.
        host.write(LEADER, "cgroup", "4:memory:/\n");
        host.rewrite_stat(LEADER, 'R', 0x4);
        assert_eq!(tracker.scan(&host.paths, &nodes), []);
        let exiting = holders(&host.paths, &nodes).pop().unwrap();
        assert_eq!(exiting.cgroups, KernelCgroups::default());
    }

    #[test]
    fn holder_whose_first_thread_has_ended_is_found_by_its_living_thread() {
        let (host, nodes) = job_that_holds();
        let dir = host.paths.proc.join("7");
        fs::remove_dir_all(dir.join("fd")).unwrap();
        fs::create_dir(dir.join("fd")).unwrap();
        host.write(LEADER, "cgroup", "4:memory:/\n");
        host.rewrite_stat(LEADER, 'R', 0x4);
        host.thread(LEADER, 8, 'S', "4:memory:/job\n");
        host.hold(LEADER, "task/8", "/dev/zero");
        let holder = holders(&host.paths, &nodes).pop().unwrap();
        assert_eq!((holder.process, holder.cgroups), (LEADER, place(&host, "job")));
        assert_eq!(holder.devices, BTreeSet::from([Device { major: 1, minor: 5 }]));
        assert!(holds(&host.paths, LEADER, Device { major: 1, minor: 5 }, &mut 10));
    }

    #[test]
    fn a_thread_with_a_table_of_its_own_is_looked_at_within_the_bound() {
        const ZERO: Device = Device { major: 1, minor: 5 };
        let (host, nodes) = job_that_holds();
        fs::remove_dir_all(host.paths.proc.join("7/fd")).unwrap();
        host.hold(LEADER, "", "/dev/null");
        // No number of a thread of this machine's.
        host.thread(LEADER, 5_000_000, 'S', "4:memory:/job\n");
        host.hold(LEADER, "task/5000000", "/dev/zero");
        let holder = holders(&host.paths, &nodes).pop().unwrap();
        assert_eq!(holder.devices, BTreeSet::from([ZERO]));
        let mut looks = 10;
        assert!(holds(&host.paths, LEADER, ZERO, &mut looks));
        assert!(!holds(&host.paths, LEADER, Device { major: 1, minor: 7 }, &mut looks));
        assert_eq!(looks, 4, "a descriptor, a thread and its descriptor, twice");
        // What could not be looked at counts for an opening that was told, and not for a scan.
        assert!(holds(&host.paths, LEADER, Device { major: 1, minor: 7 }, &mut 1));
        let folder = Folder::open(&host.paths, LEADER.pid).unwrap();
        let open = OpenDevices::of((LEADER.pid, &folder), None, &mut |number| number < 1);
        assert_eq!((open.devices.contains(&ZERO), open.is_complete), (false, false));
    }

    #[test]
    fn holder_that_ended_is_told_as_exited() {
        let mut tracker = Tracker::default();
        let gone = ProcKey { pid: u32::MAX - 1, start_ticks: 1 };
        tracker.0.insert(gone, ScannedProcess::default());
        let reported = tracker.scan(&Paths::default(), &Nodes::default());
        assert!(
            matches!(reported.as_slice(), [Evidence::Exited { process, .. }] if *process == gone),
            "{reported:?}"
        );
        assert!(!tracker.knows(gone));
    }

    #[test]
    fn path_outside_our_cgroup_namespace_is_left_out() {
        assert!(cgroup_folders(&Paths::default(), "5:devices:/../../pod").is_empty());
        assert_eq!(
            cgroup_folders(&Paths::default(), "5:devices:/pod"),
            vec![(Hierarchy::Devices, PathBuf::from("/sys/fs/cgroup/devices/pod"))]
        );
    }
}
