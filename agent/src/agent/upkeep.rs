//! Refreshes owners, names and allocations once an interval. It reads the host's files, so it has a
//! thread of its own: a file system that never answers stops this thread, but not the export.

use super::core::Core;
use gpuwho_collect::schedule::Stop;
use gpuwho_collect::source::Context;
use gpuwho_model::catalog::agent::{SourceState, Stage};
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::users;
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::cost::receipts;
use gpuwho_sys::memory;
use std::path::Path;
use std::time::{Duration, Instant};

/// After this time the agent has run what runs only once, and gives back what that needed: before its
/// first tick at most intervals.
const START_UP: Duration = Duration::from_secs(3);
/// After this time it knows the processes that were there, and gives back what the first looks at many
/// took.
const SETTLED: Duration = Duration::from_mins(1);

/// The thread's name in the status registry.
pub(super) const THREAD: &str = "upkeep";

/// Runs until the agent stops.
pub(super) fn run(core: &Core, stop: &Stop) {
    let Context { board: statuses, ownership, gauges: self_stats, interval, .. } = &core.context;
    statuses.clock(THREAD);
    let begun = Instant::now();
    let (mut started, mut settled) = (Some(begun + START_UP), Some(begun + SETTLED));
    let (mut has_hung, mut has_lost) = (false, false);
    let mut next = begun + *interval;
    while !stop.wait_until(started.map_or(next, |at| at.min(next))) {
        let now = Instant::now();
        if started.take_if(|at| *at <= now).is_some() {
            memory::give_back();
            memory::drop_program_pages();
        }
        if now < next {
            continue;
        }
        next = now + *interval;
        let _turn = statuses.turn(THREAD, *interval);
        self_stats.stages.time(Stage::Table, || {
            core.refresh();
            ownership.expire(boot_time_ns());
        });
        core.refresh_carbon();
        core.receipts.save(Instant::now(), false);
        // As below: said only once there was something to say, and then also that it is over.
        let lost = core.receipts.status();
        has_lost |= lost.is_some();
        if has_lost {
            statuses.put(receipts::STATUS, &lost.unwrap_or_else(Report::ready));
        }
        if settled.take_if(|at| *at <= now).is_some() {
            memory::give_back();
        }
        // Reported only once it has hung.
        let hung = ownership.hung_users().map(|(file, since)| no_users(file, since));
        has_hung |= hung.is_some();
        if has_hung {
            statuses.put(users::NAME, &hung.unwrap_or_else(Report::ready));
        }
    }
}

fn no_users(file: &Path, since: Duration) -> Report {
    let (file, seconds) = (file.display(), since.as_secs());
    let reason = format!("{file} has not answered for {seconds} s; users are shown by number");
    Report::of(SourceState::Hung, reason, "see the file system that paths.passwd is on")
}
