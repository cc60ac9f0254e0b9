//! The agent's side of a vendor: supervises the child that holds the library and asks it once a
//! tick.
//!
//! A tick waits for every device that answered the last time, at most for the deadline; a device
//! known to be late is not waited for, so the others keep their cadence. A child that crashes is
//! started again after 0, 1, 2, 4, … seconds; one that hangs is left alone, and no second one is
//! started beside it. On an eight-device host a tick is one request, nine frames and about 20 kB.

use super::events::Ears;
use super::link::{Leaving, Link, Program};
pub use super::rows::{HeldNodes, Identify};
use super::rows::{Knows, Rows};
use super::session::{Ending, Session};
use super::snapshot::{Control, ReaderSnapshot};
use super::wire::{Frame, Outcome, Reading, Request};
use super::{Vendor, library};
use crate::catalog::agent::SourceState;
use crate::catalog::device::DeviceState;
use crate::collect::Collector;
use crate::collect::status::Report;
use crate::inventory::Inventory;
use crate::paths::Paths;
use crate::sample::Batch;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest a tick waits for a device; half the interval if that is shorter.
const DEADLINE: Duration = Duration::from_secs(5);
/// How often a missing driver or device is looked for.
const RETRY: Duration = Duration::from_secs(30);
/// Longest pause between restarts of a child that crashes.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How long a child that hung up may take to end before it counts as stuck.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

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
    /// Whether to read the devices' performance counters.
    pub gpm: bool,
    /// Longest a tick waits for a device.
    pub deadline: Duration,
    /// How often a missing driver or device is looked for.
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
            gpm: true,
            deadline: DEADLINE.min(interval / 2),
            retry: RETRY,
            longest_pause: LONGEST_PAUSE,
        }
    }
}

