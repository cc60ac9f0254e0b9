//! Reports the processes that use accelerators: evidence from the BPF probe `device_users`, or from
//! `/proc` if the probe cannot be loaded.
//!
//! Reads one ring of rare records on its own thread, and emits each at once. Costs nothing while no
//! process opens a watched device: the thread sleeps until the ring, a new node or the slow rescan
//! wakes it.

pub mod source;

use super::load::{Loaded, load, losses};
use super::losses::LossStatus;
use super::share::{Allowances, LookBudget};
use super::watch::Watch;
use aya::maps::{MapData, PerCpuArray};
use gpuwho_collect::cpu_limit::CpuLimit;
use gpuwho_common::device_users::{
    LOST_ALLOWED, LOST_ALLOWED_OPENINGS, LOST_MAP, LOST_OPENINGS, LOST_PLACES, LOST_RING,
    LOST_UNREADABLE,
};
use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::paths::Paths;
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::nodes::{self, Nodes};
use gpuwho_owners::proc_scan::Tracker;
use gpuwho_sys::memory;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Name of the source; its thread is `collect:device_users`.
pub const NAME: &str = "device_users";

/// The counters of what was more than an owner's share.
const OWNERS_LOSSES: [u32; 3] = [LOST_ALLOWED_OPENINGS, LOST_ALLOWED, LOST_PLACES];

/// The hook that sees opens; `Auto` takes the first that this kernel supports, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenHook {
    /// The first supported hook.
    #[default]
    Auto,
    /// Return of `chrdev_open`: does not affect ordinary files, and has the result.
    Fexit,
    /// The cgroup device hook: does not affect ordinary files, and sees the attempt.
    Cgroup,
    /// Exits of the open system calls: works everywhere, adds a little cost to every open.
    Syscall,
}

impl fmt::Display for OpenHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Fexit => "fexit",
            Self::Cgroup => "cgroup",
            Self::Syscall => "syscall",
        })
    }
}

/// How the nodes are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which hook sees opens.
    pub open_hook: OpenHook,
    /// Whether to use BPF at all.
    pub bpf: bool,
    /// Seconds between scans of `/proc` without BPF.
    pub scan_interval_s: u64,
    /// Seconds between scans of `/proc` with BPF, for what no hook sees.
    pub rescan_interval_s: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { open_hook: OpenHook::Auto, bpf: true, scan_interval_s: 2, rescan_interval_s: 300 }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// This host does not have it, and the agent works without it.
    Absent,
    /// The agent has less function than it could.
    Degraded,
}

impl CheckState {
    /// The word `gpuwho doctor` uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Degraded => "degraded",
        }
    }

    fn degraded_unless(ok: bool) -> Self {
        if ok { Self::Ok } else { Self::Degraded }
    }
}

/// One finding of `gpuwho doctor` about this source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check.
    pub what: &'static str,
    /// The result.
    pub status: CheckState,
    /// The details, and the consequence if it is not ok.
    pub detail: String,
}

/// What the handle has of the programs' maps.
struct Maps {
    lost: Arc<PerCpuArray<MapData, u64>>,
    allowance: Arc<Allowances>,
}

/// The running source; dropping it detaches every program and ends the thread.
pub struct Handle {
    report: Report,
    hook: Option<OpenHook>,
    maps: Option<Maps>,
    loss_status: LossStatus,
    /// Closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("hook", &self.hook).finish_non_exhaustive()
    }
}

