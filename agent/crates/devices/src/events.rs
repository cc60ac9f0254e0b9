//! Events of a vendor's library. A thread of the child waits for them and writes them to the
//! child's standard output; a thread of the agent (`events:<vendor>`) reads them while there are some.
//! Both run outside the tick.
//!
//! A failed wait is reported and retried; it never ends the watch. If the child exits or sends a
//! malformed frame, the subscription ends and the source's status says so. While there are no events
//! the child's thread wakes every [`WAIT_TIMEOUT`], and the exit of the child does not wait for it.

use super::link::readable;
use super::wire::{Ended, Inbox, Outbox};
use super::{EventStream, Vendor};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::event::EventKind;
use gpuwho_model::ids::{GpuId, PciAddress};
use gpuwho_model::poller::{LINGER, Poller, Task};
use gpuwho_model::status::{Report, StatusRegistry};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_pipeline::event::{Moment, Named, Observation, Place, Severity, Usage};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Pause after a failed wait: the wait of a lost device fails at once, every time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Timeout of one wait. Each expiry costs a wake and a call into the driver.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15);

/// A library's event stream; every call may hang.
pub trait Watch: Send {
    /// Waits for the next event, at most `timeout`.
    fn wait(&mut self, timeout: Duration) -> Result<Option<VendorEvent>, String>;
}

/// One event from the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorEvent {
    /// PCI address of the device, as the library spells it.
    pub pci: String,
    /// Position in [`EventKind::ALL`], the same in both processes.
    pub kind: u8,
    /// The vendor's code.
    pub code: Option<u32>,
    /// Severity: 0 is info, 1 is warning, anything else is critical.
    pub severity: u8,
    /// The partition: for MIG, the GPU instance.
    pub gpu_instance: Option<u32>,
    /// A description in words.
    pub message: String,
}

/// A message of the child's event stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum EventMessage {
    /// Events follow from now on.
    Watching,
    /// The library has no events; says why.
    Without(String),
    /// One event, with its time on the boot clock.
    Seen(VendorEvent, u64),
}

/// Starts the child's thread; it writes to the original standard output.
pub(super) fn watch(
    mut out: File,
    open: impl FnOnce() -> Result<Box<dyn Watch>, String> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("reader:events".to_owned()).spawn(move || {
        let mut outbox = Outbox::default();
        let mut send = |reported: &EventMessage| outbox.send(&mut out, reported).is_ok();
        // Registering may hang like any call; on this thread it delays nothing else.
        match open() {
            Err(why) => {
                send(&EventMessage::Without(why));
            }
            Ok(mut watch) => follow(watch.as_mut(), &mut send),
        }
    })
}

/// Waits for events and sends them until the agent closes the pipe.
fn follow(watch: &mut dyn Watch, send: &mut dyn FnMut(&EventMessage) -> bool) {
    let mut failing = true;
    loop {
        // The first wait does not block, so that the status is sent at once and not with the first
        // event.
        match watch.wait(if failing { Duration::ZERO } else { WAIT_TIMEOUT }) {
            Ok(seen) => {
                let back = std::mem::take(&mut failing);
                if back && !send(&EventMessage::Watching) {
                    return;
                }
                if let Some(seen) = seen
                    && !send(&EventMessage::Seen(seen, boot_time_ns()))
                {
                    return;
                }
            }
            Err(why) => {
                if !std::mem::replace(&mut failing, true) && !send(&EventMessage::Without(why)) {
                    return;
                }
                thread::sleep(RETRY_PAUSE);
            }
        }
    }
}

/// The agent's side: forwards events of the children to the aggregator. Unset if events are
/// disabled.
#[derive(Clone, Debug)]
pub struct EventListener(Arc<ListenerState>);

#[derive(Debug)]
struct ListenerState {
    vendor: &'static Vendor,
    to: OnceLock<(Arc<EventAggregator>, StatusRegistry, Poller)>,
    /// Number of children so far: the end of a replaced child is not reported.
    children: AtomicU64,
}

impl EventListener {
    /// Creates the listener of a vendor's reader.
    pub(super) fn of(vendor: &'static Vendor) -> Self {
        Self(Arc::new(ListenerState { vendor, to: OnceLock::new(), children: AtomicU64::new(0) }))
    }

    /// Sets where events and the status of their source go, and what waits for them.
    pub fn open(&self, aggregator: Arc<EventAggregator>, statuses: StatusRegistry, poller: Poller) {
        // Set once, before the first child starts.
        let _ = self.0.to.set((aggregator, statuses, poller));
    }

    /// Whether events are enabled and the vendor has an event stream.
    pub(super) fn are_open(&self) -> bool {
        self.0.vendor.events.is_some() && self.0.to.get().is_some()
    }

