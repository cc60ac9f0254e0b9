//! The agent's side of a vendor: supervises the child that holds the library and asks it once a
//! tick.
//!
//! A tick waits for every device that answered the last time, at most for the deadline; a device
//! known to be late is not waited for, so the others keep their cadence. A child that crashes is
//! started again and asked again in the same tick; from then on at the next tick, and after 1, 2, 4,
//! … seconds, until one tick has gone well. One that hangs is left alone, and no second one is
//! started beside it. On an eight-device host a tick is one request, nine frames and about 20 kB.

mod converse;
mod restart;
mod supervise;

use super::Vendor;
use super::child;
use super::connection::Connection;
use super::events::EventListener;
use super::link::ExitingChild;
use super::snapshot::{Control, ReaderSnapshot};
use super::states::{DeviceStates, ReaderContext};
pub use super::states::{HeldNodes, Identify, NodeHolders};
use crate::attribute::ownership::Ownership;
use crate::catalog::agent::SourceState;
use crate::catalog::device::DeviceState;
use crate::collect::Collector;
use crate::collect::status::Report;
use crate::inventory::{Inventory, node_name};
use crate::paths::Paths;
use crate::sample::Batch;
use restart::Restarts;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest a tick waits for a device; half the interval if that is shorter.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often a missing driver or device is looked for, and the devices are counted.
const RETRY: Duration = Duration::from_secs(30);
/// Longest pause between restarts of a child that crashes.
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// How long a child that hung up may take to end before it counts as stuck.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

/// Why nothing is read while the operator has the devices.
const RELEASED: &str = "released by the operator";

/// How a reader works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The binary to run as the child.
    pub program: PathBuf,
    /// The library; found by itself when `None`.
    pub library: Option<PathBuf>,
    /// Added to the child's environment: what the library itself listens to.
    pub environment: Vec<(OsString, OsString)>,
    /// The host's directories.
    pub paths: Paths,
    /// The vendor's switches that are off.
    pub off: Vec<String>,
    /// Whether the child gives up its capabilities and most system calls before it loads the library.
    pub confined: bool,
    /// How long one device may keep the others waiting.
    pub stall: Duration,
    /// Longest a tick waits for a device.
    pub deadline: Duration,
    /// How often a missing driver or device is looked for, and the devices are counted.
    pub retry: Duration,
    /// Longest pause between restarts of a child that crashes.
    pub longest_pause: Duration,
}

impl Settings {
    /// The usual settings for ticks at an interval.
    pub fn new(program: PathBuf, interval: Duration) -> Self {
        Self {
            program,
            library: None,
            environment: Vec::new(),
            paths: Paths::default(),
            off: Vec::new(),
            confined: true,
            stall: child::Settings::stall(interval),
            deadline: DEADLINE.min(interval / 2),
            retry: RETRY,
            longest_pause: MAX_PAUSE,
        }
    }
}

/// A vendor's devices, read through a child process.
pub struct DeviceReader {
    vendor: &'static Vendor,
    settings: Settings,
    knows: ReaderContext,
    control: Control,
    /// Where it hears what happens to the devices, if anybody wants to know.
    pub listener: EventListener,
    rows: DeviceStates,
    session: Option<Connection>,
    leaving: Option<ExitingChild>,
    restarts: Restarts,
    tick: u64,
    looked: bool,
    /// What every device is while there is no child, and why.
    down: (DeviceState, String),
    /// Devices that were late the last time.
    slow: BTreeSet<u32>,
    /// How many devices the library had and says it has, where loading it anew was tried.
    miscount: Option<(u32, u32)>,
    /// A device says that the driver is gone, and loading the library anew was tried.
    renewed: bool,
    report: Report,
    calls: u64,
    library_time: Duration,
}

impl DeviceReader {
    /// A reader that starts its child at the first reading.
    pub fn new(
        vendor: &'static Vendor,
        settings: Settings,
        inventory: Arc<Inventory>,
        identify: Identify,
    ) -> Self {
        let rows = DeviceStates::new(vendor, &settings.paths);
        let restarts = Restarts::new(settings.longest_pause);
        Self {
            vendor,
            settings,
            knows: ReaderContext {
                inventory,
                identify,
                nodes: Box::new(|_| Vec::new()),
                holders: Box::new(Vec::new),
            },
            control: Control::default(),
            listener: EventListener::of(vendor),
            rows,
            session: None,
            leaving: None,
            restarts,
            tick: 0,
            looked: false,
            down: (DeviceState::Failing, "not read yet".to_owned()),
            slow: BTreeSet::new(),
            miscount: None,
            renewed: false,
            report: Report::of(SourceState::Absent, "not read yet", ""),
            calls: 0,
            library_time: Duration::ZERO,
        }
    }

