//! A source of data as a row of a table: what it is called, its section of the configuration, and
//! how the component is made that starts and diagnoses it.

use super::Collector;
use super::cpu_limit::CpuLimit;
use super::self_stats::SelfStats;
use crate::snapshot::Control;
use gpuwho_model::catalog::MetricDef;
use gpuwho_model::catalog::selection::Selection;
use gpuwho_model::config::{ConfigError, Resolving, Section};
use gpuwho_model::finding::Finding;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::poller::Poller;
use gpuwho_model::status::StatusRegistry;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::{self, Evidence};
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::engines::Engines;
use gpuwho_owners::inventory::Inventory;
use gpuwho_owners::nodes;
use gpuwho_owners::tenant_files::TenantFiles;
use gpuwho_pipeline::event::aggregator::EventAggregator;
use parking_lot::{Mutex, MutexGuard};
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
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
    fn diagnose(&self, _with: &Diagnosing<'_>) -> Vec<Finding> {
        Vec::new()
    }
}

/// What a source is diagnosed with, where no agent runs.
#[derive(Clone, Copy, Debug)]
pub struct Diagnosing<'a> {
    /// Time between readings.
    pub interval: Duration,
    /// Where the host's files are.
    pub paths: &'a Paths,
    /// Which device nodes are watched.
    pub nodes: &'a nodes::Settings,
    /// Settings of attribution.
    pub attribution: &'a attribute::Settings,
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
    pub nodes: nodes::Settings,
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
    /// What sources of one kind share, by its type.
    pub of_kind: OfKind,
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
        self.0.lock().clone()
    }

    /// Whether a metric is exported now.
    pub fn wants(&self, metric: &'static MetricDef) -> bool {
        self.0.lock().wants(metric)
    }

    /// Whether any of these is exported now: what is read for nothing else is not read otherwise.
    pub fn wants_any(&self, metrics: &[&'static MetricDef]) -> bool {
        let now = self.0.lock();
        metrics.iter().any(|metric| now.wants(metric))
    }

    /// Exports something else from now on.
    pub fn set(&self, selection: Selection) {
        *self.0.lock() = selection;
    }
}

/// Handles on the device readers.
pub type Readers = Shared<Control>;
/// What is done at every tick.
pub type Upkeep = Shared<Box<dyn FnMut() + Send>>;
/// Collectors that appear while the agent runs: pushed by a source, started at the next tick.
pub type Late = Shared<Box<dyn Collector>>;
/// Told of each change of a process that holds a device.
pub type ProcessListeners = Shared<Box<dyn Fn(ProcessChange) + Send>>;

impl<T> Shared<T> {
    /// Adds one.
    pub fn push(&self, item: T) {
        self.0.lock().push(item);
    }

    /// Takes all out.
    pub fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The list, locked.
    pub fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock()
    }
}

impl<T: Clone> Shared<T> {
    /// A copy of the list.
    pub fn all(&self) -> Vec<T> {
        self.0.lock().clone()
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
        f.debug_tuple("Shared").field(&self.0.lock().len()).finish()
    }
}

/// What sources of one kind share and others need not know: one value of each type.
#[derive(Clone, Default)]
pub struct OfKind(Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>);

impl OfKind {
    /// The value of a type; made when first asked for.
    pub fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut all = self.0.lock();
        let one = all.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        // The entry of a type is of that type.
        Arc::clone(one).downcast().unwrap_or_default()
    }
}

impl fmt::Debug for OfKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfKind").finish_non_exhaustive()
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
