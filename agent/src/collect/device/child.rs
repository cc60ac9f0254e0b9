//! The device reader child: holds a vendor's library, or its files, and answers on a socket.
//!
//! The main thread never calls the vendor's code. One worker thread reads the devices in turn, which is
//! gentle on the driver's lock; a device whose reading does not come back within the stall limit
//! keeps that thread, and the next device is read on a new one. Its late answer is sent with the
//! time it was taken, and only then is the device read again: one hung device costs one thread.

use super::events;
use super::in_flight::{self, InFlightCall};
use super::wire::{Frame, Inbox, Outbox, Reading, Request, Stuck, WireError};
use super::{Count, DeviceRead, OpenError, OpenLibrary, OpenOptions, Vendor};
use crate::host::boot_time_ns;
use crate::paths::Paths;
use crate::sys::process::{exit_now, take_stdout};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// How long one device may keep the others waiting at most. A healthy device takes about 10 ms, most of
/// it in the two process lists; going on without a slow one costs a thread.
pub const STALL: Duration = Duration::from_millis(100);
/// And at least: what a busy machine takes now and then is no reason for another thread.
const SHORTEST_STALL: Duration = Duration::from_millis(20);
/// Parts of an interval that a device which begins to hang may move the others by, once.
const STALLS: u32 = 20;
/// Longer than any process lives, and still a time the kernel takes.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);
/// Status of a child whose reading code panicked.
const PANICKED: i32 = 101;

/// What a child serves.
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
    /// How long one device may keep the others waiting.
    pub stall: Duration,
    /// Whether to tell what happens to the devices on standard output.
    pub events: bool,
}

impl Settings {
    /// How long one device may keep the others waiting where they are read at an interval: a
    /// twentieth of it, so that their cadence stays.
    pub fn stall(interval: Duration) -> Duration {
        (interval / STALLS).clamp(SHORTEST_STALL, STALL)
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
    /// Standard output, on which events are told, could not be taken.
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
    // Before the library is loaded, whose own prints are nothing that the agent understands.
    let output = settings.events.then(take_stdout).transpose().map_err(ServeError::Output)?;
    let (events, arriving) = mpsc::channel();
    listen(socket.try_clone().map_err(ServeError::Socket)?, events.clone())?;
    let function = settings.vendor.function;
    let mut outlet = Outlet { socket, outbox: Outbox::default(), function };
    let Some(opened) = open(settings, &events, &arriving, &mut outlet)? else {
        return Ok(());
    };
    outlet.send(&Frame::Opened { devices: u32::try_from(opened.devices.len()).unwrap_or(0) })?;
    let watching = output.map(|output| events::watch(output, opened.events));
    let watching = watching.transpose().map_err(ServeError::Thread)?;
    let home = opened.devices.into_iter().map(Some).collect();
    let stall = settings.stall;
    let count = Some(opened.count);
    let (worker, away) = (None, BTreeMap::new());
    let mut aggregator =
        ReaderServer { outlet, events, arriving, home, away, count, worker, stall };
    let ended = aggregator.run();
    let is_waiting = watching.is_some_and(|thread| !thread.is_finished());
    if is_waiting || aggregator.count.is_none() || aggregator.home.iter().any(Option::is_none) {
        // A call hangs, or waits for events: closing the library would wait for it. The wait is a
        // sleep in `poll`, which the end of the process ends, and the kernel closes every handle.
        exit_now(0);
    }
    // What the devices hold of the library is given back before it is closed.
    aggregator.home.clear();
    (opened.close)();
    match ended {
        // Noticed while an answer was sent, not while the next request was awaited.
        Err(ServeError::Wire(WireError::Closed)) => Ok(()),
        ended => ended,
    }
}

/// A library may load the kernel driver through a helper program where it finds none. An
/// operator who unloads a driver to upgrade it must not find it loaded again by a monitor, so
/// neither this process nor a program it starts can load a module.
fn keep_drivers_unloaded() {
    // Refused to those who may not load one anyhow.
    let _ = remove_capability_from_bounding_set(CapabilitySet::SYS_MODULE);
}

/// Something the main thread waits for.
enum Event {
    Asked(Request),
    Closed,
    Opened(Result<OpenLibrary, OpenError>),
    Read(Box<Answer>),
    Counted(Count, Option<u32>),
}

/// A device that comes back from a worker.
struct Answer {
    tick: u64,
    slot: usize,
    device: Box<dyn DeviceRead>,
    reading: Box<Reading>,
}

/// What a worker does.
enum Job {
    /// Reads a device.
    Read { tick: u64, slot: usize, device: Box<dyn DeviceRead>, holders: Arc<[u32]> },
    /// Counts the devices.
    Count(Count),
}

/// A worker that is not stuck.
struct Worker {
    jobs: Sender<Job>,
    inside: InFlightCall,
}

/// The sending half of the socket.
struct Outlet {
    socket: UnixStream,
    outbox: Outbox,
    function: fn(&str) -> &str,
}

impl Outlet {
    fn send(&mut self, frame: &Frame) -> Result<(), WireError> {
        self.outbox.send(&mut self.socket, frame)
    }

