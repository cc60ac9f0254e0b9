//! The one place that knows all sides: sources into samples, samples into shares and points, points
//! to sinks.

mod answer;
mod collectives;
mod once;
mod pump;
mod sinks;

pub use once::{collect, read_once};

use crate::attribute::Evidence;
use crate::attribute::identities::Identities;
use crate::attribute::ownership::Ownership;
use crate::attribute::slurm::{DeviceNumber, JobGrants};
use crate::attribute::suppliers::{self, Suppliers};
use crate::catalog::agent::Stage;
use crate::collect::Collector;
use crate::collect::device::DEVICES;
use crate::collect::device::events::Ears;
use crate::collect::device::partitions::PartitionNodes;
use crate::collect::device::reader::{self, DeviceReader};
use crate::collect::device::snapshot::{Control, ProcessSnapshot};
use crate::collect::events::Counts;
use crate::collect::kernel::device_users;
use crate::collect::kernel::nccl::Waker;
use crate::collect::kernel::nodes::{Device, Nodes};
use crate::collect::kmsg;
use crate::collect::own::{self, Gauges, Own};
use crate::collect::ras;
use crate::collect::schedule::{Event, Schedule, Stop};
use crate::collect::status::Board;
use crate::communicators::Communicators;
use crate::config::Settings;
use crate::control::{self, Access, Lock, LockError};
use crate::event::desk::{self, Desk};
use crate::export::otlp;
use crate::host::{self, CgroupNamespace};
use crate::inventory::Inventory;
use crate::inventory::register::Register;
use crate::log_limit;
use crate::paths::Paths;
use crate::tenant_files::{self, TenantFiles};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Batches on their way to the pipeline: a few ticks of all sources; a source waits when it is
/// full.
const WAITING_BATCHES: usize = 16;

/// How long the sinks have at the end to send what is left.
const LAST_FLUSH: Duration = Duration::from_secs(3);

