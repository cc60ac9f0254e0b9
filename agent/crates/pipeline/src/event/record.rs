//! Makes log records of an event: one for each affected owner, or a single one.

use super::{Affected, AffectedOwner, Event, Observation, Peer, Place, xid};
use gpuwho_model::catalog::attributes::{self as attr, AttrSet};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::text::printable;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest driver line that is exported whole, in bytes.
const MAX_BODY: usize = 2048;

/// One log record.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The event's name.
    pub name: &'static str,
    /// OpenTelemetry's severity number.
    pub severity: u8,
    /// The severity's text.
    pub severity_text: &'static str,
    /// When it occurred, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// When the agent received it, in nanoseconds since the epoch.
    pub observed_ns: u64,
    /// The driver's own text.
    pub body: Box<str>,
    /// All other facts.
    pub attributes: AttrSet,
}

/// The records of an event.
pub fn records(event: &Event) -> Vec<Record> {
    let mut common = AttrSet::new();
    device(event, &mut common);
    peer(event, &mut common);
    stuck(event, &mut common);
    decision(event, &mut common);
    facts(event, &mut common);
    usage(event, &mut common);
    let record = |attributes| Record {
        name: event.what.kind.as_str(),
        severity: event.what.severity.number(),
        severity_text: event.what.severity.as_str(),
        time_ns: unix_ns(event.at.time),
        observed_ns: unix_ns(event.seen),
        body: clipped(&event.what.message),
        attributes,
    };
    if event.affected_owners.is_empty() {
        named(event, &mut common);
        return vec![record(common)];
    }
    let of_owner = |owner| record(affected(&common, owner, event.what.peer.as_deref()));
    event.affected_owners.iter().map(of_owner).collect()
}

fn device(event: &Event, set: &mut AttrSet) {
    if let Some(gpu) = &event.gpu {
        set.extend(&gpu.identity());
        set.set_some(&attr::GPU_PCI_ADDRESS, gpu.pci_address.as_deref());
    } else {
        let address = match event.what.place {
            Place::Pci(address) => Some(address.to_string()),
            Place::Port(port) => Some(port.to_string()),
            Place::Gpu(_) | Place::Accel(_) | Place::Host => None,
        };
        set.set_some(&attr::GPU_PCI_ADDRESS, address.as_deref());
    }
    set.set_some(&attr::GPU_MIG_GPU_INSTANCE, event.what.gpu_instance.map(i64::from));
}

fn peer(event: &Event, set: &mut AttrSet) {
    let Some(peer) = &event.what.peer else { return };
    set.set_some(&attr::NCCL_PEER_HOST, peer.host.as_deref());
    set.set_some(&attr::NCCL_PEER_PID, peer.pid.map(i64::from));
    set.set_some(&attr::NCCL_PEER_DEVICES, peer.devices.as_deref());
    let communicator = peer.communicator.map(|hash| hash.to_string());
    set.set_some(&attr::NCCL_COMMUNICATOR, communicator.as_deref());
    set.set_some(&attr::NCCL_RANK, peer.rank.map(i64::from));
    set.set_some(&attr::NCCL_RANKS, peer.ranks.map(i64::from));
}

fn stuck(event: &Event, set: &mut AttrSet) {
    let Some(stuck) = &event.what.stuck else { return };
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let communicator = stuck.communicator.map(|hash| hash.to_string());
    set.set_some(&attr::NCCL_COMMUNICATOR, communicator.as_deref());
    set.set_some(&attr::NCCL_NAME, stuck.name.as_deref());
    set.set_some(&attr::NCCL_RANK, stuck.rank.map(i64::from));
    set.set_some(&attr::NCCL_RANKS, stuck.ranks.map(i64::from));
    set.set(&attr::NCCL_OPERATION, stuck.operation);
    set.set(&attr::NCCL_CALL_BYTES, whole(stuck.bytes));
    set.set(&attr::NCCL_CALL_STATE, if stuck.is_open { "open" } else { "returned" });
    set.set(&attr::NCCL_CALL_AGE, whole(stuck.seconds));
    set.set_some(&attr::NCCL_CALL_LAG, stuck.lag.map(whole));
}

fn usage(event: &Event, set: &mut AttrSet) {
    let Some(usage) = &event.what.usage else { return };
    set.set(&attr::GPU_PROCESS_LIFETIME, usage.seconds);
    set.set_some(&attr::GPU_PROCESS_MEMORY_PEAK, usage.memory_peak);
    set.set_some(&attr::GPU_PROCESS_LIFETIME_UTILIZATION, usage.busy);
    set.set_some(&attr::GPU_PROCESS_LIFETIME_MEMORY, usage.memory_busy);
}

