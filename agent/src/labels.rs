//! Open labels: attributes with values known only at run time, such as the names of models and
//! adapters.
//!
//! A source interns the sets it reads, up to a bound. Beyond the bound the values of a set become
//! `other`, so totals stay right. A known set needs no allocation.

use crate::catalog::attributes::{AttrKey, AttrSet, AttrValue};
use crate::text::prints_as;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The value of every label of a folded set.
pub const OTHER: &str = "other";

/// Maximum length of a value in bytes (a model's path). Longer values are cut.
const MAX_VALUE: usize = 256;

/// An interned set. Sets are equal if their labels are.
#[derive(Clone, Debug)]
pub struct LabelSet(Arc<Interned>);

#[derive(Debug)]
struct Interned {
    hash: u64,
    set: AttrSet,
    is_folded: bool,
}

impl LabelSet {
    /// The labels.
    pub fn set(&self) -> &AttrSet {
        &self.0.set
    }

    /// Whether it stands for all sets beyond the bound.
    pub fn is_folded(&self) -> bool {
        self.0.is_folded
    }
}

impl PartialEq for LabelSet {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.hash == other.0.hash && self.0.set == other.0.set)
    }
}

impl Eq for LabelSet {}

impl Hash for LabelSet {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash.hash(state);
    }
}

/// The sets of one source.
#[derive(Debug)]
pub struct LabelSets {
    max: usize,
    known: HashMap<u64, LabelSet>,
    folded: u64,
}

/// A label as a source reads it.
pub type Label<'a> = (&'static AttrKey, &'a str);

impl LabelSets {
    /// Starts empty; holds at most `max` sets, in addition to folded ones.
    pub fn new(max: usize) -> Self {
        Self { max, known: HashMap::new(), folded: 0 }
    }

    /// The interned set of these labels; beyond the bound, a set with the value `other` for each.
    pub fn intern(&mut self, labels: &[Label<'_>]) -> LabelSet {
        let hash = hash_of(labels.iter().map(|(key, value)| (key.name, cut(value))));
        if let Some(known) = self.known.get(&hash).filter(|known| is_of(known, labels)) {
            return known.clone();
        }
        if self.known.len() >= self.max {
            // Sets that no series and no sample uses are removed.
            self.known.retain(|_, set| Arc::strong_count(&set.0) > 1);
        }
        if self.known.len() >= self.max || self.known.contains_key(&hash) {
            self.folded += 1;
            return made(labels, true);
        }
        let set = made(labels, false);
        self.known.insert(hash, set.clone());
        set
    }

    /// Forgets all sets; whoever uses one keeps it.
    pub fn clear(&mut self) {
        self.known = HashMap::new();
    }

    /// The number of folded lookups since the start.
    pub fn folded(&self) -> u64 {
        self.folded
    }
}

fn made(labels: &[Label<'_>], is_folded: bool) -> LabelSet {
    let labels =
        labels.iter().map(|(key, value)| (*key, if is_folded { OTHER } else { cut(value) }));
    let hash = hash_of(labels.clone().map(|(key, value)| (key.name, value)));
    let mut set = AttrSet::new();
    labels.for_each(|(key, value)| set.set(key, value));
    LabelSet(Arc::new(Interned { hash, set, is_folded }))
}

fn is_of(known: &LabelSet, labels: &[Label<'_>]) -> bool {
    let set = &known.0.set;
    let is_same = |(key, value): &Label<'_>| {
        let known = set.get(key);
        known.is_some_and(
            |known| matches!(known, AttrValue::Str(text) if prints_as(cut(value), text)),
        )
    };
    set.len() == labels.len() && labels.iter().all(is_same)
}

fn hash_of<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    let mut hasher = DefaultHasher::new();
    labels.for_each(|label| label.hash(&mut hasher));
    hasher.finish()
}

fn cut(value: &str) -> &str {
    value.get(..value.floor_char_boundary(MAX_VALUE)).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::attributes as attr;

    fn model(sets: &mut LabelSets, name: &str) -> LabelSet {
        sets.intern(&[(&attr::GPU_MODEL, name), (&attr::SOURCE, "engine")])
    }

    #[test]
    fn a_known_set_is_the_same_one_again() {
        let mut sets = LabelSets::new(10);
        let first = model(&mut sets, "llama");
        let again = model(&mut sets, "llama");
        assert!(Arc::ptr_eq(&first.0, &again.0));
        assert_ne!(first, model(&mut sets, "qwen"));
        let odd = model(&mut sets, "a\x1bb");
        assert!(Arc::ptr_eq(&odd.0, &model(&mut sets, "a\x1bb").0));
        assert_eq!(first, model(&mut LabelSets::new(10), "llama"), "whoever interned it");
    }

    #[test]
    fn beyond_the_bound_values_are_other_until_a_set_is_unused() {
        let mut sets = LabelSets::new(2);
        let (first, second) = (model(&mut sets, "a"), model(&mut sets, "b"));
        let (third, fourth) = (model(&mut sets, "c"), model(&mut sets, "d"));
        assert_eq!((&third, sets.folded()), (&fourth, 2));
        assert_eq!(third.set().get(&attr::GPU_MODEL), Some(&OTHER.into()));
        drop(first);
        assert_ne!(model(&mut sets, "c"), fourth, "there is room for one");
        assert_eq!(model(&mut sets, "b"), second);
    }

    #[test]
    fn a_long_value_is_cut() {
        let mut sets = LabelSets::new(2);
        let long = "é".repeat(10_000);
        let set = model(&mut sets, &long);
        assert_eq!(set.set().get(&attr::GPU_MODEL), Some(&"é".repeat(128).as_str().into()));
        assert_eq!(model(&mut sets, &long), set);
    }
}
