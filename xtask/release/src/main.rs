//! The tasks of releases and of their trials: `cargo xtask dist`, `release`, `systemd`, `kubernetes` and
//! `podman` start this program.

mod dist;
mod kubernetes;
mod podman;
mod release;
mod systemd;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Tasks of releases.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make all files of a release: tarballs, packages, image, chart, checksums
    Dist(dist::Request),
    /// Publish the files of a release, signed: feeds for apt, dnf and Helm, image and chart in a registry
    Release(release::Request),
    /// Install the Debian package on hosts with systemd, under QEMU: start, reboot, upgrade, purge
    Systemd(systemd::Request),
    /// Install the chart into a real Kubernetes on this machine, and look at what arrives from it
    Kubernetes(kubernetes::Request),
    /// Run the image by the documented `docker run` and Compose file, under the real Podman
    Podman,
}

fn main() -> ExitCode {
    xtask::exit_code(perform(&Cli::parse().task))
}

fn perform(task: &Task) -> Result<()> {
    match task {
        Task::Dist(request) => dist::dist(request),
        Task::Release(request) => release::release(request),
        Task::Systemd(request) => systemd::systemd(request),
        Task::Kubernetes(request) => kubernetes::kubernetes(request),
        Task::Podman => podman::podman(),
    }
}
