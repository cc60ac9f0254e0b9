//! Facts by id: the facts, the provider of each, and what has ended.

use super::Provider;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// Facts by id; ended ones are ordered by time. Every step is one lookup: a node with short jobs
/// has thousands of pods that ended within the last minutes.
#[derive(Debug)]
pub(super) struct ProviderCache<K, F> {
    known: HashMap<K, (Provider, Arc<F>)>,
    /// When each ended key ended.
    gone: HashMap<K, u64>,
    /// The same by time; entries of keys that returned since are outdated.
    order: VecDeque<(u64, K)>,
}

impl<K, F> Default for ProviderCache<K, F> {
    fn default() -> Self {
        Self { known: HashMap::new(), gone: HashMap::new(), order: VecDeque::new() }
    }
}

/// Maximum number of pods, and of containers: a node runs a few hundred. Ended ones are removed
/// first.
pub(super) const MAX_FACTS: usize = 16_384;
/// Maximum length of `order`, before outdated entries are removed.
const MAX_ENDS: usize = 2 * MAX_FACTS;

impl<K: Clone + Eq + Hash, F: PartialEq> ProviderCache<K, F> {
    pub(super) fn get(&self, key: &K) -> Option<Arc<F>> {
        self.known.get(key).map(|(_, facts)| Arc::clone(facts))
    }

    pub(super) fn put(&mut self, provider: Provider, key: K, facts: F) -> bool {
        // Described again by any provider: it has not ended.
        self.gone.remove(&key);
        if let Some((by, known)) = self.known.get(&key) {
            if *by < provider || **known == facts {
                return false;
            }
        } else if self.known.len() >= MAX_FACTS {
            let Some(oldest) = self.pop_gone(u64::MAX) else { return false };
            self.known.remove(&oldest);
        }
        self.known.insert(key, (provider, Arc::new(facts)));
        true
    }

    /// All facts of keys that have not ended.
    pub(super) fn living(&self) -> impl Iterator<Item = &Arc<F>> {
        self.known.iter().filter(|(key, _)| !self.is_gone(key)).map(|(_, (_, facts))| facts)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn has(&self, key: &K) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn is_gone(&self, key: &K) -> bool {
        self.gone.contains_key(key)
    }

    /// Records an end; returns false if a preferred provider still describes the key.
    pub(super) fn gone(&mut self, provider: Provider, key: &K, now_ns: u64) -> bool {
        if self.known.get(key).is_some_and(|(by, _)| *by < provider) {
            return false;
        }
        if !self.gone.contains_key(key) {
            self.gone.insert(key.clone(), now_ns);
            if self.order.len() >= MAX_ENDS {
                let gone = &self.gone;
                self.order.retain(|(at_ns, key)| gone.get(key) == Some(at_ns));
            }
            self.order.push_back((now_ns, key.clone()));
        }
        true
    }

    pub(super) fn expire(&mut self, before_ns: u64) -> Vec<Arc<F>> {
        let mut expired = Vec::new();
        while let Some(key) = self.pop_gone(before_ns) {
            expired.extend(self.known.remove(&key).map(|(_, facts)| facts));
        }
        expired
    }

    /// Removes the key that ended first, if that was before `before_ns`.
    fn pop_gone(&mut self, before_ns: u64) -> Option<K> {
        while let Some((at_ns, _)) = self.order.front()
            && *at_ns < before_ns
            && let Some((at_ns, key)) = self.order.pop_front()
        {
            if self.gone.get(&key) == Some(&at_ns) {
                self.gone.remove(&key);
                return Some(key);
            }
        }
        None
    }
}
