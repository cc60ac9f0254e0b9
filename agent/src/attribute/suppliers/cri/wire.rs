//! The part of CRI (`runtime.v1`, k8s.io/cri-api 0.32) that is asked and read; what else is in an
//! answer is skipped.

use std::collections::BTreeMap;

pub(crate) const VERSION: &str = "/runtime.v1.RuntimeService/Version";
pub(crate) const LIST_SANDBOXES: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
pub(crate) const LIST_CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
pub(crate) const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";

pub(crate) const LIST_IMAGES: &str = "/runtime.v1.ImageService/ListImages";

/// `ContainerEventType.CONTAINER_DELETED_EVENT`.
pub(crate) const DELETED: i32 = 3;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VersionRequest {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VersionResponse {
    #[prost(string, tag = "2")]
    pub(crate) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(crate) runtime_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter: Option<PodSandboxFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodSandboxFilter {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) label_selector: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListPodSandboxResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<PodSandbox>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodSandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PodSandboxMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListContainersRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) filter: Option<ContainerFilter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerFilter {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListContainersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "4")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, tag = "5")]
    pub(crate) image_ref: String,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
    #[prost(string, tag = "18")]
    pub(crate) user_specified_image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListImagesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListImagesResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) images: Vec<Image>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Image {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) repo_tags: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EventsRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Event {
    #[prost(string, tag = "1")]
    pub(crate) container_id: String,
    #[prost(int32, tag = "2")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) sandbox: Option<SandboxStatus>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) containers: Vec<ContainerStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SandboxStatus {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<PodSandboxMetadata>,
    #[prost(int64, tag = "4")]
    pub(crate) created_at: i64,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "8")]
    pub(crate) image: Option<ImageSpec>,
    #[prost(string, tag = "9")]
    pub(crate) image_ref: String,
    #[prost(btree_map = "string, string", tag = "12")]
    pub(crate) labels: BTreeMap<String, String>,
}

impl From<SandboxStatus> for PodSandbox {
    fn from(status: SandboxStatus) -> Self {
        let SandboxStatus { id, metadata, created_at, labels, annotations } = status;
        Self { id, metadata, created_at, labels, annotations }
    }
}

impl ContainerStatus {
    pub(crate) fn in_sandbox(self, sandbox: &str) -> Container {
        let Self { id, metadata, image, image_ref, labels } = self;
        Container { id, pod_sandbox_id: sandbox.to_owned(), metadata, image, image_ref, labels }
    }
}

/// Against bytes that Kubernetes' own Go types write (`tests/kubernetes`).
#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::suppliers::fake_kubelet::written;
    use prost::Message as _;

    /// A map with one entry, whose key is the field's name.
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
        let told = VersionResponse::decode(&*written("cri-version")).unwrap();
        let expected = VersionResponse {
            runtime_name: "VersionResponse.runtime_name".into(),
            runtime_version: "VersionResponse.runtime_version".into(),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn sandboxes_are_read_as_kubernetes_writes_them_and_one_that_says_nothing_too() {
        let told = ListPodSandboxResponse::decode(&*written("cri-sandboxes")).unwrap();
        let whole = PodSandbox {
            id: "PodSandbox.id".into(),
            metadata: Some(pod_metadata()),
            created_at: 1004,
            labels: map("PodSandbox.labels", "LabelsEntry.value"),
            annotations: map("PodSandbox.annotations", "AnnotationsEntry.value"),
        };
        assert_eq!(told.items, [whole, PodSandbox::default()]);
    }

    #[test]
    fn containers_are_read_as_kubernetes_writes_them_and_one_that_says_nothing_too() {
        let told = ListContainersResponse::decode(&*written("cri-containers")).unwrap();
        let whole = Container {
            id: "Container.id".into(),
            pod_sandbox_id: "Container.pod_sandbox_id".into(),
            metadata: Some(metadata()),
            image: Some(image()),
            image_ref: "Container.image_ref".into(),
            labels: map("Container.labels", "LabelsEntry.value"),
        };
        assert_eq!(told.containers, [whole, Container::default()]);
    }

    #[test]
    fn images_are_read_as_kubernetes_writes_them_and_one_that_says_nothing_too() {
        let told = ListImagesResponse::decode(&*written("cri-images")).unwrap();
        let tag = "Image.repo_tags".to_owned();
        let whole = Image { id: "Image.id".into(), repo_tags: vec![tag.clone(), tag] };
        assert_eq!(told.images, [whole, Image::default()]);
    }

    #[test]
    fn an_event_is_read_as_kubernetes_writes_it() {
        let told = Event::decode(&*written("cri-event")).unwrap();
        let sandbox = SandboxStatus {
            id: "PodSandboxStatus.id".into(),
            metadata: Some(pod_metadata()),
            created_at: 1004,
            labels: map("PodSandboxStatus.labels", "LabelsEntry.value"),
            annotations: map("PodSandboxStatus.annotations", "AnnotationsEntry.value"),
        };
        let container = ContainerStatus {
            id: "ContainerStatus.id".into(),
            metadata: Some(metadata()),
            image: Some(image()),
            image_ref: "ContainerStatus.image_ref".into(),
            labels: map("ContainerStatus.labels", "LabelsEntry.value"),
        };
        let expected = Event {
            container_id: "ContainerEventResponse.container_id".into(),
            kind: DELETED,
            sandbox: Some(sandbox),
            containers: vec![container, ContainerStatus::default()],
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn questions_are_what_kubernetes_writes() {
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
}
