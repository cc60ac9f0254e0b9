//! The part of `core/v1`'s Pod that a node agent reads, with the field numbers of
//! `k8s.io/api/core/v1/generated.proto` and `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`
//! (v0.37). The generated Go code writes strings and numbers also when they are empty: such fields
//! are `required` here, which makes prost do the same.

use crate::model::{self, ContainerKind};
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pod {
    #[prost(message, required, tag = "1")]
    pub(crate) metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    pub(crate) spec: PodSpec,
    #[prost(message, required, tag = "3")]
    pub(crate) status: PodStatus,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectMeta {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) generate_name: String,
    #[prost(string, required, tag = "3")]
    pub(crate) namespace: String,
    #[prost(string, required, tag = "4")]
    pub(crate) self_link: String,
    #[prost(string, required, tag = "5")]
    pub(crate) uid: String,
    #[prost(string, required, tag = "6")]
    pub(crate) resource_version: String,
    #[prost(int64, required, tag = "7")]
    pub(crate) generation: i64,
    #[prost(message, required, tag = "8")]
    pub(crate) creation: Time,
    #[prost(btree_map = "string, string", tag = "11")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) owners: Vec<OwnerReference>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Time {
    #[prost(int64, optional, tag = "1")]
    pub(crate) seconds: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OwnerReference {
    #[prost(string, required, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, required, tag = "3")]
    pub(crate) name: String,
    #[prost(string, required, tag = "4")]
    pub(crate) uid: String,
    #[prost(string, required, tag = "5")]
    pub(crate) api_version: String,
    #[prost(bool, optional, tag = "6")]
    pub(crate) controller: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSpec {
    #[prost(message, repeated, tag = "2")]
    pub(crate) containers: Vec<Container>,
    #[prost(string, required, tag = "10")]
    pub(crate) node_name: String,
    #[prost(message, repeated, tag = "20")]
    pub(crate) init_containers: Vec<Container>,
    #[prost(string, required, tag = "24")]
    pub(crate) priority_class_name: String,
    #[prost(message, repeated, tag = "34")]
    pub(crate) ephemeral_containers: Vec<EphemeralContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Container {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(string, required, tag = "2")]
    pub(crate) image: String,
    /// `Always` makes an init container a sidecar.
    #[prost(string, optional, tag = "24")]
    pub(crate) restart_policy: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EphemeralContainer {
    #[prost(message, required, tag = "1")]
    pub(crate) common: Container,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodStatus {
    #[prost(string, required, tag = "1")]
    pub(crate) phase: String,
    #[prost(message, repeated, tag = "8")]
    pub(crate) containers: Vec<ContainerStatus>,
    #[prost(string, required, tag = "9")]
    pub(crate) qos_class: String,
    #[prost(message, repeated, tag = "10")]
    pub(crate) init_containers: Vec<ContainerStatus>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) ephemeral_containers: Vec<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(string, required, tag = "1")]
    pub(crate) name: String,
    #[prost(bool, required, tag = "4")]
    pub(crate) ready: bool,
    #[prost(int32, required, tag = "5")]
    pub(crate) restart_count: i32,
    #[prost(string, required, tag = "6")]
    pub(crate) image: String,
    #[prost(string, required, tag = "7")]
    pub(crate) image_id: String,
    #[prost(string, required, tag = "8")]
    pub(crate) container_id: String,
}

impl Pod {
    /// All of a pod.
    pub(crate) fn of(pod: &model::Pod) -> Self {
        let is_init = |kind| matches!(kind, ContainerKind::Init | ContainerKind::Sidecar);
        Self {
            metadata: ObjectMeta {
                labels: pod.labels.clone(),
                annotations: pod.annotations.clone(),
                owners: pod.owners.iter().map(OwnerReference::of).collect(),
                ..ObjectMeta::naming(pod)
            },
            spec: PodSpec {
                containers: list(pod, |kind| kind == ContainerKind::Regular, Container::of),
                node_name: pod.node.clone(),
                init_containers: list(pod, is_init, Container::of),
                priority_class_name: pod.priority_class.clone(),
                ephemeral_containers: list(
                    pod,
                    |kind| kind == ContainerKind::Ephemeral,
                    |container| EphemeralContainer { common: Container::of(container) },
                ),
            },
            status: PodStatus {
                phase: pod.phase.clone(),
                containers: list(pod, |kind| kind == ContainerKind::Regular, ContainerStatus::of),
                qos_class: pod.qos.clone(),
                init_containers: list(pod, is_init, ContainerStatus::of),
                ephemeral_containers: list(
                    pod,
                    |kind| kind == ContainerKind::Ephemeral,
                    ContainerStatus::of,
                ),
            },
        }
    }

    /// What is left of a pod that is gone.
    pub(crate) fn naming(pod: &model::Pod) -> Self {
        Self { metadata: ObjectMeta::naming(pod), ..Self::default() }
    }
}

impl ObjectMeta {
    fn naming(pod: &model::Pod) -> Self {
        Self {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
            ..Self::default()
        }
    }
}

impl OwnerReference {
    fn of(owner: &model::Owner) -> Self {
        Self {
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            api_version: owner.api_version.clone(),
            controller: Some(owner.controller),
        }
    }
}

impl Container {
    fn of(container: &model::Container) -> Self {
        let is_sidecar = container.kind == ContainerKind::Sidecar;
        Self {
            name: container.name.clone(),
            image: container.image.clone(),
            restart_policy: is_sidecar.then(|| "Always".to_owned()),
        }
    }
}

impl ContainerStatus {
    fn of(container: &model::Container) -> Self {
        Self {
            name: container.name.clone(),
            ready: !container.id.is_empty(),
            restart_count: container.restarts,
            image: container.image.clone(),
            image_id: String::new(),
            container_id: container.id.clone(),
        }
    }
}

fn list<T>(
    pod: &model::Pod,
    is_in: impl Fn(ContainerKind) -> bool,
    of: impl Fn(&model::Container) -> T,
) -> Vec<T> {
    pod.containers.iter().filter(|container| is_in(container.kind)).map(of).collect()
}
