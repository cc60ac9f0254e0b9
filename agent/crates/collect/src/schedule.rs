//! Runs each collector that may wait on a named thread of its own at its own cadence, so that one that
//! hangs costs the others nothing. Those whose reading never waits share one thread, and leave it once
//! they may wait. A panic costs one tick of one source.

use super::Collector;
use super::cpu_limit::CpuLimit;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::sample::{Batch, SourcePart};
use gpuwho_model::status::{Report, StatusRegistry};
use gpuwho_sys::clock::thread_cpu;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Tells every thread of the agent to end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Ends the threads that wait on this.
    pub fn stop(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }

    /// Waits until `deadline`; true when told to stop before it.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        let mut stopped = self.0.0.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if *stopped || left.is_zero() {
                return *stopped;
            }
            self.0.1.wait_for(&mut stopped, left);
        }
    }
}

/// What reaches the pipeline.
#[derive(Clone, Debug)]
pub enum Event {
    /// A snapshot of a part of a source.
    Batch(Batch),
    /// A part of a source will not be read again.
    Ended(SourcePart),
    /// There are events to tell.
    Happened,
    /// Time to end.
    Stop,
}

/// The thread of the collectors that share one.
const SHARED: &str = "collect:quick";

/// A collector on its thread.
struct Scheduled {
    collector: Box<dyn Collector>,
    part: SourcePart,
    every: Duration,
    next: Instant,
    /// CPU time of its readings so far.
    spent: Duration,
}

/// Starts collectors.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// Time from one reading's start to the next one's, unless the collector has its own.
    every: Duration,
    statuses: StatusRegistry,
    /// Where the batches go. When it is full the pipeline is stuck; a thread then waits, and its
    /// next readings come late rather than pile up.
    batches: SyncSender<Event>,
    stop: Stop,
    limit: CpuLimit,
    /// What is read now.
    running: Arc<Mutex<HashMap<SourcePart, Running>>>,
}

/// A collector that runs.
#[derive(Clone, Copy, Debug)]
struct Running {
    every: Duration,
    is_awaited: bool,
}

impl Scheduler {
    /// Without any collector.
    pub fn new(
        every: Duration,
        statuses: StatusRegistry,
        batches: SyncSender<Event>,
        stop: Stop,
    ) -> Self {
        Self { every, statuses, batches, stop, limit: CpuLimit::default(), running: Arc::default() }
    }

    /// Reads less often where more CPU is used than this allows.
    #[must_use]
    pub fn with_cpu_limit(self, limit: CpuLimit) -> Self {
        Self { limit, ..self }
    }

    /// Starts the collector's thread.
    pub fn start(&self, collector: Box<dyn Collector>) -> std::io::Result<JoinHandle<()>> {
        self.start_on(&thread_name(collector.name()), vec![collector])
    }

    /// Starts collectors: each on a thread of its own, but those whose reading never waits on one.
    pub fn start_all(&self, collectors: Vec<Box<dyn Collector>>) -> std::io::Result<()> {
        let (shared, own): (Vec<_>, Vec<_>) =
            collectors.into_iter().partition(|collector| collector.never_waits());
        for collector in own {
            self.start(collector)?;
        }
        if !shared.is_empty() {
            self.start_on(SHARED, shared)?;
        }
        Ok(())
    }

    fn start_on(
        &self,
        name: &str,
        collectors: Vec<Box<dyn Collector>>,
    ) -> std::io::Result<JoinHandle<()>> {
        let now = Instant::now();
        let scheduled = |collector: Box<dyn Collector>| {
            let part = SourcePart { source: collector.name(), part: collector.part() };
            let every = collector.every().unwrap_or(self.every);
            Scheduled { collector, part, every, next: now, spent: Duration::ZERO }
        };
        let all: Vec<Scheduled> = collectors.into_iter().map(scheduled).collect();
        let running = |one: &Scheduled| {
            (one.part, Running { every: one.every, is_awaited: one.collector.is_awaited() })
        };
        self.running().extend(all.iter().map(running));
        self.spawn(name, all)
    }

