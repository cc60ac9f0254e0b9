//! `cargo xtask vm`: the agent's BPF self-test, and its tests with ranks that call a collective
//! library, as root in kernels that this machine does not run.
//!
//! Kernels come from Debian's packages and are only unpacked, never installed. QEMU emulates the
//! processor: hosted machines seldom have nested virtualisation, and some whose KVM is there
//! cannot run an unmodified kernel.

mod boot;
mod initramfs;
mod kernels;

use crate::compile::{self, Profile};
use crate::place;
use crate::setup::{self, Want};
use anyhow::{Context as _, Result, bail};
use boot::Booted;
use initramfs::{Check, PROGRAM, TESTS, Tests};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Ways of seeing a device opened; the guest tries each, and each must work in every kernel.
const HOOKS: &[&str] = &["fexit", "cgroup", "syscall"];

/// What the agent is asked in the guest for one hook.
fn self_test(hook: &str) -> Vec<OsString> {
    ["self-test", "bpf", "--hook", hook].map(OsString::from).to_vec()
}

/// Tests of collective calls that need no more than BPF and the fake library: every kernel tells the
/// same of the same calls, in each of the ways that it has. Few, since each loads all programs, which
/// takes an emulated processor some seconds.
const NCCL_TESTS: &[&str] = &[
    "rank_size_hash_sequence_calls_and_bytes_are_exact",
    "split_shrink_and_destroy_are_followed",
    "a_rank_that_hangs_in_a_call_is_told",
    "a_library_that_is_loaded_after_hours",
];

/// Kernels that are tried when none is named: Debian 11, 12, 12 backports, and the newest there is.
const MATRIX: &[&str] = &["5.10", "6.1", "6.12", "newest"];

/// What `cargo xtask vm` can be asked.
#[derive(clap::Args)]
pub(crate) struct Request {
    /// Only the newest kernel that begins so (6.1, 6.12.117), or `newest`; may be repeated
    #[arg(long = "kernel", value_name = "PREFIX")]
    kernels: Vec<String>,
    /// Run this program instead of the agent's self-test
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// A kernel that has not ended by then is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 240)]
    timeout: u64,
    /// Arguments for that program
    #[arg(last = true, requires = "program")]
    args: Vec<OsString>,
}

impl Request {
    /// The agent's self-test in the whole matrix.
    pub(crate) fn all() -> Self {
        Self { kernels: Vec::new(), program: None, timeout: 240, args: Vec::new() }
    }

    fn prefixes(&self) -> Vec<&str> {
        if self.kernels.is_empty() {
            MATRIX.to_vec()
        } else {
            self.kernels.iter().map(String::as_str).collect()
        }
    }
}

/// How many kernels there were.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Booted, and the program succeeded in each.
    pub(crate) booted: usize,
    /// Not to be had here.
    pub(crate) skipped: usize,
}

/// One line of the closing table.
struct Row {
    kernel: String,
    seconds: f64,
    result: String,
    checks: String,
}

/// `cargo xtask vm`.
pub(crate) fn vm(request: &Request) -> Result<Summary> {
    setup::ensure(&["vm"], Want::Must)?;
    let (program, tests, checks) = guest_program(request)?;
    let image = initramfs::build(&program, tests.as_ref(), &checks)?;
    let mut catalog = kernels::Catalog::default();
    let (mut rows, mut summary, mut failed) = (Vec::new(), Summary::default(), Vec::new());
    for prefix in request.prefixes() {
        let kernel = match catalog.fetch(prefix) {
            Ok(kernel) => kernel,
            Err(error) => {
                summary.skipped += 1;
                rows.push(skipped(prefix, &error));
                continue;
            }
        };
        println!("-- Linux {}", kernel.version);
        let booted =
            boot::boot(&kernel.image, &image.path(), Duration::from_secs(request.timeout))?;
        for line in booted.output.lines() {
            println!("   {line}");
        }
        summary.booted += 1;
        if booted.failure().is_some() {
            failed.push(kernel.version.clone());
        }
        rows.push(row(&kernel.version, &booted));
    }
    print_table(&rows);
    if !failed.is_empty() {
        bail!("failed in Linux {}", failed.join(", "));
    }
    Ok(summary)
}

/// What runs in the guest, one check after the other.
fn guest_program(request: &Request) -> Result<(PathBuf, Option<Tests>, Vec<Check>)> {
    let check = |name, args| Check { name, program: PROGRAM, args, idle: None };
    if let Some(program) = &request.program {
        let program = program.canonicalize().context("the program to run in the guest")?;
        return Ok((program, None, vec![check("program", request.args.clone())]));
    }
    compile::setup_toolchain()?;
    compile::packages(Profile::Debug, &["gpuwho", "gpuwho-fake-nccl"])?;
    let beside = ["nccl-rank", "libnccl.so"].map(|name| place::target("debug").join(name)).to_vec();
    let tests = Tests { program: compile::unit_tests("gpuwho")?, beside };
    let hooks = HOOKS.iter().map(|hook| check(hook, self_test(hook)));
    let nccl = check("nccl", ["self-test", "nccl"].map(OsString::from).to_vec());
    let options = ["--test-threads=1", "--nocapture"];
    let args = NCCL_TESTS.iter().chain(&options).map(OsString::from).collect();
    let ranks = Check { name: "ranks", program: TESTS, args, idle: Some("needs .*BPF") };
    Ok((compile::agent(Profile::Debug), Some(tests), hooks.chain([nccl, ranks]).collect()))
}

fn row(version: &str, booted: &Booted) -> Row {
    Row {
        kernel: version.to_owned(),
        seconds: booted.took.as_secs_f64(),
        result: booted.failure().unwrap_or_else(|| "passed".to_owned()),
        checks: booted.passed.join(" "),
    }
}

fn skipped(prefix: &str, error: &anyhow::Error) -> Row {
    let result = format!("skipped: needs a kernel {prefix} ({error:#})");
    Row { kernel: prefix.to_owned(), seconds: 0.0, result, checks: String::new() }
}

fn print_table(rows: &[Row]) {
    println!("{:<30}{:>8}  {:<10} passed there", "kernel", "seconds", "result");
    for Row { kernel, seconds, result, checks } in rows {
        println!("{}", format!("{kernel:<30}{seconds:>8.1}  {result:<10} {checks}").trim_end());
    }
}
