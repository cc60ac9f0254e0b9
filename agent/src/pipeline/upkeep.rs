//! The upkeep of owners, names and grants, once an interval. It reads the host's files, so it has a
//! thread of its own: one that never answers stops this, and nothing that is sent.

use super::Core;
use crate::attribute::slurm::DeviceNumber;
use crate::attribute::users;
use crate::catalog::agent::{SourceState, Stage};
use crate::collect::device::capabilities::Capabilities;
use crate::collect::device::snapshot::Control;
use crate::collect::kernel::device_users;
use crate::collect::kernel::nodes::{Device, Nodes};
use crate::collect::schedule::Stop;
use crate::collect::status::Report;
use crate::host::boot_time_ns;
use crate::log_limit;
use crate::tenant_files;
use std::cell::OnceCell;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The thread, among the sources.
pub(super) const THREAD: &str = "upkeep";

/// Runs until told to stop.
pub(super) fn run(core: &Core, stop: &Stop) {
    core.board.clock(THREAD);
    let mut has_hung = false;
    while !stop.wait_until(Instant::now() + core.interval) {
        let _turn = core.board.turn(THREAD, core.interval);
        core.gauges.stages.time(Stage::Table, || {
            core.refresh();
            core.ownership.expire(boot_time_ns());
        });
        // Among the sources once it has hung.
        let hung = core.ownership.hung_users().map(|(file, since)| no_users(file, since));
        has_hung |= hung.is_some();
        if has_hung {
            core.board.put(users::NAME, &hung.unwrap_or_else(Report::ready));
        }
    }
}

fn no_users(file: &Path, since: Duration) -> Report {
    let (file, seconds) = (file.display(), since.as_secs());
    let reason = format!("{file} has not answered for {seconds} s; users have numbers for names");
    Report::of(SourceState::Hung, reason, "see the file system that paths.passwd is on")
}

impl Core {
    /// Puts the report of what has no tick of its own on the board.
    pub(super) fn refresh(&self) {
        self.board.put(tenant_files::NAME, &self.files.standing().report());
        if let Some(kernel) = &self.kernel {
            let report = kernel.report();
            let lost = report.dropped.iter().map(|(_, lost)| lost).sum();
            if self.gauges.evidence_lost.swap(lost, Ordering::Relaxed) != lost {
                // An end that was not told could leave a number to another process.
                self.ownership.lost_evidence();
            }
            self.board.put(device_users::NAME, &report);
        }
        log_limit::sum_up(&self.ownership);
        let known = OnceCell::new();
        self.job_grants.refresh(&self.ownership, |numbers| {
            let (settings, paths) = &self.watched;
            let read = || (Nodes::read(settings, paths), Capabilities::read(paths));
            let (nodes, capabilities) = known.get_or_init(read);
            let name = |DeviceNumber { major, minor }| nodes.name(Device { major, minor });
            capabilities.devices_of(&numbers.iter().copied().map(name).collect::<Vec<_>>())
        });
        let reader = self.readers.iter().find_map(Control::child);
        self.gauges.reader_pid.store(reader.unwrap_or(0), Ordering::Relaxed);
    }
}
