//! Real schedulers and the agent together: whose the points are that come out at the other end.
//!
//! Slurm and containerd are real, the kubelet is a fake one that speaks the real protocols, and the
//! points are read from the file that the agent writes them to.

mod cadence;
mod fooling;
mod grants;
mod jobs;
mod kubelet;
mod numbers;
mod pods;
pub(crate) mod told;
