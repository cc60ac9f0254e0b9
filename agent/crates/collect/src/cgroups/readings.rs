//! What the files of a cgroup say, of version 1 where its controller is mounted so, else of
//! version 2. What a file does not say is not there.

use super::directory::{Directory, Folder};
use gpuwho_model::catalog::cgroup as metric;
use gpuwho_model::catalog::cgroup::{CgroupCpuMode, PressureResource, PressureStall};
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
    pub(super) inactive_file: Option<u64>,
    pub(super) rss: Option<u64>,
    pub(super) pressure: Vec<(PressureResource, PressureStall, f64)>,
}

/// What a cgroup may use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    cpu: Option<f64>,
    memory: Option<u64>,
}

impl Limits {
    /// Reads the cgroup's limits.
    pub(super) fn of(directory: &Directory) -> Self {
        let Directory { unified, memory, cpu, .. } = directory;
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
        Self { cpu, memory }
    }

    /// As samples.
    pub(super) fn emit(self, subject: OwnerCgroup, out: &mut Batch) {
        push(out, self.cpu.map(|cpus| metric::CPU_LIMIT.sample(subject, (), cpus)));
        let memory = self.memory.and_then(|bytes| i64::try_from(bytes).ok());
        push(out, memory.map(|bytes| metric::MEMORY_LIMIT.sample(subject, (), bytes)));
    }
}

impl Readings {
    /// Reads the cgroup once.
    pub(super) fn of(directory: &mut Directory, has_pressure: bool) -> Self {
        let mut readings = Self::default();
        readings.read_cpu(directory);
        match (&mut directory.memory, &mut directory.unified) {
            (Some(memory), _) => readings.read_memory_v1(memory),
            (None, Some(unified)) => readings.read_memory(unified),
            (None, None) => {}
        }
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
        } else if let Some(stat) = stat_of(&mut directory.unified) {
            let seconds = |key| Some(field(&stat, key)? as f64 / 1e6);
            self.cpu_user = seconds("user_usec");
            self.cpu_system = seconds("system_usec");
            self.cpu_throttled = seconds("throttled_usec");
        }
        if directory.cpu.is_some() {
            let stat = stat_of(&mut directory.cpu);
            let throttled = stat.and_then(|stat| field(&stat, "throttled_time"));
            self.cpu_throttled = throttled.map(|time| time as f64 / 1e9);
        }
    }

    fn read_memory(&mut self, unified: &mut Folder) {
        self.memory = whole(unified.text_kept("memory.current"));
        if let Some(stat) = unified.text_kept("memory.stat") {
            self.rss = field(&stat, "anon");
            self.inactive_file = field(&stat, "inactive_file");
        }
    }

    fn read_memory_v1(&mut self, memory: &mut Folder) {
        self.memory = whole(memory.text_kept("memory.usage_in_bytes"));
        if let Some(stat) = memory.text_kept("memory.stat") {
            self.rss = field(&stat, "total_rss");
            self.inactive_file = field(&stat, "total_inactive_file");
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
        let working_set = self.memory.zip(self.inactive_file);
        let working_set = working_set.map(|(all, unused)| all.saturating_sub(unused));
        let usage = |bytes: Option<u64>| bytes.and_then(|bytes| i64::try_from(bytes).ok());
        for (metric, bytes) in [
            (&metric::MEMORY_USAGE, self.memory),
            (&metric::MEMORY_WORKING_SET, working_set),
            (&metric::MEMORY_RSS, self.rss),
        ] {
            push(out, usage(bytes).map(|bytes| metric.sample(subject, (), bytes)));
        }
        for (resource, stall, seconds) in &self.pressure {
            out.push(metric::PRESSURE_TIME.sample(subject, (*resource, *stall), *seconds));
        }
    }
}

fn stat_of(folder: &mut Option<Folder>) -> Option<String> {
    folder.as_mut()?.text_kept("cpu.stat")
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
