//! Calls of the container runtime interface, one connection each, so that a runtime that was
//! restarted in between answers the next one.

use super::ContainerdError;
use super::messages::{
    ContainerConfig, CreateContainer, Everything, ExecSync, Executed, Id, ImageSpec, ImageStatus,
    Listed, RunSandbox, SandboxConfig, StatusOfContainer, StatusOfImage, StopContainer,
    VerboseStatus, Version,
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

    pub(super) fn run_sandbox(&self, config: SandboxConfig) -> Result<String, ContainerdError> {
        let request = RunSandbox { config: Some(config) };
        let made: Id = self.call("/runtime.v1.RuntimeService/RunPodSandbox", request)?;
        Ok(made.id)
    }

    pub(super) fn stop_sandbox(&self, id: &str) -> Result<(), ContainerdError> {
        let request = Id { id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/StopPodSandbox", request).map(|Everything {}| ())
    }

    pub(super) fn remove_sandbox(&self, id: &str) -> Result<(), ContainerdError> {
        let request = Id { id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/RemovePodSandbox", request).map(|Everything {}| ())
    }

    pub(super) fn create(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<String, ContainerdError> {
        let request = CreateContainer {
            sandbox: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let made: Id = self.call("/runtime.v1.RuntimeService/CreateContainer", request)?;
        Ok(made.id)
    }

    pub(super) fn start(&self, id: &str) -> Result<(), ContainerdError> {
        let request = Id { id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/StartContainer", request).map(|Everything {}| ())
    }

    pub(super) fn stop(&self, id: &str, timeout: i64) -> Result<(), ContainerdError> {
        let request = StopContainer { id: id.to_owned(), timeout };
        self.call("/runtime.v1.RuntimeService/StopContainer", request).map(|Everything {}| ())
    }

    pub(super) fn remove(&self, id: &str) -> Result<(), ContainerdError> {
        let request = Id { id: id.to_owned() };
        self.call("/runtime.v1.RuntimeService/RemoveContainer", request).map(|Everything {}| ())
    }

    pub(super) fn exec(
        &self,
        container: &str,
        command: Vec<String>,
    ) -> Result<Executed, ContainerdError> {
        let timeout = i64::try_from(ANSWERS_WITHIN.as_secs()).unwrap_or_default();
        let request = ExecSync { container: container.to_owned(), command, timeout };
        self.call("/runtime.v1.RuntimeService/ExecSync", request)
    }

    pub(super) fn status(&self, id: &str) -> Result<VerboseStatus, ContainerdError> {
        let request = StatusOfContainer { id: id.to_owned(), verbose: true };
        self.call("/runtime.v1.RuntimeService/ContainerStatus", request)
    }

    pub(super) fn containers(&self) -> Result<Vec<String>, ContainerdError> {
        let listed: Listed =
            self.call("/runtime.v1.RuntimeService/ListContainers", Everything {})?;
        Ok(listed.containers.into_iter().map(|container| container.id).collect())
    }

    pub(super) fn version(&self) -> Result<String, ContainerdError> {
        let version: Version = self.call("/runtime.v1.RuntimeService/Version", Everything {})?;
        Ok(version.runtime_version)
    }

    /// The id of an image that is there.
    pub(super) fn image(&self, name: &str) -> Result<Option<String>, ContainerdError> {
        let image = ImageSpec { image: name.to_owned(), ..ImageSpec::default() };
        let request = StatusOfImage { image: Some(image) };
        let status: ImageStatus = self.call("/runtime.v1.ImageService/ImageStatus", request)?;
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
