//! Reading without an agent: `gpuwho` where none runs, and `gpuwho collect`.

use super::{Core, RunError, own, sinks, source_names};
use crate::collect::{Collector, proc_scan};
use crate::config::Settings;
use crate::control::Answer as _;
use crate::export::EnrichedBatch;
use crate::sample::Batch;
use crate::series::Enricher;
use crate::who::Who;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The driver computes a process's utilisation over the time since it was last asked: a second
/// look this much later has something to show.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// How long the sinks have to send what was read.
const FLUSH: Duration = Duration::from_secs(10);

/// Looks once at everything and gives the table.
pub fn read_once(settings: &Settings) -> Who {
    let mut core = Core::new(settings);
    for evidence in proc_scan::once(&settings.kernel, &settings.paths) {
        core.ownership.observe(evidence);
    }
    let mut collectors = core.readers(settings);
    for collector in &mut collectors {
        read(&core, collector.as_mut());
        std::thread::sleep(SECOND_LOOK);
        read(&core, collector.as_mut());
    }
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
    let mut core = Core::new(settings);
    let mut collectors = core.readers(settings);
    collectors.push(core.own());
    collectors.retain(|collector| wanted(collector.name()));
    let mut enricher = Enricher::new(Arc::clone(&core.inventory), core.ownership.clone());
    loop {
        let next = Instant::now() + settings.interval;
        for evidence in proc_scan::once(&settings.kernel, &settings.paths) {
            core.ownership.observe(evidence);
        }
        let mut out = EnrichedBatch::default();
        for collector in &mut collectors {
            let batch = read(&core, collector.as_mut());
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

fn read(core: &Core, collector: &mut dyn Collector) -> Batch {
    let mut batch = Batch::new(collector.name(), SystemTime::now());
    collector.collect(&mut batch);
    core.board.put(collector.name(), collector.report());
    batch
}
