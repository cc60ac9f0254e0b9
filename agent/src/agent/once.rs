//! Reading without an agent: `gpuwho` where none runs, and `gpuwho collect`.

use super::configuration::Configuration;
use super::core::Core;
use super::{RunError, sinks, sources};
use crate::accounting::Accounting;
use crate::attribute::Evidence;
use crate::collect::Collector;
use crate::collect::kernel::nodes::Nodes;
use crate::collect::proc_scan::Tracker;
use crate::collect::source::Alone;
use crate::control::Answer as _;
use crate::event::record::{Record, records};
use crate::export::EnrichedBatch;
use crate::inventory::register::DeviceStore;
use crate::sample::{Batch, SourcePart};
use crate::who::HostReport;
use std::time::{Duration, Instant, SystemTime};

/// The driver computes a process's utilisation over the time since it was last asked: a second
/// look this much later has something to show.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// How long the node's runtimes have to name what was found; they take a few milliseconds.
const NAMES: Duration = Duration::from_millis(500);

/// How long the sinks have to send what was read.
const FLUSH: Duration = Duration::from_secs(10);

/// Looks once at everything and gives the table.
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

/// Reads the named sources, or those that need neither time nor the kernel's probes; once, or at
/// every interval until killed.
pub fn collect(
    configuration: &Configuration,
    names: &[String],
    once: bool,
) -> Result<(), RunError> {
    let (settings, known) = (&configuration.settings, sources::names());
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RunError::UnknownSource { name: name.clone(), known: known.join(", ") });
    }
    let mut sinks = sinks::open(configuration)?;
    let mut core = Core::new(settings, DeviceStore::read_only(&settings.paths.state), None);
    core.start_providers()?;
    let mut collectors = core.start_sources(configuration, |def| {
        let is_named = names.iter().any(|name| name == def.name);
        is_named || (names.is_empty() && def.alone != Alone::Named)
    })?;
    let context = core.context.clone();
    let (inventory, ownership) = (&context.inventory, &context.ownership);
    let mut enricher = core.registry();
    let mut ledger = Accounting::new(settings.interval);
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
            ledger.account(&mut batch, ownership, inventory);
            enricher.enrich(&batch, &mut out);
        }
        core.refresh();
        sinks::accept(&mut sinks, &out);
        let events: Vec<Record> = context.aggregator.drain().iter().flat_map(records).collect();
        if !events.is_empty() {
            sinks::tell(&mut sinks, &events);
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

fn observe(core: &Core, seen: Vec<Evidence>) {
    for evidence in seen {
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
