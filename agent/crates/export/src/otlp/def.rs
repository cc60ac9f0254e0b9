//! The OTLP sinks as rows, and their section `[otlp]`.

use super::settings::{RawOtlp, Settings, Signal, check_also};
use super::{LogsSink, OtlpSink};
use crate::Sink;
use crate::def::{NamedSink, OpenError, Receiver, SinkContext, SinkDef, sink_name};
use crate::filter::Filter;
use crate::naming::{Naming, RawNaming};
use crate::resource::Resource;
use crate::spool;
use gpuwho_collect::tls;
use gpuwho_collect::tls::TlsFiles;
use gpuwho_model::config::{ConfigError, Flags, Resolving, Section, Tables, checks, spread};
use gpuwho_model::finding::Finding;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
# http/protobuf, http/json or grpc; default: grpc for port 4317, otherwise http/protobuf.
#: protocol = "http/protobuf"
# Milliseconds for one attempt.
#: timeout_ms = 10000
# gzip, zstd or none. A receiver that does not know zstd gets gzip.
#: compression = "gzip"
# cumulative or delta: whether counters count from the start of their series or from the point before.
#: temporality = "cumulative"
# Sent with each request, like a token. Values are never logged.
#: headers = { authorization = "Bearer TOKEN" }
# Headers that are not in this file, a line NAME: VALUE for each, and a bearer token alone. Changed files
# are read again.
#: headers_file = "/etc/gpuwho/otlp.headers"
#: token_file = "/etc/gpuwho/otlp.token"
# Without TLS a secret (what is in the two files, in OTEL_EXPORTER_OTLP_HEADERS, or in a header or query like a
# token) goes only to a process on this host: of root, of the agent's user, or of this user, by name or
# number. Until such a process accepts the connection everything waits. true: to whoever is there, also on
# other hosts.
#: receiver_user = 998
#: insecure_secrets = false
# http://HOST:PORT of a proxy, which is used by CONNECT; default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
# "none": none. A receiver on this host needs none.
#: proxy = "none"
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
# Put the attributes of a device's owner on the device's gauges (not on counters, states, health and info), once
# the owner had it alone for an interval. A change of the owner ends these series and begins others. It needs
# gpu.owner.processes, which level "basic" does not have. The names "l9gpu" have it
# unless this is false; with the native names use gpu.owner.* or the recording rule gpu:owner.
#: owner_on_devices = false
# What is sent: metrics by name without those excluded, points and events whose attributes have one of the
# patterns, events by kind, and each series once in so many intervals. * stands for any text.
#: filter = { metrics = ["gpu.*"], exclude = ["gpu.pcie.*"], attributes = { "k8s.namespace.name" = ["prod-*"] }, events = ["gpu.xid"], every = 1 }
# Further receivers by name, each with the keys above, its own queue and its own counters.
#: also = { backup = { endpoint = "http://127.0.0.1:14318", compression = "zstd", filter = { every = 6 } } }
"#,
);

#[derive(Debug)]
struct Otlp {
    signal: Signal,
    /// `None` without an endpoint.
    first: Option<One>,
    /// The further ones.
    also: Vec<One>,
    /// Also without an endpoint, which the environment may set.
    tls: TlsFiles,
    passwd: PathBuf,
    spool: spool::settings::Settings,
    interval: Duration,
}

/// One receiver.
#[derive(Debug)]
struct One {
    name: &'static str,
    settings: Settings,
    filter: Filter,
    naming: Naming,
}

impl Receiver for Otlp {
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let first = self.first.iter().filter(|one| self.sends_to(one));
        first.map(|one| self.start(one, context)).next().transpose()
    }

    fn open_more(&self, context: &SinkContext<'_>) -> Result<Vec<NamedSink>, OpenError> {
        let also = self.also.iter().filter(|one| self.sends_to(one));
        also.map(|one| Ok((one.name, self.start(one, context)?))).collect()
    }

    fn is_exclusive(&self) -> bool {
        self.spool.is_used(self.signal == Signal::Logs)
    }

    fn check(&self) -> Result<(), OpenError> {
        if self.signal == Signal::Logs {
            return Ok(());
        }
        let all = self.first.iter().chain(&self.also);
        for tls in all.clone().map(|one| &one.settings.receiver.tls).chain([&self.tls]) {
            if *tls != TlsFiles::default() {
                tls::check(tls)?;
            }
        }
        for one in all {
            one.settings.receiver.header_files.read()?;
        }
        Ok(())
    }

    fn diagnose(&self) -> Vec<Finding> {
        let all = self.first.iter().chain(&self.also);
        let mut findings: Vec<_> = all
            .clone()
            .filter_map(|one| self.spool.diagnose(one.name, self.signal == Signal::Logs))
            .collect();
        if self.signal == Signal::Logs {
            return findings;
        }
        for one in all {
            let word = one.name.trim_start_matches("sink:");
            let to = format!("sends to {:?}", one.settings.receiver.endpoint);
            let key = word.replacen("otlp:", "otlp.also.", 1);
            if let Some(found) = one.settings.receiver.diagnose_receiver(word, &key, &self.passwd) {
                findings.push(found);
                continue;
            }
            findings.push(match one.settings.receiver.header_files.read() {
                Ok(_) => Finding::new(word, "ok", to, ""),
                Err(error) => {
                    let remedy =
                        "correct otlp.headers_file or otlp.token_file: nothing is sent without it";
                    Finding::new(word, "failed", error.to_string(), remedy)
                }
            });
        }
        if findings.is_empty() {
            findings.push(Finding::new(
                OTLP,
                "absent",
                "no receiver is set: nothing is sent",
                "give --otlp URL, set [otlp] endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT",
            ));
        }
        findings
    }
}

