//! NVML's event set: one for all devices of the driver, each registered for the events that it
//! supports.
//!
//! Performance states are left out: they change with the load, many times a second. Types that the
//! driver or the device does not support are not registered.
//!
//! In addition, the set of system events if the driver has it: devices bound and unbound. It is
//! polled after each wait for device events, whatever the result: a call that does not block and
//! needs no wake of its own. So an unbinding is reported up to one wait late; if the kernel log is
//! readable, its line arrives at once.

use crate::events::{VendorEvent, Watch};
use gpuwho_model::catalog::event::EventKind;
use gpuwho_pipeline::event::{Severity, xid};
use gpuwho_sys::nvml::events::{
    EventSet, RawEvent, RawSystemEvent, SystemEventSet, supported_events,
};
use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{
    nvmlEventMigConfigChange, nvmlEventTypeClock, nvmlEventTypeDoubleBitEccError,
    nvmlEventTypeDramRetirementEvent, nvmlEventTypeDramRetirementFailure,
    nvmlEventTypeFatalPoisonError, nvmlEventTypeGpuRecoveryAction,
    nvmlEventTypeGpuUnavailableError, nvmlEventTypeNonFatalPoisonError,
    nvmlEventTypePowerSourceChange, nvmlEventTypeSingleBitEccError,
    nvmlEventTypeSingleBitEccErrorStorm, nvmlEventTypeXidCriticalError,
    nvmlSystemEventTypeGpuDriverBind, nvmlSystemEventTypeGpuDriverUnbind,
};
use std::collections::VecDeque;
use std::time::Duration;

