//! Since when a process's communicators are quiet, for whoever wants to ask its library something
//! that it may not survive while communicators are made (`ras/cleared.rs`). Nothing is computed
//! before somebody wants to know.

use super::maps::Snapshot;
use super::members::host::Host;
use super::members::peers::Groups;
use super::members::{Member, Processes as _};
use super::shared::{AttachState, Shared};
use gpuwho_common::nccl::{
    BIRTH, DEATH, GROUP_END, LOST_COMMUNICATOR, LOST_THREAD, LOST_UNREADABLE, RESULT_IN_PROGRESS,
};
use gpuwho_model::ids::ProcKey;
use gpuwho_owners::host::boot_time_ns;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The libraries of a process, and what it does with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryState {
    /// The process.
    pub process: ProcKey,
    /// Versions of all collective libraries that it maps, as their files have them; RCCL's is empty.
    pub versions: Vec<Arc<str>>,
    /// `None` where the probes do not see all of its communicators.
    pub phase: Option<Phase>,
}

/// The phase of a process's communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// For how long none was made or ended, as of the last reading.
    pub quiet: Duration,
    /// Whether every rank of each of them is alive and on this node.
    pub is_whole: bool,
}

/// The moment of the last change of a process's communicators, and whether they are whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed {
    at_ns: u64,
    is_whole: bool,
}

/// Each process's last change.
pub(super) type LastChanges = HashMap<ProcKey, Changed>;

/// Updates the last changes with a reading.
pub(super) fn note(
    known: &mut LastChanges,
    snapshot: &Snapshot,
    (members, groups): (&[Member], &Groups),
    host: &Host<'_>,
    now_ns: u64,
) {
    let mut seen = LastChanges::new();
    let mut change = |process: ProcKey, at_ns: u64| {
        let before = known.get(&process).map_or(0, |changed| changed.at_ns);
        let changed = seen.entry(process).or_insert(Changed { at_ns: before, is_whole: true });
        changed.at_ns = changed.at_ns.max(at_ns);
    };
    for (_, communicator) in &snapshot.communicators {
        let (identity, activity) = (&communicator.identity, &communicator.activity);
        let Some(process) = host.find(identity.pid, identity.start_ns) else { continue };
        let is_made = activity.async_error != RESULT_IN_PROGRESS;
        let gap_ns = host.gap_ns(process, identity.library);
        let at_ns = identity.born_ns.max(activity.ended_ns).max(gap_ns);
        change(process, if is_made { at_ns } else { now_ns });
    }
    for (task, thread) in &snapshot.threads {
        // The end of a group may make communicators.
        let makes = matches!(thread.open.what, BIRTH | DEATH | GROUP_END);
        let pid = u32::try_from(task >> 32).ok().filter(|_| makes && thread.open.since_ns != 0);
        if let Some(process) = pid.and_then(|pid| host.find(pid, 0)) {
            change(process, now_ns);
        }
    }
    for member in members.iter().filter(|member| !member.has_ended) {
        let group = groups.get(&member.id);
        let is_here = |other: &&Member| !other.has_ended && groups.get(&other.id) == group;
        let here = members.iter().filter(is_here).count();
        let is_whole =
            group.is_some() && member.facts.ranks.is_some_and(|all| here == all as usize);
        if let Some(changed) = seen.get_mut(&member.facts.process) {
            changed.is_whole &= is_whole;
        }
    }
    *known = seen;
}

/// Returns a function that tells the state of each process's libraries.
pub(super) fn states(shared: Shared) -> Arc<dyn Fn() -> Vec<LibraryState> + Send + Sync> {
    Arc::new(move || shared.with(|known| read(known, boot_time_ns())))
}

fn read(known: &mut AttachState, now_ns: u64) -> Vec<LibraryState> {
    // What a full map has lost may have been a communicator in the making.
    let lost = [LOST_COMMUNICATOR, LOST_THREAD, LOST_UNREADABLE];
    let is_blind = lost.iter().any(|at| known.counts.get(*at as usize) != Some(&0));
    let phases = &*known.phases.get_or_insert_default();
    let state = |process: &ProcKey| {
        let mine = known.files_by_number.iter().filter(|((user, _), _)| user == process);
        let versions = mine.map(|(_, (version, path))| {
            // RCCL numbers its releases as NCCL does, and has bugs of its own.
            if path.contains("rccl") { Arc::from("") } else { Arc::clone(version) }
        });
        let phase = phases.get(process).filter(|_| !is_blind).map(|changed| Phase {
            quiet: Duration::from_nanos(now_ns.saturating_sub(changed.at_ns)),
            is_whole: changed.is_whole,
        });
        LibraryState { process: *process, versions: versions.collect(), phase }
    };
    known.libraries.keys().map(state).collect()
}
