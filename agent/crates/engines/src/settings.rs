//! The section `[engines]`.

use super::fetch::{Place, Target};
use gpuwho_collect::tls::TlsFiles;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use gpuwho_model::config::{ConfigError, Section, checks, duration};
use hyper::Uri;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Engines count what happens in seconds; a page takes them some milliseconds to write.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
/// Endpoints that may be configured: a thread and a connection each.
const MAX_ENDPOINTS: usize = 64;
/// Labels of an endpoint.
const MAX_LABELS: usize = 16;

const NAME: &str = "engines";

/// The section.
pub(super) const SECTION: Section = Section::of::<RawEngines>(
    NAME,
    r#"# Read the pages of metrics of inference engines (vLLM, SGLang, TensorRT-LLM, Triton,
# TGI, llama.cpp, NIM, Dynamo's workers; Ray Serve by its endpoint; LMDeploy is not read). An engine is found
# where a process that holds a device, or another one of its cgroup, is an engine's by its program, title
# or arguments, and listens on the port that it was given or has by default. Nothing else is asked.
#: enabled = true
# Time between two requests to an engine; the agent's own interval unless set.
#: interval = "10s"
# Read also what a pod that holds a device names itself by the annotations prometheus.io/port, path and
# scheme, whatever serves there; [kubernetes] annotations must select prometheus.io/*.
#: pod_annotations = false
# Kubernetes namespaces whose engines are read; all where empty.
#: namespaces = []
# Engines that are not found: on other ports, behind TLS, or on another host. Each is a table:
#   url = "https://host:8000/metrics", labels = { team = "a" }, bearer_token_file = "/path",
#   ca = "/path", certificate = "/path", key = "/path"
#: endpoints = []
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawEngines {
    enabled: Option<bool>,
    interval: Option<String>,
    pod_annotations: Option<bool>,
    namespaces: Option<Vec<String>>,
    endpoints: Option<Vec<RawEndpoint>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEndpoint {
    url: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    bearer_token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// What to read, and how often.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Whether to look for engines at all.
    pub enabled: bool,
    /// Time between two requests to an engine; `None`: the agent's interval.
    pub every: Option<Duration>,
    /// Whether pods name pages themselves.
    pub pod_annotations: bool,
    /// Namespaces of Kubernetes; all where empty.
    pub namespaces: Vec<String>,
    /// Engines that are not found.
    pub(super) endpoints: Vec<StaticEndpoint>,
}

/// An endpoint of the configuration.
#[derive(Clone, Debug)]
pub(super) struct StaticEndpoint {
    pub target: Target,
    pub host: String,
    pub port: u16,
    pub labels: AttrSet,
}

impl Settings {
    /// Reads the section.
    pub(super) fn resolve(raw: RawEngines) -> Result<Self, ConfigError> {
        let key = "engines.interval";
        let every = raw.interval.map(|text| duration(key, Some(text), SHORTEST_INTERVAL));
        let every = every.transpose()?;
        if let Some(short) = every.filter(|every| *every < SHORTEST_INTERVAL) {
            let problem = format!("{short:?} is shorter than {SHORTEST_INTERVAL:?}");
            return Err(wrong(key, problem, "use 1s or longer"));
        }
        let endpoints = raw.endpoints.unwrap_or_default();
        if endpoints.len() > MAX_ENDPOINTS {
            let problem = format!("there are {} and may be {MAX_ENDPOINTS}", endpoints.len());
            return Err(wrong("engines.endpoints", problem, "read the others by another agent"));
        }
        Ok(Self {
            enabled: raw.enabled.unwrap_or(true),
            every,
            pod_annotations: raw.pod_annotations.unwrap_or(false),
            namespaces: raw.namespaces.unwrap_or_default(),
            endpoints: endpoints.into_iter().map(endpoint).collect::<Result<_, _>>()?,
        })
    }
}

fn endpoint(raw: RawEndpoint) -> Result<StaticEndpoint, ConfigError> {
    let key = "engines.endpoints";
    let bad = |problem: &str| {
        let remedy = "write it like http://localhost:8000/metrics";
        wrong(key, format!("`{}` {problem}", raw.url), remedy)
    };
    let uri: Uri = raw.url.parse().map_err(|_| bad("is no URL"))?;
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(bad("does not begin with http:// or https://")),
    };
    let authority = uri.authority().ok_or_else(|| bad("names no host"))?;
    if authority.as_str().contains('@') {
        let remedy = "use bearer_token_file: a secret in the configuration is read by everybody";
        return Err(wrong(key, "an endpoint has a password".into(), remedy));
    }
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/metrics", |path| path.as_str());
    let path = if path == "/" { "/metrics" } else { path };
    let files = [&raw.ca, &raw.certificate, &raw.key, &raw.bearer_token_file];
    checks::absolute(files.into_iter().flatten().map(|path| (key, path)))?;
    let client = match (raw.certificate, raw.key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            let problem = "of `certificate` and `key` there is only one".to_owned();
            return Err(wrong(key, problem, "name both"));
        }
    };
    let is_named = raw.ca.is_some() || client.is_some();
    if !is_tls && (is_named || raw.bearer_token_file.is_some()) {
        let problem = "certificates and tokens are only sent over TLS".to_owned();
        return Err(wrong(key, problem, "use https://, or leave them out"));
    }
    let target = Target {
        place: Place::Host(host.clone(), port),
        path: path.to_owned(),
        tls: is_tls.then_some(TlsFiles { ca: raw.ca, client }),
        token: raw.bearer_token_file,
    };
    Ok(StaticEndpoint { target, host, port, labels: labels(&raw.labels)? })
}

