//! The messages of Kubernetes' local APIs: the container runtime interface and the kubelet's pod resources.
//!
//! Owns the types of both, generated from Kubernetes' own `.proto` files: for the agent, and for the tests'
//! kubelets. What the files in `proto` leave out is skipped when a message is read. Uses no other crate of ours.
//! `tests/generated.rs` writes them again.
//!
//! Rooms, from below: `cri`, `pod_resources`, `pods`.

#![forbid(unsafe_code)]

#[rustfmt::skip]
#[allow(missing_docs, clippy::pedantic, reason = "generated")]
pub mod cri;
#[rustfmt::skip]
#[allow(missing_docs, clippy::pedantic, reason = "generated")]
pub mod pod_resources;
pub mod pods;
