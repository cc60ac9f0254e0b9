//! SIGHUP: applies what a changed configuration may change while the agent runs.
//!
//! A thread `reload` reads and checks the configuration; the pipeline then takes it over between two
//! ticks. What needs a restart, or cannot be used, refuses the whole change with its reason, and what
//! runs stays in force. Series, counters and their starts stay; a sink whose section has changed is
//! opened anew, and the former one gets [`DRAIN`] to send what waits in its queue.

mod requests;

pub(super) use requests::{Reloader, Requests};

use super::configuration::Configuration;
use super::core::Core;
use super::sinks::{self, OpenSink, SINKS};
use crate::settings::Settings;
use gpuwho_collect::schedule::Event;
use gpuwho_export as export;
use gpuwho_export::def::Receiver;
use gpuwho_model::config::{ConfigError, Tables};
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_pipeline::cost::Costs;
use gpuwho_pipeline::series::SeriesRegistry;
use parking_lot::{Condvar, Mutex, MutexGuard};
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// Reads the configuration again, from the same file, environment and flags as at the start.
pub type Load = Box<dyn Fn() -> Result<Configuration, ConfigError> + Send>;

/// How long a sink may write what waits before its successor opens the same file or address: the pipeline
/// stands still meanwhile.
const CLOSE: Duration = Duration::from_millis(200);
/// How long a closed sink may send what waits.
const DRAIN: Duration = Duration::from_secs(30);

/// How long the pipeline may take: it is between two ticks within an interval, unless it hangs.
const APPLIED_WITHIN: Duration = Duration::from_mins(2);

/// Largest number of closed sinks that still send; beyond it a reload is refused.
const MAX_DRAINING: usize = 16;

/// The sections that may change, and their keys where not all of them may.
static AT_RUN_TIME: &[(&str, &[&str])] = &[
    ("agent", &["series_limit", "cpu_limit"]),
    ("metrics", &[]),
    ("cost", &["prices", "currency", "energy_price", "pue", "teams", "budgets"]),
    ("otlp", &[]),
    ("sinks", &[]),
    ("prometheus", &[]),
    ("webhook", &[]),
];

/// Why a changed configuration is not applied.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0} can only change with a restart")]
    NeedsRestart(String),
    #[error("{0}")]
    Sink(String),
    #[error("{MAX_DRAINING} closed sinks still send what waited in their queues")]
    Draining,
    #[error("the pipeline did not take it within {APPLIED_WITHIN:?}")]
    Late,
}

/// A change on its way to the pipeline.
struct Change {
    settings: Settings,
    sinks: Receivers,
    /// Changed sections.
    sections: Vec<String>,
    answer: SyncSender<Result<(), ReloadError>>,
}

/// The sinks as configured.
pub(super) type Receivers = Vec<(&'static str, Box<dyn Receiver>)>;

/// Where the thread leaves a change for the pipeline.
#[derive(Clone, Default)]
pub(super) struct Pending(Arc<Mutex<Option<Change>>>);

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pending")
    }
}

impl Pending {
    fn put(&self, change: Option<Change>) {
        *self.0.lock() = change;
    }

    fn take(&self) -> Option<Change> {
        self.0.lock().take()
    }
}

/// The keys that need a restart, of those that changed.
fn fixed(changed: &[(String, String)]) -> Vec<String> {
    let may_change = |(section, key): &&(String, String)| {
        let known = AT_RUN_TIME.iter().find(|(name, _)| name == section);
        known.is_some_and(|(_, keys)| keys.is_empty() || keys.contains(&key.as_str()))
    };
    let fixed = changed.iter().filter(|key| !may_change(key));
    fixed.map(|(section, key)| format!("`{section}.{key}`")).collect()
}

/// Tells systemd that the configuration is being read.
fn begin() {
    let time = NotifyState::monotonic_usec_now();
    let states = [Some(NotifyState::Reloading), time.ok()];
    // A service manager that does not listen is no reason not to reload.
    let _ = sd_notify::notify(&states.into_iter().flatten().collect::<Vec<_>>());
}

