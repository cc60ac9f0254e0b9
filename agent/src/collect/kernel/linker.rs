//! Tells which of some processes have loaded or let go of a library, when it happens: probe
//! `linker`, attached to one process at a time.
//!
//! The kernel puts the breakpoint into the memory of that process only (`uprobe_perf_filter`);
//! nobody else that maps the file ever traps. It walks over all of them though to find it, when
//! the probe comes and when it goes.

use super::load::{LoadError, allow_maps, hash_map, map, typed};
use crate::sys::bpf::record;
use aya::maps::{HashMap, MapData, PerCpuArray, RingBuf};
use aya::programs::uprobe::{UProbeLink, UProbeScope};
use aya::programs::{ProgramError, UProbe};
use aya::{Ebpf, EbpfLoader};
use gpuwho_common::linker::{HITS, QUIET, STRANGERS};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The object that the build embedded; empty where there was no BPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/linker"));

const PROGRAM: &str = "changed";

/// Keeps one process watched. Dropping it takes the kernel a tenth of a second, most of which it
/// waits.
pub(super) type Link = UProbeLink;

/// The probe, loaded.
pub(super) struct Linker {
    bpf: Ebpf,
    changed: RingBuf<MapData>,
    watched: HashMap<MapData, u32, u32>,
    counts: PerCpuArray<MapData, u64>,
}

impl Linker {
    /// Loads the program and its maps: some kilobytes.
    pub(super) fn load() -> Result<Self, LoadError> {
        if OBJECT.is_empty() {
            return Err(LoadError::NotBuilt);
        }
        allow_maps();
        let mut bpf = EbpfLoader::new().btf(None).load(OBJECT)?;
        let changed = RingBuf::try_from(map(&mut bpf, "CHANGED")?)
            .map_err(|source| LoadError::Map { name: "CHANGED", source })?;
        let watched = hash_map(&mut bpf, "WATCHED")?;
        let counts = PerCpuArray::try_from(map(&mut bpf, "COUNTS")?)
            .map_err(|source| LoadError::Map { name: "COUNTS", source })?;
        typed::<UProbe>(&mut bpf, PROGRAM)?.load().map_err(refused)?;
        Ok(Self { bpf, changed, watched, counts })
    }

    /// Watches a process from now on: `offset` is that of `_dl_debug_state` in the file of its
    /// dynamic linker.
    pub(super) fn watch(&mut self, pid: u32, file: &Path, offset: u64) -> Result<Link, LoadError> {
        let Some(process) = NonZeroU32::new(pid) else { return Err(LoadError::Missing("process")) };
        let full = |source| LoadError::Map { name: "WATCHED", source };
        self.watched.insert(pid, QUIET, 0).map_err(full)?;
        let attached = typed::<UProbe>(&mut self.bpf, PROGRAM).and_then(|program| {
            let id = program.attach(offset, file, UProbeScope::OneProcess(process));
            program.take_link(id.map_err(refused)?).map_err(refused)
        });
        if attached.is_err() {
            self.forget(pid);
        }
        attached
    }

    /// A process is watched no more, once its link is dropped.
    pub(super) fn forget(&mut self, pid: u32) {
        // An entry that is gone already is as wanted.
        let _ = self.watched.remove(&pid);
    }

    /// The processes that were told since the last time. What they do from now on is told again.
    pub(super) fn changed(&mut self) -> Vec<u32> {
        let mut processes = Vec::new();
        while let Some(bytes) = self.changed.next() {
            let pid = record::<u64>(&bytes).and_then(|pid| u32::try_from(pid).ok());
            processes.extend(pid);
        }
        for pid in &processes {
            // Not one that is watched no more: `BPF_EXIST`.
            let _ = self.watched.insert(pid, QUIET, 2);
        }
        processes
    }

    /// How often the program has run: for watched processes, and for others.
    pub(super) fn runs(&self) -> [u64; 2] {
        [HITS, STRANGERS]
            .map(|counter| self.counts.get(&counter, 0).map_or(0, |counts| counts.iter().sum()))
    }
}

impl AsFd for Linker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }
}

fn refused(source: ProgramError) -> LoadError {
    LoadError::Program { program: PROGRAM, source }
}