    fn spawn(&self, name: &str, mut all: Vec<Scheduled>) -> std::io::Result<JoinHandle<()>> {
        let parts: Vec<SourcePart> = all.iter().map(|one| one.part).collect();
        let scheduler = self.clone();
        let is_shared = name == SHARED;
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            scheduler.run(&mut all, is_shared);
            for one in &all {
                scheduler.end(one.part);
            }
        });
        started.inspect_err(|_| {
            self.running().retain(|part, _| !parts.contains(part));
        })
    }

    /// Gives a collector of the shared thread, which may wait from now on, a thread of its own.
    fn move_out(&self, mut one: Scheduled) {
        let part = one.part;
        one.next = Instant::now();
        if let Err(error) = self.spawn(&thread_name(part.source), vec![one]) {
            let reason = format!("no thread for it: {error}");
            let remedy = "raise the limit of threads (TasksMax, pids.max), then restart the agent";
            self.statuses.put(part.source, &Report::of(SourceState::Failed, &reason, remedy));
            self.end(part);
        }
    }

    fn end(&self, part: SourcePart) {
        self.running().remove(&part);
        // The pipeline may have ended before.
        let _ = self.batches.send(Event::Ended(part));
    }

    /// Those whose batch each tick waits for.
    pub fn in_every_tick(&self) -> HashSet<SourcePart> {
        let running = self.running();
        let is_in = |running: &Running| running.every == self.every && running.is_awaited;
        running.iter().filter(|(_, running)| is_in(running)).map(|(part, _)| *part).collect()
    }

    fn running(&self) -> MutexGuard<'_, HashMap<SourcePart, Running>> {
        self.running.lock()
    }

    /// Reads until the agent stops or every collector has ended; leaves those that have not.
    fn run(&self, all: &mut Vec<Scheduled>, is_shared: bool) {
        while let Some(next) = all.iter().map(|one| one.next).min() {
            if self.stop.wait_until(next) {
                return;
            }
            let mut read = Vec::new();
            for one in all.iter_mut().filter(|one| one.next <= next) {
                let batch = self.read(one);
                let every = self.limit.slowed(one.every, one.collector.importance());
                if let Some(running) = self.running().get_mut(&one.part) {
                    *running = Running { every, is_awaited: one.collector.is_awaited() };
                }
                read.push((batch, every));
            }
            // Together, so that the pipeline wakes once.
            let due = all.iter_mut().filter(|one| one.next <= next);
            for (one, (batch, every)) in due.zip(read) {
                if self.batches.send(Event::Batch(batch)).is_err() {
                    return;
                }
                one.next = after(one.next, every, Instant::now());
            }
            let ended = all.extract_if(.., |one| one.collector.has_ended());
            ended.for_each(|one| self.end(one.part));
            if is_shared {
                let waiting = all.extract_if(.., |one| !one.collector.never_waits());
                waiting.for_each(|one| self.move_out(one));
            }
        }
    }

    fn read(&self, scheduled: &mut Scheduled) -> Batch {
        let Scheduled { collector, part, every, spent, .. } = scheduled;
        let name = part.source;
        let _turn = self.statuses.turn(name, *every);
        let (began, cpu) = (Instant::now(), thread_cpu());
        let mut batch = Batch::of(*part, SystemTime::now());
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
        self.statuses.put(name, &report);
        *spent += thread_cpu().saturating_sub(cpu);
        self.statuses.measured(name, began.elapsed(), spent.as_secs_f64());
        batch
    }
}

fn thread_name(source: &str) -> String {
    format!("collect:{source}")
}

