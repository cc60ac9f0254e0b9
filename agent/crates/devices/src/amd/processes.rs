//! The processes on a device's parts: KFD has a directory for each process with a context, and in it a file
//! for each part of every device that the process could use.
//!
//! Most of these files say 0. A file that did not at the last reading is read every time, through a
//! descriptor that stays open, with the process's statistics there; so are all files of a process that is new
//! or whose number of queues has changed, as it does when it begins to use another part. The others are read
//! in turns: once the device has more memory in use than before, a process that has taken memory on another
//! part and made no queue there is found within [`ROUND`] readings, where a device has at most
//! `ROUND * MAX_TURN` such files; in between a [`SLOWER`]th of them is read. A device with [`MIN_TURN`] of them
//! or fewer, which is each one that is not partitioned on most hosts, has all of them read every time.
//!
//! Cost: one directory and one look at each process a tick for all devices, and the files above: one call for
//! one that is open, else three.

use super::super::files::{Files, numbered};
use super::super::in_flight;
use super::super::sysfs::MILLI;
use super::super::wire::{ProcessValue, WireValue, push};
use super::kfd::{self, Part};
use super::place;
use gpuwho_model::catalog::process::{self as metric, ProcessType};
use gpuwho_model::paths::Paths;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The devices of one tick are read one after the other within this time.
const FRESH_NS: u64 = 100_000_000;
/// Readings in which each file is read once at least.
const ROUND: usize = 32;
/// Files of a device that are read in one turn.
const MIN_TURN: usize = 16;
const MAX_TURN: usize = 128;
/// While the device's memory does not grow, a turn is so much smaller.
const SLOWER: usize = 8;
/// Processes on parts whose files stay open, of all devices: three files each, in a process that may have
/// 1,024 open.
const MAX_OPEN: usize = 160;

/// A process with a context.
#[derive(Debug)]
struct Listed {
    pid: u32,
    folder: PathBuf,
    /// Links of the directory of its queues; the kernel counts two, and one for each queue (`kernfs`).
    /// `None` without the directory.
    links: Option<u64>,
}

/// One reading of a device.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// The device's index.
    pub(super) device: u32,
    /// When the reading began.
    pub(super) at_ns: u64,
    /// Bytes of the device's memory in use.
    pub(super) used: Option<i64>,
    pub(super) paths: &'a Paths,
    pub(super) list: &'a ProcessList,
}

/// The processes of KFD, listed once a tick for all devices.
#[derive(Debug, Default)]
pub(super) struct ProcessList {
    state: Mutex<State>,
    /// One more for each [`OpenFiles`].
    open: Arc<()>,
}

#[derive(Debug, Default)]
struct State {
    at_ns: u64,
    listed: Arc<[Listed]>,
    /// The devices that have had this list.
    taken: BTreeSet<u32>,
}

impl ProcessList {
    /// The processes; listed again for a device that has had the list, or if it is old.
    fn of(&self, asked: &Asked<'_>, files: &mut Files) -> Arc<[Listed]> {
        let lock = || self.state.lock();
        let mut state = lock();
        let is_fresh = state.at_ns.saturating_add(FRESH_NS) > asked.at_ns;
        if is_fresh && state.taken.insert(asked.device) {
            return Arc::clone(&state.listed);
        }
        drop(state);
        // Not under the lock: where two devices list at once, both lists are as good.
        let one =
            |(pid, folder): (u32, PathBuf)| Listed { pid, links: links(&folder, files), folder };
        let listed = numbered(&kfd::root(asked.paths).join("proc"), "").into_iter().map(one);
        let listed: Arc<[Listed]> = listed.collect();
        let of = Arc::clone(&listed);
        *lock() = State { at_ns: asked.at_ns, listed: of, taken: [asked.device].into() };
        listed
    }
}

fn links(folder: &Path, files: &mut Files) -> Option<u64> {
    let (queues, begun) = (folder.join("queues"), Instant::now());
    let found = in_flight::call(&queues, || fs::metadata(&queues));
    files.count_call(begun.elapsed(), false);
    found.ok().map(|folder| folder.nlink())
}

/// What the last reading of a device found of each process.
#[derive(Debug, Default)]
pub(super) struct Processes {
    known: BTreeMap<u32, KnownProcess>,
    /// The last file of the last turn.
    last: (u32, usize),
    /// Bytes that were in use, and how many turns are left since they grew.
    used: Option<i64>,
    left: usize,
}

#[derive(Debug, Default)]
struct KnownProcess {
    is_listed: bool,
    links: Option<u64>,
    /// For each part; empty for a process that is new.
    uses: Vec<Use>,
}

/// A process on a part.
#[derive(Debug, Default)]
struct Use {
    /// Whether it had memory or a queue.
    is_used: bool,
    open: Option<OpenFiles>,
}

/// Files that are read every time.
#[derive(Debug)]
struct OpenFiles {
    memory: File,
    occupancy: Option<File>,
    evicted: Option<File>,
    _count: Arc<()>,
}

