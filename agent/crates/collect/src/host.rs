//! The host's CPU time, memory and load, and the cgroups of the owners on it: the two sources of
//! the section `[host]`.
//!
//! The host itself is three files of `/proc` a tick, some 100 µs; none where nothing of it is exported.

use super::Collector;
use super::cgroups;
use super::source::{Alone, Context, Diagnosing, SharedSelection, Source, SourceDef};
use crate::cpu_limit::Importance;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::host::{self as metric, CpuMode, SystemMemoryState};
use gpuwho_model::config::Section;
use gpuwho_model::finding::Finding;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, Host};
use gpuwho_model::status::Report;
use procfs::{CpuTime, FromBufRead as _, FromBufReadSI as _, KernelStats, Meminfo};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;

/// This source's name.
pub const NAME: &str = "host";

/// The row of the host itself.
pub const SOURCE: SourceDef = SourceDef {
    name: NAME,
    about: "the host's CPU time, memory and load",
    section: Some(SECTION),
    after: &[],
    alone: Alone::Named,
    configure: |_, with| {
        let raw: RawHost = with.tables.read(NAME)?;
        Ok(Box::new(HostSource { is_enabled: raw.enabled.unwrap_or(true) }))
    },
};

/// The row of the owners' cgroups.
pub const CGROUPS: SourceDef = SourceDef {
    name: cgroups::NAME,
    about: "CPU, memory and pressure of owners that hold a device",
    section: Some(SECTION),
    after: &[],
    alone: Alone::Named,
    configure: |_, with| {
        let raw: RawHost = with.tables.read(NAME)?;
        Ok(Box::new(cgroups::CgroupSource { is_enabled: raw.cgroups.unwrap_or(true) }))
    },
};

const SECTION: Section = Section::of::<RawHost>(
    NAME,
    "# Read the host's CPU time, memory and load.
#: enabled = true
# Read CPU time, memory, limits, throttling and pressure of the cgroups of owners that hold a device.
#: cgroups = true
",
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHost {
    enabled: Option<bool>,
    cgroups: Option<bool>,
}

/// Longer than `/proc/stat` of a host with thousands of CPUs and interrupts.
const MAX_FILE: u64 = 4 * 1024 * 1024;

#[derive(Debug)]
struct HostSource {
    is_enabled: bool,
}

impl Source for HostSource {
    fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let host = HostMetrics::new(&context.paths);
        Ok(vec![Box::new(HostMetrics { selection: Some(context.selection.clone()), ..host })])
    }

    fn diagnose(&self, settings: &Diagnosing<'_>) -> Vec<Finding> {
        if !self.is_enabled {
            return vec![Finding::switched_off(NAME, "host.enabled")];
        }
        let mut host = HostMetrics::new(settings.paths);
        host.collect(&mut Batch::new(NAME, std::time::SystemTime::now()));
        let report = host.report();
        let finding = match report.state {
            SourceState::Ready => {
                let facts = "CPU time, memory and load of the host can be read";
                Finding::new(NAME, "ok", facts, "")
            }
            state => Finding::new(NAME, state.as_str(), report.reason, report.remedy),
        };
        vec![finding]
    }
}

/// The collector.
#[derive(Debug)]
pub struct HostMetrics {
    proc: PathBuf,
    errors: u64,
    /// The files that could not be read last time.
    unread: Vec<&'static str>,
    /// What is exported; everything without it.
    selection: Option<SharedSelection>,
}

impl HostMetrics {
    /// Of the host whose files are there.
    pub fn new(paths: &Paths) -> Self {
        Self { proc: paths.proc.clone(), errors: 0, unread: Vec::new(), selection: None }
    }

    fn open(&self, name: &str) -> Option<impl Read + use<>> {
        Some(File::open(self.proc.join(name)).ok()?.take(MAX_FILE))
    }

    fn cpu(&self, out: &mut Batch) -> Option<()> {
        let file = BufReader::new(self.open("stat")?);
        let stats = KernelStats::from_buf_read(file, procfs::current_system_info()).ok()?;
        for (mode, seconds) in cpu_seconds(&stats.total) {
            if let Some(seconds) = seconds {
                out.push(metric::CPU_TIME.sample(Host, mode, seconds));
            }
        }
        let count = i64::try_from(stats.cpu_time.len()).ok()?;
        out.push(metric::CPU_COUNT.sample(Host, (), count));
        Some(())
    }

