//! A page that a pod names itself, by the annotations `prometheus.io/port`, `path` and `scheme`:
//! read where the configuration says so.

use gpuwho_model::catalog::attributes::{AttrSet, K8S_POD_ANNOTATION};
use gpuwho_owners::attribute::ProcessAttribution;

/// Bytes of a path.
const MAX_PATH: usize = 256;

/// Where a pod says that its page is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Annotated {
    pub(super) port: u16,
    /// The path; the engine's own where there is none.
    pub(in super::super) path: Option<String>,
    /// Whether it is served over TLS.
    pub(in super::super) is_tls: bool,
}

impl Annotated {
    /// What the pod of a process says, if it says a port.
    pub(super) fn of(process: &ProcessAttribution) -> Option<Self> {
        Self::read(&process.workload.pod.as_ref()?.facts.as_ref()?.details)
    }

    /// Reads the annotations; what is none of a port, a path or a scheme is not there.
    fn read(details: &AttrSet) -> Option<Self> {
        let annotation =
            |name: &str| details.get(K8S_POD_ANNOTATION.key(name)?).map(ToString::to_string);
        if annotation("prometheus.io/scrape").is_some_and(|value| value == "false") {
            return None;
        }
        let port = annotation("prometheus.io/port")?.parse().ok().filter(|port| *port > 0)?;
        let is_path = |path: &String| {
            path.starts_with('/')
                && path.len() <= MAX_PATH
                && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
        };
        let path = annotation("prometheus.io/path").filter(is_path);
        let is_tls = annotation("prometheus.io/scheme").is_some_and(|value| value == "https");
        Some(Self { port, path, is_tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)]) -> Option<Annotated> {
        let mut details = AttrSet::new();
        for (name, value) in annotations {
            details.set(K8S_POD_ANNOTATION.key(name).unwrap(), *value);
        }
        Annotated::read(&details)
    }

    #[test]
    fn a_pod_names_port_path_and_scheme() {
        let all = [
            ("prometheus.io/port", "9000"),
            ("prometheus.io/path", "/v1/metrics"),
            ("prometheus.io/scheme", "https"),
            ("team", "a"),
        ];
        let path = Some("/v1/metrics".to_owned());
        assert_eq!(read(&all), Some(Annotated { port: 9000, path, is_tls: true }));
        let only_port = Annotated { port: 80, path: None, is_tls: false };
        assert_eq!(read(&[("prometheus.io/port", "80")]), Some(only_port));
    }

    #[test]
    fn what_is_no_port_or_no_path_is_not_there() {
        for port in ["0", "99999", "-1", "http", ""] {
            assert_eq!(read(&[("prometheus.io/port", port)]), None, "{port}");
        }
        assert_eq!(read(&[("prometheus.io/path", "/metrics")]), None);
        let port = ("prometheus.io/port", "80");
        assert_eq!(read(&[port, ("prometheus.io/scrape", "false")]), None);
        let long = format!("/{}", "a".repeat(MAX_PATH));
        for path in ["metrics", "/a b", "/a\r\nHost: x", "/#", "//\u{e9}", &long] {
            let found = read(&[port, ("prometheus.io/path", path)]).unwrap();
            assert_eq!(found.path, None, "{path}");
        }
    }
}
