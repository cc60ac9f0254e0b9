//! Pods: a real containerd, and a fake kubelet that speaks the real protocols.

mod cri;
pub(crate) mod grants;
pub(crate) mod pods;
mod sockets;
