//! The pipeline's loop: turns the batches of a tick into shares, points and requests. It reads no
//! file, so no file system can block it. It measures the CPU time of each stage.

use super::core::{Core, health_clock};
use super::found::{self, FirstReadings};
use super::notify::notify;
use super::own::SinkReports;
use super::reload::Reopening;
use super::sinks::{self, OpenSink};
use gpuwho_collect::schedule::{Event, Scheduler};
use gpuwho_collect::source::Context;
use gpuwho_export as export;
use gpuwho_model::catalog::agent::Stage;
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::sample::{Batch, SourcePart};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::accounting::Accounting;
use gpuwho_pipeline::cost::{Costs, receipts};
use gpuwho_pipeline::event::recent::EventView;
use gpuwho_pipeline::event::record::{Record, records};
use gpuwho_pipeline::event::{self, EventSource, Moment, Severity};
use gpuwho_pipeline::identity::Registries;
use gpuwho_pipeline::series::SeriesRegistry;
use gpuwho_sys::clock::thread_cpu;
use sd_notify::NotifyState;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

/// How long a tick's first batch waits for those of the other sources, so that all share a request.
const GATHER: Duration = Duration::from_millis(300);

/// The name under which the series limit reports its state, once it was reached.
const SERIES: &str = "series";

/// The thread's name in the status registry.
const THREAD: &str = "pipeline";

