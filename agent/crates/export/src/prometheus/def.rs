//! The endpoint as a row of the sinks, and its section `[prometheus]`.

use super::access::Users;
use super::server::BOUNDS;
use super::store::Options;
use super::tls::{Files, Tls};
use super::{Endpoint, PrometheusSink, text};
use crate::Sink;
use crate::def::{OpenError, Receiver, SinkContext, SinkDef};
use crate::delivery::trust;
use crate::naming::{Naming, RawNaming};
use crate::resource::{Resource, attributes};
use gpuwho_model::catalog::attributes::HOST_NAME;
use gpuwho_model::config::{ConfigError, Resolving, Section, checks};
use gpuwho_model::finding::{Finding, NOTICE};
use gpuwho_owners::sockets;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The row.
pub const PROMETHEUS: SinkDef = SinkDef {
    name: "sink:prometheus",
    section: Some(SECTION),
    flag: None,
    configure: |with| Ok(Box::new(settings(with)?)),
};

/// Where `--prometheus` alone listens: the address of OpenTelemetry's own Prometheus exporters.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9464";

/// How long Prometheus itself shows a pushed point that is followed by no other.
pub(super) const LOOKBACK: Duration = Duration::from_mins(5);

const PROMETHEUS_WORD: &str = "prometheus";
const SECTION: Section = Section::of::<RawPrometheus>(
    PROMETHEUS_WORD,
    r#"# The address on which Prometheus scrapes /metrics; /healthz and /readyz are there too. Without it the
# agent does not listen. One that another process has is tried every 30 s. Every local user can read a loopback address, everybody any other one, unless
# names and passwords are set.
#: listen = "127.0.0.1:9464"
# The names of the metrics: "native" are those of METRICS.md as Prometheus' OTLP receiver translates
# them; "semconv" OpenTelemetry's hw.*; "l9gpu" those of l9gpu; "dcgm" those of NVIDIA's dcgm-exporter until
# 4.8, "dcgm-4.9" those it has since.
# Several add up; "l9gpu" stands alone or with "dcgm". docs/metrics/names.md has the tables.
#: names = ["native"]
# Put the attributes of a device's owner on the device's gauges (not on counters, states, health and info), once
# the owner had it alone for an interval. A change of the owner ends these series and begins others. It needs
# gpu.owner.processes, which level "basic" does not have. The names "l9gpu" and "dcgm" have it
# unless this is false; with the native names use gpu.owner.* or the recording rule gpu:owner.
#: owner_on_devices = false
# Put otel_scope_name and otel_scope_version on every series.
#: scope_labels = false
# The keys of Prometheus' web configuration: TLS, and names with bcrypt hashes of passwords
# (`htpasswd -nBC 10 NAME`). Changed certificate files are read again.
#: tls_server_config = { cert_file = "/etc/gpuwho/tls.crt", key_file = "/etc/gpuwho/tls.key" }
#: basic_auth_users = { prometheus = "$2y$10$EIXIOnVZJbmzNDjnfVfM8uyp2WIGbZ2KP0nAbCK/2QbUeJBYOCWVe" }
"#,
);

/// No `Debug`: it holds hashes of passwords.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawPrometheus {
    listen: Option<String>,
    names: Option<Vec<String>>,
    owner_on_devices: Option<bool>,
    scope_labels: Option<bool>,
    tls_server_config: Option<RawTls>,
    basic_auth_users: BTreeMap<String, String>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTls {
    cert_file: PathBuf,
    key_file: PathBuf,
    client_ca_file: Option<PathBuf>,
    client_auth_type: Option<String>,
}

#[derive(Debug)]
struct Prometheus {
    /// `None` where it is off.
    address: Option<SocketAddr>,
    naming: Naming,
    scope_labels: bool,
    tls: Option<Files>,
    users: Users,
    /// From `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`, as over OTLP.
    resource: Vec<(String, String)>,
}