    /// Tells which call a thread does not come back from.
    fn complain(&mut self, slot: Option<u32>, inside: &InFlightCall) -> Result<(), WireError> {
        let Some(call) = inside.now() else { return Ok(()) };
        let lasts = u64::try_from(call.lasts.as_nanos()).unwrap_or(u64::MAX);
        let name = (self.function)(&call.name).to_owned();
        let since_ns = boot_time_ns().saturating_sub(lasts);
        self.send(&Frame::Stuck { slot, call: Stuck { name, thread: call.thread, since_ns } })
    }
}

/// The main thread's side of the reading.
struct ReaderServer {
    outlet: Outlet,
    events: Sender<Event>,
    arriving: Receiver<Event>,
    /// Devices by position; those being read are away.
    home: Vec<Option<Box<dyn DeviceRead>>>,
    /// What the threads do that have not brought their devices back in time.
    away: BTreeMap<u32, InFlightCall>,
    /// Away while the devices are counted.
    count: Option<Count>,
    worker: Option<Worker>,
    stall: Duration,
}

impl ReaderServer {
    /// Answers requests until the agent hangs up.
    fn run(&mut self) -> Result<(), ServeError> {
        while let Ok(event) = self.arriving.recv() {
            match event {
                Event::Asked(Request::Read { tick, count, holders }) => {
                    if (count && !self.count()?) || !self.read_all(tick, &holders.into())? {
                        break;
                    }
                }
                Event::Closed => break,
                event => self.take(event)?,
            }
        }
        Ok(())
    }

    /// Counts the devices; false when the agent hung up.
    fn count(&mut self) -> Result<bool, ServeError> {
        let Some(count) = self.count.take() else { return Ok(true) };
        self.hand_out(Job::Count(count))?;
        self.wait(None, |aggregator| aggregator.count.is_some())
    }

    /// Reads every device that is at home; false when the agent hung up.
    fn read_all(&mut self, tick: u64, holders: &Arc<[u32]>) -> Result<bool, ServeError> {
        // The call that was told may have returned since, and another one hang.
        for (slot, inside) in &self.away {
            self.outlet.complain(Some(*slot), inside)?;
        }
        for slot in 0..self.home.len() {
            let Some(device) = self.home.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            let holders = Arc::clone(holders);
            self.hand_out(Job::Read { tick, slot, device, holders })?;
            let is_home = |aggregator: &Self| aggregator.home.get(slot).is_none_or(Option::is_some);
            if !self.wait(u32::try_from(slot).ok(), is_home)? {
                return Ok(false);
            }
        }
        self.outlet.send(&Frame::Done { tick })?;
        Ok(true)
    }

    /// Waits until something is back or its time is up; false when the agent hung up.
    fn wait(
        &mut self,
        slot: Option<u32>,
        is_back: impl Fn(&Self) -> bool,
    ) -> Result<bool, ServeError> {
        let deadline = Instant::now() + self.stall;
        while !is_back(self) {
            match self.arriving.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
                Ok(event) => self.take(event)?,
                Err(RecvTimeoutError::Timeout) => {
                    // It ends after that answer, because nobody can send it a job.
                    if let Some(worker) = self.worker.take()
                        && let Some(slot) = slot
                    {
                        self.outlet.complain(Some(slot), &worker.inside)?;
                        self.away.insert(slot, worker.inside);
                    }
                    break;
                }
            }
        }
        Ok(true)
    }