/// An event type, its kind, severity and description.
type EventRow = (u32, EventKind, Severity, &'static str);

/// Every registered type (`nvml.h` of CUDA 13.0).
const TYPES: &[EventRow] = &[
    (nvmlEventTypeXidCriticalError, EventKind::Xid, Severity::Critical, "XID"),
    (
        nvmlEventTypeSingleBitEccError,
        EventKind::Ecc,
        Severity::Info,
        "corrected (single bit) ECC error",
    ),
    (
        nvmlEventTypeDoubleBitEccError,
        EventKind::Ecc,
        Severity::Critical,
        "uncorrectable (double bit) ECC error",
    ),
    (
        nvmlEventTypeSingleBitEccErrorStorm,
        EventKind::Ecc,
        Severity::Warning,
        "storm of corrected ECC errors",
    ),
    (
        nvmlEventTypeDramRetirementEvent,
        EventKind::Ecc,
        Severity::Warning,
        "memory was retired or remapped",
    ),
    (
        nvmlEventTypeDramRetirementFailure,
        EventKind::Ecc,
        Severity::Critical,
        "memory could not be retired or remapped",
    ),
    (
        nvmlEventTypeNonFatalPoisonError,
        EventKind::Ecc,
        Severity::Warning,
        "poisoned memory was read; contained",
    ),
    (
        nvmlEventTypeFatalPoisonError,
        EventKind::Ecc,
        Severity::Critical,
        "poisoned memory was read; not contained",
    ),
    (
        nvmlEventTypeGpuUnavailableError,
        EventKind::Unavailable,
        Severity::Critical,
        "the GPU is not available",
    ),
    (
        nvmlEventTypeGpuRecoveryAction,
        EventKind::RecoveryAction,
        Severity::Warning,
        "the GPU's recovery action has changed",
    ),
    (nvmlEventMigConfigChange, EventKind::MigChange, Severity::Info, "MIG configuration changed"),
    (
        nvmlEventTypePowerSourceChange,
        EventKind::PowerChange,
        Severity::Warning,
        "power source changed",
    ),
    (nvmlEventTypeClock, EventKind::ClockChange, Severity::Info, "clocks changed"),
];

/// Every type of system event (`nvml.h` of CUDA 13.0).
const SYSTEM_TYPES: &[EventRow] = &[
    (
        nvmlSystemEventTypeGpuDriverUnbind,
        EventKind::DriverUnbind,
        Severity::Warning,
        "the GPU is being unbound from its driver",
    ),
    (
        nvmlSystemEventTypeGpuDriverBind,
        EventKind::DriverBind,
        Severity::Info,
        "the GPU was bound to its driver",
    ),
];

/// The event sets and their devices.
struct Events {
    set: EventSet,
    /// `None` if the driver has none, or polling it failed.
    system: Option<SystemEventSet>,
    /// Handles and PCI addresses.
    devices: Vec<(usize, String)>,
    /// Events received but not returned yet.
    seen: VecDeque<VendorEvent>,
}

/// Registers every device; an error if none has events.
pub(super) fn watch(nvml: &'static Nvml, count: u32) -> Result<Box<dyn Watch>, String> {
    let mut set = EventSet::new(nvml).map_err(|error| error.to_string())?;
    let wanted: u64 = TYPES.iter().map(|row| u64::from(row.0)).sum();
    let mut devices = Vec::new();
    let mut why = "no device has events".to_owned();
    for index in 0..count {
        let registered = nvml.device_by_index(index).and_then(|device| {
            let types = supported_events(&device)? & wanted;
            let handle = set.register(&device, types)?;
            Ok((handle, device.pci_info()?.bus_id))
        });
        match registered {
            Ok(device) => devices.push(device),
            Err(error) => why = error.to_string(),
        }
    }
    if devices.is_empty() {
        return Err(why);
    }
    let wanted = SYSTEM_TYPES.iter().map(|row| u64::from(row.0)).sum();
    // Without it, the kernel log reports the same.
    let system = SystemEventSet::of(nvml, wanted).ok();
    Ok(Box::new(Events { set, system, devices, seen: VecDeque::new() }))
}

impl Watch for Events {
    fn wait(&mut self, timeout: Duration) -> Result<Option<VendorEvent>, String> {
        if let Some(seen) = self.seen.pop_front() {
            return Ok(Some(seen));
        }
        let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let raw = self.set.wait(milliseconds);
        self.poll_system();
        let raw = raw.map_err(|error| error.to_string())?;
        let seen = raw.and_then(|raw| self.seen(&raw));
        Ok(seen.or_else(|| self.seen.pop_front()))
    }
}

impl Events {
    fn poll_system(&mut self) {
        let Some(system) = &mut self.system else { return };
        match system.look() {
            Ok(events) => self.seen.extend(events.iter().filter_map(from_system)),
            // It would fail after each wait; the kernel log reports the same.
            Err(_) => self.system = None,
        }
    }

    fn seen(&self, raw: &RawEvent) -> Option<VendorEvent> {
        let row = TYPES.iter().find(|row| u64::from(row.0) == raw.kind)?;
        let device = self.devices.iter().find(|(handle, _)| *handle == raw.device);
        let pci = device.map_or("", |(_, pci)| pci);
        let (_, kind, severity, words) = *row;
        if kind != EventKind::Xid {
            return Some(VendorEvent::new(pci, kind, severity, words.to_owned()));
        }
        let code = u32::try_from(raw.data).ok()?;
        let message = format!("{words} {code}");
        let severity = xid::verdict(code, &message).action.severity();
        // All ones if the event is about the whole device.
        let gpu_instance = Some(raw.gpu_instance).filter(|id| *id != u32::MAX);
        let seen = VendorEvent::new(pci, kind, severity, message);
        Some(VendorEvent { code: Some(code), gpu_instance, ..seen })
    }
}

fn from_system(raw: &RawSystemEvent) -> Option<VendorEvent> {
    let row = SYSTEM_TYPES.iter().find(|row| u64::from(row.0) == raw.kind)?;
    let (_, kind, severity, words) = *row;
    Some(VendorEvent::new(&raw.device.to_string(), kind, severity, words.to_owned()))
}
