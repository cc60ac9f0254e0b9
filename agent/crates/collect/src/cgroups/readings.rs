//! What the files of a cgroup say, of version 1 where its controller is mounted so, else of
//! version 2. What a file does not say is not there.

use super::directory::{Directory, Folder};
use gpuwho_model::catalog::cgroup::{
    self as metric, CgroupCpuMode, PressureResource, PressureStall,
};
use gpuwho_model::sample::{Batch, OwnerCgroup, Sample};

/// A limit beyond this is none: version 1 writes the largest whole number of pages.
const NO_LIMIT: u64 = 1 << 62;

/// One reading of a cgroup, in base units.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Readings {
    pub(super) cpu_user: Option<f64>,
    pub(super) cpu_system: Option<f64>,
    pub(super) cpu_throttled: Option<f64>,
    pub(super) memory: Option<u64>,
    pub(super) stat: MemoryStat,
    pub(super) pressure: Vec<(PressureResource, PressureStall, f64)>,
}

/// What `memory.stat` says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MemoryStat {
    rss: Option<u64>,
    working_set: Option<u64>,
}

/// What a cgroup may use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    cpu: Option<f64>,
    memory: Option<u64>,
    /// How long its CPUs were throttled until then, on version 1: without a limit that stays.
    throttled: Option<f64>,
}

impl Limits {
    /// Reads the cgroup's limits.
    pub(super) fn of(directory: &mut Directory) -> Self {
        let throttled = throttled(directory);
        let Directory { unified, memory, cpu, .. } = &*directory;
        let text = |of: &Option<Folder>, name| of.as_ref()?.text(name);
        let cpu = match cpu {
            Some(cpu) => cpu
                .text("cpu.cfs_quota_us")
                .zip(cpu.text("cpu.cfs_period_us"))
                .and_then(|(quota, period)| cpus(quota.trim(), period.trim())),
            None => text(unified, "cpu.max").and_then(|max| {
                let (quota, period) = max.trim().split_once(' ')?;
                cpus(quota, period)
            }),
        };
        let bytes = |of, name| whole(text(of, name));
        let memory = match memory {
            Some(_) => bytes(memory, "memory.limit_in_bytes").filter(|limit| *limit < NO_LIMIT),
            None => bytes(unified, "memory.max"),
        };
        Self { cpu, memory, throttled }
    }

    /// As samples.
    pub(super) fn emit(self, subject: OwnerCgroup, out: &mut Batch) {
        push(out, self.cpu.map(|cpus| metric::CPU_LIMIT.sample(subject, (), cpus)));
        let memory = self.memory.and_then(|bytes| i64::try_from(bytes).ok());
        push(out, memory.map(|bytes| metric::MEMORY_LIMIT.sample(subject, (), bytes)));
    }
}

impl MemoryStat {
    /// Reads what it says; `usage` has just been read.
    pub(super) fn of(directory: &mut Directory, usage: Option<u64>) -> Self {
        let (folder, rss, unused) = match &mut directory.memory {
            memory @ Some(_) => (memory, "total_rss", "total_inactive_file"),
            None => (&mut directory.unified, "anon", "inactive_file"),
        };
        let stat = text_of(folder, "memory.stat").unwrap_or_default();
        let unused = usage.zip(field(&stat, unused));
        let working_set = unused.map(|(all, unused)| all.saturating_sub(unused));
        Self { rss: field(&stat, rss), working_set }
    }
}

impl Readings {
    /// Reads once what each tick reads.
    pub(super) fn of(directory: &mut Directory, has_pressure: bool) -> Self {
        let mut readings = Self::default();
        readings.read_cpu(directory);
        readings.memory = match &mut directory.memory {
            Some(memory) => whole(memory.text_kept("memory.usage_in_bytes")),
            None => whole(text_of(&mut directory.unified, "memory.current")),
        };
        if let Some(unified) = directory.unified.as_mut().filter(|_| has_pressure) {
            readings.read_pressure(unified);
        }
        readings
    }

