//! A running exporter in a cgroup of its own, which counts what it and all that it starts take.

use crate::bench::BenchError;
use crate::footprint::Process;
use crate::stage::Stage;
use nvidia_ml::counts::{self, Count};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A cgroup and who is in it.
pub(super) struct Contender {
    directory: PathBuf,
    /// The file of its CPU time.
    account: PathBuf,
    /// The file in which the library counts its calls.
    calls: PathBuf,
}

/// What it has taken so far.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) at: Instant,
    /// CPU time in nanoseconds.
    pub(super) cpu: u64,
    /// What was asked of the library.
    pub(super) library: Count,
}

/// What it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) resident: u64,
    pub(super) proportional: u64,
    /// Of BPF maps, in the kernel.
    pub(super) maps: u64,
    pub(super) threads: usize,
}

impl Contender {
    /// Takes some processes into a new group.
    pub(super) fn of(stage: &mut Stage, pids: &[u32], calls: &Path) -> Result<Self, BenchError> {
        let group = stage.service("exporter")?;
        // The unified hierarchy counts in any group, version 1 where its controller is mounted.
        let accounts = ["cpu.stat", "cpuacct.usage"];
        let counts = |path: &PathBuf| cpu(path).is_ok();
        let mut all = accounts
            .iter()
            .flat_map(|name| group.directories.iter().map(move |directory| directory.join(name)));
        let lacks = || BenchError::Needs("a cgroup that counts CPU time".to_owned());
        let account = all.find(counts).ok_or_else(lacks)?;
        let directory = account.parent().unwrap_or(&account).to_owned();
        let contender = Self { directory, account, calls: calls.to_owned() };
        let procs = contender.procs();
        for pid in pids {
            fs::write(&procs, pid.to_string()).map_err(BenchError::os(&procs))?;
        }
        Ok(contender)
    }

    /// What it has taken so far.
    pub(super) fn look(&self) -> Result<Look, BenchError> {
        let all = counts::read(&self.calls).map_err(BenchError::os(&self.calls))?;
        let library = all.into_values().fold(Count::default(), Count::and);
        let cpu = cpu(&self.account).map_err(BenchError::os(&self.account))?;
        Ok(Look { at: Instant::now(), cpu, library })
    }

    /// What its processes hold now.
    pub(super) fn held(&self) -> Result<Held, BenchError> {
        let procs = self.procs();
        let text = fs::read_to_string(&procs).map_err(BenchError::os(&procs))?;
        let mut held = Held::default();
        for pid in text.lines().filter_map(|line| line.parse().ok()) {
            // One that has ended meanwhile holds nothing.
            let Ok(process) = Process::read(String::new(), pid) else { continue };
            held.resident += process.memory.resident;
            held.proportional += process.memory.proportional;
            held.maps += process.map_bytes;
            held.threads += process.threads;
        }
        Ok(held)
    }

    fn procs(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }
}

/// CPU time of a group in nanoseconds.
fn cpu(account: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(account)?;
    nanos(&text).ok_or_else(|| io::Error::other("no CPU time"))
}

fn nanos(text: &str) -> Option<u64> {
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(micros) => Some(micros.parse::<u64>().ok()? * 1000),
        None => text.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_a_group_tell_their_cpu_time() {
        let unified = "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n";
        assert_eq!(
            [unified, "1234567\n", "nr_periods 0\n"].map(nanos),
            [Some(1_234_000), Some(1_234_567), None]
        );
    }
}
