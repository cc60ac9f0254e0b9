//! The last events, for `gpuwho events` and the table: at most [`MAX_EVENTS`] and [`MAX_BYTES`]. The
//! least severe are evicted first, of these the oldest, so that ended processes never hide a broken
//! device. Users other than root see of other owners only their number, as in the table.

use super::{AffectedOwner, Event, Place, Severity, record};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::text::printable;
use gpuwho_owners::attribute::view::OwnerView;
use humantime::format_rfc3339_seconds;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

/// Events that are kept: days of a healthy node's, and some minutes of a broken one's.
const MAX_EVENTS: usize = 256;
/// Bytes of JSON that they may take together: a tenth of what the longest messages would.
const MAX_BYTES: usize = 256 * 1024;
/// Longest line of the driver that is kept.
const MAX_MESSAGE: usize = 512;
/// Older events are in `gpuwho events` only, and no longer in the table.
const WINDOW: Duration = Duration::from_hours(24);

/// The end of the times that RFC 3339 can write, since the Unix epoch.
const YEAR_9999: Duration = Duration::from_secs(253_402_300_799);

/// The version of the JSON (`agent/docs/json.md`).
pub const SCHEMA: u32 = 1;

/// An event as people and JSON get it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    /// When it happened, in UTC as RFC 3339 writes it: these sort as text.
    pub time: String,
    /// Event's name: `gpu.xid`.
    pub name: String,
    /// `info`, `warning`, `critical`.
    pub severity: String,
    /// Which source reported it.
    pub source: String,
    /// The health condition that has started or ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The device's vendor, which counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Index of the device.
    pub gpu: Option<u32>,
    /// UUID of the device.
    pub uuid: Option<String>,
    /// Where it is on the bus.
    pub pci_address: Option<String>,
    /// The vendor's code.
    pub code: Option<u32>,
    /// The vendor's name of the code.
    pub code_name: Option<String>,
    /// What it means.
    pub meaning: String,
    /// What to do; empty when nothing.
    pub remedy: String,
    /// The driver's own words; absent where they name others' processes.
    pub message: Option<String>,
    /// How many events it stands for.
    pub count: u64,
    /// Whom it affects.
    pub affected: Vec<AffectedView>,
    /// Affected owners that are not named here.
    pub affected_others: u64,
}

/// An affected owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AffectedView {
    /// The workload in a few words.
    pub owner: Option<String>,
    /// User name, or the number.
    pub user: String,
    /// Real user id.
    pub uid: Option<u32>,
    /// One of its processes.
    pub pid: u32,
    /// The command name of that.
    pub comm: String,
    /// How many of its processes.
    pub processes: u64,
    /// `named`, `device` or `candidate`.
    pub affected: Option<String>,
}

/// The answer to `gpuwho events`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Host name.
    pub host: String,
    /// Events about processes of others, which are left out.
    pub hidden: usize,
    /// The events, the oldest first.
    pub events: Vec<EventView>,
}

/// What the table says of the events of the last day.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many are critical.
    pub critical: u64,
    /// How many are warnings.
    pub warnings: u64,
    /// When the last of the worst was.
    pub last_time: Option<String>,
    /// What that was.
    pub last: Option<String>,
}

/// The store.
#[derive(Debug, Default)]
pub struct RecentEvents(Mutex<Stored>);

#[derive(Debug, Default)]
struct Stored {
    events: VecDeque<StoredEvent>,
    bytes: usize,
}

#[derive(Debug)]
struct StoredEvent {
    view: EventView,
    severity: Severity,
    /// It is about a process and not about a device.
    is_about_process: bool,
    /// The process that its message names.
    named: Option<u32>,
    bytes: usize,
}

