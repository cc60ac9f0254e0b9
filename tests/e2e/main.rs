//! End-to-end tests: what somebody outside the agent sees.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test, and what helps it, says what failed by panicking"
)]

mod amd;
mod arrives;
mod collector;
mod containerd;
mod events;
mod governor;
mod gpm;
mod identity;
mod inspector;
mod joint;
mod kubelet;
mod kubernetes;
mod lifecycle;
mod links;
mod manners;
mod mig;
mod nccl;
mod ownership;
mod reader;
mod rules;
mod security;
mod setting;
mod shares;
mod slurm;
mod stage;
mod storm;
mod troubles;
mod usage;