/// The operator's labels. Their keys live as long as the agent, as those of the catalogue do.
fn labels(raw: &BTreeMap<String, String>) -> Result<AttrSet, ConfigError> {
    let key = "engines.endpoints";
    if raw.len() > MAX_LABELS {
        let problem = format!("an endpoint has {} labels and may have {MAX_LABELS}", raw.len());
        return Err(wrong(key, problem, "leave some out"));
    }
    let mut set = AttrSet::new();
    for (name, value) in raw {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ['_', '.', '-'].contains(&c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
            let problem = format!("`{name}` is no name of a label");
            return Err(wrong(key, problem, "use letters, digits, `_`, `.` and `-`"));
        }
        let name: &'static str = Box::leak(name.clone().into_boxed_str());
        let key = AttrKey { name, description: "A label of the configuration." };
        set.set(Box::leak(Box::new(key)), value.as_str());
    }
    Ok(set)
}

fn wrong(key: &str, problem: String, remedy: &str) -> ConfigError {
    ConfigError::Value { key: key.into(), problem, remedy: remedy.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, ConfigError> {
        Settings::resolve(toml::from_str(text).unwrap())
    }

    #[test]
    fn engines_are_read_at_the_agents_interval_unless_set() {
        let default = settings("").unwrap();
        assert_eq!((default.enabled, default.every, default.endpoints.len()), (true, None, 0));
        let set = settings("enabled = false\ninterval = \"5s\"\nnamespaces = [\"ml\"]").unwrap();
        assert_eq!((set.enabled, set.every), (false, Some(Duration::from_secs(5))));
        assert_eq!(set.namespaces, ["ml"]);
        let error = settings("interval = \"10ms\"").unwrap_err().to_string();
        assert!(error.contains("engines.interval"), "{error}");
    }

    #[test]
    fn an_endpoint_is_a_url_with_labels_and_files() {
        let text = "endpoints = [{ url = \"https://gpu1:8443/v1/metrics\", labels = { team = \"a\" }, \
                    bearer_token_file = \"/run/token\", ca = \"/etc/ca.pem\" }, \
                    { url = \"http://[::1]:9000\" }]";
        let settings = settings(text).unwrap();
        let [first, second] = &settings.endpoints[..] else { panic!() };
        assert_eq!((first.host.as_str(), first.port), ("gpu1", 8443));
        assert_eq!(first.target.path, "/v1/metrics");
        assert!(first.target.tls.is_some() && first.target.token.is_some());
        let labels: Vec<_> = first.labels.iter().map(|(key, _)| key.name).collect();
        assert_eq!(labels, ["team"]);
        assert_eq!((second.host.as_str(), second.port), ("::1", 9000));
        assert_eq!(second.target.path, "/metrics");
        assert!(second.target.tls.is_none());
    }

    #[test]
    fn endpoints_that_cannot_be_right_are_refused() {
        for wrong in [
            "url = \"localhost:8000\"",
            "url = \"ftp://localhost/metrics\"",
            "url = \"http://user:word@localhost/metrics\"",
            "url = \"https://a/metrics\", ca = \"ca.pem\"",
            "url = \"https://a/metrics\", key = \"/k.pem\"",
            "url = \"http://a/metrics\", bearer_token_file = \"/run/token\"",
            "url = \"http://a/metrics\", labels = { \"a b\" = \"c\" }",
        ] {
            let error = settings(&format!("endpoints = [{{ {wrong} }}]")).unwrap_err();
            assert!(error.to_string().contains("engines.endpoints"), "{wrong}: {error}");
        }
    }
}
