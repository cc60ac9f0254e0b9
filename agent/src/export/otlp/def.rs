//! The OTLP sinks as rows, and their section `[otlp]`.

use super::settings::{RawOtlp, Settings, Signal};
use super::{LogsSink, OtlpSink, Resource};
use crate::config::{ConfigError, Flags, Resolving, Section, Tables};
use crate::diagnosis::Finding;
use crate::export::Sink;
use crate::export::def::{OpenError, Receiver, SinkContext, SinkDef};
use crate::host;

/// The row of metrics.
pub const METRICS: SinkDef = SinkDef {
    name: "sink:otlp",
    section: Some(SECTION),
    flag: None,
    configure: |with| {
        Ok(Box::new(Otlp { signal: Signal::Metrics, settings: settings(Signal::Metrics, with)? }))
    },
};

/// The row of events, which go as log records.
pub const LOGS: SinkDef = SinkDef {
    name: "sink:otlp-logs",
    section: Some(SECTION),
    flag: None,
    configure: |with| {
        Ok(Box::new(Otlp { signal: Signal::Logs, settings: settings(Signal::Logs, with)? }))
    },
};

const OTLP: &str = "otlp";
const SECTION: Section = Section::of::<RawOtlp>(
    OTLP,
    r#"# The receiver of metrics, and of events as log records. Without it the agent sends nothing by OTLP.
# The OTEL_EXPORTER_OTLP_* variables set the same.
#: endpoint = "http://127.0.0.1:4318"
# http/protobuf or grpc; default: grpc for port 4317, otherwise http/protobuf.
#: protocol = "http/protobuf"
# Milliseconds for one attempt.
#: timeout_ms = 10000
#: compression = "gzip"
"#,
);

#[derive(Debug)]
struct Otlp {
    signal: Signal,
    /// `None` without an endpoint.
    settings: Option<Settings>,
}

impl Receiver for Otlp {
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let Some(settings) = &self.settings else { return Ok(None) };
        let resource = Resource::new(&host::attributes(context.paths, context.node), settings);
        Ok(Some(match self.signal {
            Signal::Metrics => Box::new(OtlpSink::start(settings, &resource)?),
            Signal::Logs => Box::new(LogsSink::start(settings, &resource)?),
        }))
    }

    fn diagnose(&self) -> Vec<Finding> {
        let finding = match (self.signal, &self.settings) {
            (Signal::Logs, _) => return Vec::new(),
            (_, Some(otlp)) => {
                Finding::new(OTLP, "ok", format!("sends to {:?}", otlp.endpoint), "")
            }
            (_, None) => Finding::new(
                OTLP,
                "absent",
                "no receiver is set: nothing is sent",
                "give --otlp URL, set [otlp] endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT",
            ),
        };
        vec![finding]
    }
}

fn settings(signal: Signal, with: &Resolving<'_>) -> Result<Option<Settings>, ConfigError> {
    otlp_settings(signal, with.tables, with.flags, with.env)
}

/// OTLP is on when an endpoint is set. The specification's default, a receiver on this host, would
/// make every agent without a receiver log errors.
pub(crate) fn otlp_settings(
    signal: Signal,
    tables: &Tables,
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<Settings>, ConfigError> {
    let file: &RawOtlp = &tables.read(OTLP)?;
    let flags = RawOtlp { endpoint: flags.otlp_endpoint.clone(), ..RawOtlp::default() };
    let own = match signal {
        Signal::Metrics => "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        Signal::Logs => "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    };
    let variables = ["OTEL_EXPORTER_OTLP_ENDPOINT", own];
    let in_environment = variables.iter().any(|name| env(name).is_some_and(|url| !url.is_empty()));
    if flags.endpoint.is_none() && file.endpoint.is_none() && !in_environment {
        // Wrong values are reported even without a receiver.
        Settings::resolve(signal, &flags, file, &|_| None)?;
        return Ok(None);
    }
    Ok(Some(Settings::resolve(signal, &flags, file, env)?))
}
