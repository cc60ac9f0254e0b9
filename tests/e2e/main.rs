//! End-to-end tests: what somebody outside the agent sees.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test, and what helps it, says what failed by panicking"
)]

mod attribution;
mod device;
mod docker;
mod engine;
mod events;
mod export;
mod fixture;
mod harness;
mod health;
mod kubernetes;
mod lifecycle;
mod nccl;
mod points;
mod security;
mod slurm;
