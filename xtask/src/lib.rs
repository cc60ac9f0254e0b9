//! Every repository task: `cargo xtask setup`, `build`, `test`, `run`, `ci` and the rest.
//!
//! Tasks set up what they need themselves; nothing is downloaded outside `setup`'s parts, the
//! kernels of `vm`, the hosts of `systemd` and `release`, programs that `test`, `kubernetes`, `podman` and `release`
//! unpack or build, the wheels of `engines` and `podman`, the Go modules of `collector`, `chart`, `kubernetes` and
//! `release`, and the libraries of `dist`'s image, all of which land in one cache folder that every clone on the machine
//! shares.

mod additions;
mod alerts;
pub mod apt;
pub mod archive;
mod bench;
pub mod chart;
mod ci;
pub mod collector;
pub mod compile;
pub mod containerd;
mod cross;
mod docs;
mod engines;
mod fleet;
mod fuzz;
mod gpu_check;
mod parallel;
mod peers;
mod picture;
pub mod place;
mod run;
pub mod setup;
pub mod shell;
mod soak;
mod stamp;
mod test;
mod tidy;
pub mod unpacked;
mod vm;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Repository tasks of gpuwho.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what building and testing need: system packages, the BPF toolchain, Go
    Setup(setup::Request),
    /// Build the agent, BPF programs included
    Build(compile::Request),
    /// Run the agent: on this machine's GPUs, or on simulated ones where there is none
    Run(run::Request),
    /// Run the tests: all but the slow suites, or those
    Test(test::Request),
    /// Write METRICS.md and the sample configuration from the program, and the alerts from their table
    Docs(docs::Request),
    /// Make the README's picture of the table, from what a terminal shows of the demo
    Picture,
    /// Measure what the agent costs
    Bench(PassedOn),
    /// Measure what many agents cost a Collector and Prometheus
    Fleet(PassedOn),
    /// Throw random text at what reads text that anybody can write
    Fuzz(fuzz::Request),
    /// Install real inference engines, and compare what the agent reads with what their clients count
    Engines(engines::Request),
    /// Install the chart into a real Kubernetes on this machine, and look at what arrives from it
    #[command(disable_help_flag = true)]
    Kubernetes(PassedOn),
    /// Run the image by the documented `docker run` and Compose file, under the real Podman
    Podman,
    /// Kill the agent's reader at random for ten minutes, and say what that cost
    Soak(soak::Request),
    /// Make a folder that proves the agent on a machine with a GPU, and run it where there is one
    GpuCheck(gpu_check::Request),
    /// Check the structure of the repository
    Tidy,
    /// Do all that a change must pass, as the CI does
    Ci,
    /// Run the agent's BPF self-test in other kernels, for arm64 too, under QEMU
    Vm(vm::Request),
    /// Install the Debian package on hosts with systemd, under QEMU: start, reboot, upgrade, purge
    #[command(disable_help_flag = true)]
    Systemd(PassedOn),
    /// Make all files of a release: tarballs, packages, image, chart, checksums
    #[command(disable_help_flag = true)]
    Dist(PassedOn),
    /// Publish the files of a release, signed: feeds for apt, dnf and Helm, image and chart in a registry
    #[command(disable_help_flag = true)]
    Release(PassedOn),
    /// Lint the Helm chart and render deploy/kubernetes from it
    Chart(chart::Request),
    /// Build the OpenTelemetry Collector that the end-to-end tests send to, and print its path; or check
    /// the configurations of deploy/collector
    Collector(collector::Request),
}

/// Arguments handed on as they are.
#[derive(Args)]
struct PassedOn {
    /// Handed on to cargo, or to the program after another `--`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// The program `xtask`.
pub fn main() -> ExitCode {
    exit_code(perform(Cli::parse().task))
}

/// How a task ends; says why one failed.
pub fn exit_code(performed: Result<()>) -> ExitCode {
    match performed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<()> {
    match task {
        Task::Setup(request) => setup::setup(&request),
        Task::Build(request) => compile::build(&request),
        Task::Run(request) => run::run(&request),
        Task::Test(request) => test::test(&request),
        Task::Docs(request) => docs::docs(&request),
        Task::Bench(passed_on) => bench::bench(&passed_on.args),
        Task::Fleet(passed_on) => fleet::fleet(&passed_on.args),
        Task::Fuzz(request) => fuzz::fuzz(&request),
        Task::Engines(request) => engines::engines(&request),
        Task::Kubernetes(passed_on) => in_release("kubernetes", &passed_on.args),
        Task::Podman => in_release("podman", &[]),
        Task::Soak(request) => soak::soak(&request),
        Task::GpuCheck(request) => gpu_check::gpu_check(&request),
        Task::Picture => picture::picture(),
        Task::Tidy => tidy::tidy(),
        Task::Ci => ci::ci(),
        Task::Vm(request) => vm::vm(&request).map(drop),
        Task::Systemd(passed_on) => in_release("systemd", &passed_on.args),
        Task::Dist(passed_on) => in_release("dist", &passed_on.args),
        Task::Release(passed_on) => in_release("release", &passed_on.args),
        Task::Chart(request) => chart::chart(&request),
        Task::Collector(request) => collector::collector(&request),
    }
}

/// Performs a task of releases and their trials: those are a program of their own, which `test` does not build.
fn in_release(task: &str, args: &[OsString]) -> Result<()> {
    let run = ["run", "--quiet", "--package", "xtask-release", "--", task];
    shell::run(shell::cargo(run).args(args))
}

/// Whether these words are a task with its options, for the check that documents name only such.
fn is_task(words: &[&str]) -> Result<(), String> {
    let parsed = Cli::try_parse_from(["cargo xtask"].iter().chain(words));
    let Err(error) = parsed else { return Ok(()) };
    Err(error.to_string().lines().next().unwrap_or_default().to_owned())
}
