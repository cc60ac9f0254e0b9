//! Reading without an agent: `gpuwho` where none runs, and `gpuwho collect`.

use super::{Core, RunError, sinks, source_names};
use crate::attribute::Evidence;
use crate::collect::Collector;
use crate::collect::kernel::nodes::Nodes;
use crate::collect::proc_scan::Tracker;
use crate::config::Settings;
use crate::control::Answer as _;
use crate::export::EnrichedBatch;
use crate::inventory::register::Register;
use crate::ledger::Ledger;
use crate::sample::Batch;
use crate::series::Enricher;
use crate::who::Who;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The driver computes a process's utilisation over the time since it was last asked: a second
/// look this much later has something to show.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// How long the node's runtimes have to name what was found; they take a few milliseconds.
const NAMES: Duration = Duration::from_millis(500);

/// How long the sinks have to send what was read.
const FLUSH: Duration = Duration::from_secs(10);

/// Looks once at everything and gives the table.
pub fn read_once(settings: &Settings) -> Who {
    let mut core = Core::new(settings, Register::read_only(&settings.paths.state));
    if let Err(error) = core.start_suppliers() {
        tracing::warn!(%error, "pods and containers stay without names");
    }
    let nodes = Nodes::read(&settings.kernel, &settings.paths);
    observe(&core, Tracker::default().scan(&settings.paths, &nodes));
    let mut collectors = core.readers(settings);
    for collector in &mut collectors {
        read(&core, collector.as_mut());
        std::thread::sleep(SECOND_LOOK);
        read(&core, collector.as_mut());
    }
    core.suppliers.wait(NAMES);
    core.who()
}

/// Reads the named sources, all without names; once, or at every interval until killed.
pub fn collect(settings: &Settings, names: &[String], once: bool) -> Result<(), RunError> {
    let known = source_names();
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(RunError::UnknownSource { name: name.clone(), known: known.join(", ") });
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|asked| asked == name);
    let mut sinks = sinks::open(settings)?;
    let mut core = Core::new(settings, Register::read_only(&settings.paths.state));
    core.start_suppliers()?;
    let mut collectors = core.readers(settings);
    collectors.push(core.own());
    collectors.retain(|collector| wanted(collector.name()));
    let mut enricher = Enricher::new(Arc::clone(&core.inventory), core.ownership.clone())
        .with_limit(settings.series_limit);
    let mut ledger = Ledger::new(settings.interval);
    let nodes = Nodes::read(&settings.kernel, &settings.paths);
    let mut tracker = Tracker::default();
    loop {
        let next = Instant::now() + settings.interval;
        observe(&core, tracker.scan(&settings.paths, &nodes));
        core.suppliers.wait(NAMES);
        let mut out = EnrichedBatch::default();
        for collector in &mut collectors {
            let mut batch = read(&core, collector.as_mut());
            ledger.account(&mut batch, &core.ownership, &core.inventory);
            enricher.enrich(&batch, &mut out);
        }
        sinks::accept(&mut sinks, &out);
        if once {
            break;
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    sinks::flush(&mut sinks, Instant::now() + FLUSH);
    Ok(())
}

fn observe(core: &Core, seen: Vec<Evidence>) {
    for evidence in seen {
        core.ownership.observe(evidence);
    }
}

fn read(core: &Core, collector: &mut dyn Collector) -> Batch {
    let mut batch = Batch::new(collector.name(), SystemTime::now());
    collector.collect(&mut batch);
    core.board.put(collector.name(), &collector.report());
    batch
}
