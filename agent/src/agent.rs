//! What wires the agent: the tables of sources and sinks, samples into shares and points, points to
//! sinks.

mod answer;
pub mod configuration;
mod core;
mod doctor;
mod once;
mod pump;
pub mod sinks;
pub mod sources;
mod upkeep;

pub use doctor::{diagnose, of_device, of_source};
pub use once::{collect, read_once};

use self::core::Core;
use crate::collect::schedule::{Event, Scheduler, Stop};
use crate::control::{self, Access, Lock, LockError};
use crate::export::def::OpenError;
use crate::host;
use crate::inventory::register::DeviceStore;
use configuration::Configuration;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Batches on their way to the pipeline: a few ticks of all sources; a source waits when it is
/// full.
const WAITING_BATCHES: usize = 16;

/// How long the sinks have at the end to send what is left.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The control socket.
    #[error(transparent)]
    Control(#[from] control::ControlError),
    /// Another agent runs.
    #[error(transparent)]
    Second(#[from] LockError),
    /// A sink.
    #[error(transparent)]
    Sink(OpenError),
    /// A thread.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// Signals.
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    /// A name that is no source.
    #[error("no source `{name}`; there are: {known}")]
    UnknownSource {
        /// As asked.
        name: String,
        /// The names there are.
        known: String,
    },
}

/// Runs the agent until it is told to stop.
pub fn run(configuration: &Configuration) -> Result<(), RunError> {
    let settings = &configuration.settings;
    let mut sinks = sinks::open(configuration)?;
    if sinks.is_empty() {
        let remedy = "give --otlp URL or set [otlp] endpoint to send it";
        tracing::warn!(remedy, "no receiver: only `gpuwho` on this host shows what is read");
    }
    host::raise_open_files();
    // Held until the agent ends.
    let _lock = lock(&settings.paths.state)?;
    let listeners = control::listen(&settings.paths.run, settings.control)?;
    let (batches, received) = sync_channel(WAITING_BATCHES);
    let stop = Stop::default();
    wait_for_signals(stop.clone(), batches.clone())?;

    let events = batches.clone();
    let wake = Box::new(move || {
        // A full queue has something in it that wakes the pipeline as well.
        let _ = events.try_send(Event::Happened);
    });
    let mut core = Core::new(settings, DeviceStore::open(&settings.paths.state), Some(wake));
    core.start_providers()?;
    let collectors = core.start_sources(configuration, |_| true)?;
    core.refresh();
    let core = Arc::new(core);
    let scheduler =
        Scheduler::new(settings.interval, core.context.board.clone(), batches, stop.clone());
    for collector in collectors {
        let name = collector.name();
        let started = scheduler.start(collector);
        started.map_err(|source| RunError::Thread { name: name.into(), source })?;
    }
    answer(listeners, &core, settings.control.show_others)?;
    let theirs = Arc::clone(&core);
    spawn(upkeep::THREAD, move || upkeep::run(&theirs, &stop))?;

    pump::tick_loop(&core, &scheduler, &received, &mut sinks);
    sinks::flush(&mut sinks, Instant::now() + LAST_FLUSH);
    for reader in core.context.readers.all() {
        reader.release(None);
    }
    for socket in [control::SOCKET, control::ADMIN_SOCKET] {
        // It names an agent that answers; nobody minds if it is gone already.
        let _ = std::fs::remove_file(settings.paths.run.join(socket));
    }
    Ok(())
}

/// One agent a host. A state directory that cannot be written is no reason to stop.
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

/// Answers both sockets, each on a thread of its own.
fn answer(
    [public, admin]: [UnixListener; 2],
    core: &Arc<Core>,
    show_others: bool,
) -> Result<(), RunError> {
    let all = [
        ("control", public, Access::Public { show_others }),
        ("control:admin", admin, Access::Admin),
    ];
    for (name, listener, access) in all {
        let core = Arc::clone(core);
        spawn(name, move || control::serve(&listener, access, &*core))?;
    }
    Ok(())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(|source| RunError::Thread { name: name.into(), source })
}

fn wait_for_signals(stop: Stop, batches: SyncSender<Event>) -> Result<(), RunError> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(RunError::Signals)?;
    spawn("signals", move || {
        if let Some(signal) = signals.forever().next() {
            tracing::info!(signal, "stopping");
            stop.stop();
            // An error means that the pipeline has ended before.
            let _ = batches.send(Event::Stop);
        }
    })
}