    fn memory(&self, out: &mut Batch) -> Option<()> {
        let memory = Meminfo::from_buf_read(BufReader::new(self.open("meminfo")?)).ok()?;
        let cached = memory.cached + memory.s_reclaimable.unwrap_or(0);
        let others = memory.mem_free + memory.buffers + cached;
        // The lines are not of one moment.
        let used = memory.mem_total.saturating_sub(others);
        for (state, bytes) in [
            (SystemMemoryState::Used, used),
            (SystemMemoryState::Free, memory.mem_free),
            (SystemMemoryState::Buffers, memory.buffers),
            (SystemMemoryState::Cached, cached),
        ] {
            out.push(metric::MEMORY_USAGE.sample(Host, state, i64::try_from(bytes).ok()?));
        }
        let total = i64::try_from(memory.mem_total).ok()?;
        out.push(metric::MEMORY_LIMIT.sample(Host, (), total));
        if let Some(available) = memory.mem_available.and_then(|bytes| bytes.try_into().ok()) {
            out.push(metric::MEMORY_AVAILABLE.sample(Host, (), available));
        }
        Some(())
    }

    /// Not by procfs, which reads these as `f32`.
    fn load(&self, out: &mut Batch) -> Option<()> {
        let mut text = String::new();
        self.open("loadavg")?.read_to_string(&mut text).ok()?;
        let mut averages = text.split(' ').map_while(|word| word.parse::<f64>().ok());
        for metric in [&metric::LOAD_1M, &metric::LOAD_5M, &metric::LOAD_15M] {
            out.push(metric.sample(Host, (), averages.next()?));
        }
        Some(())
    }
}

impl Collector for HostMetrics {
    fn name(&self) -> &'static str {
        NAME
    }

    fn never_waits(&self) -> bool {
        true
    }

    fn importance(&self) -> Importance {
        Importance::Host
    }

    fn collect(&mut self, out: &mut Batch) {
        if self.selection.as_ref().is_some_and(|now| !now.wants_any(metric::ALL)) {
            return;
        }
        let read =
            [("stat", self.cpu(out)), ("meminfo", self.memory(out)), ("loadavg", self.load(out))];
        self.unread =
            read.iter().filter(|(_, read)| read.is_none()).map(|(name, _)| *name).collect();
        self.errors += self.unread.len() as u64;
    }

    fn report(&self) -> Report {
        let mut report = Report::ready();
        if !self.unread.is_empty() {
            let files = self.unread.join(", ");
            let reason = format!("cannot read {files} in {}", self.proc.display());
            let remedy = "mount the host's /proc there, or set [paths] proc";
            report = Report::of(SourceState::Degraded, reason, remedy);
        }
        report.errors = self.errors;
        report
    }
}