/// How long the readers stay away from devices of which one is being taken from its driver.
const UNBINDING: Duration = Duration::from_secs(30);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The control socket.
    #[error(transparent)]
    Control(#[from] control::ControlError),
    /// Another agent runs.
    #[error(transparent)]
    Second(#[from] LockError),
    /// A sink's file.
    #[error("cannot open the sink's file {path}: {source}")]
    SinkFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The OTLP sink.
    #[error(transparent)]
    Otlp(#[from] otlp::StartError),
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

/// What the parts share.
#[derive(Debug)]
struct Core {
    inventory: Arc<Inventory>,
    ownership: Ownership,
    communicators: Arc<Communicators>,
    answers: ras::Answers,
    board: Board,
    gauges: Arc<Gauges>,
    readers: Vec<Control>,
    /// Those that hold devices open: readers of files hold none.
    holding: Vec<Control>,
    ears: Vec<Ears>,
    interval: Duration,
    series_limit: usize,
    kernel: Option<device_users::Handle>,
    suppliers: Suppliers,
    job_grants: JobGrants,
    files: TenantFiles,
    /// Which device nodes are watched, and where.
    watched: (device_users::Settings, Paths),
}

impl Core {
    fn new(settings: &Settings, register: Register) -> Self {
        if let CgroupNamespace::Foreign(error) = host::enter_cgroup_namespace(&settings.paths) {
            let remedy = "run as root with CAP_SYS_ADMIN; in a container, with hostPID as well";
            tracing::warn!(%error, remedy, "not in the host's cgroup namespace");
        }
        let files = TenantFiles::new(&settings.paths);
        let ownership = Ownership::with_settings(&settings.paths, settings.attribution.clone());
        ownership.read_through(&files);
        log_limit::know_owners(&ownership);
        let board = Board::default();
        let suppliers = Suppliers::hire(settings.names.clone(), &ownership, &board);
        Self {
            inventory: Arc::new(Inventory::beside(register)),
            communicators: Arc::new(Communicators::told_apart_by(&ownership)),
            ownership,
            answers: ras::Answers::default(),
            board,
            gauges: Arc::default(),
            readers: Vec::new(),
            holding: Vec::new(),
            ears: Vec::new(),
            interval: settings.interval,
            series_limit: settings.series_limit,
            kernel: None,
            suppliers,
            job_grants: JobGrants::default(),
            files,
            watched: (settings.kernel.clone(), settings.paths.clone()),
        }
    }

    /// Starts those who name pods and containers.
    fn start_suppliers(&mut self) -> Result<(), RunError> {
        let name = || suppliers::THREAD.into();
        self.suppliers.start().map_err(|source| RunError::Thread { name: name(), source })
    }

    /// Makes the device readers.
    fn readers(&mut self, settings: &Settings) -> Vec<Box<dyn Collector>> {
        let mut collectors: Vec<Box<dyn Collector>> = Vec::new();
        for (vendor, reading) in &settings.devices {
            let gauges = Arc::clone(&self.gauges);
            let identities = Identities::new(&self.ownership);
            let identify = Box::new(move |pids: &[u32], seen_at| {
                gauges.stages.time(Stage::Identify, || identities.of(pids, seen_at))
            });
            let ownership = self.ownership.clone();
            let nodes = Box::new(move |process| {
                ownership.owner(process).map_or_else(Vec::new, |owner| owner.nodes.clone())
            });
            let inventory = Arc::clone(&self.inventory);
            let mut reader = DeviceReader::new(vendor, reading.clone(), inventory, identify)
                .knowing_nodes(nodes);
            if vendor.library.is_none() {
                // No driver's list names them all.
                reader = reader.knowing_holders(reader::holders(vendor, self.ownership.clone()));
            } else {
                self.holding.push(reader.control());
            }
            self.readers.push(reader.control());
            self.ears.push(reader.ears.clone());
            collectors.push(Box::new(reader));
        }
        collectors
    }

    /// Makes the agent's own collector.
    fn own(&self) -> Box<dyn Collector> {
        let (board, ownership) = (self.board.clone(), self.ownership.clone());
        Box::new(Own::new(board, ownership, Arc::clone(&self.gauges)))
    }

    /// Where what happens becomes events; `batches` wakes the pipeline to tell them.
    fn desk(&self, batches: SyncSender<Event>) -> Arc<Desk> {
        let readers = self.readers.clone();
        let inventory = Arc::clone(&self.inventory);
        let listed = move |gpu| {
            let snapshots = readers.iter().map(Control::snapshot);
            let devices = snapshots.flat_map(|snapshot| snapshot.devices);
            let on = devices.filter(|device| device.gpu == gpu);
            let place = |on: &ProcessSnapshot| Some(inventory.instance(on.instance?)?.gpu_instance);
            let on = on.flat_map(|device| device.processes);
            on.filter_map(|on| Some((on.process?, place(&on)))).collect()
        };
        let readers = self.holding.clone();
        let make_way = move || readers.iter().for_each(|reader| reader.make_way(UNBINDING));
        let wake = move || {
            // A full queue has something in it that wakes the pipeline as well.
            let _ = batches.try_send(Event::Happened);
        };
        Arc::new(Desk::new(desk::Sources {
            inventory: Arc::clone(&self.inventory),
            ownership: self.ownership.clone(),
            listed: Box::new(listed),
            paths: self.watched.1.clone(),
            wake: Box::new(wake),
            make_way: Box::new(make_way),
        }))
    }

    fn watch_kernel(&mut self, settings: &Settings, nccl: Option<Waker>) -> Result<(), RunError> {
        let (ownership, board) = (self.ownership.clone(), self.board.clone());
        let emit = move |evidence| {
            let _turn = board.turn(device_users::NAME, Duration::ZERO);
            let (stirred, has_ended) = match &evidence {
                Evidence::Opened(opened) => (Some(opened.process), false),
                Evidence::Forked { child, .. } => (Some(child.process), false),
                Evidence::Execed { process, .. } => (Some(*process), false),
                Evidence::Exited { .. } => (None, true),
                _ => (None, false),
            };
            ownership.observe(evidence);
            match (&nccl, stirred) {
                (Some(waker), Some(process)) => waker.stir(process),
                (Some(waker), None) if has_ended => waker.wake(),
                _ => {}
            }
        };
        let handle = device_users::start(settings.kernel.clone(), &settings.paths, emit);
        let name = || device_users::NAME.into();
        let handle = handle.map_err(|source| RunError::Thread { name: name(), source })?;
        if handle.hook().is_none() {
            self.ownership.ends_are_unannounced();
        }
        self.kernel = Some(handle);
        Ok(())
    }

    /// Puts the report of what has no tick of its own on the board.
    fn refresh(&self) {
        self.board.put(tenant_files::NAME, &self.files.standing().report());
        if let Some(kernel) = &self.kernel {
            let report = kernel.report();
            let lost = report.dropped.iter().map(|(_, lost)| lost).sum();
            if self.gauges.evidence_lost.swap(lost, Ordering::Relaxed) != lost {
                // An end that was not told could leave a number to another process.
                self.ownership.lost_evidence();
            }
            self.board.put(device_users::NAME, &report);
        }
        log_limit::sum_up(&self.ownership);
        let known = OnceCell::new();
        self.job_grants.refresh(&self.ownership, |numbers| {
            let (settings, paths) = &self.watched;
            let read = || (Nodes::read(settings, paths), PartitionNodes::of_all(paths));
            let (nodes, partitions) = known.get_or_init(read);
            let name = |DeviceNumber { major, minor }| nodes.name(Device { major, minor });
            partitions.devices_of(&numbers.iter().copied().map(name).collect::<Vec<_>>())
        });
        let readers = self.readers.iter().filter_map(Control::child).collect();
        *self.gauges.readers.lock().unwrap_or_else(PoisonError::into_inner) = readers;
    }
}

/// Runs the agent until it is told to stop.
pub fn run(settings: &Settings) -> Result<(), RunError> {
    let mut sinks = sinks::open(settings)?;
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

    let mut core = Core::new(settings, Register::open(&settings.paths.state));
    core.start_suppliers()?;
    let mut collectors = core.readers(settings);
    let desk = core.desk(batches.clone());
    let nccl = core.calls(settings, &desk)?;
    core.watch_kernel(settings, nccl.as_ref().map(|(_, waker, _)| waker.clone()))?;
    core.refresh();
    if let Some((calls, _, loaded)) = nccl {
        collectors.push(calls);
        collectors.extend(core.status(settings, loaded, &desk)?);
    }
    collectors.extend(core.inspector(settings));
    collectors.push(core.own());
    core.ears.iter().for_each(|ears| ears.open(Arc::clone(&desk), core.board.clone()));
    collectors.push(Box::new(Counts::new(Arc::clone(&desk))));
    let names: HashSet<_> = collectors.iter().map(|collector| collector.name()).collect();
    let core = Arc::new(core);

    for collector in collectors {
        let name = collector.name();
        let schedule = Schedule {
            every: settings.interval,
            board: core.board.clone(),
            batches: batches.clone(),
            stop: stop.clone(),
        };
        schedule
            .start(collector)
            .map_err(|source| RunError::Thread { name: name.into(), source })?;
    }
    kmsg::start(&settings.paths, Arc::clone(&desk), core.board.clone())
        .map_err(|source| RunError::Thread { name: kmsg::NAME.into(), source })?;
    answer(listeners, &core, settings.control.show_others)?;

    pump::pump((&core, &desk), &names, &received, &mut sinks);
    sinks::flush(&mut sinks, Instant::now() + LAST_FLUSH);
    for reader in &core.readers {
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

/// The names that `gpuwho collect` knows.
fn source_names() -> Vec<&'static str> {
    DEVICES.iter().map(|vendor| vendor.name).chain([own::NAME]).collect()
}
