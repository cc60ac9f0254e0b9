//! Events of a vendor's library: waited for on a thread of the child, told over the child's
//! standard output, heard on a thread of the agent (`events:<vendor>`), all outside the tick.
//!
//! A failure of the wait is told and tried again; it never ends the watch. The end of the child, or
//! bytes from it that are no message, end what is heard of it, and that is told. The two threads sleep
//! while nothing happens: the child's wakes every [`PATIENCE`], and the child's end does not wait
//! for it.

use super::wire::{Ended, Inbox, Outbox};
use super::{EventStream, Vendor};
use crate::catalog::agent::SourceState;
use crate::catalog::event::EventKind;
use crate::collect::status::{Report, StatusRegistry};
use crate::event::aggregator::EventAggregator;
use crate::event::{Moment, Named, Observation, Place, Severity, Usage};
use crate::host::boot_time_ns;
use crate::ids::{GpuId, PciAddress};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two attempts after a failed wait: a device that is lost fails at once, again and again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long one wait lasts. Each is a wake and a call into the driver while nothing happens.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A library's events; every call may hang.
pub trait Watch: Send {
    /// Waits for the next event, for at most this long.
    fn wait(&mut self, patience: Duration) -> Result<Option<VendorEvent>, String>;
}

/// One event as the library gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VendorEvent {
    /// PCI address of the device, as the library spells it.
    pub pci: String,
    /// Position in [`EventKind::ALL`], the same in both processes.
    pub kind: u8,
    /// The vendor's code.
    pub code: Option<u32>,
    /// How bad: a position among the three.
    pub severity: u8,
    /// The partition: of MIG the GPU instance.
    pub gpu_instance: Option<u32>,
    /// What it is, in words.
    pub message: String,
}

/// What a child tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum EventMessage {
    /// Events will be told from now on.
    Watching,
    /// The library has none, and why.
    Without(String),
    /// One happened, at this moment of the boot clock.
    Seen(VendorEvent, u64),
}

/// Starts the child's thread; it writes to what was standard output.
pub(super) fn watch(
    mut out: File,
    open: impl FnOnce() -> Result<Box<dyn Watch>, String> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("reader:events".to_owned()).spawn(move || {
        let mut outbox = Outbox::default();
        let mut tell = |reported: &EventMessage| outbox.send(&mut out, reported).is_ok();
        // Registering may hang like any call: here it holds nobody up.
        match open() {
            Err(why) => {
                tell(&EventMessage::Without(why));
            }
            Ok(mut watch) => follow(watch.as_mut(), &mut tell),
        }
    })
}

/// Waits and tells until nobody listens.
fn follow(watch: &mut dyn Watch, tell: &mut dyn FnMut(&EventMessage) -> bool) {
    let mut failing = true;
    loop {
        // Whether it can wait at all is told at once, not with the first event.
        match watch.wait(if failing { Duration::ZERO } else { WAIT_TIMEOUT }) {
            Ok(seen) => {
                let back = std::mem::take(&mut failing);
                if back && !tell(&EventMessage::Watching) {
                    return;
                }
                if let Some(seen) = seen
                    && !tell(&EventMessage::Seen(seen, boot_time_ns()))
                {
                    return;
                }
            }
            Err(why) => {
                if !std::mem::replace(&mut failing, true) && !tell(&EventMessage::Without(why)) {
                    return;
                }
                thread::sleep(AGAIN);
            }
        }
    }
}

/// The agent's side: where what a child tells goes. Empty where nobody asks for events.
#[derive(Clone, Debug)]
pub struct EventListener(Arc<ListenerState>);

#[derive(Debug)]
struct ListenerState {
    vendor: &'static Vendor,
    to: OnceLock<(Arc<EventAggregator>, StatusRegistry)>,
    /// Children heard so far: the end of one that another has followed is no news.
    children: AtomicU64,
}

impl EventListener {
    /// Those of a vendor's reader.
    pub(super) fn of(vendor: &'static Vendor) -> Self {
        Self(Arc::new(ListenerState { vendor, to: OnceLock::new(), children: AtomicU64::new(0) }))
    }

    /// From now on events go to this desk, and how they are told to this board.
    pub fn open(&self, desk: Arc<EventAggregator>, board: StatusRegistry) {
        // Opened once, before the first child.
        let _ = self.0.to.set((desk, board));
    }

    /// Whether somebody asks for events, and the vendor has any.
    pub(super) fn are_open(&self) -> bool {
        self.0.vendor.events.is_some() && self.0.to.get().is_some()
    }

    /// A process has left a device; the reading of that device told it.
    pub(super) fn ended(&self, gpu: GpuId, ended: &Ended) {
        let (Some((desk, _)), Some(source)) = (self.0.to.get(), &self.0.vendor.events) else {
            return;
        };
        let time = UNIX_EPOCH + Duration::from_nanos(ended.ended_ns);
        let at = Moment { time, boot_ns: ended.seen_ns };
        desk.take(account(gpu, ended), at, source.source, Instant::now());
    }

    /// Hears a child until it ends.
    pub(super) fn receive(&self, from: Option<impl Read + Send + 'static>) {
        let (Some(from), Some(source)) = (from, &self.0.vendor.events) else { return };
        let Some((desk, board)) = self.0.to.get().cloned() else { return };
        let to = Listener { source, aggregator: desk, board };
        let child = self.0.children.fetch_add(1, Ordering::Relaxed) + 1;
        let received = Arc::clone(&self.0);
        let name = format!("events:{}", received.vendor.name);
        let received = thread::Builder::new().name(name).spawn(move || {
            let why = to.listen(from);
            if received.children.load(Ordering::Relaxed) == child {
                to.without(why);
            }
        });
        if let Err(error) = received {
            tracing::warn!(%error, "cannot hear the library's events");
        }
    }
}