impl Otlp {
    /// Whether the filter lets anything of this signal through.
    fn sends_to(&self, one: &One) -> bool {
        match self.signal {
            Signal::Metrics => one.filter.has_metrics(),
            Signal::Logs => one.filter.has_events(),
        }
    }

    fn start(&self, one: &One, context: &SinkContext<'_>) -> Result<Box<dyn Sink>, OpenError> {
        let One { name, settings, filter, naming } = one;
        let resource = Resource::new(context.host, &settings.resource_attributes);
        let thread = name.replace("sink:", "export:");
        let sink: Box<dyn Sink> = match self.signal {
            Signal::Metrics => {
                let spool = self.spool.of_metrics(name);
                let sink = OtlpSink::with_spool(&thread, settings, &resource, spool)?;
                naming.wrap(Box::new(sink), context.host)
            }
            Signal::Logs => {
                let spool = self.spool.of_events(name);
                Box::new(LogsSink::with_spool(&thread, settings, &resource, spool)?)
            }
        };
        Ok(filter.clone().before(sink, self.interval))
    }
}

fn configure(signal: Signal, with: &Resolving<'_>) -> Result<Box<dyn Receiver>, ConfigError> {
    let settings = otlp_settings(signal, with.tables, with.flags, with.env, &with.paths.passwd)?;
    let file: RawOtlp = with.tables.read(OTLP)?;
    let tls = Settings::resolve(signal, &RawOtlp::default(), &file, &|_| None)?.receiver.tls;
    let passwd = with.paths.passwd.as_path();
    let row = match signal {
        Signal::Metrics => METRICS.name,
        Signal::Logs => LOGS.name,
    };
    let interval = with.interval;
    let one = |name, key: &str, raw: &RawOtlp, mut settings: Settings| {
        check_files(key, raw)?;
        let filter = Filter::resolve(&format!("{key}.filter"), raw.filter.as_ref())?;
        settings.receiver.spread = spread(interval);
        let names = raw.names.clone();
        let naming = RawNaming { names, owner_on_devices: raw.owner_on_devices };
        let naming = Naming::resolve(key, naming, with)?;
        Ok::<_, ConfigError>(One { name, settings, filter, naming })
    };
    let first = settings.map(|settings| one(row, OTLP, &file, settings)).transpose()?;
    check_also(&file)?;
    let is_off = is_off(signal, with.env)?;
    let mut also = Vec::new();
    for (name, raw) in file.also.iter().filter(|_| !is_off) {
        // Its own table only: the environment is the first receiver's.
        let env =
            |name: &str| (!name.starts_with("OTEL_EXPORTER_")).then(|| (with.env)(name)).flatten();
        let settings = Settings::resolve(signal, &RawOtlp::default(), raw, &env)?;
        let key = format!("otlp.also.{name}");
        let settings = settings.with_trust(&key, passwd)?;
        also.push(one(sink_name(row, name), &key, raw, settings)?);
    }
    let spool = spool::settings::Settings::resolve(with.tables)?;
    let passwd = passwd.to_owned();
    Ok(Box::new(Otlp { signal, first, also, tls, passwd, spool, interval }))
}

fn check_files(key: &str, raw: &RawOtlp) -> Result<(), ConfigError> {
    let files = [("headers_file", &raw.headers_file), ("token_file", &raw.token_file)];
    let files = files
        .into_iter()
        .filter_map(|(file, path)| Some((format!("{key}.{file}"), path.as_ref()?)));
    checks::absolute(files)
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
pub fn otlp_settings(
    signal: Signal,
    tables: &Tables,
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
    passwd: &Path,
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
    let settings = Settings::resolve(signal, &flags, file, env)?;
    Ok(Some(settings.with_trust(OTLP, passwd)?))
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
        let found = otlp_settings(
            Signal::Metrics,
            &Tables::default(),
            &flags,
            &env,
            Path::new("/etc/passwd"),
        );
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
