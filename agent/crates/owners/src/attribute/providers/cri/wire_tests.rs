//! Decodes bytes that Kubernetes' own Go types write (`tests/kubernetes`).

use crate::attribute::providers::fake_kubelet::written;
use gpuwho_kubernetes::cri::*;
use prost::Message as _;
use std::collections::BTreeMap;

/// A map with one entry; its key is the field's name.
fn map(field: &str, value: &str) -> BTreeMap<String, String> {
    [(field.to_owned(), value.to_owned())].into()
}

fn pod_metadata() -> PodSandboxMetadata {
    PodSandboxMetadata {
        name: "PodSandboxMetadata.name".into(),
        uid: "PodSandboxMetadata.uid".into(),
        namespace: "PodSandboxMetadata.namespace".into(),
        attempt: 1004,
    }
}

fn metadata() -> ContainerMetadata {
    ContainerMetadata { name: "ContainerMetadata.name".into(), attempt: 1002 }
}

fn image() -> ImageSpec {
    ImageSpec {
        image: "ImageSpec.image".into(),
        user_specified_image: "ImageSpec.user_specified_image".into(),
    }
}

#[test]
fn a_version_is_read_as_kubernetes_writes_it() {
    let reported = VersionResponse::decode(&*written("cri-version")).unwrap();
    let expected = VersionResponse {
        runtime_name: "VersionResponse.runtime_name".into(),
        runtime_version: "VersionResponse.runtime_version".into(),
    };
    assert_eq!(reported, expected);
}

#[test]
fn sandboxes_are_read_as_kubernetes_writes_them_also_an_empty_one() {
    let reported = ListPodSandboxResponse::decode(&*written("cri-sandboxes")).unwrap();
    let whole = PodSandbox {
        id: "PodSandbox.id".into(),
        metadata: Some(pod_metadata()),
        created_at: 1004,
        labels: map("PodSandbox.labels", "LabelsEntry.value"),
        annotations: map("PodSandbox.annotations", "AnnotationsEntry.value"),
    };
    assert_eq!(reported.items, [whole, PodSandbox::default()]);
}

#[test]
fn containers_are_read_as_kubernetes_writes_them_also_an_empty_one() {
    let reported = ListContainersResponse::decode(&*written("cri-containers")).unwrap();
    let whole = Container {
        id: "Container.id".into(),
        pod_sandbox_id: "Container.pod_sandbox_id".into(),
        metadata: Some(metadata()),
        image: Some(image()),
        image_ref: "Container.image_ref".into(),
        labels: map("Container.labels", "LabelsEntry.value"),
    };
    assert_eq!(reported.containers, [whole, Container::default()]);
}

#[test]
fn images_are_read_as_kubernetes_writes_them_also_an_empty_one() {
    let reported = ListImagesResponse::decode(&*written("cri-images")).unwrap();
    let tag = "Image.repo_tags".to_owned();
    let whole = Image { id: "Image.id".into(), repo_tags: vec![tag.clone(), tag] };
    assert_eq!(reported.images, [whole, Image::default()]);
}

#[test]
fn an_event_is_read_as_kubernetes_writes_it() {
    let reported = ContainerEventResponse::decode(&*written("cri-event")).unwrap();
    let sandbox = PodSandboxStatus {
        id: "PodSandboxStatus.id".into(),
        metadata: Some(pod_metadata()),
        created_at: 1004,
        labels: map("PodSandboxStatus.labels", "LabelsEntry.value"),
        annotations: map("PodSandboxStatus.annotations", "AnnotationsEntry.value"),
    };
    let container = ContainerStatus {
        id: "ContainerStatus.id".into(),
        metadata: Some(metadata()),
        state: ContainerState::ContainerUnknown.into(),
        image: Some(image()),
        image_ref: "ContainerStatus.image_ref".into(),
        labels: map("ContainerStatus.labels", "LabelsEntry.value"),
    };
    let expected = ContainerEventResponse {
        container_id: "ContainerEventResponse.container_id".into(),
        container_event_type: ContainerEventType::ContainerDeletedEvent.into(),
        pod_sandbox_status: Some(sandbox),
        containers_statuses: vec![container, ContainerStatus::default()],
    };
    assert_eq!(reported, expected);
}

#[test]
fn requests_are_what_kubernetes_writes() {
    let version = VersionRequest { version: "v1".into() };
    assert_eq!(version.encode_to_vec(), written("cri-ask-version"));
    let label_selector = map("io.kubernetes.pod.uid", "u1");
    let filter = Some(PodSandboxFilter { id: "s1".into(), label_selector });
    let sandbox = ListPodSandboxRequest { filter };
    assert_eq!(sandbox.encode_to_vec(), written("cri-ask-sandbox"));
    let filter = Some(ContainerFilter { id: "c1".into() });
    assert_eq!(ListContainersRequest { filter }.encode_to_vec(), written("cri-ask-container"));
}

#[test]
fn an_answer_without_a_byte_is_an_empty_list() {
    assert_eq!(ListPodSandboxResponse::decode(&[][..]).unwrap().items, []);
    assert_eq!(ListContainersResponse::decode(&[][..]).unwrap().containers, []);
    assert_eq!(ListImagesResponse::decode(&[][..]).unwrap().images, []);
}
