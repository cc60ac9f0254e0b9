//! `[kubernetes]` and `[containers]`: the sockets of this node that name pods and containers.

use gpuwho_model::config::{ConfigError, checks};
use gpuwho_owners::attribute::providers::{Containers, Kubernetes};
use gpuwho_owners::attribute::workload::{PatternError, WantedLabels};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Default CRI sockets, below the host's root.
const CRI: &[&str] = &[
    "run/containerd/containerd.sock",
    "run/k3s/containerd/containerd.sock",
    "run/crio/crio.sock",
    "var/run/cri-dockerd.sock",
];
/// The kubelet's pod-resources socket.
const POD_RESOURCES: &str = "var/lib/kubelet/pod-resources/kubelet.sock";
/// Variables that manifests put the node's name into, by the downward API.
const NODE_NAMES: &[&str] = &["NODE_NAME", "KUBE_NODE_NAME", "K8S_NODE_NAME"];
/// Docker's socket.
const DOCKER: &str = "run/docker.sock";
/// The socket of Podman's system service.
const PODMAN: &str = "run/podman/podman.sock";

/// The sections in the sample.
pub(super) const KUBERNETES_SAMPLE: &str = r#"# Sockets of container runtimes that speak CRI (below paths.root): names, images and labels of pods
# and containers. The agent looks again for missing ones; [] disables them.
#: cri = ["/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/run/crio/crio.sock", "/var/run/cri-dockerd.sock"]
# The kubelet's socket (below paths.root): which device is allocated to which container. "" disables it.
#: pod_resources = "/var/lib/kubelet/pod-resources/kubelet.sock"
# Labels and annotations of pods to export, on info series as k8s.pod.label.KEY and
# k8s.pod.annotation.KEY; a * at the end matches any suffix.
#: labels = []
#: annotations = []
# More resources of device plugins, and drivers of resource claims, that are accelerators; a * at the
# end matches any suffix.
#: resources = []
# Namespaces, and resource claims as NAMESPACE/CLAIM, whose devices are for administration (monitoring,
# debugging): no allocations, so that they are billed no idle time; a * at the end matches any suffix.
#: administrative = []
# The name of this node in Kubernetes; default: the variable NODE_NAME, KUBE_NODE_NAME or K8S_NODE_NAME.
#: node_name = "node-a"
# true: trust the pod names of clusters that run in containers, virtual machines or services of this
# host (kind, k3d). A user who can make cgroups in there can then name any pod that this host does not
# have.
#: nested = false
"#;
/// See [`KUBERNETES_SAMPLE`].
pub(super) const CONTAINERS_SAMPLE: &str = r#"# Docker's and Podman's sockets (below paths.root), for containers outside pods; "" disables one.
#: docker = "/run/docker.sock"
#: podman = "/run/podman/podman.sock"
"#;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawKubernetes {
    cri: Option<Vec<PathBuf>>,
    pod_resources: Option<PathBuf>,
    labels: Option<Vec<String>>,
    annotations: Option<Vec<String>>,
    resources: Option<Vec<String>>,
    administrative: Option<Vec<String>>,
    node_name: Option<String>,
    nested: Option<bool>,
}

impl RawKubernetes {
    /// Whether pod names of clusters that run in containers of this host are trusted.
    pub(super) fn nested(&self) -> bool {
        self.nested.unwrap_or(false)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawContainers {
    docker: Option<PathBuf>,
    podman: Option<PathBuf>,
}

pub(super) fn kubernetes(
    raw: RawKubernetes,
    root: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Kubernetes, ConfigError> {
    let sockets = raw.cri.iter().flatten();
    checks::absolute(sockets.map(|socket| ("kubernetes.cri", socket.as_path())))?;
    let default = || CRI.iter().map(|socket| root.join(socket)).collect();
    let keys = |keys: Option<Vec<String>>| keys.unwrap_or_default();
    let wanted = |key: &str, wanted: Result<WantedLabels, PatternError>| {
        wanted.map_err(|error| ConfigError::Value {
            key: format!("kubernetes.{key}"),
            problem: error.to_string(),
            remedy: "for example \"app.kubernetes.io/name\" or \"example.com/*\"".into(),
        })
    };
    let (labels, annotations) = (keys(raw.labels), keys(raw.annotations));
    wanted("labels", WantedLabels::new(&labels, &[]))?;
    let named = || NODE_NAMES.iter().find_map(|name| env(name).filter(|name| !name.is_empty()));
    Ok(Kubernetes {
        cri: raw.cri.unwrap_or_else(default),
        pod_resources: socket(raw.pod_resources, root.join(POD_RESOURCES)),
        resources: keys(raw.resources),
        administrative: keys(raw.administrative),
        node_name: raw.node_name.filter(|name| !name.is_empty()).or_else(named),
        wanted: wanted("annotations", WantedLabels::new(&labels, &annotations))?,
    })
}

pub(super) fn containers(raw: RawContainers, root: &Path) -> Containers {
    Containers {
        docker: socket(raw.docker, root.join(DOCKER)),
        podman: socket(raw.podman, root.join(PODMAN)),
    }
}

/// An empty path switches a socket off.
fn socket(set: Option<PathBuf>, default: PathBuf) -> Option<PathBuf> {
    Some(set.unwrap_or(default)).filter(|socket| !socket.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_path_switches_a_socket_off() {
        let raw = RawContainers { docker: Some(PathBuf::new()), podman: None };
        let podman = Some(PathBuf::from("/host/run/podman/podman.sock"));
        assert_eq!(containers(raw, Path::new("/host")), Containers { docker: None, podman });
    }

    fn resolved(raw: RawKubernetes, env: &[(&str, &str)]) -> Result<Kubernetes, String> {
        let find = |name: &str| {
            env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        kubernetes(raw, Path::new("/host"), &find).map_err(|error| error.to_string())
    }

    #[test]
    fn the_kubelets_socket_is_below_the_hosts_root() {
        let default = resolved(RawKubernetes::default(), &[]).unwrap();
        let wanted = "/host/var/lib/kubelet/pod-resources/kubelet.sock";
        assert_eq!(default.pod_resources, Some(PathBuf::from(wanted)));
    }

    #[test]
    fn the_nodes_name_is_the_configured_one_before_the_environments() {
        let env = [("NODE_NAME", ""), ("K8S_NODE_NAME", "c"), ("KUBE_NODE_NAME", "b")];
        let named = |raw| resolved(raw, &env).unwrap().node_name;
        assert_eq!(named(RawKubernetes::default()).as_deref(), Some("b"));
        let set = RawKubernetes { node_name: Some("a".into()), ..RawKubernetes::default() };
        assert_eq!(named(set).as_deref(), Some("a"));
    }

    #[test]
    fn a_pattern_that_fits_nothing_is_refused_with_its_key() {
        let annotations = Some(vec!["a*b".to_owned()]);
        let error = resolved(RawKubernetes { annotations, ..RawKubernetes::default() }, &[]);
        assert_eq!(
            error.unwrap_err(),
            "`kubernetes.annotations`: `a*b` is no key: write a whole key, or the start of one and \
             a `*` at its end; for example \"app.kubernetes.io/name\" or \"example.com/*\""
        );
    }
}