impl RecentEvents {
    /// Keeps an event.
    pub fn push(&self, event: &Event) {
        let view = EventView::of(event);
        let bytes = serde_json::to_vec(&view).map_or(MAX_BYTES, |text| text.len());
        let stored = StoredEvent {
            is_about_process: event.what.kind.is_about_process(),
            named: event.what.process.as_ref().map(|process| process.pid),
            severity: event.what.severity,
            view,
            bytes,
        };
        let mut all = self.0.lock();
        all.bytes += bytes;
        all.events.push_back(stored);
        while all.events.len() > MAX_EVENTS || all.bytes > MAX_BYTES {
            let least = all.events.iter().map(|stored| stored.severity).min();
            let oldest = all.events.iter().position(|stored| Some(stored.severity) == least);
            let Some(gone) = oldest.and_then(|at| all.events.remove(at)) else { break };
            all.bytes -= gone.bytes;
        }
    }

    /// What a user may see of them; everything without one.
    pub fn report(&self, host: String, viewer: Option<u32>) -> EventReport {
        let all = self.0.lock();
        let mut events: Vec<_> =
            all.events.iter().filter_map(|stored| stored.seen_by(viewer)).collect();
        // One that was merged with a later report arrives late.
        events.sort_by(|one, other| one.time.cmp(&other.time));
        EventReport { schema: SCHEMA, host, hidden: all.events.len() - events.len(), events }
    }
}

impl StoredEvent {
    fn seen_by(&self, viewer: Option<u32>) -> Option<EventView> {
        let Some(uid) = viewer else { return Some(self.view.clone()) };
        let (own, others): (Vec<_>, Vec<_>) =
            self.view.affected.iter().cloned().partition(|owner| owner.uid == Some(uid));
        if self.is_about_process && own.is_empty() {
            return None;
        }
        let others = self.view.affected_others + others.len() as u64;
        let is_shown = |pid| own.iter().any(|owner| owner.pid == pid);
        let is_own = others == 0 && self.named.is_none_or(is_shown);
        let message = self.view.message.clone().filter(|_| is_own);
        Some(EventView { message, affected: own, affected_others: others, ..self.view.clone() })
    }
}

impl EventView {
    /// An event.
    pub fn of(event: &Event) -> Self {
        let what = &event.what;
        let advice = record::advice(what);
        let gpu = event.gpu.as_ref();
        let place = match what.place {
            Place::Pci(address) => Some(address.to_string()),
            Place::Port(port) => Some(port.to_string()),
            Place::Gpu(_) | Place::Accel(_) | Place::Host => None,
        };
        let message = printable(&what.message);
        let end = message.floor_char_boundary(MAX_MESSAGE);
        let message = message.get(..end).unwrap_or_default().trim();
        let affected: Vec<_> = event.affected_owners.iter().map(AffectedView::of).collect();
        Self {
            time: rfc3339(event.at.time),
            name: what.kind.as_str().into(),
            severity: what.severity.as_str().into(),
            source: event.source.as_str().into(),
            condition: what.condition.map(|of| of.condition.as_str().into()),
            vendor: gpu.map(|gpu| gpu.vendor.clone()),
            gpu: gpu.map(|gpu| gpu.index),
            uuid: gpu.map(|gpu| gpu.uuid.to_string()),
            pci_address: gpu.and_then(|gpu| gpu.pci_address.clone()).or(place),
            code: what.code,
            code_name: advice.code_name.map(Into::into),
            meaning: advice.meaning.into(),
            remedy: advice.action.into(),
            message: (!message.is_empty()).then(|| message.to_owned()),
            count: event.count,
            affected_others: event.owners.saturating_sub(affected.len() as u64),
            affected,
        }
    }

    /// What happened where, in a few words.
    pub fn title(&self) -> String {
        self.title_on(&self.gpu.map(|gpu| gpu.to_string()).unwrap_or_default())
    }

    /// The same with the names of its devices.
    pub fn title_on(&self, gpus: &str) -> String {
        let what = match (self.code, &self.condition) {
            (Some(code), _) if self.name == EventKind::Xid.as_str() => format!("XID {code}"),
            (Some(code), _) => format!("{} {code}", self.name),
            (None, Some(condition)) if self.name == EventKind::HealthEnded.as_str() => {
                format!("{condition} ended")
            }
            (None, Some(condition)) => condition.clone(),
            (None, None) => self.name.clone(),
        };
        match (gpus, &self.pci_address) {
            ("", Some(address)) => format!("{what} at {address}"),
            ("", None) => what,
            (gpus, _) => format!("{what} on GPU {gpus}"),
        }
    }

