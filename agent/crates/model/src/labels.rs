//! Open labels: attributes with values known only at run time, such as the names of models and
//! adapters.
//!
//! A source interns the sets it reads, up to a bound at a time and a bound of new labels an hour, which
//! those that take its place share. Beyond these the values of a set become `other`, so totals stay right. A
//! known set needs no allocation.

use crate::attributes::{AttrKey, AttrSet, AttrValue};
use crate::text::prints_as;
use parking_lot::Mutex;
use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    labels: SeenLabels,
}

/// The labels that a source has had, and may have; a handle, for the next source in its place.
#[derive(Clone, Debug, Default)]
pub struct SeenLabels(Arc<Mutex<Labels>>);

#[derive(Debug, Default)]
struct Labels {
    /// Hashes of the labels so far; beyond [`MAX_LABELS`] there are no new ones.
    seen: HashSet<u64>,
    new: Option<NewLabels>,
}

/// Labels that came after the first ones.
#[derive(Debug)]
struct NewLabels {
    hour: Instant,
    in_hour: usize,
}

/// New labels of a source, and of those in its place after it, in an hour after its first ones (models that an engine loads). A receiver keeps
/// each series that it ever got.
pub const MAX_NEW_PER_HOUR: usize = 64;
/// Different labels of a source since its start.
const MAX_LABELS: usize = 1 << 13;
const HOUR: Duration = Duration::from_hours(1);

/// A label as a source reads it.
pub type Label<'a> = (&'static AttrKey, &'a str);

impl LabelSets {
    /// Starts empty; holds at most `max` sets, in addition to folded ones.
    pub fn new(max: usize) -> Self {
        Self::sharing(max, SeenLabels::default())
    }

    /// Starts empty, in the place of a source that has had these labels.
    pub fn sharing(max: usize, labels: SeenLabels) -> Self {
        Self { max, known: HashMap::new(), folded: 0, labels }
    }

    /// From now on few labels may be new: the source has named what it has. Names without end become
    /// `other`, so that totals stay right.
    pub fn expect_few_new(&mut self) {
        let new = &mut self.labels.0.lock().new;
        new.get_or_insert_with(|| NewLabels { hour: Instant::now(), in_hour: 0 });
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
        let is_full = self.known.len() >= self.max || self.known.contains_key(&hash);
        if is_full || !self.labels.0.lock().admits(labels) {
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

impl SeenLabels {
    /// Whether a source has it now.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

impl Labels {
    /// Whether a set has no label too many.
    fn admits(&mut self, labels: &[Label<'_>]) -> bool {
        let hashes =
            labels.iter().map(|(key, value)| hash_of([(key.name, cut(value))].into_iter()));
        let new: Vec<u64> = hashes.filter(|hash| !self.seen.contains(hash)).collect();
        if let Some(limit) = &mut self.new {
            if limit.hour.elapsed() >= HOUR {
                *limit = NewLabels { hour: Instant::now(), in_hour: 0 };
            }
            let in_hour = limit.in_hour + new.len();
            let is_full = self.seen.len() + new.len() > MAX_LABELS;
            if !new.is_empty() && (in_hour > MAX_NEW_PER_HOUR || is_full) {
                return false;
            }
            limit.in_hour = in_hour;
        }
        self.seen.extend(new);
        true
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
    use crate::attributes as attr;

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
    fn labels_without_end_become_other_and_an_hour_later_a_few_more_are_known() {
        let mut sets = LabelSets::new(10);
        let before = model(&mut sets, "first");
        sets.expect_few_new();
        let names: Vec<String> = (0..500).map(|number| format!("m{number}")).collect();
        let folded = |sets: &mut LabelSets| {
            // Each time only the current one is used, as a page with another model has it.
            names.iter().filter(|name| model(sets, name).is_folded()).count()
        };
        assert_eq!(folded(&mut sets), 500 - MAX_NEW_PER_HOUR);
        sets.clear();
        assert_eq!(folded(&mut sets), 500 - MAX_NEW_PER_HOUR, "those that were admitted stay so");
        assert_eq!(model(&mut sets, "first"), before);
        let hour = sets.labels.0.lock().new.as_ref().unwrap().hour.checked_sub(HOUR);
        if let Some(hour) = hour {
            sets.labels.0.lock().new.as_mut().unwrap().hour = hour;
            assert_eq!(folded(&mut sets), 500 - 2 * MAX_NEW_PER_HOUR);
        }
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
