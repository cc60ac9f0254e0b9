//! The OTLP sinks as rows, and their section `[otlp]`.

use super::settings::{RawOtlp, Settings, Signal, TlsFiles};
use super::tls;
use super::{LogsSink, OtlpSink, Resource};
use crate::config::{ConfigError, Flags, Resolving, Section, Tables};
use crate::diagnosis::Finding;
use crate::export::Sink;
use crate::export::def::{OpenError, Receiver, SinkContext, SinkDef};
use crate::export::naming::{Naming, RawNaming};

/// The row of metrics.
pub const METRICS: SinkDef = SinkDef {
    name: "sink:otlp",
    section: Some(SECTION),
    flag: None,
    configure: |with| configure(Signal::Metrics, with),
};

/// The row of events, which go as log records.
pub const LOGS: SinkDef = SinkDef {
    name: "sink:otlp-logs",
    section: Some(SECTION),
    flag: None,
    configure: |with| configure(Signal::Logs, with),
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
# Sent with each request, like a token. Values are never logged.
#: headers = { authorization = "Bearer TOKEN" }
# An endpoint without http:// or https:// is TLS, except on this host itself. true: plain text.
#: insecure = false
# PEM files for TLS: the CAs to trust instead of the system's, and the agent's own certificate and key.
#: certificate = "/etc/gpuwho/ca.pem"
#: client_certificate = "/etc/gpuwho/client.pem"
#: client_key = "/etc/gpuwho/client.key"
# Encoded requests that wait for the receiver, in bytes; the oldest are dropped beyond it.
#: queue_bytes = 8388608
# The names of the metrics: "native" (METRICS.md), "semconv" (OpenTelemetry's hw.*), or both; or "l9gpu"
# alone, the names of l9gpu.
#: names = ["native"]
# Put the attributes of a device's owner on the device's own points, while it has one owner alone. A
# change of the owner ends the device's series and begins others. It needs metrics.include =
# ["gpu.owner.processes"], or level "all". Without it the recording rule gpu:owner joins them.
#: owner_on_devices = false
"#,
);

#[derive(Debug)]
struct Otlp {
    signal: Signal,
    /// `None` without an endpoint.
    settings: Option<Settings>,
    /// Also without an endpoint, which the environment may set.
    tls: TlsFiles,
    naming: Naming,
}

impl Receiver for Otlp {
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let Some(settings) = &self.settings else { return Ok(None) };
        let resource = Resource::new(context.host, settings);
        Ok(Some(match self.signal {
            Signal::Metrics => {
                let sink = OtlpSink::start(settings, &resource)?;
                self.naming.wrap(Box::new(sink), context.host)
            }
            Signal::Logs => Box::new(LogsSink::start(settings, &resource)?),
        }))
    }

    fn check(&self) -> Result<(), OpenError> {
        let has_files = self.tls != TlsFiles::default();
        if has_files && self.signal == Signal::Metrics {
            tls::check(&self.tls)?;
        }
        Ok(())
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

fn configure(signal: Signal, with: &Resolving<'_>) -> Result<Box<dyn Receiver>, ConfigError> {
    let settings = otlp_settings(signal, with.tables, with.flags, with.env)?;
    let file: RawOtlp = with.tables.read(OTLP)?;
    let tls = Settings::resolve(signal, &RawOtlp::default(), &file, &|_| None)?.tls;
    let raw = RawNaming { names: file.names, owner_on_devices: file.owner_on_devices };
    let naming = Naming::resolve(OTLP, raw, with)?;
    Ok(Box::new(Otlp { signal, settings, tls, naming }))
}

/// Whether OpenTelemetry's own variables switch the signal off. What they ask for and the agent does
/// not have is an error, so that nobody waits for it.
fn is_off(signal: Signal, env: &dyn Fn(&str) -> Option<String>) -> Result<bool, ConfigError> {
    if env("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true")) {
        return Ok(true);
    }
    let variable = match signal {
        Signal::Metrics => "OTEL_METRICS_EXPORTER",
        Signal::Logs => "OTEL_LOGS_EXPORTER",
    };
    match env(variable).unwrap_or_default().trim() {
        "" | "otlp" => Ok(false),
        "none" => Ok(true),
        other => Err(ConfigError::Value {
            key: variable.into(),
            problem: format!("there is no exporter `{other}` here"),
            remedy: "write otlp or none; `gpuwho agent --help` lists the other sinks".into(),
        }),
    }
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
    let is_off = is_off(signal, env)? && flags.endpoint.is_none();
    if is_off || flags.endpoint.is_none() && file.endpoint.is_none() && !in_environment {
        // Wrong values are reported even without a receiver.
        Settings::resolve(signal, &flags, file, &|_| None)?;
        return Ok(None);
    }
    Ok(Some(Settings::resolve(signal, &flags, file, env)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(env: &[(&str, &str)], flag: Option<&str>) -> Result<bool, String> {
        let flags = Flags { otlp_endpoint: flag.map(str::to_owned), ..Flags::default() };
        let env = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let found = otlp_settings(Signal::Metrics, &Tables::default(), &flags, &env);
        found.map(|settings| settings.is_some()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_switches_of_opentelemetry_are_obeyed_or_refused_in_words() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert_eq!(set(&[endpoint], None), Ok(true));
        assert_eq!(set(&[endpoint, ("OTEL_SDK_DISABLED", "True")], None), Ok(false));
        assert_eq!(set(&[endpoint, ("OTEL_SDK_DISABLED", "1")], None), Ok(true), "only true is");
        assert_eq!(set(&[endpoint, ("OTEL_METRICS_EXPORTER", "none")], None), Ok(false));
        assert_eq!(set(&[endpoint, ("OTEL_METRICS_EXPORTER", "otlp")], None), Ok(true));
        assert_eq!(set(&[("OTEL_METRICS_EXPORTER", "none")], Some("http://h:4318")), Ok(true));
        let refused = set(&[endpoint, ("OTEL_METRICS_EXPORTER", "console")], None).unwrap_err();
        assert!(refused.starts_with("`OTEL_METRICS_EXPORTER`: there is no exporter `console`"));
    }
}