    /// The message without the condition, which is the title, and whose message it is.
    pub fn message_words(&self) -> Option<(&'static str, &str)> {
        let message = self.message.as_deref()?;
        let from = match &*self.source {
            "nvml" | "nvml+kmsg" => "driver",
            "kmsg" => "kernel log",
            _ => "reason",
        };
        let condition = self.condition.as_deref().unwrap_or_default();
        let reason = message.strip_prefix(condition).and_then(|rest| rest.strip_prefix(": "));
        Some((from, reason.unwrap_or(message)))
    }

    /// Whom it affects, in a few words.
    pub fn affected_words(&self) -> String {
        let word = |owner: &AffectedView| {
            let name = owner.owner.as_deref().unwrap_or(&owner.comm);
            let more = match owner.processes {
                0 | 1 => String::new(),
                all => format!(" and {} more", all - 1),
            };
            format!("{name} ({}, PID {}{more})", owner.user, owner.pid)
        };
        let others = match self.affected_others {
            0 => None,
            1 => Some("1 other owner".to_owned()),
            count => Some(format!("{count} other owners")),
        };
        self.affected.iter().map(word).chain(others).collect::<Vec<_>>().join(", ")
    }
}

impl AffectedView {
    fn of(affected: &AffectedOwner) -> Self {
        let OwnerView { owner, user, uid, pid, comm, .. } = OwnerView::of(&affected.owner);
        let how = affected.affected.map(|affected| affected.as_str().to_owned());
        Self { owner, user, uid, pid, comm, processes: affected.processes, affected: how }
    }
}

impl EventReport {
    /// Without those that happened before.
    #[must_use]
    pub fn since(mut self, time: SystemTime) -> Self {
        let time = rfc3339(time);
        self.events.retain(|event| event.time >= time);
        self
    }

    /// What the table says of them.
    pub fn summary(self, now: SystemTime) -> Summary {
        let recent = self.since(now.checked_sub(WINDOW).unwrap_or(SystemTime::UNIX_EPOCH));
        let of = |severity: &str| {
            let own = recent.events.iter().filter(|event| event.severity == severity);
            own.clone().map(|event| event.count).sum::<u64>()
        };
        let last = |severity: &str| {
            let newest_first = recent.events.iter().rev();
            let mut all = newest_first.filter(|event| event.severity == severity);
            // A condition stands with its device: the fault behind it says more.
            all.clone().find(|event| event.condition.is_none()).or_else(|| all.next())
        };
        let last = last("critical").or_else(|| last("warning"));
        Summary {
            critical: of("critical"),
            warnings: of("warning"),
            last_time: last.map(|event| event.time.clone()),
            last: last.map(|event| format!("{}: {}", event.title(), event.meaning)),
        }
    }
}

/// A time as these records have it; one that is out of its bounds would panic.
fn rfc3339(time: SystemTime) -> String {
    let last = SystemTime::UNIX_EPOCH + YEAR_9999;
    format_rfc3339_seconds(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

impl Summary {
    /// The line under the table, where there is something to say.
    pub fn sentence(&self, now: SystemTime) -> Option<String> {
        let last = self.last.as_ref()?;
        let plural = |count: u64, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        let counts = [
            plural(self.critical, "critical event", "critical events"),
            plural(self.warnings, "warning", "warnings"),
        ];
        let counts = counts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let time = self.last_time.as_deref().and_then(|time| humantime::parse_rfc3339(time).ok());
        let age = time.and_then(|time| now.duration_since(time).ok()).unwrap_or_default();
        let age = Duration::from_secs(age.as_secs());
        let age = humantime::format_duration(age).to_string();
        Some(format!("{counts} in the last day; last, {age} ago: {last}; see `gpuwho events`"))
    }
}

#[cfg(test)]
mod tests;