/// Applies the configuration of now; returns the changed keys and the tables.
fn one(
    core: &Core,
    load: &Load,
    running: &Tables,
    pipeline: &SyncSender<Event>,
) -> Result<(Vec<String>, Tables), ReloadError> {
    let configuration = load()?;
    let changed = configuration.tables.changes(running);
    let fixed = fixed(&changed);
    if !fixed.is_empty() {
        return Err(ReloadError::NeedsRestart(fixed.join(", ")));
    }
    let keys = changed.iter().map(|(section, key)| format!("{section}.{key}")).collect();
    if changed.is_empty() {
        return Ok((keys, configuration.tables));
    }
    configuration.check_start().map_err(|error| ReloadError::Sink(error.to_string()))?;
    let Configuration { settings, sinks, tables, .. } = configuration;
    let sections = changed.into_iter().map(|(section, _)| section).collect();
    let (answer, answered) = mpsc::sync_channel(1);
    core.pending.put(Some(Change { settings, sinks, sections, answer }));
    // An error means that the pipeline has ended, and the agent with it.
    let _ = pipeline.send(Event::Happened);
    let Ok(applied) = answered.recv_timeout(APPLIED_WITHIN) else {
        core.pending.put(None);
        return Err(ReloadError::Late);
    };
    applied.map(|()| (keys, tables))
}

/// What the pipeline needs to open sinks again.
pub(super) struct Reopening<'a> {
    /// The sinks as they run.
    receivers: Receivers,
    settings: Settings,
    heartbeat: &'a Arc<Heartbeat>,
    /// The outcomes of closed sinks, by name.
    closed: Arc<Mutex<BTreeMap<&'static str, export::Report>>>,
    draining: Arc<Draining>,
}

/// How many closed sinks still send, and a word when one of them is done.
#[derive(Debug, Default)]
struct Draining {
    count: Mutex<usize>,
    done: Condvar,
}

impl Draining {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock()
    }
}

/// A row whose sinks were opened anew.
struct Switched {
    row: &'static str,
    receiver: Box<dyn Receiver>,
    /// Its former sinks, which are still open.
    old: Vec<OpenSink>,
}

