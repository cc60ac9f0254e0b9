//! The status of the source and its remedy, and whether there is anything to read yet.

use super::{Inspector, Settings};
use crate::known::NcclInUse;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_owners::tenant_files::search;
use std::time::Instant;

impl Inspector {
    /// Reads nothing, and needs no thread of its own, before NCCL may be in use; the operator's
    /// directories are read at once.
    pub fn share_thread_until(&mut self, in_use: &NcclInUse) {
        let has_finder = !in_use.lock().is_empty();
        self.awaits = (has_finder && self.settings.directories.is_empty()).then(|| in_use.clone());
    }

    /// Whether nothing is read in this turn; the turn that finds NCCL in use is the last such.
    pub(super) fn awaits_use(&mut self) -> bool {
        let Some(in_use) = &self.awaits else { return false };
        if in_use.all().iter().any(|is_so| is_so()) {
            self.awaits = None;
        }
        true
    }

    pub(super) fn state(&self) -> (SourceState, String, &'static str) {
        if let Some((path, error)) = &self.unreadable {
            let reason = format!("cannot look into {}: {error}", path.display());
            return (SourceState::Degraded, reason, "see nccl.inspector_dirs");
        }
        let [mute, silent] = self.processes.silent(Instant::now());
        if mute > 0 {
            let reason = format!(
                "{mute} processes have the Inspector on and no interval: it writes nothing"
            );
            return (SourceState::Degraded, reason, SET_INTERVAL);
        }
        if silent > 0 {
            let reason =
                format!("{silent} processes have the Inspector on and write no file of it");
            return (SourceState::Degraded, reason, SEE_NCCL);
        }
        if self.refused > 0 {
            let reason =
                format!("{} files cannot be read: no plain files, or too many", self.refused);
            return (SourceState::Degraded, reason, "");
        }
        if self.files.values().any(|source| source.is_shared) {
            let reason = "processes of one device write into one file".to_owned();
            return (SourceState::Degraded, reason, "give each NCCL_INSPECTOR_DUMP_DIR of its own");
        }
        if self.files.is_empty() {
            let reason = "no process that holds a device has NCCL's Inspector on".to_owned();
            return (SourceState::Absent, reason, SWITCH_ON);
        }
        (SourceState::Ready, String::new(), "")
    }
}

/// The finding of `gpuwho doctor`.
pub(in super::super) fn diagnose(settings: &Settings) -> (SourceState, String) {
    if !settings.enabled {
        return (SourceState::Absent, "switched off (nccl.inspector or nccl.enabled)".into());
    }
    for path in &settings.directories {
        if let Err(error) = search::directory(path) {
            let facts = format!("{}: {error} (nccl.inspector_dirs)", path.display());
            return (SourceState::Degraded, facts);
        }
    }
    let what = "finds the files of processes that hold a device";
    (SourceState::Ready, format!("{what}; reads {} bytes a second", settings.rate))
}

const SWITCH_ON: &str = "for bandwidths set NCCL_PROFILER_PLUGIN, NCCL_INSPECTOR_ENABLE=1 and \
    NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS in the job";
const SET_INTERVAL: &str =
    "set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS in the job, for example to 1000000";
const SEE_NCCL: &str = "see the job's log with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,PROFILE";