/// A vendor's devices, read through a child process.
pub struct DeviceReader {
    vendor: &'static Vendor,
    settings: Settings,
    knows: Knows,
    control: Control,
    /// Where it hears what happens to the devices, if anybody wants to know.
    pub ears: Ears,
    rows: Rows,
    session: Option<Session>,
    leaving: Option<Leaving>,
    next_start: Instant,
    pause: Duration,
    tick: u64,
    /// What every device is while there is no child, and why.
    down: (DeviceState, String),
    /// Devices that were late the last time.
    slow: BTreeSet<u32>,
    report: Report,
    started_before: bool,
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
        let rows = Rows::new(&settings.paths);
        Self {
            vendor,
            settings,
            knows: Knows { inventory, identify, nodes: Box::new(|_| Vec::new()) },
            control: Control::default(),
            ears: Ears::default(),
            rows,
            session: None,
            leaving: None,
            next_start: Instant::now(),
            pause: Duration::ZERO,
            tick: 0,
            down: (DeviceState::Failing, String::new()),
            slow: BTreeSet::new(),
            report: Report::of(SourceState::Absent, "not read yet", ""),
            started_before: false,
            calls: 0,
            library_time: Duration::ZERO,
        }
    }

    /// Lets it tell a process's MIG instance by the device nodes it holds, where the driver does not.
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
        if self.control.released() {
            self.let_go();
            self.rows.begin(DeviceState::Released, "released by the operator");
            self.slow.clear();
            self.state(SourceState::Absent, "released by the operator", "");
            return;
        }
        let session = self.session.take().or_else(|| self.start());
        self.rows.begin(self.down.0, &self.down.1);
        let Some(mut session) = session else { return };
        match self.converse(&mut session) {
            Ok(()) => {
                self.session = Some(session);
                self.describe();
            }
            Err(ending) => self.end(session, &ending),
        }
    }

    /// One tick with a child.
    fn converse(&mut self, session: &mut Session) -> Result<(), Ending> {
        let begun = Instant::now();
        let deadline = begun + self.settings.deadline;
        self.tick += 1;
        let patience = if session.late { begun } else { deadline };
        let ready = self.open(session, patience)? && self.settle(session, begun)?;
        session.late = !ready;
        let Some(devices) = session.devices.filter(|_| ready) else {
            self.rows.begin(DeviceState::Hung, "its reader process does not answer");
            return Ok(());
        };
        session.link.send(Request::Read { tick: self.tick })?;
        session.owed = Some(self.tick);
        let mut missing: BTreeSet<u32> = (0..devices).collect();
        while session.owed.is_some() || missing.iter().any(|slot| !self.slow.contains(slot)) {
            let Some(frame) = session.link.receive(deadline)? else { break };
            if let Some(slot) = self.handle(session, frame)? {
                missing.remove(&slot);
            }
        }
        session.late = session.owed.is_some();
        for slot in &missing {
            self.rows.silent(*slot, DeviceState::Hung, "a call into the driver has not returned");
        }
        self.slow.retain(|slot| missing.contains(slot));
        self.slow.extend(missing);
        self.pause = Duration::ZERO;
        Ok(())
    }

    /// Waits until the library is open; false at the deadline.
    fn open(&mut self, session: &mut Session, deadline: Instant) -> Result<bool, Ending> {
        while session.devices.is_none() {
            let Some(frame) = session.link.receive(deadline)? else { return Ok(false) };
            self.handle(session, frame)?;
        }
        Ok(true)
    }

    /// Takes what arrived since the last tick; false while the child owes an answer.
    fn settle(&mut self, session: &mut Session, now: Instant) -> Result<bool, Ending> {
        while let Some(frame) = session.link.receive(now)? {
            self.handle(session, frame)?;
        }
        Ok(session.owed.is_none())
    }

    /// Takes a frame; gives the device that answered this tick with it.
    fn handle(&mut self, session: &mut Session, frame: Frame) -> Result<Option<u32>, Ending> {
        match frame {
            Frame::Opened { devices: 0 } => Err(Ending::NoDevice),
            Frame::Opened { devices } => {
                session.devices = Some(devices);
                Ok(None)
            }
            Frame::Refused { refusal, text } => Err(Ending::Refused { refusal, text }),
            Frame::Done { tick } => {
                session.owed = session.owed.filter(|owed| *owed != tick);
                Ok(None)
            }
            Frame::Device { tick, slot, reading } => {
                let timely = tick == self.tick;
                self.account(&reading, slot);
                if let Outcome::DriverGone(why) = &reading.outcome {
                    return Err(Ending::DriverGone(why.clone()));
                }
                self.rows.take(slot, &reading, timely, &self.knows);
                Ok(timely.then_some(slot))
            }
        }
    }

    /// Books what a reading cost. A late device that was quick enough this time is waited for
    /// again.
    fn account(&mut self, reading: &Reading, slot: u32) {
        let spent = Duration::from_nanos(reading.cost.library_ns);
        self.calls += u64::from(reading.cost.calls);
        self.library_time += spent;
        self.report.count(reading.cost.failed, reading.cost.implausible);
        if spent < self.settings.deadline {
            self.slow.remove(&slot);
        }
    }

    /// Starts a child if it is time and no old one is left.
    fn start(&mut self) -> Option<Session> {
        if let Some(leaving) = &mut self.leaving {
            if leaving.ended(Duration::ZERO).is_none() {
                let reason =
                    format!("reader process {} is still inside a driver call", leaving.pid());
                self.down = (DeviceState::Hung, reason.clone());
                self.state(SourceState::Hung, reason, "it ends by itself when the call returns");
                return None;
            }
            self.leaving = None;
        }
        if Instant::now() < self.next_start {
            return None;
        }
        let Settings { library, paths, .. } = &self.settings;
        match library::find(self.vendor, library.as_deref(), paths) {
            Ok(library) => self.spawn(&library),
            Err(reason) => {
                self.next_start = Instant::now() + self.settings.retry;
                let remedy = "install the driver, or name the library in the configuration";
                self.down = (DeviceState::Lost, reason.clone());
                self.state(SourceState::Absent, reason, remedy);
                None
            }
        }
    }

    fn spawn(&mut self, library: &Path) -> Option<Session> {
        self.report.restarts += u64::from(std::mem::replace(&mut self.started_before, true));
        let Settings { program: path, environment, gpm, .. } = &self.settings;
        let (vendor, events) = (self.vendor.name, self.ears.are_open());
        let started =
            Link::start(&Program { path, vendor, library, environment, events, gpm: *gpm });
        match started.and_then(|link| Ok((link.hangup()?, link))) {
            Ok((hangup, mut link)) => {
                self.ears.hear(link.events());
                self.control.hold(hangup);
                self.slow.clear();
                let session = Session::new(link);
                // A release between the check at the tick's begin and here must not be missed.
                if self.control.released() {
                    self.session = Some(session);
                    self.let_go();
                    return None;
                }
                Some(session)
            }
            Err(error) => {
                self.back_off();
                self.report.errors += 1;
                self.state(SourceState::Failed, error.to_string(), "");
                None
            }
        }
    }

    /// Ends a session and decides when the next one starts.
    fn end(&mut self, session: Session, ending: &Ending) {
        self.control.forget_child();
        let mut leaving = session.link.close();
        let status = leaving.ended(EXIT_PATIENCE);
        self.leaving = status.is_none().then_some(leaving);
        if self.control.released() {
            self.rows.begin(DeviceState::Released, "released by the operator");
            self.state(SourceState::Absent, "released by the operator", "");
            return;
        }
        let (state, remedy) = ending.verdict();
        let mut reason = ending.to_string();
        if let (Ending::Lost(_), Some(status)) = (ending, status) {
            reason = format!("the reader process ended early: {status}");
        }
        if matches!(ending, Ending::Lost(_) | Ending::DriverGone(_)) {
            self.report.errors += 1;
            self.back_off();
            self.down = (DeviceState::Failing, reason.clone());
        } else {
            self.next_start = Instant::now() + self.settings.retry;
            self.down = (DeviceState::Lost, reason.clone());
            self.rows.begin(DeviceState::Lost, &reason);
        }
        self.state(state, reason, remedy);
    }

    /// Hangs up on the child, if there is one.
    fn let_go(&mut self) {
        self.control.forget_child();
        if let Some(session) = self.session.take() {
            let mut leaving = session.link.close();
            self.leaving = leaving.ended(EXIT_PATIENCE).is_none().then_some(leaving);
        }
        self.next_start = Instant::now();
    }

    /// 0, 1, 2, 4, … seconds, up to the longest pause.
    fn back_off(&mut self) {
        self.next_start = Instant::now() + self.pause;
        let next = (self.pause * 2).max(Duration::from_secs(1));
        self.pause = next.min(self.settings.longest_pause);
    }

    /// Reports on a tick in which the child answered.
    fn describe(&mut self) {
        let mut troubles = self.rows.troubles();
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
        self.run_tick();
        self.rows.emit(out);
        self.control.publish(ReaderSnapshot {
            devices: self.rows.snapshots(),
            capabilities: self.rows.capabilities(),
            child: self.session.as_ref().map(|session| session.link.pid()),
            calls: self.calls,
            library_time: self.library_time,
        });
    }

    fn report(&self) -> Report {
        self.report.clone()
    }
}