/// Takes what the children of one vendor tell.
struct Listener {
    source: &'static EventStream,
    aggregator: Arc<EventAggregator>,
    board: StatusRegistry,
}

impl Listener {
    /// Takes what a child tells; gives why that has ended.
    fn listen(&self, mut from: impl Read) -> &'static str {
        let mut inbox = Inbox::default();
        while inbox.fill(&mut from).is_ok() {
            loop {
                match inbox.take::<EventMessage>() {
                    Ok(Some(reported)) => self.take(reported),
                    Ok(None) => break,
                    Err(_) => return "its reader process tells what is no event",
                }
            }
        }
        "its reader process has ended"
    }

    fn take(&self, reported: EventMessage) {
        let _turn = self.board.turn(self.source.name, Duration::ZERO);
        match reported {
            EventMessage::Watching => {
                self.aggregator.pair(true);
                self.board.put(self.source.name, &Report::ready());
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
        self.board.put(self.source.name, &Report::of(SourceState::Absent, reason, ""));
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
    use crate::attribute::ownership::Ownership;
    use crate::collect::device::DEVICES;
    use crate::event::aggregator::Sources;
    use crate::paths::Paths;
    use std::collections::VecDeque;
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
    fn a_failed_wait_is_told_and_the_next_event_is_seen_all_the_same() {
        let lost = || Err("GPU is lost".to_owned());
        let script = [Ok(None), Ok(Some(seen(79))), lost(), Ok(Some(seen(45)))];
        let mut reported = Vec::new();
        let mut tell = |what: &EventMessage| {
            reported.push(match what {
                EventMessage::Watching => "watching".to_owned(),
                EventMessage::Without(why) => why.clone(),
                EventMessage::Seen(seen, _) => format!("{:?}", seen.code),
            });
            reported.len() < 5
        };
        follow(&mut Script(script.into()), &mut tell);
        assert_eq!(reported, ["watching", "Some(79)", "GPU is lost", "watching", "Some(45)"]);
    }

    /// An hour without events, and then one; each wait lasts as long as it may.
    struct Idle {
        clock: Duration,
        waits: u32,
    }

    impl Watch for Idle {
        fn wait(&mut self, patience: Duration) -> Result<Option<VendorEvent>, String> {
            self.clock += patience;
            self.waits += 1;
            Ok((self.clock >= Duration::from_hours(1)).then(|| seen(79)))
        }
    }

    #[test]
    fn an_idle_hour_is_one_wake_in_five_seconds() {
        let mut idle = Idle { clock: Duration::ZERO, waits: 0 };
        let begun = Instant::now();
        let mut reported = 0;
        follow(&mut idle, &mut |_| {
            reported += 1;
            reported < 2
        });
        // One that does not wait tells that it can.
        assert_eq!((idle.waits, reported), (1 + 3600 / 5, 2));
        assert!(begun.elapsed() < AGAIN, "and it sleeps nowhere else");
    }

    #[test]
    fn an_event_is_the_same_on_both_sides() {
        let what = observation(VendorEvent { gpu_instance: Some(2), ..seen(79) }).unwrap();
        assert_eq!((what.kind, what.severity), (EventKind::Xid, Severity::Critical));
        let place = Place::Pci(PciAddress::parse("0000:17:00").unwrap());
        assert_eq!((what.place, what.code, what.gpu_instance), (place, Some(79), Some(2)));
    }

    /// What is said of the events after a child has told this and has ended.
    fn after(reported: Vec<u8>) -> (SourceState, String) {
        let paths = Paths::under(Path::new("/nonexistent"));
        let desk = Arc::new(EventAggregator::new(Sources {
            inventory: Arc::default(),
            ownership: Ownership::new(&paths),
            listed: Box::new(|_| Vec::new()),
            paths,
            wake: Box::new(|| {}),
            make_way: Box::new(|| {}),
        }));
        let vendor = DEVICES.iter().find(|vendor| vendor.events.is_some()).unwrap();
        let name = vendor.events.as_ref().unwrap().name;
        let (listener, board) = (EventListener::of(vendor), StatusRegistry::default());
        listener.open(desk, board.clone());
        listener.receive(Some(io::Cursor::new(reported)));
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let said = board.all().remove(name).map(|standing| standing.report);
            match said {
                Some(Report { state, reason, .. }) if state != SourceState::Ready => {
                    return (state, reason);
                }
                said => assert!(Instant::now() < deadline, "{said:?}"),
            }
            thread::yield_now();
        }
    }

    #[test]
    fn a_child_that_has_ended_or_tells_rubbish_tells_no_events() {
        let mut watching = Vec::new();
        Outbox::default().send(&mut watching, &EventMessage::Watching).unwrap();
        let tail = ": events come from the kernel log only";
        let ended = format!("its reader process has ended{tail}");
        assert_eq!(after(watching.clone()), (SourceState::Absent, ended));
        let rubbish = [&watching, &b"WARNING: infoROM is corrupted\n"[..]].concat();
        let no_event = format!("its reader process tells what is no event{tail}");
        assert_eq!(after(rubbish), (SourceState::Absent, no_event));
    }
}
