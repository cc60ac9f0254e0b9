//! The local APIs of a kubelet and of its container runtime without either: the real services, methods and messages on unix
//! sockets, answers from a model that a test sets. Nothing that connects can tell.
//!
//! | Socket below the folder | Service | Methods |
//! |---|---|---|
//! | `pod-resources/kubelet.sock` | `v1.PodResourcesLister` | `List`, `Get`, `GetAllocatableResources` |
//! | `cri.sock` | `runtime.v1.RuntimeService` | `Version`, `ListPodSandbox`, `ListContainers`, `GetContainerEvents` |
//! | the same | `runtime.v1.ImageService` | `ListImages` |
//!
//! The protocols are those of `k8s.io/kubelet` v0.37: what the kubelet answers, also to a mistake,
//! is what `pkg/kubelet/apis/podresources` answers.
//!
//! ```
//! use fake_kubelet::{Allocation, Container, Devices, Kubelet, Pod};
//! # fn main() -> std::io::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("fake-kubelet-{}", std::process::id()));
//! let kubelet = Kubelet::start(&folder)?;
//! let granted = Devices::of("nvidia.com/gpu", &["GPU-11111111-2222-3333-4444-555555555555"]);
//! kubelet.set_pod(Pod {
//!     containers: vec![Container {
//!         allocation: Allocation { devices: vec![granted], ..Allocation::default() },
//!         ..Container::new("server", "containerd://4711")
//!     }],
//!     ..Pod::new("research", "llm-0", "7d2c7f6a-3b0e-4c3e-9a51-0d6b9f0f5a11")
//! });
//! # drop(kubelet);
//! # std::fs::remove_dir_all(folder)
//! # }
//! ```

mod cri;
mod model;
mod pod_resources;
mod route;
mod server;
mod state;
#[cfg(test)]
mod tests;

pub use model::{Allocation, Claim, ClaimDevice, Container, ContainerKind, Devices, Memory, Pod};
pub use server::Kubelet;
pub use state::Fault;
