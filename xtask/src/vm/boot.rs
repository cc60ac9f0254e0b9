//! Boots one kernel under QEMU and reads the outcome off its serial console.

use super::machine::Machine;
use crate::shell;
use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at whether the emulator has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What the image's `init` prints first.
const BEGIN: &str = "@@BEGIN";

/// What came of a boot.
pub(super) struct Booted {
    /// The guest program's exit code, if it came so far.
    pub(super) code: Option<i32>,
    /// What it printed; all of the console if it never began or never ended.
    pub(super) output: String,
    /// The checks that passed.
    pub(super) passed: Vec<String>,
    /// From starting the emulator to its end.
    pub(super) took: Duration,
    /// Whether it was ended for taking too long.
    pub(super) timed_out: bool,
    /// Whether anything of ours ran.
    began: bool,
}

impl Booted {
    /// Why this counts as a failure; none if the program succeeded.
    pub(super) fn failure(&self) -> Option<String> {
        match self.code {
            Some(0) => None,
            Some(code) => Some(format!("FAILED: exit code {code}")),
            None if self.timed_out => Some("FAILED: did not end in time".to_owned()),
            None => Some("FAILED: the kernel ended before the program did".to_owned()),
        }
    }
}

/// Runs the image in the kernel; once more if the kernel ended of itself before anything of ours
/// ran, as emulated ones do that patch their own code while the other processor executes it.
pub(super) fn boot(
    machine: &Machine,
    kernel: &Path,
    image: &Path,
    limit: Duration,
) -> Result<Booted> {
    let booted = boot_once(machine, kernel, image, limit)?;
    if booted.began || booted.timed_out {
        return Ok(booted);
    }
    println!(
        "{} ended while it started; once more:\n{}",
        kernel.display(),
        booted.output.trim_end()
    );
    boot_once(machine, kernel, image, limit)
}

fn boot_once(machine: &Machine, kernel: &Path, image: &Path, limit: Duration) -> Result<Booted> {
    let console = image.with_extension("console");
    let log = File::create(&console).with_context(|| format!("making {}", console.display()))?;
    let errors = log.try_clone().context("sharing the console file")?;
    let mut command = shell::program(machine.emulator, machine.options);
    command.args(REST).arg("-kernel").arg(kernel).arg("-initrd").arg(image);
    command.arg("-append").arg(format!("console={} panic=-1 quiet", machine.console));
    command.stdout(log).stderr(errors).stdin(Stdio::null());
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("starting {}", machine.emulator))?;
    let timed_out = !ended_within(&mut child, limit)?;
    let took = started.elapsed();
    let bytes = fs::read(&console).with_context(|| format!("reading {}", console.display()))?;
    let console = String::from_utf8_lossy(&bytes);
    let began = console.contains(BEGIN);
    let (code, output) = parse(&console);
    let (passed, output) = split_marks(&output);
    Ok(Booted { code, output, passed, took, timed_out, began })
}

/// Of every machine: two processors so that per-CPU maps are more than one.
const REST: [&str; 11] = [
    "-accel",
    "tcg,thread=multi",
    "-smp",
    "2",
    "-m",
    "768",
    "-nographic",
    "-no-reboot",
    "-net",
    "none",
    "-no-user-config",
];

/// Waits for the emulator; ends it and answers `false` if it takes longer.
fn ended_within(child: &mut Child, limit: Duration) -> Result<bool> {
    let began = Instant::now();
    while child.try_wait().context("waiting for qemu")?.is_none() {
        if began.elapsed() > limit {
            child.kill().context("ending qemu")?;
            child.wait().context("waiting for qemu")?;
            return Ok(false);
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

/// The exit code and output between the marks that the image's `init` prints.
fn parse(console: &str) -> (Option<i32>, String) {
    let console = console.replace('\r', "");
    let Some((_, rest)) = console.split_once(&format!("{BEGIN}\n")) else {
        return (None, console);
    };
    let Some((output, end)) = rest.split_once("@@END rc=") else {
        return (None, rest.to_owned());
    };
    let digits: String = end.chars().take_while(char::is_ascii_digit).collect();
    (digits.parse().ok(), output.to_owned())
}

/// Takes the marks of the checks that passed out of the output.
fn split_marks(output: &str) -> (Vec<String>, String) {
    let (mut passed, mut rest) = (Vec::new(), String::new());
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("@@PASSED ") {
            passed.push(name.to_owned());
        } else {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    (passed, rest)
}

#[cfg(test)]
mod tests {
    use super::{Booted, parse, split_marks};
    use std::time::Duration;

    #[test]
    fn exit_code_and_output_are_between_the_marks() {
        let console = "SeaBIOS\r\n@@BEGIN\r\nfexit: ok\r\n@@END rc=3\r\nreboot: Power down\r\n";
        assert_eq!(parse(console), (Some(3), "fexit: ok\n".to_owned()));
    }

    #[test]
    fn a_kernel_that_panics_on_the_way_has_no_exit_code() {
        let console = "@@BEGIN\nfexit: ok\nKernel panic\n";
        assert_eq!(parse(console), (None, "fexit: ok\nKernel panic\n".to_owned()));
    }

    #[test]
    fn checks_that_did_not_pass_are_not_in_the_table() {
        let output = "hook fexit: told\n@@PASSED fexit\nrefused\n@@PASSED syscall\n";
        let passed = ["fexit", "syscall"].map(str::to_owned).to_vec();
        assert_eq!(split_marks(output), (passed, "hook fexit: told\nrefused\n".to_owned()));
    }

    #[test]
    fn only_exit_code_zero_passes() {
        let with = |code, timed_out| Booted {
            code,
            output: String::new(),
            passed: Vec::new(),
            took: Duration::ZERO,
            timed_out,
            began: true,
        };
        assert_eq!(with(Some(0), false).failure(), None);
        assert_eq!(with(Some(42), false).failure().as_deref(), Some("FAILED: exit code 42"));
        assert!(with(None, true).failure().is_some());
        assert!(with(None, false).failure().is_some());
    }
}