    fn hand_out(&mut self, job: Job) -> Result<(), ServeError> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => start_worker(self.events.clone())?,
        };
        // A worker ends only with the process or without its sender, so the job arrives.
        let _ = worker.jobs.send(job);
        self.worker = Some(worker);
        Ok(())
    }

    /// Takes what a worker brings back.
    fn take(&mut self, event: Event) -> Result<(), WireError> {
        match event {
            Event::Read(answer) => {
                let Answer { tick, slot, device, reading } = *answer;
                if let Some(place) = self.home.get_mut(slot) {
                    *place = Some(device);
                }
                let slot = u32::try_from(slot).unwrap_or(u32::MAX);
                self.away.remove(&slot);
                self.outlet.send(&Frame::Device { tick, slot, reading })
            }
            Event::Counted(count, devices) => {
                self.count = Some(count);
                devices.map_or(Ok(()), |devices| self.outlet.send(&Frame::Counted { devices }))
            }
            // The agent asks again only after `Done`; the library opens once.
            Event::Asked(_) | Event::Opened(_) | Event::Closed => Ok(()),
        }
    }
}

/// Opens the library on a thread of its own; `None` when the child has nothing left to do.
fn open(
    settings: &Settings,
    events: &Sender<Event>,
    arriving: &Receiver<Event>,
    outlet: &mut Outlet,
) -> Result<Option<OpenLibrary>, ServeError> {
    let (library, paths, off) =
        (settings.library.clone(), settings.paths.clone(), settings.off.clone());
    let (open, events) = (settings.vendor.open, events.clone());
    let inside = InFlightCall::default();
    let shown = inside.clone();
    spawn("reader:open", move || {
        shown.begin();
        let opening = OpenOptions { library: &library, paths: &paths, off: &off };
        let opened = unless_panicked(|| in_flight::call(Open, || open(&opening)));
        // The main thread is gone only when the process is.
        let _ = events.send(Event::Opened(opened));
    })?;
    let mut patience = settings.stall;
    loop {
        match arriving.recv_timeout(patience) {
            Ok(Event::Opened(Ok(opened))) => return Ok(Some(opened)),
            Ok(Event::Opened(Err(error))) => {
                let OpenError { refusal, text } = error;
                outlet.send(&Frame::Refused { refusal, text })?;
                return Ok(None);
            }
            Ok(Event::Asked(_) | Event::Read(_) | Event::Counted(..)) => {}
            Err(RecvTimeoutError::Timeout) => {
                // On a busy machine the thread may not have begun.
                if inside.now().is_some() {
                    outlet.complain(None, &inside)?;
                    patience = FOR_EVER;
                }
            }
            // The library may hang in its initialisation.
            Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => exit_now(0),
        }
    }
}

/// What a thread does that opens the library.
#[derive(Debug)]
struct Open;

/// Turns the agent's requests into events.
fn listen(mut socket: UnixStream, events: Sender<Event>) -> Result<(), ServeError> {
    spawn("reader:listen", move || {
        let mut inbox = Inbox::default();
        while let Ok(()) = inbox.fill(&mut socket) {
            while let Ok(Some(request)) = inbox.take() {
                if events.send(Event::Asked(request)).is_err() {
                    return;
                }
            }
        }
        // Nobody is left to hear it when the main thread has ended.
        let _ = events.send(Event::Closed);
    })
}

fn start_worker(events: Sender<Event>) -> Result<Worker, ServeError> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let inside = InFlightCall::default();
    let shown = inside.clone();
    spawn("reader:worker", move || {
        shown.begin();
        for job in jobs {
            let event = match job {
                Job::Read { tick, slot, mut device, holders } => {
                    let reading = Box::new(unless_panicked(|| device.read(&holders)));
                    Event::Read(Box::new(Answer { tick, slot, device, reading }))
                }
                Job::Count(mut count) => {
                    let devices = unless_panicked(&mut *count);
                    Event::Counted(count, devices)
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(Worker { jobs: sender, inside })
}

/// Runs code that calls the library; a panic in it ends the child, which the agent then restarts.
fn unless_panicked<T>(body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| exit_now(PANICKED))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ServeError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(ServeError::Thread)?;
    Ok(())
}
