//! The upkeep of owners, names and grants, once an interval. It reads the host's files, so it has a
//! thread of its own: one that never answers stops this, and nothing that is sent.

use super::core::Core;
use crate::attribute::users;
use crate::catalog::agent::{SourceState, Stage};
use crate::collect::schedule::Stop;
use crate::collect::source::Context;
use crate::collect::status::Report;
use crate::host::boot_time_ns;
use std::path::Path;
use std::time::{Duration, Instant};

/// The thread, among the sources.
pub(super) const THREAD: &str = "upkeep";

/// Runs until told to stop.
pub(super) fn run(core: &Core, stop: &Stop) {
    let Context { board, ownership, gauges, interval, .. } = &core.context;
    board.clock(THREAD);
    let mut has_hung = false;
    while !stop.wait_until(Instant::now() + *interval) {
        let _turn = board.turn(THREAD, *interval);
        gauges.stages.time(Stage::Table, || {
            core.refresh();
            ownership.expire(boot_time_ns());
        });
        // Among the sources once it has hung.
        let hung = ownership.hung_users().map(|(file, since)| no_users(file, since));
        has_hung |= hung.is_some();
        if has_hung {
            board.put(users::NAME, &hung.unwrap_or_else(Report::ready));
        }
    }
}

fn no_users(file: &Path, since: Duration) -> Report {
    let (file, seconds) = (file.display(), since.as_secs());
    let reason = format!("{file} has not answered for {seconds} s; users have numbers for names");
    Report::of(SourceState::Hung, reason, "see the file system that paths.passwd is on")
}