fn cpu_seconds(time: &CpuTime) -> [(CpuMode, Option<f64>); 7] {
    let interrupt =
        time.irq_duration().zip(time.softirq_duration()).map(|(hard, soft)| hard + soft);
    [
        (CpuMode::User, Some(time.user_duration())),
        (CpuMode::Nice, Some(time.nice_duration())),
        (CpuMode::System, Some(time.system_duration())),
        (CpuMode::Idle, Some(time.idle_duration())),
        (CpuMode::IoWait, time.iowait_duration()),
        (CpuMode::Interrupt, interrupt),
        (CpuMode::Steal, time.steal_duration()),
    ]
    .map(|(mode, duration)| (mode, duration.map(|duration| duration.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::level::Level;
    use gpuwho_model::catalog::selection::Selection;
    use gpuwho_model::sample::{Sample, Value};
    use std::fs;
    use std::time::SystemTime;

    fn read(host: &mut HostMetrics) -> Vec<Sample> {
        let mut batch = Batch::new(NAME, SystemTime::now());
        host.collect(&mut batch);
        batch.samples.into_iter().map(|(_, sample)| sample).collect()
    }

    const STAT: &str = include_str!("../../../../tests/fixtures/proc/stat-linux-6.18");
    const MEMINFO: &str = include_str!("../../../../tests/fixtures/proc/meminfo-linux-6.18");

    fn fixture() -> (tempfile::TempDir, HostMetrics) {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::under(folder.path());
        fs::create_dir(&paths.proc).unwrap();
        let put = |name: &str, text: &str| fs::write(paths.proc.join(name), text).unwrap();
        put("stat", STAT);
        put("meminfo", MEMINFO);
        put("loadavg", "2.35 3.10 12.07 4/1036 8127\n");
        let host = HostMetrics::new(&paths);
        (folder, host)
    }

    #[test]
    fn the_values_are_those_of_the_kernels_files_in_base_units() {
        let (_folder, mut host) = fixture();
        let cpu = |mode, seconds| metric::CPU_TIME.sample(Host, mode, seconds);
        let memory = |state, kib: i64| metric::MEMORY_USAGE.sample(Host, state, kib * 1024);
        let expected = [
            cpu(CpuMode::User, 23_269.54),
            cpu(CpuMode::Nice, 11_915.51),
            cpu(CpuMode::System, 5_441.53),
            cpu(CpuMode::Idle, 14_800.61),
            cpu(CpuMode::IoWait, 238.65),
            cpu(CpuMode::Interrupt, 55.16),
            cpu(CpuMode::Steal, 30.04),
            metric::CPU_COUNT.sample(Host, (), 2),
            memory(SystemMemoryState::Used, 24_684_084 - 14_433_044 - 23_168 - 8_441_464),
            memory(SystemMemoryState::Free, 14_433_044),
            memory(SystemMemoryState::Buffers, 23_168),
            memory(SystemMemoryState::Cached, 8_441_464),
            metric::MEMORY_LIMIT.sample(Host, (), 24_684_084 * 1024),
            metric::MEMORY_AVAILABLE.sample(Host, (), 22_487_352 * 1024),
            metric::LOAD_1M.sample(Host, (), 2.35),
            metric::LOAD_5M.sample(Host, (), 3.1),
            metric::LOAD_15M.sample(Host, (), 12.07),
        ];
        assert_eq!(read(&mut host), expected);
        assert_eq!(host.report(), Report::ready());
    }

    #[test]
    fn nothing_is_read_where_nothing_of_it_is_exported() {
        let (_folder, mut host) = fixture();
        let only = |pattern: &[String]| Selection::new(Level::Basic, pattern, &[]).unwrap();
        let selection = SharedSelection::new(only(&[]));
        host.selection = Some(selection.clone());
        host.proc = "/nowhere".into();
        assert_eq!((read(&mut host), host.report()), (vec![], Report::ready()));
        selection.set(only(&["system.memory.limit".to_owned()]));
        read(&mut host);
        assert_eq!(host.report().errors, 3, "a reload exports something of it");
    }

    #[test]
    fn a_file_that_cannot_be_read_leaves_the_others_and_is_named() {
        let (folder, mut host) = fixture();
        fs::write(folder.path().join("proc/stat"), "intr 1 2 3\n").unwrap();
        fs::remove_file(folder.path().join("proc/loadavg")).unwrap();
        let read = read(&mut host);
        assert!(read.iter().all(|sample| sample.metric.name.starts_with("system.memory.")));
        assert_eq!(read.len(), 6);
        let report = host.report();
        assert_eq!((report.state, report.errors), (SourceState::Degraded, 2));
        assert!(report.reason.starts_with("cannot read stat, loadavg in "), "{}", report.reason);
    }

    #[test]
    fn this_hosts_memory_adds_up_and_its_time_only_grows() {
        let mut host = HostMetrics::new(&Paths::default());
        let (first, second) = (read(&mut host), read(&mut host));
        assert_eq!(host.report(), Report::ready());
        let sum = |metric: &str| {
            let of = second.iter().filter(|sample| sample.metric.name == metric);
            of.map(|sample| if let Value::Int(bytes) = sample.value { bytes } else { 0 })
                .sum::<i64>()
        };
        assert_eq!(sum("system.memory.usage"), sum("system.memory.limit"));
        let times = |of: &[Sample]| {
            let times = of.iter().filter(|sample| sample.metric.name == "system.cpu.time");
            times.map(|sample| (sample.dims, sample.value.clone())).collect::<Vec<_>>()
        };
        // Idle and iowait are estimates that may fall on kernels with dynamic ticks (proc(5)).
        for ((dims, before), (same, after)) in times(&first).into_iter().zip(times(&second)) {
            let (Value::Double(before), Value::Double(after)) = (before, after) else { panic!() };
            assert_eq!(dims, same);
            assert!(after >= before || [3, 4].contains(&dims[0]), "{dims:?} {before} {after}");
        }
    }
}
