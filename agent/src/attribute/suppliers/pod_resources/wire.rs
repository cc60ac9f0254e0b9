//! The part of the kubelet's pod-resources service (`v1.PodResourcesLister`, k8s.io/kubelet of
//! Kubernetes 1.37) that is asked and read; what else is in an answer is skipped, and fields that
//! an older kubelet does not know are empty.

use std::collections::BTreeSet;

pub(crate) const LIST: &str = "/v1.PodResourcesLister/List";
pub(crate) const GET: &str = "/v1.PodResourcesLister/Get";
pub(crate) const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPodResourcesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) pod_resources: Vec<PodResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetPodResourcesRequest {
    #[prost(string, tag = "1")]
    pub(crate) pod_name: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_namespace: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetPodResourcesResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) pod_resources: Option<PodResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodResources {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) containers: Vec<ContainerResources>,
    /// Of the pod as a whole.
    #[prost(int64, repeated, tag = "4")]
    pub(crate) cpu_ids: Vec<i64>,
    /// Of the pod as a whole.
    #[prost(message, repeated, tag = "5")]
    pub(crate) memory: Vec<ContainerMemory>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) cpu_ids: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) memory: Vec<ContainerMemory>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(crate) resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) device_ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) topology: Option<TopologyInfo>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerMemory {
    /// `memory`, `hugepages-2Mi`, ….
    #[prost(string, tag = "1")]
    pub(crate) memory_type: String,
    #[prost(uint64, tag = "2")]
    pub(crate) size: u64,
    #[prost(message, optional, tag = "3")]
    pub(crate) topology: Option<TopologyInfo>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TopologyInfo {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<NumaNode>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NumaNode {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DynamicResource {
    #[prost(string, tag = "2")]
    pub(crate) claim_name: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ClaimResource {
    #[prost(message, repeated, tag = "1")]
    pub(crate) cdi_devices: Vec<CdiDevice>,
    #[prost(string, tag = "2")]
    pub(crate) driver_name: String,
    #[prost(string, tag = "3")]
    pub(crate) pool_name: String,
    #[prost(string, tag = "4")]
    pub(crate) device_name: String,
    #[prost(string, optional, tag = "5")]
    pub(crate) share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CdiDevice {
    /// `VENDOR/CLASS=NAME`.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AllocatableResourcesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AllocatableResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) devices: Vec<ContainerDevices>,
}

impl TopologyInfo {
    /// The numbers of the NUMA nodes.
    pub(crate) fn ids(&self) -> BTreeSet<i64> {
        self.nodes.iter().map(|node| node.id).collect()
    }
}