impl Handle {
    /// The status of the source, with its loss counters.
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        self.loss_status.notify(&mut report, Instant::now());
        if let Some(Maps { lost, .. }) = &self.maps {
            let sum = |counters: &[u32]| counters.iter().map(|at| losses(lost, *at)).sum();
            report.dropped = vec![
                (DropReason::RingFull, sum(&[LOST_RING, LOST_OPENINGS])),
                (DropReason::MapFull, sum(&[LOST_MAP])),
                (DropReason::OwnerShare, sum(&OWNERS_LOSSES)),
            ];
            report.errors += losses(lost, LOST_UNREADABLE);
        }
        report
    }

    /// Counts with the owners what they were refused since the last call.
    pub fn count_refused(&self, ownership: &Ownership) {
        for refused in self.loss_status.take_refused() {
            let known = ownership.attribution(refused.process);
            let of_user = || QuotaKey::of_user(refused.uid);
            let owner = known.map_or_else(of_user, |known| ownership.key_of(Some(&known)));
            ownership.refuse(owner, refused.limit, refused.count);
        }
    }

    /// What owners' records cost, and how many were more than their share; for `agent.cpu_limit`, which
    /// answers with a part of the shares.
    pub fn limit(&self, cpu: &CpuLimit) {
        let Some(Maps { lost, allowance }) = &self.maps else { return };
        let beyond = OWNERS_LOSSES.iter().map(|at| losses(lost, *at)).sum();
        let divisor = cpu.take_owners(self.loss_status.spent(), beyond);
        if let Err(error) = allowance.divide(divisor) {
            tracing::debug!(%error, "cannot change what owners may have");
        }
    }

    /// Gives owners other limits, by kind.
    #[cfg(test)]
    pub(super) fn allow(&self, most: fn(usize) -> [u32; 3]) {
        self.maps.iter().for_each(|maps| maps.allowance.allow(most));
    }

    /// The hook in use; `None` while `/proc` is scanned instead.
    pub fn hook(&self) -> Option<OpenHook> {
        self.hook
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Starts watching; `emit` is called on the source's thread. Does not fail if BPF is not available:
/// it then scans `/proc`, and the report says why.
pub fn start(
    settings: Settings,
    watched: nodes::Settings,
    paths: &Paths,
    emit: impl FnMut(Evidence) + Send + 'static,
) -> io::Result<Handle> {
    let nodes = Nodes::read(&watched, paths);
    let (loaded, report) = match try_load(&settings, &nodes, paths) {
        Ok(loaded) => (Some(loaded), Report::ready()),
        Err(why) => (None, without_bpf(&settings, why)),
    };
    // The kernel's type information, needed only for loading, took 18 MB.
    memory::give_back();
    let hook = loaded.as_ref().map(|loaded| loaded.hook);
    let maps = loaded.as_ref().map(|loaded| Maps {
        lost: Arc::clone(&loaded.lost),
        allowance: Arc::clone(&loaded.allowance),
    });
    let loss_status = LossStatus::default();
    let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
    let watch = Watch {
        settings,
        watched,
        paths: paths.clone(),
        nodes,
        tracker: Tracker::default(),
        attempts: super::attempts::Attempts::default(),
        loss_status: loss_status.clone(),
        looks: LookBudget::default(),
        emit,
    };
    let thread =
        thread::Builder::new().name(format!("collect:{NAME}")).spawn(move || match loaded {
            Some(loaded) => watch.follow_ring(loaded, &stopped),
            None => watch.scan_only(&stopped),
        })?;
    Ok(Handle { report, hook, maps, loss_status, stop: Some(stop), thread: Some(thread) })
}

fn try_load(settings: &Settings, nodes: &Nodes, paths: &Paths) -> Result<Loaded, String> {
    if !settings.bpf {
        return Err("BPF is switched off".to_owned());
    }
    load(settings.open_hook, nodes, paths).map_err(|why| why.to_string())
}

fn without_bpf(settings: &Settings, why: String) -> Report {
    if !settings.bpf {
        return Report::of(SourceState::Degraded, why, "set bpf = true to see short processes");
    }
    let reason = format!("{why}; scanning /proc, which misses processes that end between scans");
    Report::of(SourceState::Degraded, reason, "run gpuwho doctor to see what the kernel refuses")
}

/// The findings of `gpuwho doctor`: loads everything once and detaches it again.
pub fn diagnose(settings: &Settings, watched: &nodes::Settings, paths: &Paths) -> Vec<Finding> {
    let mut findings = vec![kernel_types(paths), capabilities(paths)];
    let nodes = Nodes::read(watched, paths);
    match try_load(settings, &nodes, paths) {
        Ok(loaded) => {
            for (hook, why) in &loaded.declined {
                let detail =
                    format!("this kernel does not support {hook}, {} is used: {why}", loaded.hook);
                let state = CheckState::Absent;
                findings.push(Finding { what: "better open hook", status: state, detail });
            }
            let detail = format!("{}, {} watched", loaded.hook, nodes.count());
            findings.push(Finding { what: "open hook", status: CheckState::Ok, detail });
        }
        Err(why) => {
            let detail = format!(
                "{why}; scanning /proc every {} s instead",
                Duration::from_secs(settings.scan_interval_s).as_secs()
            );
            findings.push(Finding { what: "open hook", status: CheckState::Degraded, detail });
        }
    }
    findings
}

fn kernel_types(paths: &Paths) -> Finding {
    let path = paths.sys.join("kernel/btf/vmlinux");
    let ok = path.exists();
    let detail = if ok {
        format!("{} is there", path.display())
    } else {
        format!("{} is missing: the kernel needs CONFIG_DEBUG_INFO_BTF", path.display())
    };
    let state = CheckState::degraded_unless(ok);
    Finding { what: "kernel type information", status: state, detail }
}

fn capabilities(paths: &Paths) -> Finding {
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON_AND_BPF: u64 = 1 << 38 | 1 << 39;
    let status = std::fs::read_to_string(paths.proc.join("self/status")).unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    let ok = effective & SYS_ADMIN != 0 || effective & PERFMON_AND_BPF == PERFMON_AND_BPF;
    let detail =
        if ok { "enough for BPF" } else { "needs CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN" };
    let state = CheckState::degraded_unless(ok);
    Finding { what: "capabilities", status: state, detail: detail.to_owned() }
}
