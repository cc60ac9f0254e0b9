//! Reads events about accelerators from the kernel log.
//!
//! Reads `/dev/kmsg` on a thread (`kmsg`) that runs while there are records, from the oldest record on. Records of the last
//! [`PAST`] before the agent's start are reported once, with their own time; older ones are
//! ignored, and those that an earlier agent reported are recognised by their sequence numbers.
//! Records that a program wrote into the log are ignored. Costs parsing each line; without lines, and
//! without events that wait in the aggregator, there is no thread.

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod lines;
mod position;
mod record;
mod source;
mod syslog;

use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::paths::Paths;
use gpuwho_model::poller::{LINGER, Poller, Task};
use gpuwho_model::status::{Report, StatusRegistry};
use gpuwho_owners::host::boot_time_ns;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use gpuwho_pipeline::event::{EventSource, Moment};
use lines::Reports;
use position::Position;
use record::{Line, Record};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The name of the source and of its thread.
pub const NAME: &str = "kmsg";

pub use source::SOURCE;

/// The remedy if the log cannot be opened.
pub const REMEDY: &str = "run as root with CAP_SYSLOG";

/// How far before the agent's start records are reported: a pod that restarts after a fault finds
/// its event, and last week's faults are not reported as new.
const PAST: Duration = Duration::from_mins(10);
/// How long to wait for the first reading of the devices: an event of an unknown device has only
/// its address and no affected owner.
const FIRST_READING: Duration = Duration::from_secs(5);
/// Interval at which waiting events are applied where the aggregator cannot wake the thread.
const POLL: Duration = Duration::from_secs(1);
/// Pause between attempts to open the log.
const RETRY: Duration = Duration::from_secs(30);
/// Pause at the end of a file that has no more to read (a regular file instead of the kernel log).
const AT_END: Duration = Duration::from_millis(100);
/// The log's clock and the monotonic clock start together, but NTP corrects only the second: a
/// drift of some microseconds a second is minutes after months. A smaller difference than this is a
/// thread that was woken late.
const MIN_DRIFT_US: u64 = 1_000_000;
/// More than the longest record that the kernel returns (`PRINTK_MESSAGE_MAX`).
const MAX_RECORD: usize = 8192;

/// Lets the poller wait for the log.
pub fn start(
    paths: &Paths,
    aggregator: Arc<EventAggregator>,
    statuses: StatusRegistry,
    poller: &Poller,
) {
    let watch = Watch {
        paths: paths.clone(),
        begin: Instant::now() + FIRST_READING,
        log: None,
        position: Position::read(paths),
        aggregator,
        statuses,
        report: Report::ready(),
        not_before_us: None,
        last: None,
        overrun: false,
        lost: 0,
        rest: Vec::new(),
        reports: Reports::default(),
        lag: Lag::default(),
    };
    poller.add(NAME, watch);
}

/// How the log can be read, for `gpuwho doctor`.
pub fn probe(paths: &Paths) -> Result<String, String> {
    match open(paths) {
        Ok(_) => Ok(paths.kmsg.display().to_string()),
        Err(_) if is_default(paths) && syslog::probe().is_ok() => {
            Ok("the log by syslog(2)".to_owned())
        }
        Err(error) => Err(unreadable(paths, error)),
    }
}

/// Whether the path of the log is the default.
fn is_default(paths: &Paths) -> bool {
    paths.kmsg == Paths::default().kmsg
}

struct Watch {
    paths: Paths,
    /// Nothing is read before, unless a device is known.
    begin: Instant,
    /// Open since the first records were read.
    log: Option<OwnedFd>,
    position: Position,
    aggregator: Arc<EventAggregator>,
    statuses: StatusRegistry,
    report: Report,
    /// In the log's clock.
    not_before_us: Option<u64>,
    /// The sequence number of the last record.
    last: Option<u64>,
    /// The kernel overwrote records before they were read.
    overrun: bool,
    lost: u64,
    /// Bytes of an incomplete line.
    rest: Vec<u8>,
    reports: Reports,
    lag: Lag,
}

impl Task for Watch {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        // Both: an event that waits is released by this thread.
        let both = self.log.as_ref().zip(self.aggregator.waits());
        both.map_or_else(Vec::new, |(log, waits)| vec![log.as_fd(), waits])
    }

    fn run(&mut self) -> bool {
        self.statuses.clock(NAME);
        self.read();
        self.statuses.clock_ends(NAME);
        true
    }
}

