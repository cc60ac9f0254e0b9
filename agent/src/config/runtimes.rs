//! `[kubernetes]` and `[containers]`: the sockets of this node that name pods and containers.

use crate::attribute::suppliers::{Containers, Kubernetes};
use crate::attribute::workload::WantedLabels;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Where runtimes listen for the kubelet, below the host's root.
const CRI: &[&str] = &[
    "run/containerd/containerd.sock",
    "run/k3s/containerd/containerd.sock",
    "run/crio/crio.sock",
    "var/run/cri-dockerd.sock",
];
/// Where Docker listens.
const DOCKER: &str = "run/docker.sock";
/// Where Podman's service of the whole host listens.
const PODMAN: &str = "run/podman/podman.sock";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawKubernetes {
    cri: Option<Vec<PathBuf>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawContainers {
    docker: Option<PathBuf>,
    podman: Option<PathBuf>,
}

pub(super) fn kubernetes(raw: RawKubernetes, root: &Path) -> Kubernetes {
    let usual = || CRI.iter().map(|socket| root.join(socket)).collect();
    Kubernetes { cri: raw.cri.unwrap_or_else(usual), wanted: WantedLabels::default() }
}

pub(super) fn containers(raw: RawContainers, root: &Path) -> Containers {
    Containers {
        docker: socket(raw.docker, root.join(DOCKER)),
        podman: socket(raw.podman, root.join(PODMAN)),
    }
}

/// An empty path switches a socket off.
fn socket(set: Option<PathBuf>, usual: PathBuf) -> Option<PathBuf> {
    Some(set.unwrap_or(usual)).filter(|socket| !socket.as_os_str().is_empty())
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
}
