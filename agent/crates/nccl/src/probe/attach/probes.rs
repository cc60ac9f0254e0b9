//! Loads the programs of the probe `nccl` and attaches them to a library's file by offset: one
//! uprobe per function and file, for all processes that map it.
//!
//! Nothing is loaded before the first library is found. If the kernel has links for many uprobes,
//! one program serves all functions of a file. Otherwise, or if such a link is refused, each
//! function has its own program, loaded when it is first attached.

use super::many::{Many, Way};
use super::target::{ProbedFunction, Target, is_about_communicators, is_timed, places, rows};
use crate::probe::budget::quota::QuotaMaps;
use crate::probe::budget::tally::Tally;
use crate::probe::maps::{Maps, second_fd};
use aya::maps::{HashMap as KernelMap, Map, MapData, PerCpuArray};
use aya::programs::UProbe;
use aya::programs::uprobe::{UProbeLink, UProbeLinkId, UProbeScope};
use aya::{Ebpf, EbpfLoader, Pod};
use gpuwho_bpf::btf::Btf;
use gpuwho_bpf::load::{LoadError, allow_maps};
use gpuwho_bpf::objects::NCCL;
use gpuwho_common::nccl::{SYMBOLS, TaskLayout, Thread};
use gpuwho_model::paths::Paths;
use gpuwho_sys::bpf::entries;
use gpuwho_sys::uprobes::Place;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// The program for every return.
const RETURNED: &str = "returned";

/// The loaded programs.
pub(in super::super) struct Probes {
    bpf: Ebpf,
    many: Option<Many>,
    loaded: HashSet<&'static str>,
    pub counts: PerCpuArray<MapData, u64>,
    /// The map of threads, which is read here too.
    threads: Option<OwnedFd>,
}

