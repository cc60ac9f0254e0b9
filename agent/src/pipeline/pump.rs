//! The pipeline's loop: the batches of a tick into shares, points and requests. It reads no file, so
//! that nothing holds it up. What each stage costs is measured on the way.

use super::Core;
use super::sinks::{self, Named};
use crate::catalog::agent::Stage;
use crate::collect::schedule::{Event, thread_cpu};
use crate::event::desk::Desk;
use crate::event::record::{Record, records};
use crate::export::EnrichedBatch;
use crate::ledger::Ledger;
use crate::sample::Batch;
use crate::series::Enricher;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// How long a tick's batch waits for the other sources', so that they share a request.
const GATHER: Duration = Duration::from_millis(300);

/// Under what name is told how the ceiling on series stands, once it was reached.
const SERIES: &str = "series";

/// The thread among the sources.
const THREAD: &str = "pipeline";

/// Takes batches until told to stop, a tick's together, and ends every series at the end.
pub(super) fn pump(
    (core, desk): (&Core, &Desk),
    names: &HashSet<&'static str>,
    received: &Receiver<Event>,
    sinks: &mut [Named],
) {
    let mut enricher = Enricher::new(Arc::clone(&core.inventory), core.ownership.clone())
        .with_limit(core.series_limit)
        .with_communicators(Arc::clone(&core.communicators));
    let mut ledger = Ledger::new(core.interval);
    let mut out = EnrichedBatch::default();
    let stages = &core.gauges.stages;
    let mut going = true;
    core.board.clock(THREAD);
    while going {
        going = gather(names, received, |mut batch| {
            let _turn = core.board.turn(THREAD, core.interval);
            stages.time(Stage::Shares, || {
                ledger.account(&mut batch, &core.ownership, &core.inventory);
            });
            let began = thread_cpu();
            enricher.enrich(&batch, &mut out);
            let (took, owners) = (thread_cpu().saturating_sub(began), enricher.take_spent());
            stages.spend(Stage::Owners, owners);
            stages.spend(Stage::Series, took.saturating_sub(owners));
        });
        let _turn = core.board.turn(THREAD, core.interval);
        let told = if going {
            desk.drain()
        } else {
            enricher.end_all(&mut out);
            desk.finish()
        };
        let told: Vec<Record> = told.iter().flat_map(records).collect();
        if !told.is_empty() {
            sinks::tell(sinks, &told);
        }
        stages.time(Stage::Sinks, || {
            out.points.sort_by_key(|point| std::ptr::from_ref(point.metric).addr());
            if !out.points.is_empty() {
                sinks::accept(sinks, &out);
            }
            out.points.clear();
        });
        if let Some(report) = enricher.report() {
            core.board.put(SERIES, &report);
        }
        core.gauges.series.store(enricher.alive() as u64, Ordering::Relaxed);
        let reports = sinks.iter().map(|(name, sink)| (*name, sink.report())).collect();
        *core.gauges.sinks.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }
}

/// Takes the batches of one tick: until every source has given one, or [`GATHER`] after the first.
/// Returns at once when something happened between two ticks. False when it is time to stop.
fn gather(
    names: &HashSet<&'static str>,
    received: &Receiver<Event>,
    mut take: impl FnMut(Batch),
) -> bool {
    let Ok(mut event) = received.recv() else { return false };
    let deadline = Instant::now() + GATHER;
    let mut seen = HashSet::new();
    loop {
        match event {
            Event::Batch(batch) => {
                seen.insert(batch.source);
                take(batch);
            }
            // Told at once where no tick is on its way, else with it.
            Event::Happened if seen.is_empty() => return true,
            Event::Happened => {}
            Event::Stop => return false,
        }
        if seen.len() == names.len() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match received.recv_timeout(left) {
            Ok(next) => event = next,
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}
