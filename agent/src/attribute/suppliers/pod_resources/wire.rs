//! The part of the kubelet's pod-resources service (`v1.PodResourcesLister`, k8s.io/kubelet of
//! Kubernetes 1.37) that is asked and read; what else is in an answer is skipped, and fields that
//! an older kubelet does not know are empty.

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
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) devices: Vec<ContainerDevices>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(crate) resource_name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) device_ids: Vec<String>,
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