impl Receiver for Prometheus {
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let Some(address) = self.address else { return Ok(None) };
        let resource = Resource::new(context.host, &self.resource);
        let host = context.host.get(&HOST_NAME);
        let options = Options {
            profiles: self.naming.profiles().to_vec(),
            owner_in_dcgm: self.naming.owner_in_dcgm(),
            scope_labels: self.scope_labels,
            target: text::named(resource.iter()),
            host: host.map(ToString::to_string).unwrap_or_default().into(),
            of_host: text::of_host(resource.iter()),
            stale: LOOKBACK.max(context.heartbeat.interval() * 2),
        };
        let tls = self.tls.clone().map(Tls::open).transpose()?;
        let heartbeat = Arc::clone(context.heartbeat);
        let endpoint = Endpoint::new(options, self.users.clone(), tls, heartbeat);
        let (sink, _) = PrometheusSink::start(address, endpoint, BOUNDS)?;
        Ok(Some(self.naming.wrap(Box::new(sink), context.host)))
    }

    fn is_exclusive(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), OpenError> {
        self.tls.clone().map(Tls::open).transpose()?;
        Ok(())
    }

    fn diagnose(&self) -> Vec<Finding> {
        let Some(address) = self.address else {
            let facts = "no endpoint";
            let remedy = "to be scraped: --prometheus, or [prometheus] listen";
            return vec![Finding::new(PROMETHEUS_WORD, "absent", facts, remedy)];
        };
        if let Some(Err(error)) = self.tls.clone().map(Tls::open) {
            let remedy = "correct [prometheus] tls_server_config";
            return vec![Finding::new(PROMETHEUS_WORD, "failed", error.to_string(), remedy)];
        }
        let others = sockets::listening_users(address);
        if let Some(user) = others.iter().find(|user| !trust::is_ours(**user)) {
            let facts = format!("a process of user {user} listens on {address}: it is not served");
            let remedy = "end that process, or choose another address with prometheus.listen";
            return vec![Finding::new(PROMETHEUS_WORD, "degraded", facts, remedy)];
        }
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{address}/metrics");
        let is_open = !address.ip().is_loopback() && self.users.is_empty() && !self.asks_clients();
        let finding = if is_open {
            let facts = format!("at {url}, without a password");
            let remedy = "set [prometheus] basic_auth_users, or listen on a loopback address";
            Finding::new(PROMETHEUS_WORD, NOTICE, facts, remedy)
        } else {
            Finding::new(PROMETHEUS_WORD, "ok", format!("at {url}"), "")
        };
        vec![finding]
    }
}

impl Prometheus {
    /// Whether a client must have a certificate.
    fn asks_clients(&self) -> bool {
        let clients = self.tls.as_ref().and_then(|tls| tls.clients.as_ref());
        clients.is_some_and(|(_, is_required)| *is_required)
    }
}

fn settings(with: &Resolving<'_>) -> Result<Prometheus, ConfigError> {
    let raw: RawPrometheus = with.tables.read(PROMETHEUS_WORD)?;
    let flag = with.flags.prometheus.clone();
    let key = if flag.is_some() { "--prometheus" } else { "prometheus.listen" };
    let address = flag.or(raw.listen).map(|text| address(key, &text)).transpose()?;
    let users = Users::new(raw.basic_auth_users).map_err(|user| {
        let problem = format!("the password of `{user}` is no bcrypt hash of a cost up to 14");
        wrong("prometheus.basic_auth_users", problem, "make it with `htpasswd -nBC 10 NAME`")
    })?;
    let naming = RawNaming { names: raw.names, owner_on_devices: raw.owner_on_devices };
    Ok(Prometheus {
        address,
        naming: Naming::resolve(PROMETHEUS_WORD, naming, with)?,
        scope_labels: raw.scope_labels.unwrap_or(false),
        tls: raw.tls_server_config.map(files).transpose()?,
        users,
        resource: attributes(with.env)?,
    })
}

/// Parses an address: with a host, or a colon and a port, which is every address of this host.
fn address(key: &str, text: &str) -> Result<SocketAddr, ConfigError> {
    let any = text.strip_prefix(':').and_then(|port| port.parse().ok());
    let any = any.map(|port: u16| SocketAddr::from((IpAddr::from(Ipv6Addr::UNSPECIFIED), port)));
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let parsed = local.as_deref().unwrap_or(text).parse().ok();
    any.or(parsed).ok_or_else(|| {
        let problem = format!("`{text}` is not an address");
        wrong(key, problem, "write an IP address and a port, like 127.0.0.1:9464, or :9464 for all")
    })
}

