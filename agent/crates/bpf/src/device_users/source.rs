//! The users of devices as a source of the agent, and the section `[devices]`.

use super::{Finding as Found, NAME, OpenHook, Settings, diagnose, start};
use crate::losses::SCAN_PART;
use crate::probe::{ProbeDef, SelfTest};
use crate::self_test::self_test;
use gpuwho_collect::Collector;
use gpuwho_collect::source::{Alone, Context, Diagnosing, ProcessChange, Source, SourceDef};
use gpuwho_model::config::{ConfigError, Section, Tables, checks, duration};
use gpuwho_model::finding::Finding;
use gpuwho_owners::nodes::{self, Vendors};
use gpuwho_sys::clock::thread_cpu;
use serde::Deserialize;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The row of the table.
pub const PROBE: ProbeDef = ProbeDef {
    source: SourceDef {
        name: NAME,
        about: "the processes that open devices, as the kernel reports them",
        section: Some(SECTION),
        // Every source that receives processes must start first, so that it receives all of them.
        after: &["nccl"],
        alone: Alone::Named,
        configure: |_, with| Ok(Box::new(settings(with.tables)?)),
    },
    // Each must work in every kernel that supports it.
    self_tests: &[
        SelfTest { name: "bpf", hook: Some("fexit") },
        SelfTest { name: "bpf", hook: Some("cgroup") },
        SelfTest { name: "bpf", hook: Some("syscall") },
    ],
    self_test: |hook| {
        let hook = match hook {
            None => None,
            Some("fexit") => Some(OpenHook::Fexit),
            Some("cgroup") => Some(OpenHook::Cgroup),
            Some("syscall") => Some(OpenHook::Syscall),
            Some(other) => return Err(format!("no hook `{other}`").into()),
        };
        Ok(self_test(hook)?)
    },
    vm_tests: &[],
};

