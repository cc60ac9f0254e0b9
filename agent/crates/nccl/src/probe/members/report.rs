//! Turns a reading into samples.

use super::arrivals::{ArrivalSkew, TIME_BOUNDS};
use super::peers::Peers;
use super::rank_status::{RankStatus, operation_of};
use super::{Member, seconds};
use gpuwho_common::nccl::{BUCKETS, Calls, UNSIZED};
use gpuwho_model::catalog::nccl as metric;
use gpuwho_model::catalog::nccl::{RankState, SizeClass};
use gpuwho_model::ids::MemberId;
use gpuwho_model::sample::{Batch, Histogram};
use std::collections::HashMap;

/// Facts about members in addition to the member table.
pub(in super::super) struct MemberContext<'a> {
    pub statuses: &'a HashMap<MemberId, RankStatus>,
    pub peers: &'a Peers,
    pub now_ns: u64,
}

/// Exports all metrics of one member.
pub(in super::super) fn report(out: &mut Batch, member: &Member, context: &MemberContext<'_>) {
    let id = member.id;
    out.push(metric::INFO.sample(id, (), 1));
    for ((operation, class), calls) in &member.calls {
        report_calls(out, id, *operation, *class, calls);
    }
    if let Some(sequence) = member.sequence {
        out.push(metric::SEQUENCE.sample(id, (), count(sequence)));
    }
    out.push(metric::ERRORS.sample(id, (), count(member.errors)));
    if let Some(error) = member.async_error {
        out.push(metric::ASYNC_ERROR.sample(id, (), error.into()));
    }
    if let Some(found) = context.peers.comparison.of(id) {
        report_skew(out, id, found);
    }
    if let Some(steps) = context.peers.steps.get(&id).filter(|steps| steps.interval.count() > 0) {
        out.push(metric::STEP.sample(id, (), steps.interval.clone()));
    }
    out.push(metric::HANGS.sample(id, (), count(context.peers.hangs.of(id))));
    if let Some(ended) = context.peers.lost.missed_by(id) {
        out.push(metric::RANKS_ENDED.sample(id, (), ended));
    }
    let age = |since_ns: u64| seconds(context.now_ns.saturating_sub(since_ns));
    if let Some(open) = member.open() {
        out.push(metric::OPEN_AGE.sample(id, (), age(open.since_ns)));
    }
    if member.last_ns != 0 {
        out.push(metric::QUIET.sample(id, (), age(member.last_ns)));
    }
    if let Some(status) = context.statuses.get(&id) {
        for &state in RankState::ALL {
            out.push(metric::STATE.sample(id, state, i64::from(state == status.state)));
        }
        if let Some(lag) = status.lag {
            out.push(metric::LAG.sample(id, (), count(lag)));
        }
    }
}

fn report_calls(out: &mut Batch, id: MemberId, operation: u32, class: u32, calls: &Calls) {
    let Some(operation) = operation_of(operation) else { return };
    let dims = (operation, class_of(class));
    out.push(metric::CALLS.sample(id, dims, count(calls.count)));
    out.push(metric::BYTES.sample(id, dims, count(calls.bytes)));
    for (metric, buckets, sum_ns) in [
        (&metric::ENQUEUE, &calls.enqueue, calls.enqueue_ns),
        (&metric::INTERVAL, &calls.interval, calls.interval_ns),
    ] {
        if buckets.iter().any(|bucket| *bucket != 0) {
            out.push(metric.sample(id, dims, histogram(buckets, sum_ns)));
        }
    }
}

fn report_skew(out: &mut Batch, id: MemberId, found: &ArrivalSkew) {
    out.push(metric::SPREAD.sample(id, (), found.spread.clone()));
    out.push(metric::LATENESS.sample(id, (), seconds(found.skew_ns)));
    out.push(metric::COMPARED.sample(id, (), count(found.compared)));
    out.push(metric::MISMATCHES.sample(id, (), count(found.mismatches)));
}

fn histogram(buckets: &[u64; BUCKETS], sum_ns: u64) -> Histogram {
    Histogram { bounds: (&TIME_BOUNDS).into(), counts: buckets.to_vec(), sum: seconds(sum_ns) }
}

/// The programs number the classes in the catalogue's order.
fn class_of(class: u32) -> SizeClass {
    debug_assert!(class <= UNSIZED, "no such class");
    let place = usize::try_from(class).unwrap_or(usize::MAX);
    SizeClass::ALL.get(place).copied().unwrap_or(SizeClass::Unknown)
}

pub(in super::super) fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
