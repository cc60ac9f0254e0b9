//! The messages of the kubelet's pod-resources service (`v1.PodResourcesLister`, k8s.io/kubelet of
//! Kubernetes 1.37) that the agent sends and reads; other fields of an answer are skipped, and
//! fields that an older kubelet does not send are empty.

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

/// Decodes bytes that Kubernetes' own Go types write (`tests/kubernetes`).
#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::providers::fake_kubelet::written;
    use prost::Message as _;

    fn topology() -> TopologyInfo {
        TopologyInfo { nodes: vec![NumaNode { id: 1001 }, NumaNode::default()] }
    }

    fn devices() -> Vec<ContainerDevices> {
        let id = "ContainerDevices.device_ids".to_owned();
        let whole = ContainerDevices {
            resource_name: "ContainerDevices.resource_name".into(),
            device_ids: vec![id.clone(), id],
            topology: Some(topology()),
        };
        vec![whole, ContainerDevices::default()]
    }

    fn memory() -> Vec<ContainerMemory> {
        let whole = ContainerMemory {
            memory_type: "ContainerMemory.memory_type".into(),
            size: 1002,
            topology: Some(topology()),
        };
        vec![whole, ContainerMemory::default()]
    }

    fn claims() -> Vec<DynamicResource> {
        let device = ClaimResource {
            cdi_devices: vec![CdiDevice { name: "CDIDevice.name".into() }, CdiDevice::default()],
            driver_name: "ClaimResource.driver_name".into(),
            pool_name: "ClaimResource.pool_name".into(),
            device_name: "ClaimResource.device_name".into(),
            share_id: Some("ClaimResource.share_id".into()),
        };
        let whole = DynamicResource {
            claim_name: "DynamicResource.claim_name".into(),
            claim_resources: vec![device, ClaimResource::default()],
        };
        vec![whole, DynamicResource::default()]
    }

    fn pod() -> PodResources {
        let container = ContainerResources {
            name: "ContainerResources.name".into(),
            devices: devices(),
            cpu_ids: vec![1003, 1003],
            memory: memory(),
            dynamic_resources: claims(),
        };
        PodResources {
            name: "PodResources.name".into(),
            namespace: "PodResources.namespace".into(),
            containers: vec![container, ContainerResources::default()],
            cpu_ids: vec![1004, 1004],
            memory: memory(),
        }
    }

    #[test]
    fn a_list_is_read_as_kubernetes_writes_it_also_with_an_empty_pod() {
        let reported = ListPodResourcesResponse::decode(&*written("pod-resources-list")).unwrap();
        assert_eq!(reported.pod_resources, [pod(), PodResources::default()]);
        assert_eq!(ListPodResourcesResponse::decode(&[][..]).unwrap().pod_resources, []);
    }

    #[test]
    fn one_pod_is_read_as_kubernetes_writes_it() {
        let reported = GetPodResourcesResponse::decode(&*written("pod-resources-get")).unwrap();
        assert_eq!(reported.pod_resources, Some(pod()));
    }

    #[test]
    fn allocatable_devices_are_read_as_kubernetes_writes_them() {
        let reported =
            AllocatableResourcesResponse::decode(&*written("pod-resources-all")).unwrap();
        assert_eq!(reported.devices, devices());
    }

    #[test]
    fn a_request_is_what_kubernetes_writes() {
        let request = GetPodResourcesRequest {
            pod_name: "trainer-0".into(),
            pod_namespace: "research".into(),
        };
        assert_eq!(request.encode_to_vec(), written("pod-resources-ask"));
    }
}
