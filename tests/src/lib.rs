//! The test harness, and the stage of the demo.
//!
//! In reading order: [`stage`] makes real cgroups shaped like pods, jobs and services; [`worker`]
//! puts real processes into them that really open device nodes; [`nvml`] binds them to the fake
//! driver's processes; [`agent`] runs the built `gpuwho` on all that; [`containerd`] makes real
//! pods on a real container runtime and [`slurm`] real jobs on a real Slurm; [`collector`] runs the
//! real OpenTelemetry Collector; [`cluster`] is a real Kubernetes; [`demo`] is the same with somebody watching.

#![deny(unsafe_code)]

pub mod agent;
pub mod amd;
#[cfg(feature = "runtimes")]
pub mod attacker;
#[cfg(feature = "bench")]
pub mod bench;
pub mod budget;
#[cfg(feature = "runtimes")]
pub mod cluster;
#[cfg(feature = "runtimes")]
pub mod collector;
#[cfg(feature = "runtimes")]
pub mod containerd;
#[cfg(feature = "demo")]
pub mod demo;
pub mod engine;
pub mod fakes;
#[cfg(feature = "bench")]
pub mod fleet;
pub mod footprint;
#[cfg(feature = "runtimes")]
pub mod kmsg;
pub mod libtpu;
#[cfg(feature = "runtimes")]
pub mod nccl;
pub mod nvml;
#[cfg(feature = "runtimes")]
pub mod podman;
pub mod program;
#[cfg(feature = "runtimes")]
pub mod prometheus;
pub mod skip;
#[cfg(feature = "runtimes")]
pub mod slurm;
pub mod stage;
#[expect(unsafe_code, reason = "fork and unshare have no safe interface")]
pub mod sys;
pub mod until;
pub mod vendors;
pub mod worker;