const DEVICES: &str = "devices";
const SECTION: Section = Section::of::<RawDevices>(
    DEVICES,
    r#"# Device nodes whose openers are watched (the last part may end in *), and kernel drivers (names as in
# /proc/devices) whose nodes are watched wherever they are, in containers too. Of the nodes of drm and
# accel only those of devices with a supported driver; those of /dev/vfio with a TPU are added.
#: nodes = ["/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel/accel*", "/dev/hl*", "/dev/tenstorrent/*", "/dev/accel*", "/dev/neuron*"]
#: drivers = ["nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps", "kfd", "drm", "habanalabs", "tenstorrent", "neuron"]
# How an open is seen: auto, fexit (kernel function trace), cgroup (device program on the cgroup2
# root) or syscall (open tracepoints).
#: open_hook = "auto"
# false: do not load BPF; scan /proc instead.
#: bpf = true
# Time between scans of /proc if BPF cannot be loaded, and within which each process is looked at in addition to BPF, a
# few at a time, for opens that no hook sees.
#: scan_interval = "2s"
#: rescan_interval = "5m"
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDevices {
    nodes: Option<Vec<String>>,
    drivers: Option<Vec<String>>,
    open_hook: Option<OpenHook>,
    bpf: Option<bool>,
    scan_interval: Option<String>,
    rescan_interval: Option<String>,
}

/// The nodes that are watched: the section's, over those of all vendors.
pub fn watched(tables: &Tables, vendors: Vendors) -> Result<nodes::Settings, ConfigError> {
    let raw: RawDevices = tables.read(DEVICES)?;
    let default = nodes::Settings::of(vendors);
    checks::nodes(raw.nodes.as_deref().unwrap_or_default())?;
    Ok(nodes::Settings {
        nodes: raw.nodes.unwrap_or(default.nodes),
        drivers: raw.drivers.unwrap_or(default.drivers),
        vendors,
    })
}

/// How they are watched: the section's values, over the defaults.
pub fn settings(tables: &Tables) -> Result<Settings, ConfigError> {
    let raw: RawDevices = tables.read(DEVICES)?;
    let default = Settings::default();
    let (scan, rescan) = ("devices.scan_interval", "devices.rescan_interval");
    Ok(Settings {
        open_hook: raw.open_hook.unwrap_or(default.open_hook),
        bpf: raw.bpf.unwrap_or(default.bpf),
        scan_interval_s: seconds(scan, raw.scan_interval, default.scan_interval_s)?,
        rescan_interval_s: seconds(rescan, raw.rescan_interval, default.rescan_interval_s)?,
    })
}

fn seconds(key: &str, text: Option<String>, default: u64) -> Result<u64, ConfigError> {
    Ok(duration(key, text, Duration::from_secs(default))?.as_secs().max(1))
}

impl Source for Settings {
    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let (ownership, board) = (context.ownership.clone(), context.board.clone());
        let listeners = context.processes.clone();
        let emit = move |evidence| {
            let _turn = board.turn(NAME, Duration::ZERO);
            let change = ProcessChange::of(&evidence);
            ownership.observe(evidence);
            if let Some(change) = change {
                listeners.lock().iter().for_each(|listener| listener(change));
            }
        };
        let handle = start(self.clone(), context.nodes.clone(), &context.paths, emit)?;
        if handle.hook().is_none() {
            context.ownership.ends_are_unannounced();
        }
        let (board, ownership) = (context.board.clone(), context.ownership.clone());
        let cpu_limit = context.cpu_limit.clone();
        let gauges = Arc::clone(&context.gauges);
        let mut checks = EndChecks::default();
        context.upkeep.push(Box::new(move || {
            let report = handle.report();
            let lost = report.dropped.iter().map(|(_, lost)| lost).sum();
            gauges.evidence_lost.store(lost, Ordering::Relaxed);
            checks.run(lost, Instant::now(), || {
                let before = thread_cpu();
                ownership.lost_evidence();
                thread_cpu().saturating_sub(before)
            });
            handle.count_refused(&ownership);
            handle.limit(&cpu_limit);
            board.put(NAME, &report);
        }));
        Ok(Vec::new())
    }

    fn diagnose(&self, settings: &Diagnosing<'_>) -> Vec<Finding> {
        let line = |found: Found| Finding::new(found.what, found.status.as_str(), found.detail, "");
        diagnose(self, settings.nodes, settings.paths).into_iter().map(line).collect()
    }
}

/// When to check every process after a loss: a lost exit could leave a PID attributed to an ended process. An
/// owner above its share loses something at each tick, and those of its processes that have ended cost more than
/// the check of all; so it is made as often as its own cost allows.
#[derive(Default)]
struct EndChecks {
    lost: u64,
    is_due: bool,
    not_before: Option<Instant>,
}

impl EndChecks {
    /// Makes the check, which says how long it took, where something was lost since the last one.
    fn run(&mut self, lost: u64, now: Instant, check: impl FnOnce() -> Duration) {
        self.is_due |= std::mem::replace(&mut self.lost, lost) != lost;
        if self.is_due && self.not_before.is_none_or(|at| at <= now) {
            self.is_due = false;
            self.not_before = Some(now + check() * SCAN_PART);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds of checks that take so many milliseconds each, while something is lost in each of twelve.
    fn checks_of(ms: u64) -> Vec<u64> {
        let (mut checks, start, mut at) = (EndChecks::default(), Instant::now(), Vec::new());
        for second in 0..20 {
            checks.run(second.min(12) + 1, start + Duration::from_secs(second), || {
                at.push(second);
                Duration::from_millis(ms)
            });
        }
        at
    }

    #[test]
    fn checks_of_all_processes_take_a_part_of_a_core_and_forget_no_loss() {
        assert_eq!(checks_of(8), (0..=12).collect::<Vec<_>>(), "1,000 processes");
        assert_eq!(checks_of(250), [0, 5, 10, 15], "the last one for what was lost before");
    }
}