/// Keeps one probe or many attached. Dropping it detaches them, for which the kernel waits until no
/// CPU is inside: for a single probe a tenth of a second on a busy host, one after the other
/// (`perf_uprobe_destroy`, 6.18), for a link the same time once.
#[derive(Debug)]
pub(in super::super) enum Hold {
    One(#[expect(dead_code, reason = "kept to be dropped")] UProbeLink),
    Many(#[expect(dead_code, reason = "kept to be dropped")] OwnedFd),
}

/// The probes on one file.
#[derive(Debug, Default)]
pub(in super::super) struct Attached {
    /// Entries, and in a session the returns that they request.
    entries: Vec<Hold>,
    /// Returns of functions that create, end or query communicators.
    returns: Vec<Hold>,
    /// Only for timing: returns of operations, and entries of functions that call others.
    timing: Vec<Hold>,
    /// Number of functions probed at their entry, and at their return.
    functions: [usize; 2],
    /// Functions that could not be probed, with the reason.
    pub refused: Vec<(&'static str, String)>,
}

impl Attached {
    /// Whether the programs get a cookie with the library and the kind of instruction.
    pub(super) fn has_ids(&self) -> bool {
        self.entries.iter().any(|hold| matches!(hold, Hold::Many(_)))
    }

    /// Number of functions probed at their entry.
    pub(in super::super) fn functions(&self) -> usize {
        self.functions[0]
    }

    /// Number of functions probed at their return.
    pub(in super::super) fn returns(&self) -> usize {
        self.functions[1]
    }

    /// Removes the probes that only timing needs.
    pub(in super::super) fn untime(&mut self) -> Vec<Hold> {
        std::mem::take(&mut self.timing)
    }

    /// Removes all probes.
    pub(in super::super) fn into_holds(self) -> Vec<Hold> {
        let Self { mut entries, returns, timing, .. } = self;
        entries.extend(returns);
        entries.extend(timing);
        entries
    }
}

impl Probes {
    /// Loads the maps and the best kind of link that the kernel supports, starting with `best`.
    /// Also returns the maps to read, and those that identify processes to the programs. Only some
    /// calls of a thread with more than `timed_rate` calls a second are timed, if skipping a return
    /// saves time; 0 times all.
    pub(in super::super) fn load(
        layout: TaskLayout,
        best: Way,
        timed_rate: u32,
    ) -> Result<(Self, Maps, QuotaMaps), LoadError> {
        if NCCL.is_empty() {
            return Err(LoadError::NotBuilt);
        }
        allow_maps();
        let mut bpf = EbpfLoader::new()
            .btf(None)
            .override_global("TASK_LAYOUT", &layout, true)
            .override_global(
                "FAST_NS",
                &SECOND_NS.checked_div(timed_rate.into()).unwrap_or(0),
                true,
            )
            .load(NCCL)?;
        let (many, refused) = Many::load(&bpf, best);
        for error in refused {
            tracing::debug!(%error, "functions are probed one by one, or their returns all");
        }
        let maps = Maps {
            handles: take(&mut bpf, "HANDLES")?,
            communicators: take(&mut bpf, "COMMUNICATORS")?,
            calls: take(&mut bpf, "CALLS")?,
            threads: take(&mut bpf, "THREADS")?,
            unique_ids: take(&mut bpf, "UNIQUE_IDS")?,
            names: take(&mut bpf, "NAMES")?,
            coming: take(&mut bpf, "COMING")?,
            changes: take(&mut bpf, "CHANGES")?,
        };
        let threads = second_fd(&maps.threads);
        let counts = PerCpuArray::try_from(take(&mut bpf, "COUNTS")?)
            .map_err(|source| LoadError::Map { name: "COUNTS", source })?;
        let quotas = QuotaMaps {
            tenants: hash_map(&mut bpf, "TENANTS")?,
            taken: hash_map(&mut bpf, "TAKEN")?,
            freed: hash_map(&mut bpf, "FREED")?,
        };
        Ok((Self { bpf, many, loaded: HashSet::new(), counts, threads }, maps, quotas))
    }

    /// Loads every program; returns how many there are, and how functions will be probed.
    pub(in super::super) fn try_all(paths: &Paths) -> Result<(usize, Way), LoadError> {
        let (mut probes, _maps, _quotas) = Self::load(task_layout(paths), Way::Session, 0)?;
        let programs = SYMBOLS.iter().map(|symbol| symbol.program).chain([RETURNED]);
        let programs: Vec<&'static str> = programs.collect();
        for &program in &programs {
            let refused = |source| LoadError::Program { program, source };
            let found = probes.bpf.program_mut(program).ok_or(LoadError::Missing(program))?;
            let found: &mut UProbe = found.try_into().map_err(refused)?;
            found.load().map_err(refused)?;
        }
        Ok((programs.len(), probes.way()))
    }

    /// The hits of each thread so far, by `bpf_get_current_pid_tgid`.
    pub(in super::super) fn hits(&self) -> Vec<(u64, Tally)> {
        let read = self.threads.as_ref().and_then(|map| entries::<u64, Thread>(map.as_fd()).ok());
        read.into_iter().flatten().map(|(task, thread)| (task, Tally::of(&thread))).collect()
    }

    /// How functions are probed.
    pub(in super::super) fn way(&self) -> Way {
        self.many.as_ref().map_or(Way::Each, Many::way)
    }

    /// Attaches to a file's functions. A refused function is left out and listed; an error means
    /// that nothing can be attached.
    pub(in super::super) fn attach(
        &mut self,
        target: &Target<'_>,
        timed: bool,
    ) -> Result<Attached, LoadError> {
        let Target { file, exports, .. } = *target;
        if let Some(many) = &self.many {
            match all(many, target, timed) {
                Ok(attached) => return Ok(attached),
                // A single function may be the cause: attaching them one by one identifies it.
                Err(error) => tracing::debug!(%error, "a link for all functions is refused"),
            }
        }
        let mut attached = Attached::default();
        // Returns first: a call that starts in between must not stay open.
        if timed {
            self.time_each(target, &mut attached);
        }
        for place in rows(exports).filter(|(_, symbol, _)| is_about_communicators(symbol)) {
            let hold = self.link(RETURNED, file, place, &mut attached);
            attached.returns.extend(hold);
        }
        for place in rows(exports).filter(|(_, symbol, _)| !symbol.wraps) {
            let hold = self.link(place.1.program, file, place, &mut attached);
            attached.entries.extend(hold);
        }
        if attached.entries.is_empty()
            && let Some(place) = rows(exports).next()
        {
            // All were refused; report the reason of the first.
            drop(self.one(RETURNED, file, place.2)?);
        }
        Ok(attached)
    }

    /// Attaches the probes that only timing needs.
    pub(super) fn time_calls(&mut self, target: &Target<'_>, attached: &mut Attached) {
        match &self.many {
            // With a link for all functions, all succeed or all fail.
            Some(many) if attached.has_ids() => {
                if let Err(error) = time_all(many, target, attached) {
                    attached.refused.push((RETURNED, error.to_string()));
                }
            }
            _ => self.time_each(target, attached),
        }
    }

    fn time_each(&mut self, target: &Target<'_>, attached: &mut Attached) {
        for place in rows(target.exports) {
            let returned = is_timed(place.1).then_some(RETURNED);
            let wrapper = place.1.wraps.then_some(place.1.program);
            for program in [returned, wrapper].into_iter().flatten() {
                let hold = self.link(program, target.file, place, attached);
                attached.timing.extend(hold);
            }
        }
    }

    /// Attaches to one function; records a refusal.
    fn link(
        &mut self,
        program: &'static str,
        file: &Path,
        (_, symbol, offset): ProbedFunction,
        attached: &mut Attached,
    ) -> Option<Hold> {
        match self.one(program, file, offset) {
            Ok(link) => {
                let [entries, returns] = &mut attached.functions;
                *(if program == RETURNED { returns } else { entries }) += 1;
                Some(Hold::One(link))
            }
            Err(error) => {
                attached.refused.push((symbol.name, error.to_string()));
                None
            }
        }
    }

    fn one(
        &mut self,
        program: &'static str,
        file: &Path,
        offset: u64,
    ) -> Result<UProbeLink, LoadError> {
        let refused = |source| LoadError::Program { program, source };
        let is_new = self.loaded.insert(program);
        let found: &mut UProbe = self
            .bpf
            .program_mut(program)
            .ok_or(LoadError::Missing(program))?
            .try_into()
            .map_err(refused)?;
        if is_new && let Err(source) = found.load() {
            self.loaded.remove(program);
            return Err(refused(source));
        }
        let id: UProbeLinkId =
            found.attach(offset, file, UProbeScope::AllProcesses).map_err(refused)?;
        found.take_link(id).map_err(refused)
    }
}

/// Attaches to all functions of a file at once.
fn all(many: &Many, target: &Target<'_>, timed: bool) -> io::Result<Attached> {
    let mut attached = Attached::default();
    if timed {
        time_all(many, target, &mut attached)?;
    }
    let places = places(target, is_about_communicators);
    if !places.is_empty() {
        attached.returns.extend(many.returns(target.file, &places)?.map(Hold::Many));
        attached.functions[1] += places.len();
    }
    // In a session the entries of functions that call others cost nothing extra.
    let places = places_of_entries(many, target);
    attached.entries.push(Hold::Many(many.entries(target.file, &places)?));
    attached.functions[0] += places.len();
    Ok(attached)
}

fn places_of_entries(many: &Many, target: &Target<'_>) -> Vec<Place> {
    places(target, |symbol| many.way() == Way::Session || !symbol.wraps)
}

fn time_all(many: &Many, target: &Target<'_>, attached: &mut Attached) -> io::Result<()> {
    let timed = places(target, is_timed);
    attached.functions[1] += timed.len();
    if many.way() == Way::Session || timed.is_empty() {
        return Ok(());
    }
    let returns = many.returns(target.file, &timed)?;
    let wrappers = places(target, |symbol| symbol.wraps);
    if !wrappers.is_empty() {
        attached.timing.push(Hold::Many(many.entries(target.file, &wrappers)?));
        attached.functions[0] += wrappers.len();
    }
    attached.timing.extend(returns.map(Hold::Many));
    Ok(())
}

fn take(bpf: &mut Ebpf, name: &'static str) -> Result<Map, LoadError> {
    bpf.take_map(name).ok_or(LoadError::Missing(name))
}

fn hash_map<K: Pod, V: Pod>(
    bpf: &mut Ebpf,
    name: &'static str,
) -> Result<KernelMap<MapData, K, V>, LoadError> {
    KernelMap::try_from(take(bpf, name)?).map_err(|source| LoadError::Map { name, source })
}

/// The offset of a process's start time in this kernel. Without it the programs identify processes
/// by PID until user space has resolved them. Reads some megabytes.
pub(in super::super) fn task_layout(paths: &Paths) -> TaskLayout {
    let read = || {
        let btf = Btf::read(&paths.sys.join("kernel/btf/vmlinux"))?;
        Ok::<_, gpuwho_bpf::btf::BtfError>(TaskLayout {
            leader: btf.offset("task_struct", "group_leader")?,
            start: btf.offset("task_struct", "start_boottime")?,
        })
    };
    read().unwrap_or(TaskLayout::UNKNOWN)
}
