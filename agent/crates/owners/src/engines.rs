//! The inference engines that are read, by number: who serves, which engine it is, and where it
//! answers. The source `engines` fills the table; the series registry looks engines up.

use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::EngineId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::ids::ProcKey;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// What is known of an engine instance: one server with all its worker processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineFacts {
    /// Whose processes serve; `None` for an endpoint of the configuration that none of them serves.
    pub owner: Option<OwnerId>,
    /// The engine's name in its table: `vllm`. Unknown until a page was read.
    pub name: Option<&'static str>,
    /// Its version, where the page or the server says it.
    pub version: Option<Arc<str>>,
    /// The port it answers on.
    pub port: u16,
    /// The host as the configuration names it; `None` for an engine found on this host.
    pub address: Option<Arc<str>>,
    /// Labels that the configuration gives the endpoint.
    pub labels: AttrSet,
}

/// What an engine instance serves, by its last page; for people, not for series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serving {
    /// The process that serves, of a found one.
    pub process: Option<ProcKey>,
    /// Models that the page names.
    pub models: Vec<Box<str>>,
    /// Tokens generated each second between the last two pages.
    pub tokens_per_second: Option<f64>,
    /// Requests whose tokens are being computed.
    pub running: Option<i64>,
    /// Requests that wait.
    pub waiting: Option<i64>,
}

/// The table of engine instances.
#[derive(Debug, Default)]
pub struct Engines(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    facts: HashMap<EngineId, Arc<EngineFacts>>,
    serving: HashMap<EngineId, Serving>,
    next: u32,
}

impl Engines {
    /// Adds an engine instance.
    pub fn add(&self, facts: EngineFacts) -> EngineId {
        let mut table = self.0.write();
        let id = EngineId(table.next);
        table.next = table.next.wrapping_add(1);
        table.facts.insert(id, Arc::new(facts));
        id
    }

    /// Replaces what is known of one. Equal facts keep their `Arc`, so that its series go on.
    pub fn put(&self, id: EngineId, facts: EngineFacts) {
        let mut table = self.0.write();
        if table.facts.get(&id).is_none_or(|known| **known != facts) {
            table.facts.insert(id, Arc::new(facts));
        }
    }

    /// Removes one that is read no longer.
    pub fn remove(&self, id: EngineId) {
        let mut table = self.0.write();
        table.facts.remove(&id);
        table.serving.remove(&id);
    }

    /// What is known of one. The `Arc` changes when the facts do.
    pub fn facts(&self, id: EngineId) -> Option<Arc<EngineFacts>> {
        self.0.read().facts.get(&id).cloned()
    }

    /// Takes what one serves now.
    pub fn set_serving(&self, id: EngineId, serving: Serving) {
        self.0.write().serving.insert(id, serving);
    }

    /// Those whose page was asked for, with what they serve.
    pub fn all(&self) -> Vec<(Arc<EngineFacts>, Serving)> {
        let table = self.0.read();
        let mut all: Vec<_> = table.serving.iter().collect();
        all.sort_by_key(|(id, _)| **id);
        let with_facts = |(id, serving): (_, &Serving)| {
            Some((Arc::clone(table.facts.get(id)?), serving.clone()))
        };
        all.into_iter().filter_map(with_facts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_facts_keep_their_place_and_new_ones_replace_them() {
        let engines = Engines::default();
        let facts = EngineFacts { port: 8000, ..EngineFacts::default() };
        let id = engines.add(facts.clone());
        let first = engines.facts(id).unwrap();
        engines.put(id, facts.clone());
        assert!(Arc::ptr_eq(&first, &engines.facts(id).unwrap()));
        engines.put(id, EngineFacts { name: Some("vllm"), ..facts });
        assert_eq!(engines.facts(id).unwrap().name, Some("vllm"));
        engines.set_serving(id, Serving { running: Some(3), ..Serving::default() });
        assert_eq!(engines.all()[0].1.running, Some(3));
        engines.remove(id);
        assert_eq!((engines.facts(id), engines.all().len()), (None, 0));
    }
}
