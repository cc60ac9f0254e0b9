//! The messages of the kubelet's Pods API (`v1alpha1.Pods`, k8s.io/kubelet of Kubernetes 1.37) and
//! of `core/v1` that the agent sends and reads; other fields of an answer are skipped. Pods are
//! bytes within the answers: a pod that cannot be decoded affects only itself.

use std::collections::BTreeMap;

pub(crate) const WATCH_PODS: &str = "/v1alpha1.Pods/WatchPods";
pub(crate) const LIST_PODS: &str = "/v1alpha1.Pods/ListPods";
pub(crate) const GET_POD: &str = "/v1alpha1.Pods/GetPod";

/// `EventType`. Drafts before Kubernetes 1.37 start at `ADDED = 0`; released servers never send 0.
pub(crate) const UNSPECIFIED: i32 = 0;
pub(crate) const ADDED: i32 = 1;
pub(crate) const MODIFIED: i32 = 2;
pub(crate) const DELETED: i32 = 3;
pub(crate) const INITIAL_SYNC_COMPLETE: i32 = 4;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WatchPodsRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WatchPodsEvent {
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    /// Of a deleted pod: at least name, namespace and UID.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) pod: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPodsRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPodsResponse {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(crate) pods: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetPodRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetPodResponse {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) pod: Vec<u8>,
}

/// `core/v1.Pod`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Pod {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<PodSpec>,
    #[prost(message, optional, tag = "3")]
    pub(crate) status: Option<PodStatus>,
}

/// `meta/v1.ObjectMeta`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(string, tag = "5")]
    pub(crate) uid: String,
    #[prost(message, optional, tag = "8")]
    pub(crate) creation_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) owner_references: Vec<OwnerReference>,
}

/// `meta/v1.OwnerReference`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OwnerReference {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "5")]
    pub(crate) api_version: String,
    #[prost(bool, tag = "6")]
    pub(crate) controller: bool,
}

/// `meta/v1.Time`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Time {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

/// `core/v1.PodSpec`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodSpec {
    #[prost(string, tag = "10")]
    pub(crate) node_name: String,
}

/// `core/v1.PodStatus`: the statuses of the containers of each kind.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodStatus {
    #[prost(message, repeated, tag = "8")]
    pub(crate) regular: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    pub(crate) init: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) ephemeral: Vec<ContainerStatus>,
}

/// `core/v1.ContainerStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "6")]
    pub(crate) image: String,
    /// `containerd://ID`; empty until the container is made.
    #[prost(string, tag = "8")]
    pub(crate) container_id: String,
}

/// Decodes bytes that Kubernetes' own Go types write (`tests/kubernetes`).
#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::providers::fake_kubelet::written;
    use prost::Message as _;

    fn pod() -> Pod {
        let text = |field: &str| field.to_owned();
        let map = |field: &str| [(text(field), text(field))].into();
        let owner = OwnerReference {
            kind: text("OwnerReference.Kind"),
            name: text("OwnerReference.Name"),
            api_version: text("OwnerReference.APIVersion"),
            controller: true,
        };
        let metadata = ObjectMeta {
            name: text("ObjectMeta.Name"),
            namespace: text("ObjectMeta.Namespace"),
            uid: text("ObjectMeta.UID"),
            creation_timestamp: Some(Time { seconds: 1_795_000_000 }),
            labels: map("ObjectMeta.Labels"),
            annotations: map("ObjectMeta.Annotations"),
            owner_references: vec![owner],
        };
        let container = ContainerStatus {
            name: text("ContainerStatus.Name"),
            image: text("ContainerStatus.Image"),
            container_id: text("ContainerStatus.ContainerID"),
        };
        let status = PodStatus {
            regular: vec![container.clone()],
            init: vec![container.clone()],
            ephemeral: vec![container],
        };
        let spec = PodSpec { node_name: text("PodSpec.NodeName") };
        Pod { metadata: Some(metadata), spec: Some(spec), status: Some(status) }
    }

    #[test]
    fn a_complete_pod_is_read_as_kubernetes_writes_it() {
        let reported = GetPodResponse::decode(&*written("pods-get")).unwrap();
        assert_eq!(Pod::decode(&*reported.pod).unwrap(), pod());
    }

    #[test]
    fn a_list_is_read_as_kubernetes_writes_it_also_with_an_empty_pod() {
        let reported = ListPodsResponse::decode(&*written("pods-list")).unwrap();
        let pods: Vec<_> = reported.pods.iter().map(|pod| Pod::decode(&**pod).unwrap()).collect();
        assert_eq!(pods, [pod(), Pod::default()]);
        assert_eq!(ListPodsResponse::decode(&[][..]).unwrap(), ListPodsResponse::default());
    }

    #[test]
    fn events_are_read_as_kubernetes_writes_them() {
        let reported = WatchPodsEvent::decode(&*written("pods-watch")).unwrap();
        assert_eq!((reported.kind, Pod::decode(&*reported.pod).unwrap()), (DELETED, pod()));
        let reported = WatchPodsEvent::decode(&*written("pods-watch-synced")).unwrap();
        assert_eq!(reported, WatchPodsEvent { kind: INITIAL_SYNC_COMPLETE, pod: Vec::new() });
    }

    #[test]
    fn a_request_is_what_kubernetes_writes() {
        let request = GetPodRequest { pod_uid: "u1".into() };
        assert_eq!(request.encode_to_vec(), written("pods-ask"));
    }
}