impl Processes {
    /// Adds the processes on the parts of a device with their memory there. A process without memory
    /// on a part counts only if it has a queue there.
    pub(super) fn read(
        &mut self,
        asked: &Asked<'_>,
        parts: &[Part],
        files: &mut Files,
        out: &mut Vec<ProcessValue>,
    ) {
        let listed = asked.list.of(asked, files);
        let turn = self.turn(asked.used);
        for process in listed.iter() {
            let known = self.known.entry(process.pid).or_default();
            known.is_listed = true;
            let is_new = known.uses.len() != parts.len() || known.links != process.links;
            if is_new {
                known.links = process.links;
                known.uses.clear();
                known.uses.resize_with(parts.len(), Use::default);
            }
            let mut queues = None;
            for (number, (part, on)) in parts.iter().zip(&mut known.uses).enumerate() {
                if !is_new && !on.is_used && turn.binary_search(&(process.pid, number)).is_err() {
                    continue;
                }
                let found = memory(process, part, on, &mut queues, files);
                on.is_used = found.is_some();
                let Some(bytes) = found else {
                    on.open = None;
                    continue;
                };
                if on.open.is_none() && Arc::strong_count(&asked.list.open) <= MAX_OPEN {
                    on.open = open(process, part, &asked.list.open);
                }
                let mut values = Vec::with_capacity(3);
                let bytes = i64::try_from(bytes).ok();
                push(&mut values, &metric::MEMORY_USAGE, ProcessType::Compute, bytes);
                statistics(process, part, on.open.as_ref(), files, &mut values);
                let number = u32::try_from(number).ok().filter(|_| parts.len() > 1);
                let (pid, place) = (process.pid, number.map(place));
                out.extend(values.into_iter().map(|value| ProcessValue { pid, place, value }));
            }
        }
        self.known.retain(|_, known| std::mem::take(&mut known.is_listed));
    }

    /// The files without memory that are read this time, sorted.
    fn turn(&mut self, used: Option<i64>) -> Vec<(u32, usize)> {
        let all =
            self.known.values().flat_map(|known| &known.uses).filter(|on| !on.is_used).count();
        // At the first reading every process is new, so that all its files are read.
        let has_grown = used.is_none_or(|used| self.used.is_some_and(|before| used > before));
        self.used = used;
        self.left = if has_grown { ROUND } else { self.left.saturating_sub(1) };
        let slower = if self.left == 0 && all > MIN_TURN { SLOWER } else { 1 };
        let many = all.div_ceil(ROUND).clamp(MIN_TURN, MAX_TURN) / slower;
        let last = self.last;
        let after = self.known.range(last.0..).flat_map(unused).filter(|file| *file > last);
        let before = self.known.range(..=last.0).flat_map(unused).filter(|file| *file <= last);
        let mut turn: Vec<_> = after.chain(before).take(many).collect();
        self.last = turn.last().copied().unwrap_or_default();
        turn.sort_unstable();
        turn
    }
}

/// The files of a process that said 0.
fn unused<'a>(
    (pid, known): (&'a u32, &'a KnownProcess),
) -> impl Iterator<Item = (u32, usize)> + 'a {
    let uses = known.uses.iter().enumerate().filter(|(_, on)| !on.is_used);
    uses.map(|(part, _)| (*pid, part))
}

/// Opens the files of a process on a part; `None` if it has ended.
fn open(process: &Listed, part: &Part, count: &Arc<()>) -> Option<OpenFiles> {
    let statistics = process.folder.join(format!("stats_{}", part.id?));
    let file = |name: &str| File::open(statistics.join(name)).ok();
    Some(OpenFiles {
        memory: File::open(process.folder.join(format!("vram_{}", part.id?))).ok()?,
        occupancy: file("cu_occupancy"),
        evicted: file("evicted_ms"),
        _count: Arc::clone(count),
    })
}

/// Memory of a process on a part; `None` without memory or a queue there.
fn memory(
    process: &Listed,
    part: &Part,
    on: &mut Use,
    queues: &mut Option<BTreeSet<u64>>,
    files: &mut Files,
) -> Option<u64> {
    let id = part.id?;
    let path = || process.folder.join(format!("vram_{id}"));
    let again = on.open.as_ref().and_then(|open| files.number_again(&open.memory, &process.folder));
    let bytes = again.or_else(|| {
        // Of another process with this PID, or gone.
        on.open = None;
        files.number(&path())
    })?;
    // The links of a file system that does not count directories are no evidence.
    if bytes > 0 || matches!(process.links, None | Some(2)) {
        return Some(bytes).filter(|bytes| *bytes > 0);
    }
    let queues = queues.get_or_insert_with(|| devices_of_queues(&process.folder, files));
    queues.contains(&id).then_some(0)
}

/// What KFD counts of a process on a part. The driver looks at the compute units when `cu_occupancy` is
/// read.
fn statistics(
    process: &Listed,
    part: &Part,
    open: Option<&OpenFiles>,
    files: &mut Files,
    out: &mut Vec<WireValue>,
) {
    let Some(id) = part.id else { return };
    let folder = || process.folder.join(format!("stats_{id}"));
    let [occupied, evicted] = match open {
        Some(open) => [&open.occupancy, &open.evicted]
            .map(|file| file.as_ref().and_then(|file| files.number_again(file, &process.folder))),
        None => ["cu_occupancy", "evicted_ms"].map(|name| files.number(&folder().join(name))),
    };
    let occupied = part.units.zip(occupied).and_then(|(units, occupied)| {
        let occupied = u32::try_from(occupied).ok().filter(|occupied| *occupied <= units);
        files.count_implausible(occupied).map(|occupied| f64::from(occupied) / f64::from(units))
    });
    push(out, &metric::OCCUPANCY, (), occupied);
    #[expect(clippy::cast_precision_loss, reason = "a double has the milliseconds of years")]
    push(out, &metric::EVICTED_TIME, (), evicted.map(|ms| ms as f64 / MILLI));
}

/// The ids of the devices on which a process has queues.
fn devices_of_queues(folder: &Path, files: &mut Files) -> BTreeSet<u64> {
    let queues = numbered(&folder.join("queues"), "").into_iter();
    queues.filter_map(|(_, queue)| files.number(&queue.join("gpuid"))).collect()
}
