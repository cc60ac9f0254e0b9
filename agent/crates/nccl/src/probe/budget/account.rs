//! Metrics about the probes: their uptime and their hits.

use super::uptime::EachCovered;
use crate::probe::maps::Snapshot;
use crate::probe::members::Member;
use crate::probe::members::host::Host;
use crate::probe::members::report::count;
use crate::probe::shared::AttachState;
use gpuwho_common::nccl::{HIT_ENTRY, HIT_RETURN};
use gpuwho_model::catalog::nccl as metric;
use gpuwho_model::catalog::nccl::{ProbeLevel, ProbePart};
use gpuwho_model::sample::{Agent, Batch};
use std::collections::{HashMap, HashSet};

/// Exports the metrics of the host; coverage is computed between the last reading and this one.
pub(in super::super) fn report_probes(
    out: &mut Batch,
    known: &AttachState,
    [now, before]: &[EachCovered; 2],
) {
    out.push(metric::LIBRARIES.sample(Agent, (), count(known.files)));
    for &one in ProbeLevel::ALL {
        out.push(metric::PROBE_LEVEL.sample(Agent, one, i64::from(one == known.level)));
    }
    let hits = [HIT_ENTRY, HIT_RETURN].map(|counter| known.counts.get(counter as usize).copied());
    let parts = now.all.since(before.all).parts();
    out.push(metric::WANTED.sample(Agent, (), now.all.wanted.as_secs_f64()));
    for (at, part) in ProbePart::ALL.iter().enumerate() {
        let hits = hits.get(at).copied().flatten().unwrap_or(0);
        out.push(metric::HITS.sample(Agent, *part, count(hits)));
        let attached = now.all.attached.get(at).copied().unwrap_or_default();
        out.push(metric::ATTACHED.sample(Agent, *part, attached.as_secs_f64()));
        if let Some(coverage) = parts.and_then(|parts| parts.get(at).copied()) {
            out.push(metric::COVERAGE.sample(Agent, *part, coverage));
        }
    }
    // Before the programs are loaded there is no budget.
    if known.budget != 0 {
        out.push(metric::BUDGET.sample(Agent, (), count(known.budget)));
    }
}

/// Exports the coverage that scales the counts of each member.
pub(in super::super) fn report_coverage(
    out: &mut Batch,
    members: &[Member],
    snapshot: &Snapshot,
    host: &Host<'_>,
    [now, before]: &[EachCovered; 2],
) {
    let reported = snapshot.communicators.iter().map(|(number, c)| (*number, c.identity.library));
    let reported: HashMap<u64, u32> = reported.collect();
    for member in members {
        let reported = |number| reported.get(number).copied().unwrap_or(0);
        let files =
            member.numbers.iter().map(|number| host.file(member.facts.process, reported(number)));
        let files: HashSet<Option<u32>> = files.collect();
        // With several files no single coverage is right.
        let mut files = files.into_iter();
        let (Some(Some(file)), None) = (files.next(), files.next()) else { continue };
        let Some(parts) = now.parts_since(before, (file, host.owner(member.facts.process))) else {
            continue;
        };
        for (part, coverage) in ProbePart::ALL.iter().zip(parts) {
            out.push(metric::MEMBER_COVERAGE.sample(member.id, *part, coverage));
        }
    }
}