    /// Reports a process that left a device, as found by a reading of that device.
    pub(super) fn ended(&self, gpu: GpuId, ended: &Ended) {
        let (Some((aggregator, ..)), Some(source)) = (self.0.to.get(), &self.0.vendor.events)
        else {
            return;
        };
        let time = UNIX_EPOCH + Duration::from_nanos(ended.ended_ns);
        let at = Moment { time, boot_ns: ended.seen_ns };
        aggregator.take(account(gpu, ended), at, source.source, Instant::now());
    }

    /// Reads the events of a child until the child ends.
    pub(super) fn receive(&self, from: Option<impl Read + AsFd + Send + 'static>) {
        let (Some(from), Some(source)) = (from, &self.0.vendor.events) else { return };
        let Some((aggregator, statuses, poller)) = self.0.to.get().cloned() else { return };
        let child = self.0.children.fetch_add(1, Ordering::Relaxed) + 1;
        let to = Listener { source, aggregator, statuses, child, state: Arc::clone(&self.0) };
        let name = format!("events:{}", self.0.vendor.name);
        poller.add(name, ChildEvents { from, inbox: Inbox::default(), to });
    }
}

/// The event stream of one child.
struct ChildEvents<R> {
    from: R,
    inbox: Inbox,
    to: Listener,
}

impl<R: Read + AsFd + Send> Task for ChildEvents<R> {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.from.as_fd()]
    }

    fn run(&mut self) -> bool {
        let why = self.listen();
        if let Some(why) = why
            && self.to.state.children.load(Ordering::Relaxed) == self.to.child
        {
            self.to.without(why);
        }
        why.is_none()
    }
}

impl<R: Read + AsFd> ChildEvents<R> {
    /// Reads events until none has come for a while, or the stream ends; returns why it ended.
    fn listen(&mut self) -> Option<&'static str> {
        while readable(&self.from, LINGER).unwrap_or(true) {
            if self.inbox.fill(&mut self.from).is_err() {
                return Some("its reader process has ended");
            }
            loop {
                match self.inbox.take::<EventMessage>() {
                    Ok(Some(reported)) => self.to.take(reported),
                    Ok(None) => break,
                    Err(_) => return Some("its reader process sent a malformed event"),
                }
            }
        }
        None
    }
}

/// Takes the events of one child.
struct Listener {
    source: &'static EventStream,
    aggregator: Arc<EventAggregator>,
    statuses: StatusRegistry,
    /// Its number.
    child: u64,
    state: Arc<ListenerState>,
}

impl Listener {
    fn take(&self, reported: EventMessage) {
        let _turn = self.statuses.turn(self.source.name, Duration::ZERO);
        match reported {
            EventMessage::Watching => {
                self.aggregator.pair(true);
                self.statuses.put(self.source.name, &Report::ready());
            }
            EventMessage::Without(why) => self.without(&why),
            EventMessage::Seen(seen, boot_ns) => {
                let ago = boot_time_ns().saturating_sub(boot_ns);
                let now = SystemTime::now();
                let time = now.checked_sub(Duration::from_nanos(ago)).unwrap_or(now);
                let at = Moment { time, boot_ns };
                if let Some(what) = observation(seen) {
                    self.aggregator.take(what, at, self.source.source, Instant::now());
                }
            }
        }
    }

    fn without(&self, why: &str) {
        self.aggregator.pair(false);
        let reason = format!("{why}: events come from the kernel log only");
        self.statuses.put(self.source.name, &Report::of(SourceState::Absent, reason, ""));
    }
}

fn account(gpu: GpuId, ended: &Ended) -> Observation {
    let Ended { pid, seconds, memory_peak, busy, memory_busy, .. } = *ended;
    let message = format!("process {pid} has left the device after {seconds} s");
    Observation {
        process: Some(Named::pid(pid)),
        gpu_instance: ended.place.map(|place| place.gpu_instance),
        usage: Some(Box::new(Usage { seconds, memory_peak, busy, memory_busy })),
        ..Observation::new(EventKind::ProcessEnded, Place::Gpu(gpu), Severity::Info, message)
    }
}

fn observation(seen: VendorEvent) -> Option<Observation> {
    let kind = EventKind::ALL.get(usize::from(seen.kind)).copied()?;
    let severity = match seen.severity {
        0 => Severity::Info,
        1 => Severity::Warning,
        _ => Severity::Critical,
    };
    let place = PciAddress::parse(&seen.pci).map_or(Place::Host, Place::Pci);
    let reported = Observation::new(kind, place, severity, seen.message);
    Some(Observation { code: seen.code, gpu_instance: seen.gpu_instance, ..reported })
}

