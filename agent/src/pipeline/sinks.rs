//! Opens the sinks that the settings ask for.

use super::RunError;
use crate::config::Settings;
use crate::event::record::Record;
use crate::export::otlp::{LogsSink, OtlpSink, Resource};
use crate::export::stdout::JsonLines;
use crate::export::{EnrichedBatch, Sink};
use crate::host;
use std::fs::OpenOptions;
use std::time::Instant;

/// An open sink and its name.
pub(super) type Named = (&'static str, Box<dyn Sink>);

/// Opens every sink the settings ask for.
pub(super) fn open(settings: &Settings) -> Result<Vec<Named>, RunError> {
    let mut sinks: Vec<Named> = Vec::new();
    if settings.stdout {
        sinks.push(("sink:stdout", Box::new(JsonLines::new(std::io::stdout()))));
    }
    if let Some(path) = &settings.file {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|source| RunError::SinkFile { path: path.clone(), source })?;
        sinks.push(("sink:file", Box::new(JsonLines::new(file))));
    }
    if let Some(otlp) = &settings.otlp {
        let node = settings.names.kubernetes.node_name.as_deref();
        let resource = Resource::new(&host::attributes(&settings.paths, node), otlp);
        sinks.push(("sink:otlp", Box::new(OtlpSink::start(otlp, &resource)?)));
    }
    if let Some(logs) = &settings.events {
        let node = settings.names.kubernetes.node_name.as_deref();
        let resource = Resource::new(&host::attributes(&settings.paths, node), logs);
        sinks.push(("sink:otlp-logs", Box::new(LogsSink::start(logs, &resource)?)));
    }
    Ok(sinks)
}

/// Hands a batch to every sink.
pub(super) fn accept(sinks: &mut [Named], batch: &EnrichedBatch) {
    for (_, sink) in sinks {
        sink.accept(batch);
    }
}

/// Hands events to every sink.
pub(super) fn tell(sinks: &mut [Named], records: &[Record]) {
    for (_, sink) in sinks {
        sink.tell(records);
    }
}

/// Gives every sink until `deadline` to send what is left.
pub(super) fn flush(sinks: &mut [Named], deadline: Instant) {
    for (_, sink) in sinks {
        sink.flush(deadline);
    }
}
