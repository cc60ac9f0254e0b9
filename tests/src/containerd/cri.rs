//! Calls of the container runtime interface, one connection each, so that a runtime that was
//! restarted in between answers the next one.

use super::ContainerdError;
use gpuwho_kubernetes::cri::{
    ContainerConfig, ContainerStatusRequest, ContainerStatusResponse, CreateContainerRequest,
    CreateContainerResponse, ExecSyncRequest, ExecSyncResponse, ImageSpec, ImageStatusRequest,
    ImageStatusResponse, ListContainersRequest, ListContainersResponse, PodSandboxConfig,
    RemoveContainerRequest, RemoveContainerResponse, RemovePodSandboxRequest,
    RemovePodSandboxResponse, RunPodSandboxRequest, RunPodSandboxResponse, StartContainerRequest,
    StartContainerResponse, StopContainerRequest, StopContainerResponse, StopPodSandboxRequest,
    StopPodSandboxResponse, VersionRequest, VersionResponse,
};
use prost::Message;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

/// A sandbox takes a tenth of a second; this is for a machine under load.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// The interface behind a socket.
#[derive(Clone, Debug)]
pub(super) struct Cri {
    socket: PathBuf,
    runtime: Arc<Runtime>,
}

impl Cri {
    pub(super) fn at(socket: &Path) -> Result<Self, ContainerdError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| ContainerdError::at(socket, source))?;
        Ok(Self { socket: socket.to_owned(), runtime: Arc::new(runtime) })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String, ContainerdError> {
        let request = RunPodSandboxRequest { config: Some(config) };
        let made: RunPodSandboxResponse =
            self.call("/runtime.v1.RuntimeService/RunPodSandbox", request)?;
        Ok(made.pod_sandbox_id)
    }

    pub(super) fn stop_sandbox(&self, id: &str) -> Result<(), ContainerdError> {
        let request = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/StopPodSandbox", request)
            .map(|StopPodSandboxResponse {}| ())
    }

    pub(super) fn remove_sandbox(&self, id: &str) -> Result<(), ContainerdError> {
        let request = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/RemovePodSandbox", request)
            .map(|RemovePodSandboxResponse {}| ())
    }

    pub(super) fn create(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> Result<String, ContainerdError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let made: CreateContainerResponse =
            self.call("/runtime.v1.RuntimeService/CreateContainer", request)?;
        Ok(made.container_id)
    }

    pub(super) fn start(&self, id: &str) -> Result<(), ContainerdError> {
        let request = StartContainerRequest { container_id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/StartContainer", request)
            .map(|StartContainerResponse {}| ())
    }

    pub(super) fn stop(&self, id: &str, timeout: i64) -> Result<(), ContainerdError> {
        let request = StopContainerRequest { container_id: id.to_owned(), timeout };
        self.call("/runtime.v1.RuntimeService/StopContainer", request)
            .map(|StopContainerResponse {}| ())
    }

    pub(super) fn remove(&self, id: &str) -> Result<(), ContainerdError> {
        let request = RemoveContainerRequest { container_id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/RemoveContainer", request)
            .map(|RemoveContainerResponse {}| ())
    }

    pub(super) fn exec(
        &self,
        container: &str,
        cmd: Vec<String>,
    ) -> Result<ExecSyncResponse, ContainerdError> {
        let timeout = i64::try_from(ANSWERS_WITHIN.as_secs()).unwrap_or_default();
        let request = ExecSyncRequest { container_id: container.to_owned(), cmd, timeout };
        self.call("/runtime.v1.RuntimeService/ExecSync", request)
    }

    pub(super) fn status(&self, id: &str) -> Result<ContainerStatusResponse, ContainerdError> {
        let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
        self.call("/runtime.v1.RuntimeService/ContainerStatus", request)
    }

    pub(super) fn containers(&self) -> Result<Vec<String>, ContainerdError> {
        let request = ListContainersRequest::default();
        let listed: ListContainersResponse =
            self.call("/runtime.v1.RuntimeService/ListContainers", request)?;
        Ok(listed.containers.into_iter().map(|container| container.id).collect())
    }

    pub(super) fn version(&self) -> Result<String, ContainerdError> {
        let request = VersionRequest::default();
        let version: VersionResponse = self.call("/runtime.v1.RuntimeService/Version", request)?;
        Ok(version.runtime_version)
    }

    /// The id of an image that is there.
    pub(super) fn image(&self, name: &str) -> Result<Option<String>, ContainerdError> {
        let image = ImageSpec { image: name.to_owned(), ..ImageSpec::default() };
        let request = ImageStatusRequest { image: Some(image) };
        let status: ImageStatusResponse =
            self.call("/runtime.v1.ImageService/ImageStatus", request)?;
        Ok(status.image.map(|image| image.id))
    }

    fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, ContainerdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let answer = self.runtime.block_on(async {
            let call = unary(&self.socket, method, request);
            let late = |_| Err(Status::deadline_exceeded("no answer"));
            tokio::time::timeout(ANSWERS_WITHIN, call).await.unwrap_or_else(late)
        });
        answer.map_err(|status| ContainerdError::Call { method, status: Box::new(status) })
    }
}

async fn unary<Q, A>(socket: &Path, method: &'static str, request: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let unavailable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let channel = endpoint.map_err(unavailable)?.connect().await.map_err(unavailable)?;
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(unavailable)?;
    let path = PathAndQuery::from_static(method);
    let answer = client.unary(Request::new(request), path, ProstCodec::default()).await?;
    Ok(answer.into_inner())
}
