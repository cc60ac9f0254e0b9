//! Entry points for benchmarks: the probes on one file without a search for libraries, and the
//! whole source on given processes.

use super::attach::many::Way;
use super::attach::probes::{Attached, Probes, task_layout};
use super::attach::target::Target;
use super::budget::controller::Attach;
use super::budget::quota::Quotas;
use super::libraries::elf::exports;
use super::maps::Maps;
use super::{Dependencies, NAME, Nccl, Settings};
use gpuwho_collect::Collector as _;
use gpuwho_common::nccl::{HIT_ENTRY, HIT_RETURN, STRANGERS, SYMBOLS};
use gpuwho_model::catalog::nccl::ProbeLevel;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::Batch;
use gpuwho_model::status::StatusRegistry;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_owners::tenant_files::TenantFiles;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Probes on a library's file. Dropping it detaches them.
pub struct Probed {
    _attached: Attached,
    _probes: Probes,
    maps: Maps,
    _quotas: Quotas,
}

impl std::fmt::Debug for Probed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probed").finish_non_exhaustive()
    }
}

impl Probed {
    /// Attaches in the given way, or in the best later one that the kernel supports. `timed_rate`
    /// attaches to the returns of operations too: `Some(rate)` times only some calls of a thread
    /// with more calls a second than that, `Some(0)` all.
    pub fn on(file: &Path, way: Way, timed_rate: Option<u32>) -> io::Result<Self> {
        let timed = timed_rate.is_some();
        let exports = exports(&File::open(file)?)?;
        let exports = exports.ok_or_else(|| io::Error::other("not a collective library"))?;
        let (mut probes, maps, of_owners) =
            Probes::load(task_layout(&Paths::default()), way, timed_rate.unwrap_or(0))
                .map_err(io::Error::other)?;
        let mut quotas = Quotas::default();
        quotas.load(of_owners);
        quotas.allow(vec![(STRANGERS, if timed { Attach::Full } else { Attach::Entries })]);
        let target = Target { file, exports: &exports, number: 1 };
        let attached = probes.attach(&target, timed).map_err(io::Error::other)?;
        Ok(Self { _attached: attached, _probes: probes, maps, _quotas: quotas })
    }

    /// Reads the maps as a tick does; returns the number of operations so far.
    pub fn read(&self) -> io::Result<u64> {
        let snapshot = self.maps.read()?;
        Ok(snapshot.communicators.iter().map(|(_, one)| one.activity.calls).sum())
    }
}

/// The whole source with default settings and its probe budget. Dropping it detaches everything.
#[derive(Debug)]
pub struct BudgetedProbe(Nccl);

impl BudgetedProbe {
    /// Starts it on the libraries of these processes.
    pub fn of(pids: &[u32]) -> io::Result<Self> {
        let paths = Paths::default();
        let (ownership, communicators) = (Ownership::new(&paths), Arc::default());
        let find = |pid: &u32| ownership.process(*pid, boot_time_ns());
        let processes: Vec<ProcKey> = pids.iter().filter_map(find).collect();
        let with = Dependencies {
            files: &TenantFiles::direct(&paths),
            ownership: &ownership,
            communicators: &communicators,
            board: &StatusRegistry::default(),
            aggregator: None,
        };
        let (nccl, _waker) =
            Nccl::start(Settings::default(), with, Box::new(move || processes.clone()))?;
        Ok(Self(nccl))
    }

    /// Runs a tick.
    pub fn read(&mut self) {
        self.0.collect(&mut Batch::new(NAME, SystemTime::now()));
    }

    /// Entry and return hits as of the last reading of the budget, and its level.
    pub fn hits(&self) -> (u64, u64, ProbeLevel) {
        let (counts, level) = self.0.shared.with(|known| (known.counts, known.level));
        let of = |counter: u32| counts.get(counter as usize).copied().unwrap_or(0);
        (of(HIT_ENTRY), of(HIT_RETURN), level)
    }
}

/// The file offset of a function, named without its prefix.
pub fn place_of(file: &File, name: &str) -> io::Result<u64> {
    let exports = exports(file)?.ok_or_else(|| io::Error::other("not a collective library"))?;
    let matches = |row: usize| SYMBOLS.get(row).is_some_and(|symbol| symbol.name == name);
    let found = exports.entries.iter().find(|(row, _)| matches(*row));
    found.map(|(_, offset)| *offset).ok_or_else(|| io::Error::other("no such function"))
}
