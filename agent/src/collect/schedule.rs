//! Runs each collector on a named thread of its own at its own cadence, so that one that hangs or
//! panics costs the others nothing, and its thread's clock is its cost.

use super::Collector;
use super::status::{Board, Report};
use crate::catalog::agent::SourceState;
use crate::sample::Batch;
use crate::sys::clock::ThreadClock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Tells every thread of the agent to end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Ends the threads that wait on this.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits until `deadline`; true when told to stop before it.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        let mut stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if *stopped || left.is_zero() {
                return *stopped;
            }
            let waited = self.0.1.wait_timeout(stopped, left);
            (stopped, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What reaches the pipeline.
#[derive(Clone, Debug)]
pub enum Event {
    /// A source's snapshot.
    Batch(Batch),
    /// There are events to tell.
    Happened,
    /// Time to end.
    Stop,
}

/// What a collector's thread needs besides the collector.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Time from one reading's start to the next one's.
    pub every: Duration,
    /// Where the reports go.
    pub board: Board,
    /// Where the batches go. When it is full the pipeline is stuck; the thread then waits, and its
    /// next readings come late rather than pile up.
    pub batches: SyncSender<Event>,
    /// When to end.
    pub stop: Stop,
}

impl Schedule {
    /// Starts the collector's thread.
    pub fn start(self, mut collector: Box<dyn Collector>) -> std::io::Result<JoinHandle<()>> {
        let name = format!("collect:{}", collector.name());
        std::thread::Builder::new().name(name).spawn(move || self.run(collector.as_mut()))
    }

    fn run(&self, collector: &mut dyn Collector) {
        let mut next = Instant::now();
        while !self.stop.wait_until(next) {
            if self.batches.send(Event::Batch(self.read(collector))).is_err() {
                return;
            }
            next = after(next, self.every, Instant::now());
        }
    }

    fn read(&self, collector: &mut dyn Collector) -> Batch {
        let name = collector.name();
        let _turn = self.board.turn(name, self.every);
        let began = Instant::now();
        let mut batch = Batch::new(name, SystemTime::now());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            collector.collect(&mut batch);
            collector.report()
        }));
        let report = outcome.unwrap_or_else(|_| {
            batch.samples.clear();
            let reason =
                "a bug in this source made it panic; its samples of this tick are left out";
            Report::of(SourceState::Failed, reason, "report it with the log lines before it")
        });
        self.board.put(name, &report);
        self.board.measured(name, began.elapsed(), thread_cpu_seconds());
        batch
    }
}

/// The next start on the grid of `every`; starts that have passed meanwhile are skipped, not made
/// up for.
pub(crate) fn after(last: Instant, every: Duration, now: Instant) -> Instant {
    let next = last + every;
    if next > now {
        return next;
    }
    let missed = now.duration_since(last).as_nanos() / every.as_nanos().max(1);
    last + every * u32::try_from(missed + 1).unwrap_or(u32::MAX)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    ThreadClock::OWN.spent().unwrap_or_default()
}

/// The same in seconds.
pub(crate) fn thread_cpu_seconds() -> f64 {
    thread_cpu().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    struct Flaky(u32);

    impl Collector for Flaky {
        fn name(&self) -> &'static str {
            "flaky"
        }

        fn collect(&mut self, _: &mut Batch) {
            self.0 += 1;
            assert!(self.0 != 1, "first reading");
        }

        fn report(&self) -> Report {
            Report::ready()
        }
    }

    #[test]
    fn a_panic_costs_one_tick_and_is_reported() {
        let (batches, received) = sync_channel(0);
        let schedule = Schedule {
            every: Duration::from_millis(1),
            board: Board::default(),
            batches,
            stop: Stop::default(),
        };
        let (board, stop) = (schedule.board.clone(), schedule.stop.clone());
        let thread = schedule.start(Box::new(Flaky(0))).unwrap();
        let next = || match received.recv().unwrap() {
            Event::Batch(batch) => batch,
            other => panic!("not a batch: {other:?}"),
        };
        assert!(next().samples.is_empty());
        assert_eq!(next().source, "flaky");
        drop(received);
        stop.stop();
        thread.join().unwrap();
        assert_eq!(board.all()["flaky"].report.state, SourceState::Ready);
    }

    #[test]
    fn a_late_reading_keeps_the_grid() {
        let start = Instant::now();
        let every = Duration::from_secs(10);
        let second = Duration::from_secs(1);
        assert_eq!(after(start, every, start + second), start + every);
        assert_eq!(after(start, every, start + second * 25), start + every * 3);
    }
}
