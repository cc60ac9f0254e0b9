//! The state that all parts of the agent share, and its refresh between ticks.

use super::RunError;
use super::configuration::Configuration;
use super::reload::Pending;
use crate::log_limit;
use crate::settings::Settings;
use crate::who::Source;
use gpuwho_collect::Collector;
use gpuwho_collect::cpu_limit::CpuLimit;
use gpuwho_collect::snapshot::{Control, ProcessSnapshot};
use gpuwho_collect::source::{Context, Readers, SharedSelection, SourceDef};
use gpuwho_devices::DEVICES;
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::status::StatusRegistry;
use gpuwho_owners::attribute;
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::attribute::providers::{self, MetadataProviders};
use gpuwho_owners::attribute::slurm::{DeviceNumber, JobAllocations};
use gpuwho_owners::communicators::Communicators;
use gpuwho_owners::host::{self, CgroupNamespace};
use gpuwho_owners::inventory::Inventory;
use gpuwho_owners::inventory::register::DeviceStore;
use gpuwho_owners::nodes::{Device, Nodes};
use gpuwho_owners::partitions::PartitionNodes;
use gpuwho_owners::tenant_files::{self, TenantFiles};
use gpuwho_pipeline::cost::receipts::Receipts;
use gpuwho_pipeline::cost::{self, Carbon, Costs};
use gpuwho_pipeline::event::aggregator::{self, EventAggregator};
use gpuwho_pipeline::event::recent::RecentEvents;
use gpuwho_pipeline::health::HealthMonitor;
use gpuwho_pipeline::series::SeriesRegistry;
use parking_lot::{Mutex, MutexGuard};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the readers close all devices when one of them is unbound from its driver.
const UNBINDING: Duration = Duration::from_secs(30);

/// The state that all parts share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) context: Context,
    /// The host's name.
    pub(super) host: String,
    series_limit: usize,
    pub(super) providers: MetadataProviders,
    job_allocations: JobAllocations,
    /// The last events, for `gpuwho events`.
    pub(super) recent: RecentEvents,
    health: Mutex<HealthMonitor>,
    /// Whether it is said that a driver has a known hole.
    pub(super) advisories: bool,
    /// Prices, energy and carbon.
    cost: Arc<cost::Settings>,
    carbon: Arc<Carbon>,
    /// The host's machine type, by which prices are found.
    pub(super) machine: Option<String>,
    /// What jobs, pods and units had of the devices.
    pub(super) receipts: Receipts,
    /// Where the points go, for `gpuwho doctor`.
    pub(super) receivers: Mutex<Vec<Source>>,
    /// A changed configuration on its way to the pipeline.
    pub(super) pending: Pending,
}

impl Core {
    /// Makes the shared state without any source. `wake` is called when there are events to send;
    /// it is `None` where no agent runs.
    pub(super) fn new(
        settings: &Settings,
        register: DeviceStore,
        wake: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Self {
        if let CgroupNamespace::Foreign(error) = host::enter_cgroup_namespace(&settings.paths) {
            let remedy = "run as root with CAP_SYS_ADMIN; in a container, with hostPID as well";
            tracing::warn!(%error, remedy, "not in the host's cgroup namespace");
        }
        let files = TenantFiles::new(&settings.paths, attribute::tenant);
        let ownership = Ownership::reading_through(&files, settings.attribution.clone());
        log_limit::set_ownership(&ownership);
        let (statuses, readers, holding) = <(StatusRegistry, Readers, Readers)>::default();
        let providers = MetadataProviders::start_for(settings.names.clone(), &ownership, &statuses);
        let (inventory, is_agent) = (Arc::new(Inventory::beside(register)), wake.is_some());
        let aggregator = Arc::new(EventAggregator::new(aggregator::Sources {
            inventory: Arc::clone(&inventory),
            ownership: ownership.clone(),
            listed: listed(readers.clone(), Arc::clone(&inventory)),
            paths: settings.paths.clone(),
            wake: wake.unwrap_or_else(|| Box::new(|| ())),
            make_way: make_way(holding.clone()),
        }));
        let context = Context {
            paths: settings.paths.clone(),
            interval: settings.interval,
            is_agent,
            cpu_limit: CpuLimit::new(settings.cpu_limit),
            selection: SharedSelection::new(settings.metrics.clone()),
            inventory,
            communicators: Arc::new(Communicators::with_ownership(&ownership)),
            ownership,
            board: statuses,
            gauges: Arc::default(),
            files,
            aggregator,
            poller: <_>::default(),
            nodes: settings.nodes.clone(),
            readers,
            holding,
            processes: <_>::default(),
            upkeep: <_>::default(),
            late: <_>::default(),
            of_kind: <_>::default(),
            engines: <_>::default(),
        };
        let host = host::name(&settings.paths, settings.names.kubernetes.node_name.as_deref());
        let receipts = if is_agent { settings.receipts.clone() } else { <_>::default() };
        Self {
            receipts: Receipts::open(&receipts, host.clone(), settings.interval),
            context,
            host,
            series_limit: settings.series_limit,
            providers,
            job_allocations: <_>::default(),
            recent: RecentEvents::default(),
            health: Mutex::new(health_monitor(settings, is_agent)),
            advisories: settings.advisories,
            cost: Arc::clone(&settings.cost),
            carbon: Arc::new(Carbon::new(settings.cost.carbon())),
            machine: None,
            receivers: Mutex::default(),
            pending: Pending::default(),
        }
    }

    /// Finds the host's machine type, which may ask the cloud, and reads the carbon intensity.
    pub(super) fn prepare_costs(&mut self, settings: &Settings) {
        let node = settings.names.kubernetes.node_name.as_deref();
        let host = settings.resource.attributes(&settings.paths, node);
        self.machine = host.get(&attr::HOST_TYPE).map(ToString::to_string);
        self.refresh_carbon();
    }

    /// Makes the stage that counts costs.
    pub(super) fn costs(&self) -> Costs {
        Costs::new(Arc::clone(&self.cost), Arc::clone(&self.carbon), self.machine.clone())
    }

    /// Reads the carbon intensity where a file has it.
    pub(super) fn refresh_carbon(&self) {
        if let Some(report) = self.carbon.refresh(SystemTime::now()) {
            self.context.board.put(cost::STATUS, &report);
        }
    }

    /// Starts the metadata providers, which name pods and containers.
    pub(super) fn start_providers(&mut self) -> Result<(), RunError> {
        let name = || providers::THREAD.into();
        self.providers.start().map_err(|source| RunError::Thread { name: name(), source })
    }

    /// Starts the enabled sources that `wanted` selects, in start order, and returns their
    /// collectors.
    pub(super) fn start_sources(
        &mut self,
        configuration: &Configuration,
        wanted: impl Fn(&SourceDef) -> bool,
    ) -> Result<Vec<Box<dyn Collector>>, RunError> {
        let mut collectors = Vec::new();
        for (def, source) in configuration.to_start().filter(|(def, _)| wanted(def)) {
            let started = source.start(&mut self.context);
            let name = || def.name.into();
            collectors.extend(started.map_err(|source| RunError::Thread { name: name(), source })?);
        }
        Ok(collectors)
    }

    /// The health of the devices. It is locked for memory only, never while something is read.
    pub(super) fn health(&self) -> MutexGuard<'_, HealthMonitor> {
        self.health.lock()
    }

