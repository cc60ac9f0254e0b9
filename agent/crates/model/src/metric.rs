//! What a declaration of the catalogue says of one metric.

use crate::attributes::AttrKey;
use std::sync::OnceLock;

/// The instrument kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A level; a sum over series has no meaning.
    Gauge,
    /// A level with a meaningful sum over series.
    UpDownCounter,
    /// Only grows, until its source starts again.
    Counter,
    /// A distribution with explicit bounds, cumulative.
    Histogram,
}

impl Kind {
    /// The word used in documents and in the `stdout` sink.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::UpDownCounter => "updowncounter",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// A closed dimension: an attribute whose values are all known here.
#[derive(Debug)]
pub struct Dim {
    /// The attribute that carries it.
    pub key: &'static AttrKey,
    /// Every value, in the order of the enum's variants.
    pub values: &'static [&'static str],
}

/// One metric, as declared.
#[derive(Debug)]
pub struct MetricDef {
    /// OpenTelemetry name.
    pub name: &'static str,
    /// UCUM unit.
    pub unit: &'static str,
    /// Instrument kind.
    pub kind: Kind,
    /// The kind of its subject: `gpu`, `instance`, `process`, `agent`, ….
    pub subject: &'static str,
    /// Closed dimensions, in the order of `Sample::dims`.
    pub dims: &'static [&'static Dim],
    /// The doc comment.
    pub description: &'static str,
    /// The vendor call, field or kernel source it is read from.
    pub source: &'static str,
    /// Its position in `catalog::with_profiles`, set at first use.
    pub(crate) index: OnceLock<u16>,
}

impl PartialEq for MetricDef {
    /// Compares addresses: each metric is one static.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for MetricDef {}

impl std::hash::Hash for MetricDef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self).hash(state);
    }
}

impl MetricDef {
    /// Whether its series are states of which one is 1: a series for each value of a dimension.
    pub fn is_state_set(&self) -> bool {
        self.unit == "{state}" && !self.dims.is_empty()
    }

    /// One of the catalogue: name, unit, subject, description and source, kind and dimensions.
    pub(crate) const fn declared(
        [name, unit, subject, description, source]: [&'static str; 5],
        kind: Kind,
        dims: &'static [&'static Dim],
    ) -> Self {
        Self { name, unit, kind, subject, dims, description, source, index: OnceLock::new() }
    }

    /// A metric of a naming profile, which no collector reads.
    pub(crate) fn of_profile(name: &'static str, unit: &'static str, kind: Kind) -> Self {
        Self::declared([name, unit, "profile", "", ""], kind, &[])
    }

    /// Largest number of series of one subject: the product of the dimensions' sizes.
    pub fn series_per_subject(&self) -> usize {
        self.dims.iter().map(|dim| dim.values.len()).product()
    }
}

/// The values of a metric's dimensions, as indexes into [`Dim::values`]; unused places are
/// [`NO_DIM`].
pub type DimIndexes = [u8; 2];

/// Marks an unused place in [`DimIndexes`].
pub const NO_DIM: u8 = u8::MAX;
