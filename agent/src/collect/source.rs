//! A source of data as a row of a table: what it is called, its section of the configuration, and
//! how the component is made that starts and diagnoses it.

use super::Collector;
use super::cpu_limit::CpuLimit;
use super::device::snapshot::Control;
use super::kernel::device_users;
use super::nccl::probe::phase::LibraryState;
use super::own::SelfStats;
use super::status::StatusRegistry;
use crate::attribute::Evidence;
use crate::attribute::ownership::Ownership;
use crate::catalog::MetricDef;
use crate::communicators::Communicators;
use crate::config::{ConfigError, Resolving, Section, Settings};
use crate::diagnosis::Finding;
use crate::engines::Engines;
use crate::event::aggregator::EventAggregator;
use crate::ids::ProcKey;
use crate::inventory::Inventory;
use crate::paths::Paths;
use crate::poller::Poller;
use crate::series::Selection;
use crate::tenant_files::TenantFiles;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A row: one source. The tables are `DEVICES`, `PROBES` and `SOURCES`.
#[derive(Clone, Copy, Debug)]
pub struct SourceDef {
    /// Its name: in `gpuwho collect`, in `gpuwho.source.name`, and of its thread.
    pub name: &'static str,
    /// What it reads, in a few words, for the help.
    pub about: &'static str,
    /// Its section of the configuration; several sources may share one.
    pub section: Option<Section>,
    /// The sources that must have started before this one.
    pub after: &'static [&'static str],
    /// The keys that make it tell less, for an operator whose series are too many.
    pub switches: &'static [&'static str],
    /// What of it is read where no agent runs.
    pub alone: Alone,
    /// Makes the component from its section. The name is the row's own.
    pub configure: Configure,
}

/// Makes a component from the configuration.
pub type Configure = fn(&'static str, &Resolving<'_>) -> Result<Box<dyn Source>, ConfigError>;

/// What of a source is read where no agent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It shows the devices: `gpuwho` reads it, and `gpuwho collect`.
    Devices,
    /// `gpuwho collect` reads it.
    Always,
    /// `gpuwho collect` reads it where it is named: it needs time, or attaches to the kernel.
    Named,
}

/// A source as configured.
pub trait Source: fmt::Debug {
    /// Whether it is switched on.
    fn is_enabled(&self) -> bool {
        true
    }

    /// Starts what it needs besides the collectors' own threads, and gives the collectors.
    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>>;

    /// What `gpuwho doctor` says of it, where its standing after a reading does not say it.
    fn diagnose(&self, _settings: &Settings) -> Vec<Finding> {
        Vec::new()
    }
}

/// What sources share: whatever they start with, and tell to each other.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where the host's files are.
    pub paths: Paths,
    /// The agent's interval; a collector may have another one.
    pub interval: Duration,
    /// Whether this is the agent, which also waits for what happens between two readings.
    pub is_agent: bool,
    /// How much CPU the agent may use.
    pub cpu_limit: CpuLimit,
    /// What is exported: a source need not read what nobody receives.
    pub selection: SharedSelection,
    /// Devices by identity.
    pub inventory: Arc<Inventory>,
    /// Whose processes are.
    pub ownership: Ownership,
    /// Communicators by identity.
    pub communicators: Arc<Communicators>,
    /// How every source is doing.
    pub board: StatusRegistry,
    /// Figures for the agent's own collector.
    pub gauges: Arc<SelfStats>,
    /// Reads files of tenants.
    pub files: TenantFiles,
    /// Turns observations into events.
    pub aggregator: Arc<EventAggregator>,
    /// Waits for what happens between two readings.
    pub poller: Poller,
    /// Which device nodes are watched.
    pub nodes: device_users::Settings,
    /// The device readers.
    pub readers: Readers,
    /// Those that hold devices open: a process with a vendor's library; readers of files hold none.
    pub holding: Readers,
    /// Who is told of processes that come and go.
    pub processes: ProcessListeners,
    /// What is done at every tick for sources without a collector.
    pub upkeep: Upkeep,
    /// Collectors that come after the start.
    pub late: Late,
    /// The processes that have loaded NCCL.
    pub nccl_processes: NcclProcesses,
    /// Versions and phases of their libraries.
    pub nccl_states: NcclStates,
    /// Whether a process may use NCCL.
    pub nccl_in_use: NcclInUse,
    /// Inference engines by number.
    pub engines: Arc<Engines>,
}

/// A list that its holders share.
pub struct Shared<T>(Arc<Mutex<Vec<T>>>);

/// What is exported now; a reload may change it.
#[derive(Clone, Debug)]
pub struct SharedSelection(Arc<Mutex<Selection>>);

impl SharedSelection {
    /// With what is exported at the start.
    pub fn new(selection: Selection) -> Self {
        Self(Arc::new(Mutex::new(selection)))
    }

    /// What is exported now.
    pub fn now(&self) -> Selection {
        self.lock().clone()
    }

    /// Whether a metric is exported now.
    pub fn wants(&self, metric: &'static MetricDef) -> bool {
        self.lock().wants(metric)
    }

    /// Exports something else from now on.
    pub fn set(&self, selection: Selection) {
        *self.lock() = selection;
    }

    fn lock(&self) -> MutexGuard<'_, Selection> {
        // A selection is whole whatever panicked beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handles on the device readers.
pub type Readers = Shared<Control>;
/// What is done at every tick.
pub type Upkeep = Shared<Box<dyn FnMut() + Send>>;
/// Collectors that appear while the agent runs: pushed by a source, started at the next tick.
pub type Late = Shared<Box<dyn Collector>>;
/// Lists the processes that have loaded NCCL.
pub type NcclProcesses = Shared<Arc<dyn Fn() -> Vec<ProcKey> + Send + Sync>>;
/// Tells versions and phases of the libraries of those processes.
pub type NcclStates = Shared<Arc<dyn Fn() -> Vec<LibraryState> + Send + Sync>>;
/// Tells whether a process uses NCCL, or might; empty where nothing looks for it.
pub type NcclInUse = Shared<Arc<dyn Fn() -> bool + Send + Sync>>;
/// Told of each change of a process that holds a device.
pub type ProcessListeners = Shared<Box<dyn Fn(ProcessChange) + Send>>;

impl<T> Shared<T> {
    /// Adds one.
    pub fn push(&self, item: T) {
        self.lock().push(item);
    }

    /// Takes all out.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    /// The list, locked.
    pub fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // A list is whole whatever panicked beside it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Shared<T> {
    /// A copy of the list.
    pub fn all(&self) -> Vec<T> {
        self.lock().clone()
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.lock().len()).finish()
    }
}

/// What happened to a process that holds a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// It opened a device, began, or became another program.
    Active(ProcKey),
    /// One ended.
    Ended,
}

impl ProcessChange {
    /// What the evidence says of a process, if anything.
    pub fn of(evidence: &Evidence) -> Option<Self> {
        match evidence {
            Evidence::Opened(opened) => Some(Self::Active(opened.process)),
            Evidence::Forked { child, .. } => Some(Self::Active(child.process)),
            Evidence::Execed { process, .. } => Some(Self::Active(*process)),
            Evidence::Exited { .. } => Some(Self::Ended),
            _ => None,
        }
    }
}
