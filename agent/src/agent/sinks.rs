//! [`SINKS`]: every receiver of points and events. To add one, write its file and its row here.

use super::RunError;
use super::configuration::Configuration;
use crate::settings::Settings;
use crate::who::Source;
use gpuwho_export as export;
use gpuwho_export::def::{NamedSink, OpenError, Receiver, SinkContext, SinkDef};
use gpuwho_model::finding::Finding;
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_pipeline::event::record::Record;
use std::sync::Arc;
use std::time::Instant;

/// The sinks.
pub static SINKS: &[SinkDef] = &[
    export::otlp::def::METRICS,
    export::otlp::def::LOGS,
    export::lines::STDOUT,
    export::lines::FILE,
    export::prometheus::def::PROMETHEUS,
    export::webhook::def::WEBHOOK,
];

/// The forms of `--sink`, for its help.
pub fn forms() -> String {
    SINKS.iter().filter_map(SinkDef::form).collect::<Vec<_>>().join(" or ")
}

/// Checks a `--sink`.
pub fn parse(flag: &str) -> Result<String, String> {
    if SINKS.iter().any(|sink| sink.is_asked_by(flag)) {
        return Ok(flag.to_owned());
    }
    Err(format!("not a sink: write {}", forms()))
}

/// An open sink and its name.
pub(super) type OpenSink = NamedSink;

/// Opens every sink that the configuration requests.
pub(super) fn open(
    configuration: &Configuration,
    heartbeat: &Arc<Heartbeat>,
) -> Result<Vec<OpenSink>, RunError> {
    let mut sinks = Vec::new();
    for (name, receiver) in &configuration.sinks {
        let opened = open_one((name, receiver.as_ref()), &configuration.settings, heartbeat);
        sinks.extend(opened.map_err(RunError::Sink)?);
    }
    Ok(sinks)
}

/// Opens the sinks of a row, if the configuration requests one.
pub(super) fn open_one(
    (name, receiver): (&'static str, &dyn Receiver),
    settings: &Settings,
    heartbeat: &Arc<Heartbeat>,
) -> Result<Vec<OpenSink>, OpenError> {
    let node = settings.names.kubernetes.node_name.as_deref();
    let host = settings.resource.attributes(&settings.paths, node);
    let context = SinkContext { paths: &settings.paths, node, host: &host, heartbeat };
    let sink = receiver.open(&context)?;
    let mut sinks: Vec<OpenSink> = sink.map(|sink| (name, sink)).into_iter().collect();
    sinks.extend(receiver.open_more(&context)?);
    Ok(sinks)
}

/// Where the points go, for who asks the agent.
pub(super) fn views(receivers: &[(&'static str, Box<dyn Receiver>)]) -> Vec<Source> {
    let view = |Finding { subject: name, state, facts: reason, remedy, .. }: Finding| {
        let state = if state == "ok" { "ready".to_owned() } else { state };
        Source { name, state, reason, remedy, ..Source::default() }
    };
    receivers.iter().flat_map(|(_, row)| row.diagnose()).map(view).collect()
}

/// Hands a batch to every sink.
pub(super) fn export(sinks: &mut [OpenSink], batch: &EnrichedBatch) {
    for (_, sink) in sinks {
        sink.export(batch);
    }
}

/// Hands events to every sink.
pub(super) fn export_events(sinks: &mut [OpenSink], records: &[Record]) {
    for (_, sink) in sinks {
        sink.export_events(records);
    }
}

/// Gives every sink until `deadline` to send what is left.
pub(super) fn flush(sinks: &mut [OpenSink], deadline: Instant) {
    for (_, sink) in sinks.iter_mut() {
        sink.start_flush(deadline);
    }
    for (_, sink) in sinks {
        sink.flush(deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_stdout_or_a_file() {
        assert_eq!(parse("stdout"), Ok("stdout".into()));
        assert_eq!(parse("file:/tmp/x"), Ok("file:/tmp/x".into()));
        for wrong in ["file:", "file", "stdout:x", "kafka", "otlp:http://x"] {
            assert_eq!(parse(wrong), Err("not a sink: write stdout or file:PATH".into()));
        }
    }
}