/// The next start on the grid of `every`; starts that have passed meanwhile are skipped, not made
/// up for.
pub fn after(last: Instant, every: Duration, now: Instant) -> Instant {
    let next = last + every;
    if next > now {
        return next;
    }
    let missed = now.duration_since(last).as_nanos() / every.as_nanos().max(1);
    last + every * u32::try_from(missed + 1).unwrap_or(u32::MAX)
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

    /// Not awaited from its second reading on.
    struct Slow(u32);

    impl Collector for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn collect(&mut self, _: &mut Batch) {
            self.0 += 1;
        }

        fn report(&self) -> Report {
            Report::ready()
        }

        fn is_awaited(&self) -> bool {
            self.0 < 2
        }
    }

    #[test]
    fn a_tick_does_not_wait_for_a_collector_that_says_so() {
        let (batches, received) = sync_channel(0);
        let stop = Stop::default();
        let every = Duration::from_millis(1);
        let scheduler = Scheduler::new(every, StatusRegistry::default(), batches, stop.clone());
        let thread = scheduler.start(Box::new(Slow(0))).unwrap();
        let part = SourcePart { source: "slow", part: 0 };
        // Its thread waits with the first batch until that is received.
        let before = scheduler.in_every_tick().contains(&part);
        received.recv().unwrap();
        received.recv().unwrap();
        let after = scheduler.in_every_tick().contains(&part);
        stop.stop();
        drop(received);
        thread.join().unwrap();
        assert_eq!((before, after), (true, false));
    }

    #[test]
    fn a_panic_costs_one_tick_and_is_reported() {
        let (batches, received) = sync_channel(0);
        let (statuses, stop) = (StatusRegistry::default(), Stop::default());
        let scheduler =
            Scheduler::new(Duration::from_millis(1), statuses.clone(), batches, stop.clone());
        let thread = scheduler.start(Box::new(Flaky(0))).unwrap();
        let next = || match received.recv().unwrap() {
            Event::Batch(batch) => batch,
            other => panic!("not a batch: {other:?}"),
        };
        assert!(next().samples.is_empty());
        assert_eq!(next().of, SourcePart { source: "flaky", part: 0 });
        drop(received);
        stop.stop();
        thread.join().unwrap();
        assert_eq!(scheduler.in_every_tick(), HashSet::new());
        assert_eq!(statuses.all()["flaky"].report.state, SourceState::Ready);
    }

    /// A replica that is there for two readings.
    struct Replica(u32);

    impl Collector for Replica {
        fn name(&self) -> &'static str {
            "engine"
        }

        fn part(&self) -> u32 {
            7
        }

        fn every(&self) -> Option<Duration> {
            Some(Duration::from_millis(1))
        }

        fn collect(&mut self, _: &mut Batch) {
            self.0 += 1;
        }

        fn report(&self) -> Report {
            Report::ready()
        }

        fn has_ended(&self) -> bool {
            self.0 == 2
        }
    }

    #[test]
    fn a_source_that_comes_late_and_goes_has_its_own_interval_and_says_that_it_ended() {
        let (batches, received) = sync_channel(8);
        let (statuses, stop) = (StatusRegistry::default(), Stop::default());
        let scheduler = Scheduler::new(Duration::from_hours(1), statuses, batches, stop);
        let thread = scheduler.start(Box::new(Replica(0))).unwrap();
        assert_eq!(scheduler.in_every_tick(), HashSet::new(), "no tick waits for it");
        thread.join().unwrap();
        drop(scheduler);
        let replica = SourcePart { source: "engine", part: 7 };
        let reported: Vec<_> = received
            .iter()
            .map(|event| match event {
                Event::Batch(batch) => (batch.of, "batch"),
                Event::Ended(part) => (part, "ended"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(reported, [(replica, "batch"), (replica, "batch"), (replica, "ended")]);
    }

    #[test]
    fn a_late_reading_keeps_the_grid() {
        let start = Instant::now();
        let every = Duration::from_secs(10);
        let second = Duration::from_secs(1);
        assert_eq!(after(start, every, start + second), start + every);
        assert_eq!(after(start, every, start + second * 25), start + every * 3);
    }

    /// Sends the name of the thread that reads it. Ends after its first reading, or after the second
    /// if it may wait from the first on.
    struct Named {
        name: &'static str,
        quick: bool,
        found: Option<bool>,
        has_ended: bool,
        threads: std::sync::mpsc::Sender<(&'static str, String)>,
    }

    impl Collector for Named {
        fn name(&self) -> &'static str {
            self.name
        }

        fn never_waits(&self) -> bool {
            self.quick && self.found != Some(true)
        }

        fn collect(&mut self, _: &mut Batch) {
            self.has_ended = self.found != Some(false);
            self.found = self.found.map(|_| true);
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            self.threads.send((self.name, thread)).unwrap();
        }

        fn report(&self) -> Report {
            Report::ready()
        }

        fn has_ended(&self) -> bool {
            self.has_ended
        }
    }

    /// Starts the collectors, given by name, whether they never wait, and whether they may later, and
    /// returns who read them.
    fn threads_of(given: &[(&'static str, bool, Option<bool>)], readings: usize) -> Vec<String> {
        let (batches, received) = sync_channel(9);
        let (threads, read_by) = std::sync::mpsc::channel();
        let scheduler = Scheduler::new(
            Duration::from_millis(1),
            StatusRegistry::default(),
            batches,
            Stop::default(),
        );
        let of = |&(name, quick, found)| {
            let threads = threads.clone();
            let collector: Box<dyn Collector> =
                Box::new(Named { name, quick, found, has_ended: false, threads });
            collector
        };
        scheduler.start_all(given.iter().map(of).collect()).unwrap();
        let read = read_by.iter().take(readings);
        let mut found: Vec<String> =
            read.map(|(name, thread)| format!("{name} {thread}")).collect();
        found.sort();
        let ended = received.iter().filter(|event| matches!(event, Event::Ended(_)));
        assert_eq!(ended.take(given.len()).count(), given.len());
        assert_eq!(scheduler.in_every_tick(), HashSet::new());
        found
    }

    #[test]
    fn collectors_that_never_wait_share_a_thread_and_end_one_by_one() {
        let found = threads_of(&[("a", true, None), ("b", false, None), ("c", true, None)], 3);
        assert_eq!(found, ["a collect:quick", "b collect:b", "c collect:quick"]);
    }

    #[test]
    fn a_collector_that_may_wait_from_now_on_leaves_the_shared_thread() {
        let found = threads_of(&[("a", true, None), ("d", true, Some(false))], 3);
        assert_eq!(found, ["a collect:quick", "d collect:d", "d collect:quick"]);
    }
}
