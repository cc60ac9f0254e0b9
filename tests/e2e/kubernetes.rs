//! Pods: a real containerd, and a fake kubelet that speaks the real protocols; and a whole real cluster,
//! where there is one.

mod cluster;
mod cri;
pub(crate) mod grants;
pub(crate) mod pods;
mod sockets;
