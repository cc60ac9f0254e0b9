//! Decodes bytes that Kubernetes' own Go types write (`tests/kubernetes`).

use crate::attribute::providers::fake_kubelet::written;
use gpuwho_kubernetes::pod_resources::*;
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
        claim_namespace: "DynamicResource.claim_namespace".into(),
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
    let reported = AllocatableResourcesResponse::decode(&*written("pod-resources-all")).unwrap();
    let expected = AllocatableResourcesResponse {
        devices: devices(),
        cpu_ids: vec![1002, 1002],
        memory: memory(),
    };
    assert_eq!(reported, expected);
}

#[test]
fn a_request_is_what_kubernetes_writes() {
    let request =
        GetPodResourcesRequest { pod_name: "trainer-0".into(), pod_namespace: "research".into() };
    assert_eq!(request.encode_to_vec(), written("pod-resources-ask"));
}
