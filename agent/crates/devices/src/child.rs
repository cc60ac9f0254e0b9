//! The device reader child: opens a vendor's library, or its files, and answers requests on a
//! socket.
//!
//! The main thread never calls vendor code. One worker thread reads the devices in turn, so that
//! the driver's lock has one user. If a device does not finish within the stall limit, its worker
//! stays blocked and a new worker reads the next devices. The late answer is sent with the time of
//! its reading, and only then is the device read again: each hung device costs one thread. While no device
//! is late, the main thread wakes twice a request.

mod outlet;
mod round;
mod worker;

use super::events;
use super::in_flight::{self, InFlightCall};
use super::wire::{Frame, Inbox, Request, WireError};
use super::{Count, DeviceRead, OpenError, OpenLibrary, OpenOptions, Vendor};
use gpuwho_model::paths::Paths;
use gpuwho_sys::memory;
use gpuwho_sys::process::{exit_now, take_stdout};
use outlet::Outlet;
use round::{Round, State};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};
use worker::{Job, Worker, start_worker};

/// Upper limit of the stall time: how long one device may delay the others. A healthy device takes
/// about 10 ms, most of it in the two process lists; not waiting for a slow device costs a thread.
pub const MAX_STALL: Duration = Duration::from_millis(100);
/// Lower limit of the stall time: scheduling delays on a busy machine must not cost a thread.
const MIN_STALL: Duration = Duration::from_millis(20);
/// Divisor of the interval: a device that starts to hang delays the others once by at most this
/// fraction.
const STALL_DIVISOR: u32 = 20;
/// Longer than any process lives, and a timeout that the kernel accepts.
const FOREVER: Duration = Duration::from_hours(24 * 365);
/// Status of a child whose reading code panicked.
const PANICKED: i32 = 101;

/// Settings of a child.
#[derive(Debug)]
pub struct Settings {
    /// The vendor.
    pub vendor: &'static Vendor,
    /// Its library; empty for a vendor without one.
    pub library: PathBuf,
    /// The host's directories.
    pub paths: Paths,
    /// The switches that are off.
    pub off: Vec<String>,
    /// How long one device may delay the others.
    pub stall: Duration,
    /// Whether to send device events on standard output.
    pub events: bool,
}

impl Settings {
    /// The stall time at an interval: a twentieth of it, so that the other devices stay on
    /// schedule.
    pub fn stall(interval: Duration) -> Duration {
        (interval / STALL_DIVISOR).clamp(MIN_STALL, MAX_STALL)
    }
}

