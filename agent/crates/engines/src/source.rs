//! The source's row, its start, and its diagnosis for `gpuwho doctor`.

use super::endpoint::Endpoint;
use super::find::Finder;
use super::finder::EngineFinder;
use super::settings::{RawEngines, SECTION, Settings};
use super::status::TOO_MANY_SERIES;
use super::{NAME, Shared};
use gpuwho_collect::Collector;
use gpuwho_collect::source::{Alone, Context, Diagnosing, Source, SourceDef};
use gpuwho_model::finding::Finding;
use gpuwho_model::paths::Paths;
use gpuwho_model::sample::{Batch, SourcePart};
use gpuwho_owners::attribute::ownership::Ownership;
use gpuwho_owners::engines::Engines;
use gpuwho_owners::nodes::Nodes;
use gpuwho_owners::proc_scan::Tracker;
use gpuwho_owners::sockets::own_network;
use gpuwho_owners::tenant_files::TenantFiles;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The row.
pub const SOURCE: SourceDef = SourceDef {
    name: NAME,
    about: "inference engines: vLLM, SGLang, TensorRT-LLM, Triton, TGI, llama.cpp, NIM, Dynamo",
    section: Some(SECTION),
    after: &[],
    alone: Alone::Named,
    configure: |_, with| {
        let raw: RawEngines = with.tables.read(NAME)?;
        Ok(Box::new(Settings::resolve(raw)?))
    },
};

impl Source for Settings {
    fn is_enabled(&self) -> bool {
        self.enabled
    }

    fn start(&self, context: &mut Context) -> io::Result<Vec<Box<dyn Collector>>> {
        let engines = Arc::clone(&context.engines);
        let shared = Shared {
            inventory: Arc::clone(&context.inventory),
            readers: context.readers.clone(),
            ..self.shared(&context.paths, &context.ownership, engines, context.interval)
        };
        let mut collectors: Vec<Box<dyn Collector>> = Vec::new();
        let mut part = 1;
        for endpoint in &self.endpoints {
            collectors.push(Box::new(Endpoint::configured(part, endpoint, &shared)?));
            part += 1;
        }
        let finder = Finder::new(&context.files, &context.ownership, self);
        let others = (&context.late, &context.readers);
        collectors.insert(0, Box::new(EngineFinder::new(finder, &shared, others, part)));
        Ok(collectors)
    }

    /// Finds the engines and reads each once.
    fn diagnose(&self, settings: &Diagnosing<'_>) -> Vec<Finding> {
        if !self.enabled {
            return vec![Finding::switched_off(NAME, "engines.enabled")];
        }
        let paths = settings.paths;
        let ownership = Ownership::with_settings(paths, settings.attribution.clone());
        let nodes = Nodes::read(settings.nodes, paths);
        for evidence in Tracker::default().scan(paths, &nodes) {
            ownership.observe(evidence);
        }
        let shared = self.shared(paths, &ownership, Arc::default(), settings.interval);
        // A person waits for it, and can interrupt.
        let files = TenantFiles::direct(paths);
        let found = Finder::new(&files, &ownership, self).find(Instant::now());
        let found = found
            .into_iter()
            .map(|server| Endpoint::found(0, server, &shared).map(|(endpoint, _)| endpoint));
        let configured =
            self.endpoints.iter().map(|endpoint| Endpoint::configured(0, endpoint, &shared));
        let findings: Vec<Finding> = found.chain(configured).flatten().map(finding).collect();
        if findings.is_empty() {
            let facts = "no process that holds a device serves as a known engine does";
            let remedy = "name others in engines.endpoints";
            return vec![Finding::new(NAME, "absent", facts, remedy)];
        }
        findings
    }
}

impl Settings {
    /// What the finder and the endpoints share, before anything is found.
    pub(super) fn shared(
        &self,
        paths: &Paths,
        ownership: &Ownership,
        engines: Arc<Engines>,
        interval: Duration,
    ) -> Shared {
        Shared {
            paths: paths.clone(),
            ownership: ownership.clone(),
            engines,
            inventory: <_>::default(),
            readers: <_>::default(),
            endpoints: <_>::default(),
            large: <_>::default(),
            drafting: <_>::default(),
            fed: <_>::default(),
            accounts: <_>::default(),
            places: <_>::default(),
            own_network: own_network(paths),
            interval,
            every: self.every,
        }
    }
}

/// What one endpoint answers.
fn finding(mut endpoint: Endpoint) -> Finding {
    let mut batch = Batch::of(SourcePart { source: NAME, part: 0 }, SystemTime::now());
    let line = endpoint.look(&mut batch);
    match line.problem {
        Some((reason, remedy)) => {
            Finding::new("engine", "failed", format!("{}: {reason}", line.name), remedy)
        }
        None if line.left_out > 0 => {
            Finding::new("engine", "degraded", line.words_of_left_out(), TOO_MANY_SERIES)
        }
        None if line.drift.is_empty() => {
            let facts = format!("{}: {} samples", line.name, batch.samples.len());
            Finding::new("engine", "ok", facts, "")
        }
        None => {
            let facts = format!("{}: families that differ: {}", line.name, line.drift);
            Finding::new("engine", "ok", facts, "a newer gpuwho may know them")
        }
    }
}
