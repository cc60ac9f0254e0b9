//! The messages of the container runtime interface that a kubelet sends to make pods, with the
//! field numbers of `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto` (v0.37); what is not set here
//! is not declared.

use prost::Message;
use std::collections::BTreeMap;

/// Labels, annotations, and a runtime's verbose answers.
pub(super) type Words = BTreeMap<String, String>;

/// Namespaces as `NamespaceMode` numbers them.
pub(super) const PER_POD: i32 = 0;
pub(super) const PER_CONTAINER: i32 = 1;
pub(super) const OF_THE_NODE: i32 = 2;
pub(super) const OF_ANOTHER: i32 = 3;

/// `ContainerState` of one whose process runs.
pub(super) const RUNNING: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
    #[prost(uint32, tag = "4")]
    pub(super) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Namespaces {
    #[prost(int32, tag = "1")]
    pub(super) network: i32,
    #[prost(int32, tag = "2")]
    pub(super) pid: i32,
    #[prost(int32, tag = "3")]
    pub(super) ipc: i32,
    #[prost(string, tag = "4")]
    pub(super) target_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxSecurity {
    #[prost(message, optional, tag = "1")]
    pub(super) namespaces: Option<Namespaces>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxSandbox {
    #[prost(string, tag = "1")]
    pub(super) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(super) security: Option<SandboxSecurity>,
}

/// `PodSandboxConfig`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<SandboxMetadata>,
    #[prost(string, tag = "3")]
    pub(super) log_directory: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(super) labels: Words,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(super) annotations: Words,
    #[prost(message, optional, tag = "8")]
    pub(super) linux: Option<LinuxSandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RunSandbox {
    #[prost(message, optional, tag = "1")]
    pub(super) config: Option<SandboxConfig>,
}

/// A request or answer that is only an id: of a sandbox or of a container, always field 1.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Id {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StopContainer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    /// Seconds between SIGTERM and SIGKILL.
    #[prost(int64, tag = "2")]
    pub(super) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(uint32, tag = "2")]
    pub(super) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageSpec {
    #[prost(string, tag = "1")]
    pub(super) image: String,
    /// What the pod's author wrote; runtimes before containerd 1.7 do not know it.
    #[prost(string, tag = "18")]
    pub(super) user_specified: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mount {
    #[prost(string, tag = "1")]
    pub(super) container_path: String,
    #[prost(string, tag = "2")]
    pub(super) host_path: String,
    #[prost(bool, tag = "3")]
    pub(super) readonly: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Device {
    #[prost(string, tag = "1")]
    pub(super) container_path: String,
    #[prost(string, tag = "2")]
    pub(super) host_path: String,
    #[prost(string, tag = "3")]
    pub(super) permissions: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Capabilities {
    #[prost(string, repeated, tag = "1")]
    pub(super) add: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) drop: Vec<String>,
}

/// `SecurityProfile`; of the type 0, which is not written, it is the runtime's default.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SecurityProfile {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerSecurity {
    #[prost(message, optional, tag = "1")]
    pub(super) capabilities: Option<Capabilities>,
    #[prost(message, optional, tag = "3")]
    pub(super) namespaces: Option<Namespaces>,
    #[prost(bool, tag = "7")]
    pub(super) readonly_rootfs: bool,
    #[prost(bool, tag = "11")]
    pub(super) no_new_privs: bool,
    #[prost(string, repeated, tag = "13")]
    pub(super) masked_paths: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub(super) readonly_paths: Vec<String>,
    #[prost(message, optional, tag = "15")]
    pub(super) seccomp: Option<SecurityProfile>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinuxContainer {
    #[prost(message, optional, tag = "2")]
    pub(super) security: Option<ContainerSecurity>,
}

/// `ContainerConfig`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(super) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(super) image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    pub(super) command: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(super) mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "8")]
    pub(super) devices: Vec<Device>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(super) labels: Words,
    #[prost(btree_map = "string, string", tag = "10")]
    pub(super) annotations: Words,
    #[prost(string, tag = "11")]
    pub(super) log_path: String,
    #[prost(message, optional, tag = "15")]
    pub(super) linux: Option<LinuxContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainer {
    #[prost(string, tag = "1")]
    pub(super) sandbox: String,
    #[prost(message, optional, tag = "2")]
    pub(super) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(super) sandbox_config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExecSync {
    #[prost(string, tag = "1")]
    pub(super) container: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) command: Vec<String>,
    #[prost(int64, tag = "3")]
    pub(super) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Executed {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(super) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusOfContainer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(bool, tag = "2")]
    pub(super) verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerStatus {
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct VerboseStatus {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<ContainerStatus>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) info: Words,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Version {
    #[prost(string, tag = "3")]
    pub(super) runtime_version: String,
}

/// A request without a filter.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Everything {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Listed {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Id>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusOfImage {
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<ImageSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ImageStatus {
    /// Its id; absent when there is no such image.
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<Id>,
}