/// Why a child ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket to the agent failed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// Standard output, which carries the events, could not be duplicated.
    #[error("cannot duplicate standard output: {0}")]
    Output(#[source] io::Error),
    /// The socket could not be shared by two threads.
    #[error("cannot duplicate the socket: {0}")]
    Socket(#[source] io::Error),
}

/// Serves until the agent closes the socket.
pub fn serve(settings: &Settings, socket: OwnedFd) -> Result<(), ServeError> {
    let socket = UnixStream::from(socket);
    keep_drivers_unloaded();
    // Take stdout before the library loads: anything the library prints would corrupt the event
    // stream.
    let output = settings.events.then(take_stdout).transpose().map_err(ServeError::Output)?;
    let (events, arriving) = mpsc::channel();
    listen(socket.try_clone().map_err(ServeError::Socket)?, events.clone())?;
    let function = settings.vendor.function;
    let outlet = Outlet::new(socket, function);
    let Some(opened) = open(settings, &events, &arriving, &outlet)? else {
        return Ok(());
    };
    outlet.send(&Frame::Opened { devices: u32::try_from(opened.devices.len()).unwrap_or(0) })?;
    let watching = output.map(|output| events::watch(output, opened.events));
    let watching = watching.transpose().map_err(ServeError::Thread)?;
    let idle = opened.devices.into_iter().map(Some).collect();
    let stall = settings.stall;
    let count = Some(opened.count);
    let (worker, stuck) = (None, BTreeMap::new());
    let mut server = ReaderServer { outlet, events, arriving, idle, stuck, count, worker, stall };
    let ended = server.run();
    let is_waiting = watching.is_some_and(|thread| !thread.is_finished());
    if is_waiting || server.count.is_none() || server.idle.iter().any(Option::is_none) {
        // A call hangs or waits for events, and closing the library would block on it. The wait is
        // a sleep in `poll`: exiting the process ends it, and the kernel closes every handle.
        exit_now(0);
    }
    // Drop the devices' library resources before the library is closed.
    server.idle.clear();
    (opened.close)();
    match ended {
        // Noticed while sending an answer rather than while waiting for a request.
        Err(ServeError::Wire(WireError::Closed)) => Ok(()),
        ended => ended,
    }
}

/// Drops the capability to load kernel modules. A library may load the kernel driver through a
/// helper program if the driver is missing. An operator who unloads a driver to upgrade it must not
/// find it loaded again by a monitor, so neither this process nor its children can load a module.
fn keep_drivers_unloaded() {
    // Fails only for a process that cannot load modules anyway.
    let _ = remove_capability_from_bounding_set(CapabilitySet::SYS_MODULE);
}

/// An event for the main thread.
enum Event {
    Asked(Request),
    Closed,
    Opened(Result<OpenLibrary, OpenError>),
    /// A worker has no device left.
    Finished(Arc<Round>),
    Counted(Count, Option<u32>),
}

/// State of the main thread.
struct ReaderServer {
    outlet: Outlet,
    events: Sender<Event>,
    arriving: Receiver<Event>,
    /// Devices by position; `None` while a worker has the device.
    idle: Vec<Option<Box<dyn DeviceRead>>>,
    /// Calls of the workers that exceeded the stall limit, by device.
    stuck: BTreeMap<u32, InFlightCall>,
    /// `None` while a worker counts the devices.
    count: Option<Count>,
    worker: Option<Worker>,
    stall: Duration,
}

impl ReaderServer {
    /// Answers requests until the agent closes the socket.
    fn run(&mut self) -> Result<(), ServeError> {
        while let Ok(event) = self.arriving.recv() {
            match event {
                Event::Asked(Request::Read { tick, count, openers }) => {
                    if (count && !self.count()?) || !self.read_all(tick, &openers.into())? {
                        break;
                    }
                }
                Event::Closed => break,
                event => self.take(event)?,
            }
        }
        Ok(())
    }

    /// Counts the devices; false if the agent closed the socket.
    fn count(&mut self) -> Result<bool, ServeError> {
        let Some(count) = self.count.take() else { return Ok(true) };
        self.dispatch(Job::Count(count))?;
        self.wait_for_count()
    }

    /// Reads every device that is not in flight; false if the agent closed the socket.
    fn read_all(&mut self, tick: u64, openers: &Arc<[u32]>) -> Result<bool, ServeError> {
        // Report again: the call reported earlier may have returned and another one may hang.
        for (slot, inside) in &self.stuck {
            self.outlet.report_stuck(Some(*slot), inside)?;
        }
        let take = |(slot, device): (usize, &mut Option<_>)| Some((slot, device.take()?));
        let mut left: VecDeque<_> = self.idle.iter_mut().enumerate().filter_map(take).collect();
        while !left.is_empty() {
            let round = Arc::new(Round::new(tick, Arc::clone(openers), left));
            self.dispatch(Job::Read(Arc::clone(&round)))?;
            match self.follow(&round)? {
                Some(unread) => left = unread,
                None => return Ok(false),
            }
        }
        self.outlet.send(&Frame::Done { tick })?;
        memory::note_reading();
        Ok(true)
    }

    /// Follows a worker until it has read all devices or is blocked in one. Returns those that it has not
    /// read; `None` if the agent closed the socket.
    fn follow(
        &mut self,
        round: &Arc<Round>,
    ) -> Result<Option<VecDeque<round::Placed>>, ServeError> {
        let mut allowed = self.stall;
        loop {
            match self.arriving.recv_timeout(allowed) {
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Ok(Event::Finished(finished)) => {
                    let is_this = Arc::ptr_eq(&finished, round);
                    self.take(Event::Finished(finished))?;
                    if is_this {
                        return Ok(Some(VecDeque::new()));
                    }
                }
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => match round.look_after(self.stall) {
                    State::Reading(left) => allowed = left,
                    State::Blocked(slot, unread) => {
                        self.leave(slot)?;
                        self.return_done(round);
                        return Ok(Some(unread));
                    }
                },
            }
        }
    }

    /// Leaves the worker alone that is blocked in a device.
    fn leave(&mut self, slot: usize) -> Result<(), WireError> {
        // Dropping the sender ends the worker after its current job.
        let Some(worker) = self.worker.take() else { return Ok(()) };
        let slot = number(slot);
        self.outlet.report_stuck(Some(slot), &worker.inside)?;
        self.stuck.insert(slot, worker.inside);
        Ok(())
    }

    /// Waits until a worker has counted the devices or the stall limit passes; false if the agent closed
    /// the socket.
    fn wait_for_count(&mut self) -> Result<bool, ServeError> {
        let deadline = Instant::now() + self.stall;
        while self.count.is_none() {
            match self.arriving.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => {
                    // Dropping the sender ends the worker after its current job.
                    self.worker = None;
                    break;
                }
            }
        }
        Ok(true)
    }

    fn dispatch(&mut self, job: Job) -> Result<(), ServeError> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => start_worker(self.events.clone(), self.outlet.clone())?,
        };
        // A worker ends only with the process or without its sender, so the job arrives.
        let _ = worker.jobs.send(job);
        self.worker = Some(worker);
        Ok(())
    }

    /// Handles the result of a worker.
    fn take(&mut self, event: Event) -> Result<(), WireError> {
        match event {
            Event::Finished(round) => {
                self.return_done(&round);
                Ok(())
            }
            Event::Counted(count, devices) => {
                self.count = Some(count);
                devices.map_or(Ok(()), |devices| self.outlet.send(&Frame::Counted { devices }))
            }
            // The agent sends a request only after `Done`; the library opens once.
            Event::Asked(_) | Event::Opened(_) | Event::Closed => Ok(()),
        }
    }

    /// Takes devices back that a worker has read.
    fn return_done(&mut self, round: &Round) {
        for (slot, device) in round.take_done() {
            self.stuck.remove(&number(slot));
            if let Some(place) = self.idle.get_mut(slot) {
                *place = Some(device);
            }
        }
    }
}