fn decision(event: &Event, set: &mut AttrSet) {
    let Some(decision) = &event.what.decision else { return };
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    set.set(&attr::NCCL_GOVERNOR_BEFORE, decision.before.as_str());
    set.set(&attr::NCCL_PROBE_LEVEL, decision.level.as_str());
    set.set(&attr::NCCL_GOVERNOR_RATE, number(decision.rate));
    set.set(&attr::NCCL_GOVERNOR_BUDGET, number(decision.budget));
    set.set_some(&attr::NCCL_LIBRARY, Some(&*decision.libraries).filter(|one| !one.is_empty()));
    set.set_some(&attr::NCCL_VERSION, Some(&*decision.versions).filter(|one| !one.is_empty()));
}

/// What an event means and what to do about it; empty where nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The vendor's name of the code.
    pub code_name: Option<&'static str>,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub action: &'static str,
}

/// What the vendor's table says of the code, else what is said of the kind.
pub fn advice(what: &Observation) -> Advice {
    let kind = what.kind;
    let of_kind = Advice { code_name: None, meaning: kind.meaning(), action: kind.action() };
    if let Some(of) = what.condition.filter(|_| kind == EventKind::HealthStarted) {
        return Advice { code_name: None, meaning: of.meaning, action: of.advice };
    }
    let code = what.code.filter(|_| kind == EventKind::Xid);
    code.map(|code| xid::verdict(code, &what.message)).map_or(of_kind, |verdict| Advice {
        code_name: verdict.row.map(|row| row.name),
        meaning: verdict.row.map_or(of_kind.meaning, |row| row.meaning),
        action: verdict.action.sentence(),
    })
}

fn facts(event: &Event, set: &mut AttrSet) {
    let Advice { code_name, meaning, action } = advice(&event.what);
    let condition = event.what.condition.map(|of| of.condition.as_str());
    set.set_some(&attr::GPU_HEALTH_CONDITION, condition);
    set.set_some(&attr::GPU_XID_CODE, event.what.code.map(i64::from));
    set.set_some(&attr::GPU_XID_NAME, code_name);
    let code = event.what.code.filter(|_| event.what.kind == EventKind::Xid);
    if let Some(verdict) = code.map(|code| xid::verdict(code, &event.what.message)) {
        set.set_some(&attr::GPU_XID_UNIT, verdict.unit);
        set.set_some(&attr::GPU_XID_STATUS, verdict.status);
    }
    set.set(&attr::EVENT_MEANING, meaning);
    set.set_some(&attr::EVENT_ACTION, Some(action).filter(|action| !action.is_empty()));
    set.set(&attr::EVENT_SOURCE, event.source.as_str());
    let seen = unix_ns(event.seen) / 1_000_000;
    set.set(&attr::EVENT_ID, format!("{seen:x}-{:x}", event.id).as_str());
    if event.count > 1 {
        set.set(&attr::EVENT_COUNT, i64::try_from(event.count).unwrap_or(i64::MAX));
    }
    if event.owners > 1 {
        set.set(&attr::EVENT_VICTIMS, i64::try_from(event.owners).unwrap_or(i64::MAX));
    }
}

fn affected(common: &AttrSet, affected_owner: &AffectedOwner, peer: Option<&Peer>) -> AttrSet {
    let mut set = common.clone();
    set.extend(&affected_owner.owner.attributes());
    set.set_some(&attr::EVENT_AFFECTED, affected_owner.affected.map(Affected::as_str));
    if let Some(peer) = peer {
        let is_its_own = peer.process == Some(affected_owner.owner.process);
        set.set(&attr::NCCL_PEER_RECORD, if is_its_own { "itself" } else { "peer" });
    }
    if affected_owner.processes > 1 {
        set.set(
            &attr::EVENT_PROCESSES,
            i64::try_from(affected_owner.processes).unwrap_or(i64::MAX),
        );
    }
    set
}

/// Adds a process that only the source names. A process that an XID's line names but that did not
/// hold the device appears in the body only.
fn named(event: &Event, set: &mut AttrSet) {
    if let Some(process) = event.what.process.as_ref().filter(|_| event.what.kind != EventKind::Xid)
    {
        set.set(&attr::PROCESS_PID, i64::from(process.pid));
        set.set_some(&attr::PROCESS_EXECUTABLE_NAME, process.comm.as_deref());
    }
}

fn clipped(text: &str) -> Box<str> {
    let end = text.floor_char_boundary(MAX_BODY);
    // A process's name is in some lines of the kernel's.
    printable(text.get(..end).unwrap_or(text)).into()
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