impl Watch {
    /// Opens the log where it is not open, and reads until nothing has come for a while.
    fn read(&mut self) {
        while !self.aggregator.knows_devices() && Instant::now() < self.begin {
            thread::sleep(AT_END);
        }
        loop {
            let log = self.log.take().map_or_else(|| self.open(), Ok);
            match log {
                Ok(log) => {
                    self.set_report(Report::ready());
                    if self.follow(&log) {
                        self.log = Some(log);
                        return;
                    }
                }
                Err(error) => {
                    let reason = unreadable(&self.paths, error);
                    self.set_report(Report::of(SourceState::Degraded, reason, REMEDY));
                }
            }
            let retry = Instant::now() + RETRY;
            while Instant::now() < retry {
                self.wait(None, Some(retry));
                self.aggregator.apply_due(Instant::now());
            }
        }
    }

    /// Opens the log, or `syslog(2)` if `/dev/kmsg` is refused; there, records have other sequence
    /// numbers.
    fn open(&mut self) -> Result<OwnedFd, Errno> {
        open(&self.paths).or_else(|error| {
            let instead = is_default(&self.paths).then(syslog::follow).and_then(Result::ok);
            let log = instead.ok_or(error)?;
            tracing::info!(path = %self.paths.kmsg.display(), %error, "the kernel log is read by syslog(2)");
            self.position = Position::by_time(&self.paths);
            Ok(log)
        })
    }

    /// Reads until nothing has come for a while and no event waits (true), or until an error.
    fn follow(&mut self, log: &OwnedFd) -> bool {
        let mut buffer = vec![0; MAX_RECORD];
        let mut last = Instant::now();
        loop {
            match rustix::io::read(log, &mut buffer) {
                Ok(0) => thread::sleep(AT_END),
                Ok(len) => {
                    last = Instant::now();
                    self.take(buffer.get(..len).unwrap_or_default());
                }
                Err(Errno::AGAIN) => {
                    self.lag.at_end = true;
                    let is_quiet = last.elapsed() >= LINGER && self.aggregator.due().is_none();
                    if is_quiet && self.aggregator.waits().is_some() {
                        return true;
                    }
                    self.wait(Some(log), Some(Instant::now() + LINGER));
                }
                Err(Errno::PIPE) => self.overrun = true,
                Err(Errno::INTR) => {}
                Err(error) => {
                    let reason = unreadable(&self.paths, error);
                    self.set_report(Report::of(SourceState::Failed, reason, ""));
                    return false;
                }
            }
            let _turn = self.statuses.turn(NAME, Duration::ZERO);
            self.aggregator.apply_due(Instant::now());
        }
    }

    /// Waits for more records, for an event that waits in the aggregator, or until one is due.
    fn wait(&self, log: Option<&OwnedFd>, at_most: Option<Instant>) {
        let (now, waits) = (Instant::now(), self.aggregator.waits());
        let blind = waits.is_none().then(|| now + POLL);
        let due = [self.aggregator.due(), at_most, blind].into_iter().flatten().min();
        let left = due.map(|due| due.saturating_duration_since(now));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let log = log.map(OwnedFd::as_fd);
        let mut fds: Vec<PollFd<'_>> = waits.into_iter().chain(log).map(of).collect();
        // An error (a signal) only ends the wait early.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Splits the bytes into lines. The kernel returns whole records; a pipe may not.
    fn take(&mut self, bytes: &[u8]) {
        let _turn = self.statuses.turn(NAME, Duration::ZERO);
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            if self.rest.len() > MAX_RECORD {
                self.rest.clear();
            }
            return;
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let clock = Clocks::now();
        for line in whole.split(|byte| *byte == b'\n') {
            self.line(&String::from_utf8_lossy(line), clock);
        }
    }

    fn line(&mut self, line: &str, clock: Clocks) {
        match record::parse(line) {
            Line::Kernel(record) => {
                self.passed(record.sequence);
                self.record(&record, clock);
            }
            Line::Program { sequence } => self.passed(sequence),
            Line::Other => {}
        }
    }

    /// Counts the overwritten records between this one and the last.
    fn passed(&mut self, sequence: u64) {
        if self.overrun
            && let Some(last) = self.last
        {
            self.lost += sequence.saturating_sub(last + 1);
            self.report.dropped = vec![(DropReason::RingFull, self.lost)];
            self.publish();
        }
        if std::mem::take(&mut self.overrun) {
            self.reports.lost();
        }
        self.last = Some(sequence);
    }

    fn record(&mut self, record: &Record<'_>, clock: Clocks) {
        let clock = self.lag.set(clock, record.at_us);
        self.reports.scan(record);
        let past = u64::try_from(PAST.as_micros()).unwrap_or(u64::MAX);
        let first = self.not_before_us.get_or_insert(clock.log_us.saturating_sub(past));
        if record.at_us < *first || self.position.is_reported(record.sequence) {
            return;
        }
        let Some(what) = self.reports.read(record) else { return };
        self.aggregator.take(what, clock.moment(record.at_us), EventSource::Kmsg, Instant::now());
        if let Err(error) = self.position.advance(record.sequence) {
            tracing::warn!(%error, "cannot save the position in the kernel log");
        }
    }

    /// Publishes a report; the drop counter is carried over.
    fn set_report(&mut self, report: Report) {
        let dropped = std::mem::take(&mut self.report.dropped);
        self.report = Report { dropped, ..report };
        self.publish();
    }

    fn publish(&self) {
        self.statuses.put(NAME, &self.report);
    }
}

fn open(paths: &Paths) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(&paths.kmsg, flags, Mode::empty())
}