/// Processes batches, those of one tick together, until [`Event::Stop`]; then ends every series.
/// After the first tick the agent is ready.
pub(super) fn run(
    core: &Core,
    (scheduler, received): (&Scheduler, &Receiver<Event>),
    (sinks, reopening): (&mut Vec<OpenSink>, &mut Reopening<'_>),
    heartbeat: &Heartbeat,
) {
    let context = &core.context;
    let mut registry = core.registry().with_selection(core.context.selection.now());
    let mut accounting = Accounting::new(context.interval);
    let mut costs = core.costs();
    let mut out = EnrichedBatch::default();
    let stages = &context.gauges.stages;
    let mut first = FirstReadings::default();
    let mut going = true;
    context.board.clock(THREAD);
    while going {
        start_late(context, scheduler);
        let expected = scheduler.in_every_tick();
        going = gather(&expected, received, |arrived| {
            let _turn = context.board.turn(THREAD, context.interval);
            let mut batch = match arrived {
                Arrived::Batch(batch) => {
                    first.take(batch.of);
                    batch
                }
                Arrived::Ended(part) => return registry.end(part, &mut out),
            };
            let stages = (&mut accounting, &mut costs, &mut registry);
            take(core, stages, &mut batch, &mut out);
        });
        let _turn = context.board.turn(THREAD, context.interval);
        reopening.apply(core, (&mut registry, &mut costs), sinks);
        if first.are_complete(&expected) {
            found::log(core);
        }
        context.aggregator.release_due(Instant::now());
        let reported = if going {
            context.aggregator.drain()
        } else {
            registry.end_all(&mut out);
            context.aggregator.finish()
        };
        for event in &reported {
            report(core, event);
        }
        export_records(core, sinks, &reported);
        stages.time(Stage::Sinks, || send(sinks, &mut out));
        if let Some(report) = registry.report() {
            context.board.put(SERIES, &report);
        }
        context.gauges.series.store(registry.alive() as u64, Ordering::Relaxed);
        if heartbeat.beat() {
            notify(NotifyState::Ready);
        }
        report_sinks(context, reopening.reports(sinks));
    }
}

/// Keeps the figures of every sink for its metrics, and the state of those that have one.
fn report_sinks(context: &Context, reports: BTreeMap<&'static str, export::Report>) {
    for (&name, report) in &reports {
        match report.status() {
            Some(status) => context.board.put(name, &status),
            None => context.board.recovered(name),
        }
    }
    *context.of_kind.get::<SinkReports>().0.lock() = reports;
}

/// Takes a batch through the stages.
fn take(
    core: &Core,
    (accounting, costs, registry): (&mut Accounting, &mut Costs, &mut SeriesRegistry),
    batch: &mut Batch,
    out: &mut EnrichedBatch,
) {
    let context = &core.context;
    let stages = &context.gauges.stages;
    // The clock costs as much as a small batch: each stage begins where the last has ended.
    let mut began = thread_cpu();
    let mut lap = || {
        let now = thread_cpu();
        now.saturating_sub(std::mem::replace(&mut began, now))
    };
    accounting.account(batch, &context.ownership, &context.inventory);
    stages.spend(Stage::Shares, lap());
    evaluate(core, batch);
    stages.spend(Stage::Health, lap());
    charge(core, costs, accounting, batch);
    stages.spend(Stage::Costs, lap());
    registry.select(batch);
    registry.enrich(batch, out);
    let (took, owners) = (lap(), registry.take_spent());
    stages.spend(Stage::Owners, owners);
    stages.spend(Stage::Series, took.saturating_sub(owners));
}

/// Adds the costs of a batch, and adds them up by job, pod and unit.
fn charge(core: &Core, costs: &mut Costs, accounting: &Accounting, batch: &mut Batch) {
    let Context { ownership, inventory, communicators, engines, .. } = &core.context;
    let registries = Registries { inventory, ownership, communicators, engines };
    let (increments, at) = (accounting.increments(), batch.time);
    costs.charge(increments, batch, (ownership, inventory), |charges| {
        core.receipts.charge(charges, at, &registries);
    });
    core.receipts.take(!increments.is_empty(), batch, &registries);
}

/// Hands the events' records, and the receipts that are complete, to every sink.
fn export_records(core: &Core, sinks: &mut [OpenSink], events: &[event::Event]) {
    let finished = core.receipts.finish();
    let finished = finished.iter().map(receipts::record);
    let records: Vec<Record> = events.iter().flat_map(records).chain(finished).collect();
    if !records.is_empty() {
        sinks::export_events(sinks, &records);
    }
}

/// Judges the devices of a batch, and reports which conditions have started and ended. The
/// aggregator finds the owners on the device now.
fn evaluate(core: &Core, batch: &mut Batch) {
    let time = SystemTime::now();
    let observations =
        core.health().evaluate(batch, &core.context.inventory, (health_clock(), time));
    for what in observations {
        let at = Moment { time, boot_ns: boot_time_ns() };
        core.context.aggregator.take(what, at, EventSource::Health, Instant::now());
    }
}

/// Keeps an event for `gpuwho events` and the health of its device, and logs it where somebody must act: the one line that an
/// operator without a receiver gets.
fn report(core: &Core, event: &event::Event) {
    core.recent.push(event);
    core.health().take_event(event);
    core.receipts.note(event, &core.context.ownership);
    if event.what.severity >= Severity::Critical {
        let view = EventView::of(event);
        // An empty field is left out.
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let remedy = some(view.remedy.clone());
        let affected = some(view.affected_words());
        tracing::error!(remedy, affected, "{}: {}", view.title(), view.meaning);
    }
}

/// Starts the collectors that have appeared since the last tick.
fn start_late(context: &Context, scheduler: &Scheduler) {
    for collector in context.late.take() {
        let source = collector.name();
        if let Err(error) = scheduler.start(collector) {
            tracing::warn!(source, %error, "no thread for a source that appeared");
        }
    }
}

fn send(sinks: &mut [OpenSink], out: &mut EnrichedBatch) {
    // Needs less room than a stable sort of the points themselves.
    out.points.sort_by_cached_key(|point| std::ptr::from_ref(point.metric).addr());
    if !out.points.is_empty() {
        sinks::export(sinks, out);
    }
    out.points.clear();
}

/// One input of a tick.
#[derive(Debug)]
enum Arrived {
    Batch(Batch),
    Ended(SourcePart),
}

/// Takes the batches of one tick: until each part in `expected` has sent one, or [`GATHER`] after
/// the first. Returns at once when an event arrives between two ticks. Returns false when the agent
/// stops.
fn gather(
    expected: &HashSet<SourcePart>,
    received: &Receiver<Event>,
    mut take: impl FnMut(Arrived),
) -> bool {
    let Ok(mut event) = received.recv() else { return false };
    let deadline = Instant::now() + GATHER;
    let mut missing = expected.clone();
    let mut is_tick = false;
    loop {
        match event {
            Event::Batch(batch) => {
                is_tick = true;
                missing.remove(&batch.of);
                take(Arrived::Batch(batch));
            }
            Event::Ended(part) => {
                missing.remove(&part);
                take(Arrived::Ended(part));
            }
            // Events between two ticks are sent at once, others with their tick.
            Event::Happened if !is_tick => return true,
            Event::Happened => {}
            Event::Stop => return false,
        }
        if missing.is_empty() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    fn part(source: &'static str, part: u32) -> SourcePart {
        SourcePart { source, part }
    }

    fn batch(of: SourcePart) -> Event {
        Event::Batch(Batch::of(of, SystemTime::now()))
    }

    /// The parts that one tick takes from these events, and whether more may come.
    fn tick(expected: &[SourcePart], events: Vec<Event>) -> (Vec<SourcePart>, bool) {
        let (sender, received) = sync_channel(events.len());
        for event in events {
            sender.send(event).unwrap();
        }
        let mut taken = Vec::new();
        let more = gather(&expected.iter().copied().collect(), &received, |arrived| {
            taken.push(match arrived {
                Arrived::Batch(batch) => batch.of,
                Arrived::Ended(part) => part,
            });
        });
        (taken, more)
    }

    #[test]
    fn a_tick_ends_with_the_last_source_that_belongs_to_every_tick() {
        let (a, b, rare) = (part("a", 0), part("b", 0), part("rare", 3));
        let events = vec![batch(a), batch(rare), batch(b), batch(a)];
        assert_eq!(tick(&[a, b], events), (vec![a, rare, b], true));
    }

    #[test]
    fn a_tick_does_not_wait_for_a_source_that_has_ended() {
        let (a, b) = (part("a", 0), part("b", 1));
        let events = vec![batch(a), Event::Ended(b), batch(a)];
        assert_eq!(tick(&[a, b], events), (vec![a, b], true));
    }

    #[test]
    fn an_event_between_two_ticks_is_sent_at_once() {
        let a = part("a", 0);
        assert_eq!(tick(&[a], vec![Event::Happened, batch(a)]), (vec![], true));
        assert_eq!(tick(&[a], vec![Event::Stop, batch(a)]), (vec![], false));
    }
}
