//! The agent's side of a vendor: supervises the child that opens the library, and sends it one
//! request a tick.
//!
//! A tick waits, at most until the deadline, for every device that answered in time in the previous
//! tick; it does not wait for a device known to be late, so the others stay on schedule. A child
//! that crashes is restarted and asked again in the same tick, then at the next tick, and then
//! after 1, 2, 4, … seconds, until one tick succeeds. A child that hangs is left alone, and no
//! second one is started beside it. On an eight-device host a tick is one request, nine frames and
//! about 20 kB.

mod converse;
mod nap;
mod restart;
mod supervise;

use super::Vendor;
use super::child;
use super::connection::Connection;
use super::events::EventListener;
use super::link::ExitingChild;
use super::plausible::Checks;
pub use super::states::{CompleteIdentity, Identify, NodeOpeners, OpenNodes, ServedValues};
use super::states::{DeviceStates, ReaderContext};
use gpuwho_collect::Collector;
use gpuwho_collect::snapshot::{Control, ReaderSnapshot};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::device::DeviceState;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::Batch;
use gpuwho_model::status::Report;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::quota::QuotaKey;
use gpuwho_owners::inventory::{Inventory, node_name};
use nap::Nap;
use restart::Restarts;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a tick waits for a device at most; half the interval if that is shorter.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often a missing driver or device is searched for, and the devices are counted.
const RETRY: Duration = Duration::from_secs(30);
/// Longest pause between restarts of a child that crashes.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// How long a child may take to exit after its socket is closed before it counts as stuck.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Reason of the state while the devices are released.
const RELEASED: &str = "released by the operator";

/// Settings of a reader.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary to run as the child.
    pub program: PathBuf,
    /// The library; searched for if `None`.
    pub library: Option<PathBuf>,
    /// Variables added to the child's environment, for the library.
    pub environment: Vec<(OsString, OsString)>,
    /// The host's directories.
    pub paths: Paths,
    /// The vendor's switches that are off.
    pub off: Vec<String>,
    /// Whether the child drops its capabilities and most system calls before it loads the library.
    pub confined: bool,
    /// How long one device may delay the others.
    pub stall: Duration,
    /// How long a tick waits for a device at most.
    pub deadline: Duration,
    /// How often a missing driver or device is searched for, and the devices are counted.
    pub retry: Duration,
    /// Longest pause between restarts of a child that crashes.
    pub max_pause: Duration,
}

impl Settings {
    /// The default settings for ticks at an interval.
    pub fn new(program: PathBuf, interval: Duration) -> Self {
        Self {
            program,
            library: None,
            environment: Vec::new(),
            paths: Paths::default(),
            off: super::off_by_default().map(str::to_owned).collect(),
            confined: true,
            stall: child::Settings::stall(interval),
            deadline: DEADLINE.min(interval / 2),
            retry: RETRY,
            max_pause: MAX_PAUSE,
        }
    }
}

/// A vendor's devices, read through a child process.
pub struct DeviceReader {
    vendor: &'static Vendor,
    settings: Settings,
    context: ReaderContext,
    control: Control,
    /// Forwards the library's events, if events are enabled.
    pub listener: EventListener,
    states: DeviceStates,
    checks: Checks,
    connection: Option<Connection>,
    exiting_child: Option<ExitingChild>,
    restarts: Restarts,
    /// Whether the driver has ever been found. Until then a reading starts no child, and thus waits
    /// for nothing.
    is_found: bool,
    tick: u64,
    nap: Nap,
    has_read: bool,
    /// The state of every device while there is no child, and why.
    down: (DeviceState, String),
    /// Devices that were late in the last tick.
    slow: BTreeSet<u32>,
    /// The device counts (before, now) for which the library was already reloaded.
    miscount: Option<(u32, u32)>,
    /// A device reported that the driver is gone, and the library was already reloaded for it.
    renewed: bool,
    report: Report,
    calls: u64,
    library_time: Duration,
}