/// Whether a sink is a row's; further ones of a row have its name before theirs.
fn is_of(row: &str, (name, _): &OpenSink) -> bool {
    name.strip_prefix(row).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

impl<'a> Reopening<'a> {
    /// From what the agent has started with.
    pub(super) fn new(
        receivers: Receivers,
        settings: Settings,
        heartbeat: &'a Arc<Heartbeat>,
    ) -> Self {
        let (closed, draining) = <(Arc<_>, Arc<_>)>::default();
        Self { receivers, settings, heartbeat, closed, draining }
    }

    /// Applies a change that waits.
    pub(super) fn apply(
        &mut self,
        core: &Core,
        (registry, costs): (&mut SeriesRegistry, &mut Costs),
        sinks: &mut Vec<OpenSink>,
    ) {
        let Some(change) = core.pending.take() else { return };
        let Change { settings, sinks: receivers, sections, answer } = change;
        let views = sinks::views(&receivers);
        let applied = self.reopen(&settings, receivers, &sections, sinks);
        if applied.is_ok() {
            registry.set_limit(settings.series_limit);
            registry.set_selection(settings.metrics.clone());
            core.context.cpu_limit.set(settings.cpu_limit);
            core.context.selection.set(settings.metrics.clone());
            *core.receivers.lock() = views;
            costs.set_settings(Arc::clone(&settings.cost));
            self.settings = settings;
        }
        // The thread may have given up waiting.
        let _ = answer.send(applied);
    }

    /// Closes the sinks of the changed sections and opens them as configured now; all of them, or where
    /// one cannot be opened none.
    fn reopen(
        &mut self,
        settings: &Settings,
        receivers: Receivers,
        sections: &[String],
        sinks: &mut Vec<OpenSink>,
    ) -> Result<(), ReloadError> {
        if *self.draining.count() >= MAX_DRAINING {
            return Err(ReloadError::Draining);
        }
        let mut switched: Vec<Switched> = Vec::new();
        for (row, receiver) in receivers {
            let def = SINKS.iter().find(|def| def.name == row).and_then(|def| def.section);
            if !def.is_some_and(|section| sections.iter().any(|name| name == section.name)) {
                continue;
            }
            let mut old: Vec<OpenSink> = sinks.extract_if(.., |sink| is_of(row, sink)).collect();
            if receiver.is_exclusive() {
                // Its address or file must be free.
                old.drain(..).for_each(|sink| self.close(sink));
            }
            let opened = sinks::open_one((row, receiver.as_ref()), settings, self.heartbeat);
            switched.push(Switched { row, receiver, old });
            match opened {
                Ok(opened) => sinks.extend(opened),
                Err(error) => {
                    for switched in switched {
                        self.undo(switched, sinks);
                    }
                    return Err(ReloadError::Sink(error.to_string()));
                }
            }
        }
        for Switched { row, receiver, old } in switched {
            for sink in old {
                self.drain(sink);
            }
            if let Some(place) = self.receivers.iter_mut().find(|(name, _)| *name == row) {
                place.1 = receiver;
            }
        }
        Ok(())
    }

    /// Puts a row's sinks back as they were.
    fn undo(&self, switched: Switched, sinks: &mut Vec<OpenSink>) {
        let Switched { row, receiver, old } = switched;
        let new: Vec<OpenSink> = sinks.extract_if(.., |sink| is_of(row, sink)).collect();
        for sink in new {
            self.close(sink);
        }
        sinks.extend(old);
        if receiver.is_exclusive() {
            self.open_former(row, sinks);
        }
    }

    /// Opens a row's sink as it was.
    fn open_former(&self, row: &'static str, sinks: &mut Vec<OpenSink>) {
        let former = self.receivers.iter().find(|(name, _)| *name == row);
        let Some((_, receiver)) = former else { return };
        match sinks::open_one((row, receiver.as_ref()), &self.settings, self.heartbeat) {
            Ok(opened) => sinks.extend(opened),
            Err(error) => {
                tracing::error!(sink = row, %error, "the former sink does not open again");
            }
        }
    }

    /// Lets a sink send what waits, on a thread of its own.
    fn drain(&self, (name, sink): OpenSink) {
        let before = sink.report();
        self.add(name, before.closed());
        let closed = Arc::clone(&self.closed);
        let draining = Arc::clone(&self.draining);
        *draining.count() += 1;
        let work = move || {
            let mut sink = sink;
            sink.flush(Instant::now() + DRAIN);
            let rest = sink.report().since(before);
            let mut all = closed.lock();
            let sum = all.entry(name).or_default();
            *sum = sum.and(rest);
            drop(all);
            *draining.count() -= 1;
            draining.done.notify_all();
        };
        if let Err(error) = thread::Builder::new().name("export:closing".into()).spawn(work) {
            *self.draining.count() -= 1;
            tracing::error!(sink = name, %error, "no thread to send what waited in a closed sink");
        }
    }

    /// Waits for closed sinks that still send.
    pub(super) fn flush(&self, deadline: Instant) {
        let mut count = self.draining.count();
        while *count > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(sinks = *count, "closed sinks did not send all in time");
                return;
            }
            self.draining.done.wait_for(&mut count, left);
        }
    }

    fn close(&self, (name, mut sink): OpenSink) {
        sink.flush(Instant::now() + CLOSE);
        self.add(name, sink.report().closed());
    }

    fn add(&self, name: &'static str, report: export::Report) {
        let mut all = self.closed.lock();
        let sum = all.entry(name).or_default();
        *sum = sum.and(report);
    }

    /// The outcomes of all sinks, with those of closed ones.
    pub(super) fn reports(&self, sinks: &[OpenSink]) -> BTreeMap<&'static str, export::Report> {
        let mut all = self.closed.lock().clone();
        for (name, sink) in sinks {
            let sum = all.entry(*name).or_default();
            *sum = sum.and(sink.report());
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(keys: &[&str]) -> Vec<(String, String)> {
        let pair = |key: &&str| key.split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned()));
        keys.iter().filter_map(pair).collect()
    }

    #[test]
    fn what_needs_a_restart_is_named() {
        let free = [
            "agent.series_limit",
            "agent.cpu_limit",
            "metrics.level",
            "otlp.headers",
            "cost.prices",
        ];
        assert_eq!(fixed(&changed(&free)), Vec::<String>::new());
        let some = ["otlp.endpoint", "agent.interval", "paths.state", "cost.carbon_file"];
        let named = ["`agent.interval`", "`paths.state`", "`cost.carbon_file`"];
        assert_eq!(fixed(&changed(&some)), named);
    }
}
