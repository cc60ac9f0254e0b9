//! The inference engines that are read, by number: who serves, which engine it is, and where it
//! answers. The source `engines` fills the table; the series registry looks engines up.

use crate::attribute::owner::OwnerId;
use crate::catalog::attributes::AttrSet;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// An engine instance by number; meaningless outside this process of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineId(pub(crate) u32);

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

/// The table of engine instances.
#[derive(Debug, Default)]
pub struct Engines(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    facts: HashMap<EngineId, Arc<EngineFacts>>,
    next: u32,
}

impl Engines {
    /// Adds an engine instance.
    pub fn add(&self, facts: EngineFacts) -> EngineId {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let id = EngineId(table.next);
        table.next = table.next.wrapping_add(1);
        table.facts.insert(id, Arc::new(facts));
        id
    }

    /// Replaces what is known of one. Equal facts keep their `Arc`, so that its series go on.
    pub fn put(&self, id: EngineId, facts: EngineFacts) {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if table.facts.get(&id).is_none_or(|known| **known != facts) {
            table.facts.insert(id, Arc::new(facts));
        }
    }

    /// Removes one that is read no longer.
    pub fn remove(&self, id: EngineId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).facts.remove(&id);
    }

    /// What is known of one. The `Arc` changes when the facts do.
    pub fn facts(&self, id: EngineId) -> Option<Arc<EngineFacts>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).facts.get(&id).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<(EngineId, Arc<EngineFacts>)> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.facts.iter().map(|(id, facts)| (*id, Arc::clone(facts))).collect()
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
        engines.remove(id);
        assert_eq!((engines.facts(id), engines.all().len()), (None, 0));
    }
}