impl DeviceReader {
    /// A reader that starts its child at the first reading, if the driver is there by now; else at
    /// the reading after the one that finds it.
    pub fn new(
        vendor: &'static Vendor,
        settings: Settings,
        inventory: Arc<Inventory>,
        identify: Identify,
    ) -> Self {
        let states = DeviceStates::new(vendor, &settings.paths);
        let restarts = Restarts::new(settings.max_pause);
        let mut reader = Self {
            vendor,
            settings,
            context: ReaderContext {
                inventory,
                identify,
                nodes: Box::new(|_| Vec::new()),
                openers: Box::new(Vec::new),
                lists_processes: vendor.lists_processes,
                served: Box::new(|_| Vec::new()),
                complete: Box::new(|_, _| None),
            },
            control: Control::default(),
            listener: EventListener::of(vendor),
            states,
            checks: Checks::of(vendor.name),
            connection: None,
            exiting_child: None,
            restarts,
            is_found: false,
            tick: 0,
            nap: Nap::default(),
            has_read: false,
            down: (DeviceState::Failing, "not read yet".to_owned()),
            slow: BTreeSet::new(),
            miscount: None,
            renewed: false,
            report: Report::of(SourceState::Absent, "not read yet", ""),
            calls: 0,
            library_time: Duration::ZERO,
        };
        reader.is_found = reader.find().is_ok();
        reader
    }

    /// Sets the source of the processes that have the vendor's nodes open, for a driver that does
    /// not list them.
    #[must_use]
    pub fn with_node_openers(mut self, openers: NodeOpeners) -> Self {
        self.context.openers = openers;
        self
    }

    /// Sets the source of values that the processes on a device serve themselves.
    #[must_use]
    pub fn with_served_values(mut self, served: ServedValues) -> Self {
        self.context.served = served;
        self
    }

    /// Sets what completes the identity of a device.
    #[must_use]
    pub fn with_supplement(mut self, complete: CompleteIdentity) -> Self {
        self.context.complete = complete;
        self
    }

    /// Sets the source of a process's open nodes, by which its partition is found if the driver
    /// does not report it.
    #[must_use]
    pub fn with_open_nodes(mut self, nodes: OpenNodes) -> Self {
        self.context.nodes = nodes;
        self
    }

