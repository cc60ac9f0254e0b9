//! A series' attributes, in parts: a device's, an owner's, a process's, the dimensions. Many series
//! share each part, and with it the encoded form that a sink keeps beside it.

use crate::catalog::attributes::{AttrKey, AttrSet, AttrValue};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// Attributes that many series share.
#[derive(Debug)]
pub struct Part {
    set: AttrSet,
    otlp: OnceLock<Box<[u8]>>,
}

impl Part {
    /// Attributes not yet encoded.
    pub fn new(mut set: AttrSet) -> Self {
        set.shrink();
        Self { set, otlp: OnceLock::new() }
    }

    /// The attributes.
    pub fn set(&self) -> &AttrSet {
        &self.set
    }

    /// The OTLP encoding of the attributes as `NumberDataPoint.attributes` (field 7, repeated), made
    /// at first use. Histogram points copy it and change the tags, which have the same length.
    pub fn otlp(&self, encode: impl FnOnce(&AttrSet) -> Box<[u8]>) -> &[u8] {
        self.otlp.get_or_init(|| encode(&self.set))
    }
}

/// A series' complete attributes (subject, owner and dimensions), shared by all its points. No key is
/// in two parts.
#[derive(Debug)]
pub struct Labels {
    parts: Box<[Arc<Part>]>,
    /// The attributes as Prometheus' labels, filled by the Prometheus sink at first use.
    pub prometheus: OnceLock<Box<str>>,
}

impl Labels {
    /// Labels that share nothing with others.
    pub fn new(set: AttrSet) -> Self {
        Self::of([Arc::new(Part::new(set))].into())
    }

    /// Labels of these parts, which have no key in common.
    pub fn of(parts: Box<[Arc<Part>]>) -> Self {
        Self { parts, prometheus: OnceLock::new() }
    }

    /// The parts in order.
    pub fn parts(&self) -> &[Arc<Part>] {
        &self.parts
    }

    /// The attributes in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static AttrKey, &AttrValue)> + Clone {
        self.parts.iter().flat_map(|part| part.set.iter())
    }

    /// The value of one attribute.
    pub fn get(&self, key: &AttrKey) -> Option<&AttrValue> {
        self.parts.iter().find_map(|part| part.set.get(key))
    }

    /// All attributes as one set.
    pub fn to_set(&self) -> AttrSet {
        let mut all = AttrSet::new();
        self.parts.iter().for_each(|part| all.extend(&part.set));
        all
    }

    fn addresses(&self) -> impl Iterator<Item = *const Part> {
        self.parts.iter().map(Arc::as_ptr)
    }
}

/// Labels are equal if their attributes are, in whichever parts.
impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        self.addresses().eq(other.addresses()) || self.iter().eq(other.iter())
    }
}

impl Eq for Labels {}

/// Labels of the same parts, for a set of them.
#[derive(Debug)]
pub struct SameParts(pub Arc<Labels>);

impl PartialEq for SameParts {
    fn eq(&self, other: &Self) -> bool {
        self.0.addresses().eq(other.0.addresses())
    }
}

impl Eq for SameParts {}

impl Hash for SameParts {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.addresses().for_each(|part| part.hash(state));
    }
}
