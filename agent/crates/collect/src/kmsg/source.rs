//! The kernel log as a source of the agent.

use super::{NAME, REMEDY, probe, start};
use crate::Collector;
use crate::source::{Alone, Context, Diagnosing, Source, SourceDef};
use gpuwho_model::finding::Finding;
use std::io;
use std::sync::Arc;

/// The row of the table.
pub const SOURCE: SourceDef = SourceDef {
    name: NAME,
    about: "the kernel log, as events",
    section: None,
    after: &[],
    alone: Alone::Named,
    configure: |_, _| Ok(Box::new(KernelLog)),
};

#[derive(Debug)]
struct KernelLog;

impl Source for KernelLog {
    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let (aggregator, statuses) = (Arc::clone(&context.aggregator), context.board.clone());
        start(&context.paths, aggregator, statuses, &context.poller);
        Ok(Vec::new())
    }

    fn diagnose(&self, settings: &Diagnosing<'_>) -> Vec<Finding> {
        let finding = match probe(settings.paths) {
            Ok(place) => {
                let facts =
                    format!("{place} can be read: XIDs, bus errors and OOM kills are reported");
                Finding::new("kernel log", "ok", facts, "")
            }
            Err(why) => Finding::new("kernel log", "degraded", why, REMEDY),
        };
        vec![finding]
    }
}