fn number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
}

/// Opens the library on its own thread; `None` if the open failed and the child must exit.
fn open(
    settings: &Settings,
    events: &Sender<Event>,
    arriving: &Receiver<Event>,
    outlet: &Outlet,
) -> Result<Option<OpenLibrary>, ServeError> {
    let (library, paths, off) =
        (settings.library.clone(), settings.paths.clone(), settings.off.clone());
    let (open, events) = (settings.vendor.open, events.clone());
    let inside = InFlightCall::default();
    let in_thread = inside.clone();
    spawn("reader:open", move || {
        in_thread.begin();
        let opening = OpenOptions { library: &library, paths: &paths, off: &off };
        let opened = unless_panicked(|| in_flight::call(Open, || open(&opening)));
        // The send fails only if the process is exiting.
        let _ = events.send(Event::Opened(opened));
    })?;
    let mut timeout = settings.stall;
    loop {
        match arriving.recv_timeout(timeout) {
            Ok(Event::Opened(Ok(opened))) => return Ok(Some(opened)),
            Ok(Event::Opened(Err(error))) => {
                let OpenError { refusal, text } = error;
                outlet.send(&Frame::Refused { refusal, text })?;
                return Ok(None);
            }
            Ok(Event::Asked(_) | Event::Finished(_) | Event::Counted(..)) => {}
            Err(RecvTimeoutError::Timeout) => {
                // On a busy machine the thread may not have started yet.
                if inside.now().is_some() {
                    outlet.report_stuck(None, &inside)?;
                    timeout = FOREVER;
                }
            }
            // The library may hang in its initialisation.
            Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => exit_now(0),
        }
    }
}

/// Name of the call that opens the library, as [`InFlightCall`] shows it.
#[derive(Debug)]
struct Open;

/// Turns the agent's requests into events.
fn listen(mut socket: UnixStream, events: Sender<Event>) -> Result<(), ServeError> {
    spawn("reader:listen", move || {
        let mut inbox = Inbox::default();
        loop {
            // A blocking read would also wake whenever the agent takes an answer out of the same socket.
            let mut fds = [PollFd::new(&socket, PollFlags::IN)];
            // An error (a signal) only ends the wait early.
            let _ = poll(&mut fds, None);
            if inbox.fill(&mut socket).is_err() {
                break;
            }
            while let Ok(Some(request)) = inbox.take() {
                if events.send(Event::Asked(request)).is_err() {
                    return;
                }
            }
        }
        // The receiver is gone if the main thread has ended.
        let _ = events.send(Event::Closed);
    })
}

/// Runs code that calls the library. A panic ends the child; the agent restarts it.
fn unless_panicked<T>(body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| exit_now(PANICKED))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ServeError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(ServeError::Thread)?;
    Ok(())
}
