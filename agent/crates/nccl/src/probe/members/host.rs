//! The processes of this host and their libraries, as the member table needs them.

use super::Processes;
use crate::probe::budget::uptime::UptimeByUse;
use crate::probe::libraries::library::VersionAndPath;
use crate::probe::shared::AttachState;
use gpuwho_common::device_users::TICK_NS;
use gpuwho_common::nccl::STRANGERS;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::proc_scan::{is_alive, living};
use std::collections::HashMap;

/// The processes of this host.
pub(in super::super) struct Host<'a> {
    paths: &'a Paths,
    libraries: HashMap<ProcKey, VersionAndPath>,
    files: HashMap<(ProcKey, u32), VersionAndPath>,
    only: HashMap<ProcKey, u32>,
    uptime: UptimeByUse,
    owners: HashMap<u32, u32>,
}

impl<'a> Host<'a> {
    /// A copy of the current state.
    pub(in super::super) fn of(paths: &'a Paths, known: &AttachState) -> Self {
        Self {
            paths,
            libraries: known.libraries.clone(),
            files: known.files_by_number.clone(),
            only: known.only.clone(),
            uptime: known.uptime.clone(),
            owners: known.quotas.owners(),
        }
    }

    /// The file in which a process created a communicator: the one that the programs reported, or
    /// the only one that the process has loaded.
    pub(in super::super) fn file(&self, process: ProcKey, reported: u32) -> Option<u32> {
        let reported = (reported != 0).then_some(reported);
        reported.or_else(|| self.only.get(&process).copied())
    }
}

impl Host<'_> {
    /// The number of the owner that a process counts towards.
    pub(in super::super) fn owner(&self, process: ProcKey) -> u32 {
        self.owners.get(&process.pid).copied().unwrap_or(STRANGERS)
    }
}

impl Processes for Host<'_> {
    fn find(&self, pid: u32, start_ns: u64) -> Option<ProcKey> {
        if start_ns != 0 {
            return Some(ProcKey { pid, start_ticks: start_ns / TICK_NS });
        }
        living(self.paths, pid)
    }

    fn is_alive(&self, process: ProcKey) -> bool {
        is_alive(self.paths, process)
    }

    fn library(&self, process: ProcKey, file: u32) -> Option<VersionAndPath> {
        let reported = self.files.get(&(process, file));
        reported.or_else(|| self.libraries.get(&process)).cloned()
    }

    fn gap_ns(&self, process: ProcKey, file: u32) -> u64 {
        self.uptime.gap_ns(self.file(process, file), self.owner(process))
    }
}
