//! The processes on a device's parts: KFD has a directory for each process with a context, and in it a file
//! for each part of every device that the process could use.
//!
//! Most of these files say 0. A file that did not at the last reading is read every time; so are all files
//! of a process that is new or whose number of queues has changed, as it does when it begins to use another
//! part. The others are read in turns: a process that takes memory on another part and makes no queue there is
//! found within [`ROUND`] readings, where a device has at most `ROUND * MAX_TURN` such files. A device with
//! [`MIN_TURN`] of them or fewer, which is each one that is not partitioned on most hosts, has all of them
//! read every time.
//!
//! Cost: one directory and one look at each process a tick for all devices, and the files above.

use super::super::files::{Files, numbered};
use super::super::in_flight;
use super::super::sysfs::MILLI;
use super::super::wire::{ProcessValue, WireValue, push};
use super::kfd::{self, Part};
use super::place;
use crate::catalog::process::{self as metric, ProcessType};
use crate::paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The devices of one tick are read one after the other within this time.
const FRESH_NS: u64 = 100_000_000;
/// Readings in which each file is read once at least.
const ROUND: usize = 32;
/// Files of a device that are read in one turn.
const MIN_TURN: usize = 16;
const MAX_TURN: usize = 128;

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
    pub(super) paths: &'a Paths,
    pub(super) list: &'a ProcessList,
}

/// The processes of KFD, listed once a tick for all devices.
#[derive(Debug, Default)]
pub(super) struct ProcessList(Mutex<State>);

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
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    known: BTreeMap<u32, Known>,
    /// The last file of the last turn.
    last: (u32, usize),
}

#[derive(Debug)]
struct Known {
    links: Option<u64>,
    /// Whether it had memory or a queue, for each part.
    uses: Vec<bool>,
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
        let turn = self.turn(parts.len());
        let mut before = std::mem::take(&mut self.known);
        for process in listed.iter() {
            let known = before.remove(&process.pid);
            let known = known.filter(|known| known.links == process.links);
            let mut queues = None;
            let mut uses = Vec::with_capacity(parts.len());
            for (number, part) in parts.iter().enumerate() {
                let is_due = known.as_ref().is_none_or(|known| {
                    known.uses.get(number).is_none_or(|uses| *uses)
                        || turn.contains(&(process.pid, number))
                });
                let found = if is_due { memory(process, part, &mut queues, files) } else { None };
                uses.push(found.is_some());
                let Some(bytes) = found else { continue };
                let mut values = Vec::new();
                let bytes = i64::try_from(bytes).ok();
                push(&mut values, &metric::MEMORY_USAGE, ProcessType::Compute, bytes);
                statistics(process, part, files, &mut values);
                let number = u32::try_from(number).ok().filter(|_| parts.len() > 1);
                let (pid, place) = (process.pid, number.map(place));
                out.extend(values.into_iter().map(|value| ProcessValue { pid, place, value }));
            }
            self.known.insert(process.pid, Known { links: process.links, uses });
        }
    }

    /// The files without memory that are read this time.
    fn turn(&mut self, parts: usize) -> BTreeSet<(u32, usize)> {
        let without = |(pid, known): (&u32, &Known)| {
            let (pid, uses) = (*pid, known.uses.iter().take(parts).enumerate());
            uses.filter(|(_, uses)| !**uses).map(|(part, _)| (pid, part)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.known.iter().flat_map(without).collect();
        let many = all.len().div_ceil(ROUND).clamp(MIN_TURN, MAX_TURN);
        let first = all.partition_point(|file| *file <= self.last);
        let next = all.iter().skip(first).chain(all.iter().take(first)).take(many);
        let turn: Vec<_> = next.copied().collect();
        self.last = turn.last().copied().unwrap_or_default();
        turn.into_iter().collect()
    }
}

/// Memory of a process on a part; `None` without memory or a queue there.
fn memory(
    process: &Listed,
    part: &Part,
    queues: &mut Option<BTreeSet<u64>>,
    files: &mut Files,
) -> Option<u64> {
    let id = part.id?;
    let bytes = files.number(&process.folder.join(format!("vram_{id}")))?;
    // The links of a file system that does not count directories are no evidence.
    if bytes > 0 || matches!(process.links, None | Some(2)) {
        return Some(bytes).filter(|bytes| *bytes > 0);
    }
    let queues = queues.get_or_insert_with(|| devices_of_queues(&process.folder, files));
    queues.contains(&id).then_some(0)
}

/// What KFD counts of a process on a part. The driver looks at the compute units when `cu_occupancy` is
/// read.
fn statistics(process: &Listed, part: &Part, files: &mut Files, out: &mut Vec<WireValue>) {
    let Some(id) = part.id else { return };
    let folder = process.folder.join(format!("stats_{id}"));
    let occupied = part.units.zip(files.number(&folder.join("cu_occupancy")));
    let occupied = occupied.and_then(|(units, occupied)| {
        let occupied = u32::try_from(occupied).ok().filter(|occupied| *occupied <= units);
        files.count_implausible(occupied).map(|occupied| f64::from(occupied) / f64::from(units))
    });
    push(out, &metric::OCCUPANCY, (), occupied);
    let evicted = files.number(&folder.join("evicted_ms"));
    #[expect(clippy::cast_precision_loss, reason = "a double has the milliseconds of years")]
    push(out, &metric::EVICTED_TIME, (), evicted.map(|ms| ms as f64 / MILLI));
}

/// The ids of the devices on which a process has queues.
fn devices_of_queues(folder: &Path, files: &mut Files) -> BTreeSet<u64> {
    let queues = numbered(&folder.join("queues"), "").into_iter();
    queues.filter_map(|(_, queue)| files.number(&queue.join("gpuid"))).collect()
}