impl VendorEvent {
    /// An event of a device.
    pub fn new(pci: &str, kind: EventKind, severity: Severity, message: String) -> Self {
        let kind = EventKind::ALL.iter().position(|known| *known == kind).unwrap_or_default();
        Self {
            pci: pci.to_owned(),
            kind: u8::try_from(kind).unwrap_or_default(),
            code: None,
            severity: severity as u8,
            gpu_instance: None,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DEVICES;
    use gpuwho_model::paths::Paths;
    use gpuwho_owners::attribute::ownership::Ownership;
    use gpuwho_pipeline::event::aggregator::Sources;
    use std::collections::VecDeque;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    struct Script(VecDeque<Result<Option<VendorEvent>, String>>);

    impl Watch for Script {
        fn wait(&mut self, _patience: Duration) -> Result<Option<VendorEvent>, String> {
            self.0.pop_front().unwrap_or(Ok(None))
        }
    }

    fn seen(code: u32) -> VendorEvent {
        let new =
            VendorEvent::new("0000:17:00.0", EventKind::Xid, Severity::Critical, String::new());
        VendorEvent { code: Some(code), ..new }
    }

    #[test]
    fn a_failed_wait_is_reported_and_the_next_event_still_arrives() {
        let lost = || Err("GPU is lost".to_owned());
        let script = [Ok(None), Ok(Some(seen(79))), lost(), Ok(Some(seen(45)))];
        let mut reported = Vec::new();
        let mut send = |what: &EventMessage| {
            reported.push(match what {
                EventMessage::Watching => "watching".to_owned(),
                EventMessage::Without(why) => why.clone(),
                EventMessage::Seen(seen, _) => format!("{:?}", seen.code),
            });
            reported.len() < 5
        };
        follow(&mut Script(script.into()), &mut send);
        assert_eq!(reported, ["watching", "Some(79)", "GPU is lost", "watching", "Some(45)"]);
    }

    /// One event after an hour without events; each wait lasts its full timeout.
    struct Idle {
        clock: Duration,
        waits: u32,
    }

    impl Watch for Idle {
        fn wait(&mut self, timeout: Duration) -> Result<Option<VendorEvent>, String> {
            self.clock += timeout;
            self.waits += 1;
            Ok((self.clock >= Duration::from_hours(1)).then(|| seen(79)))
        }
    }

    #[test]
    fn an_idle_hour_is_one_wake_in_fifteen_seconds() {
        let mut idle = Idle { clock: Duration::ZERO, waits: 0 };
        let begun = Instant::now();
        let mut reported = 0;
        follow(&mut idle, &mut |_| {
            reported += 1;
            reported < 2
        });
        // The first wait has a zero timeout.
        assert_eq!((idle.waits, reported), (1 + 3600 / 15, 2));
        assert!(begun.elapsed() < RETRY_PAUSE, "and it sleeps nowhere else");
    }

    #[test]
    fn an_event_is_the_same_on_both_sides() {
        let what = observation(VendorEvent { gpu_instance: Some(2), ..seen(79) }).unwrap();
        assert_eq!((what.kind, what.severity), (EventKind::Xid, Severity::Critical));
        let place = Place::Pci(PciAddress::parse("0000:17:00").unwrap());
        assert_eq!((what.place, what.code, what.gpu_instance), (place, Some(79), Some(2)));
    }

    /// The status of the events source after a child sent these bytes and exited.
    fn after(reported: &[u8]) -> (SourceState, String) {
        let paths = Paths::under(Path::new("/nonexistent"));
        let aggregator = Arc::new(EventAggregator::new(Sources {
            inventory: Arc::default(),
            ownership: Ownership::new(&paths),
            listed: Box::new(|_| Vec::new()),
            paths,
            wake: Box::new(|| {}),
            make_way: Box::new(|| {}),
        }));
        let vendor = DEVICES.iter().find(|vendor| vendor.events.is_some()).unwrap();
        let name = vendor.events.as_ref().unwrap().name;
        let (listener, statuses) = (EventListener::of(vendor), StatusRegistry::default());
        let poller = Poller::default();
        let mut polling = poller.polling().unwrap();
        listener.open(aggregator, statuses.clone(), poller);
        let (mut child, from) = UnixStream::pair().unwrap();
        child.write_all(reported).unwrap();
        drop(child);
        listener.receive(Some(from));
        let (_never, own) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let status = statuses.all().remove(name).map(|status| status.report);
            match status {
                Some(Report { state, reason, .. }) if state != SourceState::Ready => {
                    return (state, reason);
                }
                status => assert!(Instant::now() < deadline, "{status:?}"),
            }
            polling.wait(own.as_fd());
        }
    }

    #[test]
    fn a_child_that_exits_or_sends_malformed_frames_ends_the_events() {
        let mut watching = Vec::new();
        Outbox::default().send(&mut watching, &EventMessage::Watching).unwrap();
        let tail = ": events come from the kernel log only";
        let ended = format!("its reader process has ended{tail}");
        assert_eq!(after(&watching), (SourceState::Absent, ended));
        let rubbish = [&watching, &b"WARNING: infoROM is corrupted\n"[..]].concat();
        let no_event = format!("its reader process sent a malformed event{tail}");
        assert_eq!(after(&rubbish), (SourceState::Absent, no_event));
    }
}
