//! Wires the agent: starts the rows of the tables of sources and sinks, and runs the loop that
//! turns samples into shares and points and hands the points to the sinks.

mod answer;
pub mod configuration;
mod core;
mod diagnosis;
mod doctor;
mod found;
mod idle;
mod notify;
mod once;
mod own;
pub(crate) mod probes;
pub mod reload;
pub mod sinks;
pub mod sources;
mod tick_loop;
mod upkeep;
pub mod worst_case;

pub use doctor::{diagnose, of_report};
pub use once::{collect, read_once};

use self::core::{Core, health_clock};
use crate::control::{self, Lock, LockError};
use configuration::Configuration;
use gpuwho_collect::schedule::{Event, Scheduler, Stop};
use gpuwho_export::def::OpenError;
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::paths::{SharedFolder, own_folders};
use gpuwho_owners::host;
use gpuwho_owners::inventory::register::DeviceStore;
use idle::AgentSignals;
use reload::{Load, Reloader, Reopening, Requests};
use sd_notify::NotifyState;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Capacity of the channel to the pipeline: a few ticks of all sources. When it is full, a source
/// blocks.
const MAX_QUEUED_BATCHES: usize = 16;

/// How long the agent waits at its end for the processes that read tenants' files.
const LAST_FILES: Duration = Duration::from_secs(1);
/// Time for the sinks to send what is left when the agent stops.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The control socket cannot be opened.
    #[error(transparent)]
    Control(#[from] control::ControlError),
    /// Another agent runs on this host.
    #[error(transparent)]
    Second(#[from] LockError),
    /// A sink cannot be opened.
    #[error(transparent)]
    Sink(OpenError),
    /// A thread cannot be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// Other users could replace the agent's sockets or state.
    #[error(transparent)]
    Folder(#[from] SharedFolder),
    /// The signal handlers cannot be installed.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// No source has this name.
    #[error("no source `{name}`; there are: {known}")]
    UnknownSource {
        /// The name that the user gave.
        name: String,
        /// The names of all sources.
        known: String,
    },
}

/// Runs the agent until it receives SIGINT or SIGTERM, or its terminal is closed. At SIGHUP it reads
/// the configuration again with `load`; SIGUSR1 and SIGUSR2 change nothing.
pub fn run(configuration: Configuration, load: Load) -> Result<(), RunError> {
    let settings = &configuration.settings;
    let heartbeat = Arc::new(Heartbeat::new(settings.interval));
    own_folders(&settings.paths)?;
    let mut sinks = sinks::open(&configuration, &heartbeat)?;
    if sinks.is_empty() {
        let remedy = "give --otlp URL or set [otlp] endpoint to send it";
        tracing::warn!(remedy, "no receiver: only `gpuwho` on this host shows what is read");
    } else {
        let open: Vec<&'static str> = sinks.iter().map(|(name, _)| *name).collect();
        found::log_receivers(&configuration, &open);
    }
    host::raise_open_files();
    // Held until the agent ends.
    let _lock = lock(&settings.paths.state)?;
    let listeners = control::listen(&settings.paths.run, settings.control)?;
    let (batches, received) = sync_channel(MAX_QUEUED_BATCHES);
    let stop = Stop::default();
    let reloads = Requests::default();
    let signals = AgentSignals::take(stop.clone(), batches.clone(), reloads.clone())?;

    let events = batches.clone();
    let wake = Box::new(move || {
        // A full channel wakes the pipeline anyway.
        let _ = events.try_send(Event::Happened);
    });
    let mut core = Core::new(settings, DeviceStore::open(&settings.paths.state), Some(wake));
    core.start_providers()?;
    core.prepare_costs(settings);
    let collectors = core.start_sources(&configuration, |_| true)?;
    core.refresh();
    let core = Arc::new(core);
    let pipeline = batches.clone();
    let scheduler =
        Scheduler::new(settings.interval, core.context.board.clone(), batches, stop.clone())
            .with_cpu_limit(core.context.cpu_limit.clone());
    let started = scheduler.start_all(collectors);
    started.map_err(|source| RunError::Thread { name: "collect".into(), source })?;
    idle::serve(listeners, settings.control, &core);
    signals.wait(&core.context.poller)?;
    let theirs = Arc::clone(&core);
    notify::start_watchdog(Arc::clone(&heartbeat), stop.clone())?;
    spawn(upkeep::THREAD, move || upkeep::run(&theirs, &stop))?;

    let Configuration { settings, sinks: receivers, tables, .. } = configuration;
    reloads.serve(Reloader { core: Arc::clone(&core), load, tables, pipeline });
    let run = settings.paths.run.clone();
    *core.receivers.lock() = sinks::views(&receivers);
    let mut reopening = Reopening::new(receivers, settings, &heartbeat);
    tick_loop::run(&core, (&scheduler, &received), (&mut sinks, &mut reopening), &heartbeat);
    core.health().finish(&core.context.inventory, (health_clock(), SystemTime::now()));
    notify::notify(NotifyState::Stopping);
    core.receipts.save(Instant::now(), true);
    // Threads that never end hold the store: it is not dropped.
    core.context.inventory.register().flush();
    let deadline = Instant::now() + LAST_FLUSH;
    sinks::flush(&mut sinks, deadline);
    reopening.flush(deadline);
    for reader in core.context.readers.all() {
        reader.release(None);
    }
    core.context.files.close(LAST_FILES);
    for socket in [control::SOCKET, control::ADMIN_SOCKET] {
        // The path promises a running agent. It may be gone already.
        let _ = std::fs::remove_file(run.join(socket));
    }
    Ok(())
}

/// Takes the lock that allows one agent a host. The agent runs without it where the state directory
/// cannot be written.
fn lock(state: &Path) -> Result<Option<Lock>, RunError> {
    match Lock::take(state) {
        Ok(lock) => Ok(Some(lock)),
        Err(held @ LockError::Held { .. }) => Err(held.into()),
        Err(error) => {
            let remedy = "make paths.state writable: a second agent would send everything twice";
            tracing::warn!(%error, remedy, "no lock against a second agent on this host");
            Ok(None)
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(|source| RunError::Thread { name: name.into(), source })
}
