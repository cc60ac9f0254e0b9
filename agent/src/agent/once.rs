//! Reading without an agent: `gpuwho` where none runs, and `gpuwho collect`.

use super::configuration::Configuration;
use super::core::Core;
use super::{RunError, sinks, sources};
use crate::control::Answer as _;
use crate::who::HostReport;
use gpuwho_collect::Collector;
use gpuwho_collect::source::Alone;
use gpuwho_export::Held;
use gpuwho_model::heartbeat::Heartbeat;
use gpuwho_model::point::EnrichedBatch;
use gpuwho_model::sample::{Batch, SourcePart};
use gpuwho_owners::attribute::Evidence;
use gpuwho_owners::inventory::register::DeviceStore;
use gpuwho_owners::nodes::Nodes;
use gpuwho_owners::proc_scan::Tracker;
use gpuwho_pipeline::accounting::Accounting;
use gpuwho_pipeline::event::record::{Record, records};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Time between two readings of the devices. The driver computes a process's utilisation over the
/// time since the last call, so only the second reading has a value.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// Time for the container runtime and the kubelet to name what was found; they take a few
/// milliseconds.
const NAMES: Duration = Duration::from_millis(500);

/// Time for the sinks to send what was read.
const FLUSH: Duration = Duration::from_secs(10);

/// Reads the devices and their processes once, without an agent.
pub fn read_once(configuration: &Configuration) -> HostReport {
    let settings = &configuration.settings;
    let mut core = Core::new(settings, DeviceStore::read_only(&settings.paths.state), None);
    if let Err(error) = core.start_providers() {
        tracing::warn!(%error, "pods and containers stay without names");
    }
    let nodes = Nodes::read(&settings.nodes, &settings.paths);
    observe(&core, Tracker::default().scan(&settings.paths, &nodes));
    let started = core.start_sources(configuration, |def| def.alone == Alone::Devices);
    let mut collectors = started.unwrap_or_else(|error| {
        tracing::warn!(%error, "the devices are not read");
        Vec::new()
    });
    for collector in &mut collectors {
        read(&core, collector.as_mut());
        std::thread::sleep(SECOND_LOOK);
        read(&core, collector.as_mut());
    }
    core.providers.wait(NAMES);
    core.who()
}

/// Reads the named sources, or, without names, those that need neither time nor BPF probes; once,
/// or at every interval until the process is killed.
pub fn collect(
    configuration: &Configuration,
    names: &[String],
    once: bool,
) -> Result<(), RunError> {
    let (settings, known) = (&configuration.settings, sources::names());
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RunError::UnknownSource { name: name.clone(), known: known.join(", ") });
    }
    let heartbeat = Arc::new(Heartbeat::new(settings.interval));
    let mut sinks = sinks::open(configuration, &heartbeat)?;
    // A person waits for these lines; the agent has more to do, and tries again.
    let held = sinks.iter().find_map(|(_, sink)| sink.report().held);
    if let Some(held @ Held::File(_)) = held {
        return Err(RunError::Sink(held.status().reason.into()));
    }
    let mut core = Core::new(settings, DeviceStore::read_only(&settings.paths.state), None);
    core.start_providers()?;
    core.prepare_costs(settings);
    let mut collectors = core.start_sources(configuration, |def| {
        let is_named = names.iter().any(|name| name == def.name);
        is_named || (names.is_empty() && def.alone != Alone::Named)
    })?;
    let context = core.context.clone();
    let (inventory, ownership) = (&context.inventory, &context.ownership);
    let mut registry = core.registry();
    let mut accounting = Accounting::new(settings.interval);
    let mut costs = core.costs();
    let nodes = Nodes::read(&settings.nodes, &settings.paths);
    let mut tracker = Tracker::default();
    loop {
        let next = Instant::now() + settings.interval;
        observe(&core, tracker.scan(&settings.paths, &nodes));
        core.providers.wait(NAMES);
        let mut out = EnrichedBatch::default();
        // Those that appear while the others are read come after them.
        let mut read_so_far = 0;
        loop {
            collectors.extend(context.late.take());
            let Some(collector) = collectors.get_mut(read_so_far) else { break };
            read_so_far += 1;
            let mut batch = read(&core, collector.as_mut());
            accounting.account(&mut batch, ownership, inventory);
            costs.charge(accounting.increments(), &mut batch, (ownership, inventory), |_| {});
            registry.enrich(&batch, &mut out);
        }
        core.refresh();
        sinks::export(&mut sinks, &out);
        heartbeat.beat();
        let events: Vec<Record> = context.aggregator.drain().iter().flat_map(records).collect();
        if !events.is_empty() {
            sinks::export_events(&mut sinks, &events);
        }
        if once {
            break;
        }
        collectors.retain(|collector| !collector.has_ended());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    sinks::flush(&mut sinks, Instant::now() + FLUSH);
    Ok(())
}

fn observe(core: &Core, found: Vec<Evidence>) {
    for evidence in found {
        core.context.ownership.observe(evidence);
    }
}

fn read(core: &Core, collector: &mut dyn Collector) -> Batch {
    let of = SourcePart { source: collector.name(), part: collector.part() };
    let mut batch = Batch::of(of, SystemTime::now());
    collector.collect(&mut batch);
    core.context.board.put(collector.name(), &collector.report());
    batch
}
