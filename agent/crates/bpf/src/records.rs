//! Converts the programs' records to evidence.

use super::layout::{hierarchy_at, hierarchy_numbered};
use gpuwho_common::device_users::{
    CGROUP_MADE, CGROUP_REMOVED, CgroupEvent, EXECED, EXITED, FORKED, Layout, MOVED, OPENED,
    PATH_BYTES, Process, ProcessEvent, TICK_NS,
};
use gpuwho_model::ids::{CgroupId, ProcKey};
use gpuwho_owners::attribute::{Evidence, KernelCgroups, Opened};
use gpuwho_owners::nodes::{Device, Nodes};
use gpuwho_sys as sys;
use std::sync::Arc;

/// The content of a record.
#[derive(Debug)]
pub(super) struct Fact {
    /// The evidence.
    pub evidence: Evidence,
    /// The device, if the record is an open.
    pub device: Option<Device>,
    /// Start time of the process, nanoseconds.
    pub start_ns: u64,
    /// When, `CLOCK_BOOTTIME`.
    pub at_ns: u64,
}

/// Parses a record; `None` if it is unknown or its process could not be read.
pub(super) fn fact(bytes: &[u8], nodes: &Nodes, layout: &Layout) -> Option<Fact> {
    if let Some(event) = sys::bpf::record::<ProcessEvent>(bytes) {
        return of_process(&event, nodes);
    }
    let event = sys::bpf::record::<CgroupEvent>(bytes)?;
    let id = CgroupId { hierarchy: hierarchy_numbered(layout, event.hierarchy)?, id: event.id };
    let evidence = match event.head.kind {
        CGROUP_MADE => Evidence::CgroupMade { id, path: whole(text(&event.path)) },
        CGROUP_REMOVED => Evidence::CgroupRemoved { id },
        _ => return None,
    };
    Some(Fact { evidence, device: None, start_ns: 0, at_ns: event.head.at_ns })
}

/// The content of the record of a process.
pub(super) fn of_process(event: &ProcessEvent, nodes: &Nodes) -> Option<Fact> {
    let evidence = process_evidence(event, nodes)?;
    let device =
        (event.head.kind == OPENED).then_some(Device { major: event.major, minor: event.minor });
    Some(Fact { evidence, device, start_ns: event.process.start_ns, at_ns: event.head.at_ns })
}

fn process_evidence(event: &ProcessEvent, nodes: &Nodes) -> Option<Evidence> {
    let process = key(event.process.pid, event.process.start_ns)?;
    Some(match event.head.kind {
        OPENED => {
            let device = Device { major: event.major, minor: event.minor };
            Evidence::Opened(opened(event, process, nodes.name(device)))
        }
        FORKED => Evidence::Forked {
            parent: key(event.parent_pid, event.parent_start_ns)?,
            child: opened(event, process, Arc::from("")),
        },
        EXECED => Evidence::Execed { process, comm: text(&event.process.comm) },
        MOVED => Evidence::Moved { process, cgroups: cgroups(&event.process) },
        EXITED => Evidence::Exited { process, at_ns: event.head.at_ns },
        _ => return None,
    })
}

fn opened(event: &ProcessEvent, process: ProcKey, node: Arc<str>) -> Opened {
    Opened {
        process,
        uid: event.process.uid,
        comm: text(&event.process.comm),
        cgroups: cgroups(&event.process),
        node,
        at_ns: event.head.at_ns,
    }
}

/// Divides as the kernel does for `/proc/PID/stat` (`nsec_to_clock_t`).
fn key(pid: u32, start_ns: u64) -> Option<ProcKey> {
    (pid != 0).then_some(ProcKey { pid, start_ticks: start_ns / TICK_NS })
}

fn cgroups(process: &Process) -> KernelCgroups {
    let ids = process.cgroups.iter().enumerate().filter(|(_, id)| **id != 0);
    KernelCgroups(
        ids.map(|(position, id)| CgroupId { hierarchy: hierarchy_at(position), id: *id }).collect(),
    )
}

/// A possibly truncated path without its last component, because a truncated id could be another's.
fn whole(path: Arc<str>) -> Arc<str> {
    if path.len() + 1 < PATH_BYTES {
        return path;
    }
    path.rsplit_once('/').map_or_else(|| Arc::clone(&path), |(above, _)| Arc::from(above))
}

/// Converts NUL-terminated bytes to text.
fn text(bytes: &[u8]) -> Arc<str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Arc::from(String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()))
}