    /// Makes the registry that turns samples into series.
    pub(super) fn registry(&self) -> SeriesRegistry {
        let Context { inventory, ownership, communicators, engines, .. } = &self.context;
        SeriesRegistry::new(Arc::clone(inventory), ownership.clone())
            .with_limit(self.series_limit)
            .with_communicators(Arc::clone(communicators))
            .with_engines(Arc::clone(engines))
    }

    /// Refreshes what has no tick of its own: reports of the file helpers, upkeep of sources
    /// without a collector, Slurm allocations, and the list of reader children.
    pub(super) fn refresh(&self) {
        let Context { board: statuses, ownership, paths, gauges: self_stats, .. } = &self.context;
        statuses.put(tenant_files::NAME, &self.context.files.status().report());
        self.context.upkeep.lock().iter_mut().for_each(|work| work());
        log_limit::sum_up(ownership);
        let vendors = self.context.nodes.vendors;
        let known = OnceCell::new();
        self.job_allocations.refresh(ownership, |numbers| {
            let read = || {
                (Nodes::read(&self.context.nodes, paths), PartitionNodes::of_all(vendors, paths))
            };
            let (nodes, partitions) = known.get_or_init(read);
            let name = |DeviceNumber { major, minor }| nodes.name(Device { major, minor });
            partitions.devices_of(&numbers.iter().copied().map(name).collect::<Vec<_>>(), vendors)
        });
        let readers = self.context.readers.lock().iter().filter_map(Control::child).collect();
        *self_stats.readers.lock() = readers;
    }
}

/// The clock of device health: seconds that no setting of the wall clock changes.
pub(super) fn health_clock() -> f64 {
    host::boot_time_ns() as f64 / 1e9
}

/// The judge of device health; only the agent has a past and keeps one.
fn health_monitor(settings: &Settings, is_agent: bool) -> HealthMonitor {
    let vendors = DEVICES.iter().map(|vendor| vendor.name).collect();
    let monitor = HealthMonitor::new(settings.health.clone(), settings.interval, vendors);
    let now = (health_clock(), SystemTime::now());
    if is_agent { monitor.with_past(&settings.paths, now) } else { monitor }
}

/// Lists the processes that the drivers last reported on a device.
fn listed(readers: Readers, inventory: Arc<Inventory>) -> aggregator::Listed {
    Box::new(move |gpu| {
        let readers = readers.all();
        let snapshots = readers.iter().map(Control::snapshot);
        let devices = snapshots.flat_map(|snapshot| snapshot.devices);
        let on = devices.filter(|device| device.gpu == gpu);
        let place = |on: &ProcessSnapshot| Some(inventory.instance(on.instance?)?.gpu_instance);
        let on = on.flat_map(|device| device.processes);
        on.filter_map(|on| Some((on.process?, place(&on)))).collect()
    })
}

fn make_way(readers: Readers) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || readers.all().iter().for_each(|reader| reader.make_way(UNBINDING)))
}