fn unreadable(paths: &Paths, error: Errno) -> String {
    format!("{}: {error}; XIDs, bus errors and OOM kills are not reported", paths.kmsg.display())
}

/// The offset of the log's clock from the monotonic clock, measured with records that have just
/// arrived.
#[derive(Debug, Default)]
struct Lag {
    us: i64,
    /// Everything was read: the next record is read as soon as it arrives.
    at_end: bool,
}

impl Lag {
    /// Corrects the log's clock by a record that was read at this moment.
    fn set(&mut self, clock: Clocks, at_us: u64) -> Clocks {
        let behind = clock.log_us.cast_signed().saturating_sub(at_us.cast_signed());
        if std::mem::take(&mut self.at_end) && behind.abs_diff(self.us) > MIN_DRIFT_US {
            self.us = behind;
        }
        Clocks { log_us: clock.log_us.saturating_sub_signed(self.us), ..clock }
    }
}

/// One instant on three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clocks {
    wall: SystemTime,
    boot_ns: u64,
    /// The kernel log's clock: like the monotonic clock, it stops in suspend.
    log_us: u64,
}

impl Clocks {
    fn now() -> Self {
        let log = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(log.tv_sec).unwrap_or_default();
        let micros = u64::try_from(log.tv_nsec / 1000).unwrap_or_default();
        let log_us = seconds.saturating_mul(1_000_000) + micros;
        Self { wall: SystemTime::now(), boot_ns: boot_time_ns(), log_us }
    }

    /// The time of a record, as far before now as the log says.
    fn moment(self, at_us: u64) -> Moment {
        let ago = Duration::from_micros(self.log_us.saturating_sub(at_us));
        let ago_ns = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
        let time = self.wall.checked_sub(ago).unwrap_or(self.wall);
        Moment { time, boot_ns: self.boot_ns.saturating_sub(ago_ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Clocks, Duration, Lag, Moment, SystemTime};

    const SECOND: u64 = 1_000_000;

    fn clock() -> Clocks {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000);
        Clocks { wall, boot_ns: 5_000_000_000_000, log_us: 4000 * SECOND }
    }

    fn ago(seconds: u64) -> Moment {
        let ns = seconds * 1_000_000_000;
        let time = clock().wall - Duration::from_nanos(ns);
        Moment { time, boot_ns: clock().boot_ns - ns }
    }

    #[test]
    fn a_new_record_is_current_even_if_the_clock_drifted() {
        for at in [3900 * SECOND, 4090 * SECOND] {
            let mut lag = Lag { at_end: true, ..Lag::default() };
            assert_eq!(lag.set(clock(), at).moment(at), ago(0), "{at}");
            let before = at - 7 * SECOND;
            assert_eq!(lag.set(clock(), before).moment(before), ago(7), "read with it");
        }
    }

    #[test]
    fn records_read_before_the_end_keep_their_age() {
        let mut lag = Lag::default();
        assert_eq!(lag.set(clock(), 3900 * SECOND).moment(3900 * SECOND), ago(100));
    }

    #[test]
    fn a_late_wake_does_not_make_a_record_newer() {
        let mut lag = Lag { at_end: true, ..Lag::default() };
        let at = 3999 * SECOND;
        assert_eq!(lag.set(clock(), at).moment(at), ago(1));
        // A longer delay counts as drift until the next record corrects it.
        lag.at_end = true;
        lag.set(clock(), 3990 * SECOND);
        lag.at_end = true;
        let now = 4000 * SECOND;
        assert_eq!(lag.set(clock(), now).moment(now), ago(0));
        assert_eq!(lag.us, 0);
    }
}