    /// The handle by which other threads read the last snapshot and release the devices.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    fn run_tick(&mut self) {
        let begun = Instant::now();
        self.states.begin();
        (self.context.served)(None);
        if self.control.released() {
            self.let_go();
            self.slow.clear();
            self.down = (DeviceState::Released, RELEASED.to_owned());
            self.state(SourceState::Absent, RELEASED, "");
        } else if self.read(begun) {
            self.describe();
            return;
        }
        let (state, reason) = &self.down;
        self.states.mark_rest(*state, reason);
    }

    /// Reads every device once, if there is a child; a child that ends is replaced within the tick.
    fn read(&mut self, begun: Instant) -> bool {
        for again in [true, false] {
            let Some(mut connection) = self.connection.take().or_else(|| self.start()) else {
                return false;
            };
            match self.converse(&mut connection, begun) {
                Ok(()) => {
                    self.connection = Some(connection);
                    return true;
                }
                Err(ending) => {
                    let is_passing = ending.is_passing();
                    self.end(connection, &ending);
                    if !(again && is_passing) {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Sets the status after a tick in which the child answered.
    fn describe(&mut self) {
        let mut problems = self.states.problems(&self.context.inventory);
        let hung = self.states.count(DeviceState::Hung) > 0
            || self.connection.as_ref().is_some_and(|connection| connection.late);
        let state = match (self.states.any_ok(), problems.is_empty(), hung) {
            (true, true, _) => SourceState::Ready,
            (true, false, _) => SourceState::Degraded,
            (false, _, true) => SourceState::Hung,
            (false, _, false) => SourceState::Failed,
        };
        if self.states.unidentified > 0 {
            let count = self.states.unidentified;
            problems.push(format!("{count} processes are left out: nothing says who they are"));
        }
        problems.extend(self.states.remarks());
        if state == SourceState::Hung && problems.is_empty() {
            problems.push("the library has not answered yet".to_owned());
        }
        self.state(state, problems.join("; "), "");
    }

    fn state(&mut self, state: SourceState, reason: impl Into<String>, remedy: &str) {
        let (reason, remedy) = (reason.into(), remedy.to_owned());
        self.report = Report { state, reason, remedy, ..self.report.clone() };
    }
}

/// Returns a function that lists the processes with nodes of a vendor's devices open: one of each
/// tenant, then the second of each, and so on, since not all of very many are looked at.
pub fn openers(vendor: &'static Vendor, ownership: Ownership) -> NodeOpeners {
    // Which device each of these has open is found by the device's own nodes, by their numbers too: a
    // node that is inside a container only has no name here.
    let is_any = !vendor.lists_processes;
    let is_on = move |node: &Arc<str>| is_any || (vendor.nodes.is_device_node)(node_name(node));
    Box::new(move || {
        let openers = ownership.openers();
        let here = openers.iter().filter(|owner| owner.nodes.iter().any(is_on));
        let mut before: HashMap<QuotaKey, u32> = HashMap::new();
        let mut turns: Vec<(u32, u32)> = here
            .map(|owner| {
                let turn = before.entry(ownership.key_of(Some(owner))).or_default();
                *turn += 1;
                (*turn, owner.process.pid)
            })
            .collect();
        turns.sort_unstable();
        turns.into_iter().map(|(_, pid)| pid).collect()
    })
}

impl Drop for DeviceReader {
    /// Closes the child; a thread that releases it at the same time waits for the same exit.
    fn drop(&mut self) {
        let exiting_child = self.connection.take().map(|connection| connection.link.close());
        exiting_child.and_then(|mut exiting_child| exiting_child.ended(EXIT_TIMEOUT));
    }
}

impl Collector for DeviceReader {
    fn name(&self) -> &'static str {
        self.vendor.name
    }

    fn never_waits(&self) -> bool {
        !self.is_found
    }

    fn collect(&mut self, out: &mut Batch) {
        if std::mem::replace(&mut self.has_read, true) {
            // Only after the first tick, which knows more about a device than the store does.
            self.states.load_known(&self.context.inventory);
        }
        self.run_tick();
        self.states.emit(out);
        self.context.inventory.register().save(Instant::now());
        self.control.publish(ReaderSnapshot {
            devices: self.states.snapshots(),
            partitions: self.states.partitions(),
            child: self.connection.as_ref().map(|connection| connection.link.pid()),
            calls: self.calls,
            library_time: self.library_time,
        });
    }

    fn report(&self) -> Report {
        self.report.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor;
    use std::fs;

    #[test]
    fn a_reading_waits_for_nothing_until_after_the_driver_is_found() {
        let root = tempfile::tempdir().unwrap();
        let settings = Settings {
            paths: Paths::under(root.path()),
            retry: Duration::ZERO,
            ..Settings::new(root.path().join("no-such-program"), Duration::from_secs(1))
        };
        let identify = Box::new(|_: &[u32], _| Arc::default());
        let intel = vendor("intel").unwrap();
        let inventory = Arc::new(Inventory::default());
        let mut reader = DeviceReader::new(intel, settings, inventory, identify);
        let mut seen = Vec::new();
        let mut read = || {
            let never_waits = reader.never_waits();
            reader.collect(&mut Batch::new("intel", std::time::SystemTime::now()));
            seen.push((never_waits, reader.report.state, reader.report.errors));
        };
        read();
        let driver = root.path().join("sys/bus/pci/drivers/xe/0000:03:00.0");
        fs::create_dir_all(driver).unwrap();
        read();
        read();
        let expected = [
            (true, SourceState::Absent, 0),
            (true, SourceState::Absent, 0),
            (false, SourceState::Failed, 1),
        ];
        assert_eq!(seen, expected);
    }
}