fn files(raw: RawTls) -> Result<Files, ConfigError> {
    let key = |name: &str| format!("prometheus.tls_server_config.{name}");
    let RawTls { cert_file, key_file, client_ca_file, client_auth_type } = raw;
    let given = [("cert_file", Some(&cert_file)), ("key_file", Some(&key_file))];
    let given = given.into_iter().chain([("client_ca_file", client_ca_file.as_ref())]);
    checks::absolute(given.filter_map(|(name, path)| Some((key(name), path?))))?;
    let is_required = match client_auth_type.as_deref() {
        None | Some("NoClientCert") => None,
        Some("VerifyClientCertIfGiven") => Some(false),
        Some("RequireAndVerifyClientCert") => Some(true),
        Some(other) => {
            let problem = format!("`{other}` checks no certificate, or is unknown");
            let remedy = "use NoClientCert, VerifyClientCertIfGiven or RequireAndVerifyClientCert";
            return Err(wrong(&key("client_auth_type"), problem, remedy));
        }
    };
    let clients = match (client_ca_file, is_required) {
        (Some(ca), Some(is_required)) => Some((ca, is_required)),
        (None, None) => None,
        (Some(_), None) => {
            let problem = "it has no use without client_auth_type".to_owned();
            let remedy = "set client_auth_type = \"RequireAndVerifyClientCert\"";
            return Err(wrong(&key("client_ca_file"), problem, remedy));
        }
        (None, Some(_)) => {
            let problem = "there is no client_ca_file to verify against".to_owned();
            return Err(wrong(&key("client_auth_type"), problem, "set client_ca_file"));
        }
    };
    Ok(Files { cert: cert_file, key: key_file, clients })
}

fn wrong(key: &str, problem: String, remedy: &str) -> ConfigError {
    ConfigError::Value { key: key.into(), problem, remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::selection::Selection;
    use gpuwho_model::config::{Flags, Tables};
    use gpuwho_model::paths::Paths;

    fn resolve(toml: &str, flag: Option<&str>) -> Result<Prometheus, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gpuwho.toml");
        std::fs::write(&file, format!("[prometheus]\n{toml}")).unwrap();
        let tables =
            Tables::load(Some(&file), &[], &[SECTION], &[]).map_err(|error| error.to_string())?;
        let flags = Flags { prometheus: flag.map(str::to_owned), ..Flags::default() };
        let (paths, metrics) = (Paths::default(), Selection::all());
        let with = Resolving {
            tables: &tables,
            interval: Duration::from_secs(10),
            paths: &paths,
            metrics: &metrics,
            flags: &flags,
            env: &|_| None,
        };
        settings(&with).map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_off_unless_an_address_is_given_and_the_flag_is_first() {
        assert_eq!(resolve("", None).unwrap().address, None);
        let of = |toml, flag| resolve(toml, flag).unwrap().address.unwrap().to_string();
        assert_eq!(of("listen = \"10.0.0.1:80\"", None), "10.0.0.1:80");
        assert_eq!(of("listen = \"10.0.0.1:80\"", Some(DEFAULT_ADDRESS)), DEFAULT_ADDRESS);
        assert_eq!(of("listen = \":9464\"", None), "[::]:9464");
        assert_eq!(of("listen = \"localhost:9464\"", None), "127.0.0.1:9464");
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        let wrong = [
            ("listen = \"node\"", "prometheus.listen"),
            ("names = []", "prometheus.names"),
            ("names = [\"datadog\"]", "use native, semconv, l9gpu, dcgm, dcgm-4.9"),
            ("basic_auth_users = { a = \"plain\" }", "prometheus.basic_auth_users"),
            ("tls_server_config = { cert_file = \"a\", key_file = \"/b\" }", "cert_file"),
            ("tls_server_config = { cert_file = \"/a\" }", "key_file"),
            (
                "tls_server_config = { cert_file = \"/a\", key_file = \"/b\", \
                 client_auth_type = \"RequestClientCert\" }",
                "client_auth_type",
            ),
            (
                "tls_server_config = { cert_file = \"/a\", key_file = \"/b\", \
                 client_ca_file = \"/c\" }",
                "client_ca_file",
            ),
        ];
        for (toml, part) in wrong {
            let error = resolve(toml, None).unwrap_err();
            assert!(error.contains(part), "{toml}: {error}");
            assert!(!error.contains("plain"), "no password in an error: {error}");
        }
    }

    #[test]
    fn doctor_says_who_can_read() {
        let of = |toml| {
            let finding = resolve(toml, None).unwrap().diagnose().remove(0);
            (finding.state, finding.facts)
        };
        assert_eq!(of("").0, "absent");
        let (state, facts) = of("listen = \"127.0.0.1:9464\"");
        assert_eq!((state.as_str(), facts.as_str()), ("ok", "at http://127.0.0.1:9464/metrics"));
        assert!(of("listen = \":9464\"").1.contains("without a password"));
        let tls =
            "listen = \":9464\"\ntls_server_config = { cert_file = \"/no\", key_file = \"/no\" }";
        assert_eq!(of(tls).0, "failed");
    }
}