    fn read_cpu(&mut self, directory: &mut Directory) {
        if let Some(cpuacct) = &mut directory.cpuacct {
            let mut seconds = |name| Some(number(cpuacct.text_kept(name)?.trim())? as f64 / 1e9);
            self.cpu_user = seconds("cpuacct.usage_user");
            self.cpu_system = seconds("cpuacct.usage_sys");
        } else if let Some(stat) = text_of(&mut directory.unified, "cpu.stat") {
            let seconds = |key| Some(field(&stat, key)? as f64 / 1e6);
            self.cpu_user = seconds("user_usec");
            self.cpu_system = seconds("system_usec");
            self.cpu_throttled = seconds("throttled_usec");
        }
    }

    /// Sets how long a limit has throttled its CPUs, which only version 1 has in a file of its own.
    pub(super) fn throttle(&mut self, limits: &Limits, directory: &mut Directory) {
        if directory.cpu.is_some() {
            let is_limited = limits.cpu.is_some();
            self.cpu_throttled = if is_limited { throttled(directory) } else { limits.throttled };
        }
    }

    fn read_pressure(&mut self, unified: &mut Folder) {
        for (resource, name) in [
            (PressureResource::Cpu, "cpu.pressure"),
            (PressureResource::Memory, "memory.pressure"),
            (PressureResource::Io, "io.pressure"),
        ] {
            let Some(text) = unified.text_kept(name) else { continue };
            for &stall in PressureStall::ALL {
                let total = text.lines().find_map(|line| {
                    let line = line.strip_prefix(stall.as_str())?;
                    number(line.rsplit_once("total=")?.1)
                });
                let seconds = total.map(|total| (resource, stall, total as f64 / 1e6));
                self.pressure.extend(seconds);
            }
        }
    }

    /// As samples.
    pub(super) fn emit(&self, subject: OwnerCgroup, out: &mut Batch) {
        let modes =
            [(CgroupCpuMode::User, self.cpu_user), (CgroupCpuMode::System, self.cpu_system)];
        for (mode, seconds) in modes {
            push(out, seconds.map(|seconds| metric::CPU_TIME.sample(subject, mode, seconds)));
        }
        let throttled = self.cpu_throttled;
        push(out, throttled.map(|time| metric::CPU_THROTTLED.sample(subject, (), time)));
        let usage = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok());
        for (metric, bytes) in [
            (&metric::MEMORY_USAGE, self.memory),
            (&metric::MEMORY_WORKING_SET, self.stat.working_set),
            (&metric::MEMORY_RSS, self.stat.rss),
        ] {
            push(out, usage(bytes).map(|bytes| metric.sample(subject, (), bytes)));
        }
        for (resource, stall, seconds) in &self.pressure {
            out.push(metric::PRESSURE_TIME.sample(subject, (*resource, *stall), *seconds));
        }
    }
}

/// What version 1 says of throttling.
fn throttled(directory: &mut Directory) -> Option<f64> {
    let time = field(&text_of(&mut directory.cpu, "cpu.stat")?, "throttled_time")?;
    Some(time as f64 / 1e9)
}

fn text_of(folder: &mut Option<Folder>, name: &'static str) -> Option<String> {
    folder.as_mut()?.text_kept(name)
}

fn push(out: &mut Batch, sample: Option<Sample>) {
    if let Some(sample) = sample {
        out.push(sample);
    }
}

/// Of `key value` lines the value of one.
fn field(text: &str, key: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ').and_then(number);
    text.lines().find_map(value)
}

/// A file that is one number.
fn whole(text: Option<String>) -> Option<u64> {
    number(text?.trim())
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

/// CPUs of a quota in each period; `None` where there is no quota (`max`, -1).
fn cpus(quota: &str, period: &str) -> Option<f64> {
    let period = number(period).filter(|period| *period > 0)?;
    Some(number(quota)? as f64 / period as f64)
}