    /// Lets it read of the processes that hold the vendor's nodes, where the driver lists none.
    #[must_use]
    pub fn knowing_holders(mut self, holders: NodeHolders) -> Self {
        self.knows.holders = holders;
        self
    }

    /// Lets it tell a process's partition by the device nodes it holds, where the driver does not.
    #[must_use]
    pub fn knowing_nodes(mut self, nodes: HeldNodes) -> Self {
        self.knows.nodes = nodes;
        self
    }

    /// The handle by which other threads see the last reading and release the devices.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    fn run_tick(&mut self) {
        let begun = Instant::now();
        self.rows.begin();
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
        self.rows.rest(*state, reason);
    }

    /// Reads every device once, if there is a child; one that ends is replaced within the tick.
    fn read(&mut self, begun: Instant) -> bool {
        for again in [true, false] {
            let Some(mut session) = self.session.take().or_else(|| self.start()) else {
                return false;
            };
            match self.converse(&mut session, begun) {
                Ok(()) => {
                    self.session = Some(session);
                    return true;
                }
                Err(ending) => {
                    let is_passing = ending.is_passing();
                    self.end(session, &ending);
                    if !(again && is_passing) {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Reports on a tick in which the child answered.
    fn describe(&mut self) {
        let mut troubles = self.rows.troubles(&self.knows.inventory);
        let hung = self.rows.count(DeviceState::Hung) > 0
            || self.session.as_ref().is_some_and(|session| session.late);
        let state = match (self.rows.any_ok(), troubles.is_empty(), hung) {
            (true, true, _) => SourceState::Ready,
            (true, false, _) => SourceState::Degraded,
            (false, _, true) => SourceState::Hung,
            (false, _, false) => SourceState::Failed,
        };
        if self.rows.unidentified > 0 {
            let count = self.rows.unidentified;
            troubles.push(format!("{count} processes are left out: nothing says who they are"));
        }
        troubles.extend(self.rows.remarks());
        if state == SourceState::Hung && troubles.is_empty() {
            troubles.push("the library has not answered yet".to_owned());
        }
        self.state(state, troubles.join("; "), "");
    }

    fn state(&mut self, state: SourceState, reason: impl Into<String>, remedy: &str) {
        let (reason, remedy) = (reason.into(), remedy.to_owned());
        self.report = Report { state, reason, remedy, ..self.report.clone() };
    }
}

/// Which processes hold nodes of a vendor's devices.
pub fn holders(vendor: &'static Vendor, ownership: Ownership) -> NodeHolders {
    let is_on = |node: &Arc<str>| (vendor.is_device_node)(node_name(node));
    Box::new(move || {
        let holders = ownership.openers();
        let here = holders.iter().filter(|owner| owner.nodes.iter().any(is_on));
        here.map(|owner| owner.process.pid).collect()
    })
}

impl Drop for DeviceReader {
    /// Leaves no child behind; who releases it at this moment waits for the same end.
    fn drop(&mut self) {
        let leaving = self.session.take().map(|session| session.link.close());
        leaving.and_then(|mut leaving| leaving.ended(EXIT_PATIENCE));
    }
}

impl Collector for DeviceReader {
    fn name(&self) -> &'static str {
        self.vendor.name
    }

    fn collect(&mut self, out: &mut Batch) {
        if std::mem::replace(&mut self.looked, true) {
            // Not before the first look, which says more of a device than what is remembered.
            self.rows.load_known(&self.knows.inventory);
        }
        self.run_tick();
        self.rows.emit(out);
        self.knows.inventory.register().save(Instant::now());
        self.control.publish(ReaderSnapshot {
            devices: self.rows.snapshots(),
            partitions: self.rows.partitions(),
            child: self.session.as_ref().map(|session| session.link.pid()),
            calls: self.calls,
            library_time: self.library_time,
        });
    }

    fn report(&self) -> Report {
        self.report.clone()
    }
}
