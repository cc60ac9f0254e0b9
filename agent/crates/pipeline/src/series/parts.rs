//! The parts of all labels, each stored once.

use crate::identity::Description;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::point::{Labels, Part};
use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Parts before which it is not worth looking for unused ones.
const FEW: usize = 256;

/// The parts that live series have.
#[derive(Debug, Default)]
pub(super) struct PartStore {
    known: HashSet<SharedPart>,
    /// How many were in use when the unused ones were last removed.
    used: usize,
}

/// A part, by its attributes.
#[derive(Debug)]
struct SharedPart(Arc<Part>);

impl PartialEq for SharedPart {
    fn eq(&self, other: &Self) -> bool {
        self.0.set() == other.0.set()
    }
}

impl Eq for SharedPart {}

impl Hash for SharedPart {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.set().hash(state);
    }
}

impl Borrow<AttrSet> for SharedPart {
    fn borrow(&self) -> &AttrSet {
        self.0.set()
    }
}

impl PartStore {
    /// The labels of a description.
    pub(super) fn labels(&mut self, description: Description) -> Labels {
        Labels::of(description.into_parts().into_iter().map(|set| self.part(set)).collect())
    }

    fn part(&mut self, set: AttrSet) -> Arc<Part> {
        if let Some(SharedPart(part)) = self.known.get(&set) {
            return Arc::clone(part);
        }
        if self.known.len() >= 2 * self.used.max(FEW) {
            self.known.retain(|SharedPart(part)| Arc::strong_count(part) > 1);
            self.used = self.known.len();
        }
        let part = Arc::new(Part::new(set));
        self.known.insert(SharedPart(Arc::clone(&part)));
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuwho_model::catalog::attributes as attr;

    fn labels(store: &mut PartStore, device: &str, pod: usize) -> Labels {
        let mut set = AttrSet::new();
        set.set(&attr::GPU_UUID, device);
        let mut description = Description::default();
        description.extend(&set);
        description.set(&attr::K8S_POD_NAME, pod.to_string().as_str());
        store.labels(description)
    }

    #[test]
    fn a_part_is_stored_once_and_unused_ones_are_forgotten() {
        let mut store = PartStore::default();
        let first = labels(&mut store, "GPU-1", 0);
        let second = labels(&mut store, "GPU-1", 1);
        assert!(Arc::ptr_eq(&first.parts()[0], &second.parts()[0]));
        assert!(first != second && first == labels(&mut store, "GPU-1", 0));
        (0..10 * FEW).for_each(|pod| drop(labels(&mut store, "GPU-1", pod)));
        assert!(store.known.len() <= 2 * FEW, "{}", store.known.len());
        assert!(Arc::ptr_eq(&second.parts()[1], &labels(&mut store, "GPU-1", 1).parts()[1]));
    }
}
