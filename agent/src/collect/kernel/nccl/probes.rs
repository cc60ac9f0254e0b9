//! Loads the programs of the probe `nccl` and attaches them to a library's file, by offset: one
//! uprobe a function and file, whoever maps it.
//!
//! Nothing is loaded before the first library is found; a program is loaded when the first library
//! that has its function is attached.

use super::super::btf::Btf;
use super::super::load::first_line;
use super::elf::Exports;
use super::governor::Attach;
use crate::paths::Paths;
use aya::maps::{Array, MapData, MapError, PerCpuArray};
use aya::programs::uprobe::{UProbeLink, UProbeLinkId, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use aya::{Ebpf, EbpfError, EbpfLoader};
use gpuwho_common::nccl::{CONTROL_PAUSED, CONTROL_TIMED, Does, SYMBOLS, Symbol, TaskLayout};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::collections::HashSet;
use std::path::Path;

/// The object that the build embedded; empty where there was no BPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/nccl"));

/// The program of every return.
const RETURNED: &str = "returned";

/// Why the probe, or a part of it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Built without BPF.
    #[error("this binary was built without BPF programs")]
    NotBuilt,
    /// The object does not load.
    #[error("load the BPF object: {0}")]
    Object(#[from] Box<EbpfError>),
    /// A program is refused.
    #[error("program {program}: {}", first_line(.source))]
    Program {
        /// The program.
        program: &'static str,
        /// The kernel's answer.
        source: ProgramError,
    },
    /// A map is refused or missing.
    #[error("map {name}: {source}")]
    Map {
        /// The map.
        name: &'static str,
        /// Why.
        source: MapError,
    },
    /// The object lacks something: it was built from other sources.
    #[error("the embedded BPF object has no {0}")]
    Missing(&'static str),
}

/// The maps that hold what was counted.
#[derive(Debug)]
pub(super) struct Maps {
    pub handles: aya::maps::Map,
    pub communicators: aya::maps::Map,
    pub calls: aya::maps::Map,
    pub threads: aya::maps::Map,
    pub unique_ids: aya::maps::Map,
}

/// The programs, loaded.
pub(super) struct Probes {
    bpf: Ebpf,
    loaded: HashSet<&'static str>,
    control: Array<MapData, u32>,
    pub counts: PerCpuArray<MapData, u64>,
}

/// What is attached to one file. Dropping a link detaches it, which takes the kernel until no
/// processor is inside the probe: a tenth of a second each on a busy host, one after the other
/// (`perf_uprobe_destroy`, 6.18).
#[derive(Default)]
pub(super) struct Attached {
    /// Entries.
    entries: Vec<UProbeLink>,
    /// Returns of what makes, ends and asks.
    returns: Vec<UProbeLink>,
    /// What only timing needs: returns of operations, and entries of functions that call others.
    timing: Vec<UProbeLink>,
    /// Functions that could not be probed, with the reason.
    pub refused: Vec<(&'static str, String)>,
}

impl Attached {
    /// How many functions are probed at their entry.
    pub(super) fn functions(&self) -> usize {
        self.entries.len()
    }

    /// Takes out what only timing needs.
    pub(super) fn untime(&mut self) -> Vec<UProbeLink> {
        std::mem::take(&mut self.timing)
    }

    /// Takes out everything.
    pub(super) fn into_links(self) -> Vec<UProbeLink> {
        let Self { mut entries, returns, timing, .. } = self;
        entries.extend(returns);
        entries.extend(timing);
        entries
    }

    /// How many are probed at their return.
    pub(super) fn returns(&self) -> usize {
        self.returns.len() + self.timing.len()
    }
}

impl Probes {
    /// Loads the maps; gives those to read apart.
    pub(super) fn load(layout: TaskLayout) -> Result<(Self, Maps), ProbeError> {
        if OBJECT.is_empty() {
            return Err(ProbeError::NotBuilt);
        }
        // Before 5.11 maps count against this limit; a refusal shows as the first map's error.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let mut bpf = EbpfLoader::new()
            .btf(None)
            .override_global("TASK_LAYOUT", &layout, true)
            .load(OBJECT)
            .map_err(Box::new)?;
        let maps = Maps {
            handles: take(&mut bpf, "HANDLES")?,
            communicators: take(&mut bpf, "COMMUNICATORS")?,
            calls: take(&mut bpf, "CALLS")?,
            threads: take(&mut bpf, "THREADS")?,
            unique_ids: take(&mut bpf, "UNIQUE_IDS")?,
        };
        let control = Array::try_from(take(&mut bpf, "CONTROL")?)
            .map_err(|source| ProbeError::Map { name: "CONTROL", source })?;
        let counts = PerCpuArray::try_from(take(&mut bpf, "COUNTS")?)
            .map_err(|source| ProbeError::Map { name: "COUNTS", source })?;
        let mut probes = Self { bpf, loaded: HashSet::new(), control, counts };
        probes.control(Attach::Full)?;
        Ok((probes, maps))
    }

    /// Loads every program, as far as the kernel takes them; gives how many there are.
    pub(super) fn try_all(paths: &Paths) -> Result<usize, ProbeError> {
        let (mut probes, _maps) = Self::load(task_layout(paths))?;
        let programs = SYMBOLS.iter().map(|symbol| symbol.program).chain([RETURNED]);
        let programs: Vec<&'static str> = programs.collect();
        for &program in &programs {
            let refused = |source| ProbeError::Program { program, source };
            let found = probes.bpf.program_mut(program).ok_or(ProbeError::Missing(program))?;
            let found: &mut UProbe = found.try_into().map_err(refused)?;
            found.load().map_err(refused)?;
        }
        Ok(programs.len())
    }

    /// Tells the programs what is attached.
    pub(super) fn control(&mut self, attach: Attach) -> Result<(), ProbeError> {
        let word = match attach {
            Attach::Full => CONTROL_TIMED,
            Attach::Entries => 0,
            Attach::Nothing => CONTROL_PAUSED,
        };
        let set = self.control.set(0, word, 0);
        set.map_err(|source| ProbeError::Map { name: "CONTROL", source })
    }

    /// Attaches to a file's functions. A function that the kernel refuses is left out and named;
    /// an error means that nothing can be attached.
    pub(super) fn attach(
        &mut self,
        file: &Path,
        exports: &Exports,
        timed: bool,
    ) -> Result<Attached, ProbeError> {
        let mut attached = Attached::default();
        // Returns first: a call must not be left open because it began in between.
        if timed {
            self.time_calls(file, exports, &mut attached);
        }
        for (symbol, offset) in rows(exports).filter(|(symbol, _)| is_about_communicators(symbol)) {
            match self.link(RETURNED, file, offset) {
                Ok(link) => attached.returns.push(link),
                Err(error) => attached.refused.push((symbol.name, error.to_string())),
            }
        }
        for (symbol, offset) in rows(exports).filter(|(symbol, _)| !symbol.wraps) {
            match self.link(symbol.program, file, offset) {
                Ok(link) => attached.entries.push(link),
                Err(error) => attached.refused.push((symbol.name, error.to_string())),
            }
        }
        if attached.entries.is_empty()
            && let Some((_, offset)) = exports.entries.first()
        {
            // All were refused: for the reason of the first.
            drop(self.link(RETURNED, file, *offset)?);
        }
        Ok(attached)
    }

    /// Attaches what only timing needs.
    pub(super) fn time_calls(&mut self, file: &Path, exports: &Exports, attached: &mut Attached) {
        for (symbol, offset) in rows(exports) {
            let is_timed = matches!(symbol.does, Does::Call(_) | Does::GroupEnd);
            let returned = is_timed.then_some(RETURNED);
            let wrapper = symbol.wraps.then_some(symbol.program);
            for program in [returned, wrapper].into_iter().flatten() {
                match self.link(program, file, offset) {
                    Ok(link) => attached.timing.push(link),
                    Err(error) => attached.refused.push((symbol.name, error.to_string())),
                }
            }
        }
    }

    fn link(
        &mut self,
        program: &'static str,
        file: &Path,
        offset: u64,
    ) -> Result<UProbeLink, ProbeError> {
        let refused = |source| ProbeError::Program { program, source };
        let is_new = self.loaded.insert(program);
        let found: &mut UProbe = self
            .bpf
            .program_mut(program)
            .ok_or(ProbeError::Missing(program))?
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

/// The functions of a file, each with its place.
fn rows(exports: &Exports) -> impl Iterator<Item = (&'static Symbol, u64)> {
    let entries = exports.entries.iter();
    entries.filter_map(|(row, offset)| Some((SYMBOLS.get(*row)?, *offset)))
}

fn is_about_communicators(symbol: &Symbol) -> bool {
    matches!(symbol.does, Does::Birth(_) | Does::Death(_) | Does::Question(_))
}

fn take(bpf: &mut Ebpf, name: &'static str) -> Result<aya::maps::Map, ProbeError> {
    bpf.take_map(name).ok_or(ProbeError::Missing(name))
}

/// Where this kernel keeps a process's start. Without it processes are known by their number until
/// user space has looked. Reads some megabytes.
pub(super) fn task_layout(paths: &Paths) -> TaskLayout {
    let read = || {
        let btf = Btf::read(&paths.sys.join("kernel/btf/vmlinux"))?;
        Ok::<_, super::super::btf::BtfError>(TaskLayout {
            leader: btf.offset("task_struct", "group_leader")?,
            start: btf.offset("task_struct", "start_boottime")?,
        })
    };
    read().unwrap_or(TaskLayout::UNKNOWN)
}
