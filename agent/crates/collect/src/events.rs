//! How many events there were: the aggregator's counts as counters. It reads memory once a tick.

use super::Collector;
use super::source::{Alone, Context, Source, SourceDef};
use crate::cpu_limit::Importance;
use gpuwho_model::catalog::agent::DropReason;
use gpuwho_model::catalog::event::{self, EventSeverity};
use gpuwho_model::sample::{Agent, Batch, GpuXid};
use gpuwho_model::status::Report;
use gpuwho_pipeline::event::Severity;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// This source's name.
pub const NAME: &str = "events";

/// The row.
pub const SOURCE: SourceDef = SourceDef {
    name: NAME,
    about: "counts of events",
    section: None,
    after: &[],
    alone: Alone::Named,
    configure: |_, _| Ok(Box::new(Settings)),
};

#[derive(Debug)]
struct Settings;

impl Source for Settings {
    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        Ok(vec![Box::new(EventCounters::new(Arc::clone(&context.aggregator)))])
    }
}

/// The collector.
#[derive(Debug)]
pub struct EventCounters {
    aggregator: Arc<EventAggregator>,
    /// Codes and severities whose series has begun.
    begun: HashSet<(GpuXid, EventSeverity)>,
    /// The tick before, when what is new was still 0.
    before: SystemTime,
    lost: u64,
}

impl EventCounters {
    /// Counts what passes the aggregator.
    pub fn new(aggregator: Arc<EventAggregator>) -> Self {
        Self { aggregator, begun: HashSet::new(), before: SystemTime::now(), lost: 0 }
    }
}

impl Collector for EventCounters {
    fn name(&self) -> &'static str {
        NAME
    }

    fn never_waits(&self) -> bool {
        true
    }

    /// A code's first count comes behind a 0 of the tick before: for a receiver that computes
    /// increases from neighbouring points, a counter that begins at 1 has never increased.
    fn importance(&self) -> Importance {
        Importance::Always
    }

    fn collect(&mut self, out: &mut Batch) {
        let tally = self.aggregator.tally();
        self.lost = tally.lost;
        for (kind, count) in tally.kinds {
            out.push(event::EVENTS.sample(Agent, kind, number(count)));
        }
        for (gpu, code, severity, count) in tally.xids {
            let (xid, how) = (GpuXid { gpu, code }, dim(severity));
            if self.begun.insert((xid, how)) {
                out.at(self.before.min(out.time), event::XID_ERRORS.sample(xid, how, 0));
            }
            out.push(event::XID_ERRORS.sample(xid, how, number(count)));
        }
        for (gpu, code) in tally.last_xids {
            out.push(event::XID_LAST.sample(gpu, (), code.into()));
        }
        self.before = out.time;
    }

    fn report(&self) -> Report {
        let dropped = vec![(DropReason::QueueFull, self.lost)];
        Report { dropped, ..Report::ready() }
    }
}

fn dim(severity: Severity) -> EventSeverity {
    match severity {
        Severity::Info => EventSeverity::Info,
        Severity::Warning => EventSeverity::Warning,
        Severity::Critical => EventSeverity::Critical,
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
