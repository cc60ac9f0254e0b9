//! What the parts of the agent share, and the upkeep of what has no tick of its own.

use super::configuration::Configuration;
use super::{RunError, sources};
use crate::attribute::ownership::Ownership;
use crate::attribute::providers::{self, MetadataProviders};
use crate::attribute::slurm::{DeviceNumber, JobGrants};
use crate::collect::Collector;
use crate::collect::device::partitions::PartitionNodes;
use crate::collect::device::snapshot::{Control, ProcessSnapshot};
use crate::collect::kernel::nodes::{Device, Nodes};
use crate::collect::source::{Context, Readers, SourceDef};
use crate::collect::status::StatusRegistry;
use crate::communicators::Communicators;
use crate::config::Settings;
use crate::event::aggregator::{self, EventAggregator};
use crate::event::recent::RecentEvents;
use crate::host::{self, CgroupNamespace};
use crate::inventory::Inventory;
use crate::inventory::register::DeviceStore;
use crate::log_limit;
use crate::series::SeriesRegistry;
use crate::tenant_files::{self, TenantFiles};
use std::cell::OnceCell;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long the readers stay away from devices of which one is being taken from its driver.
const UNBINDING: Duration = Duration::from_secs(30);

/// What the parts share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) context: Context,
    series_limit: usize,
    pub(super) providers: MetadataProviders,
    job_allocations: JobGrants,
    /// The last events, for `gpuwho events`.
    pub(super) recent: RecentEvents,
}

impl Core {
    /// Without any source. `wake` is called when there are events to send; `None` where no agent
    /// runs.
    pub(super) fn new(
        settings: &Settings,
        register: DeviceStore,
        wake: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Self {
        if let CgroupNamespace::Foreign(error) = host::enter_cgroup_namespace(&settings.paths) {
            let remedy = "run as root with CAP_SYS_ADMIN; in a container, with hostPID as well";
            tracing::warn!(%error, remedy, "not in the host's cgroup namespace");
        }
        let files = TenantFiles::new(&settings.paths);
        let ownership = Ownership::reading_through(&files, settings.attribution.clone());
        log_limit::know_owners(&ownership);
        let board = StatusRegistry::default();
        let suppliers = MetadataProviders::start_for(settings.names.clone(), &ownership, &board);
        let inventory = Arc::new(Inventory::beside(register));
        let (readers, holding) = (Readers::default(), Readers::default());
        let is_agent = wake.is_some();
        let desk = Arc::new(EventAggregator::new(aggregator::Sources {
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
            inventory,
            communicators: Arc::new(Communicators::with_ownership(&ownership)),
            ownership,
            board,
            gauges: Arc::default(),
            files,
            aggregator: desk,
            nodes: settings.nodes.clone(),
            readers,
            holding,
            processes: <_>::default(),
            upkeep: <_>::default(),
            late: <_>::default(),
            answers: <_>::default(),
            nccl_processes: <_>::default(),
        };
        let (series_limit, job_grants) = (settings.series_limit, JobGrants::default());
        let recent = RecentEvents::default();
        Self { context, series_limit, providers: suppliers, job_allocations: job_grants, recent }
    }

    /// Starts those who name pods and containers.
    pub(super) fn start_providers(&mut self) -> Result<(), RunError> {
        let name = || providers::THREAD.into();
        self.providers.start().map_err(|source| RunError::Thread { name: name(), source })
    }

    /// Starts the wanted ones of the sources that are switched on, in their order; gives the
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

    /// Turns samples into series, by what the parts share.
    pub(super) fn registry(&self) -> SeriesRegistry {
        let Context { inventory, ownership, communicators, .. } = &self.context;
        SeriesRegistry::new(Arc::clone(inventory), ownership.clone())
            .with_limit(self.series_limit)
            .with_switches(sources::switches())
            .with_communicators(Arc::clone(communicators))
    }

    /// Puts the report of what has no tick of its own on the board.
    pub(super) fn refresh(&self) {
        let Context { board, ownership, paths, gauges, .. } = &self.context;
        board.put(tenant_files::NAME, &self.context.files.status().report());
        self.context.upkeep.lock().iter_mut().for_each(|work| work());
        log_limit::sum_up(ownership);
        let known = OnceCell::new();
        self.job_allocations.refresh(ownership, |numbers| {
            let read = || (Nodes::read(&self.context.nodes, paths), PartitionNodes::of_all(paths));
            let (nodes, partitions) = known.get_or_init(read);
            let name = |DeviceNumber { major, minor }| nodes.name(Device { major, minor });
            partitions.devices_of(&numbers.iter().copied().map(name).collect::<Vec<_>>())
        });
        let readers = self.context.readers.lock().iter().filter_map(Control::child).collect();
        *gauges.readers.lock().unwrap_or_else(PoisonError::into_inner) = readers;
    }
}

/// The processes that the drivers last listed on a device.
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
