//! Which family a series is of, and what of it: by the type lines first, by the names' ends where
//! there are none.

use super::super::exposition::{FamilyType, SampleLine};
use super::super::table::Read;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// What of a family a series is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Value,
    Bucket,
    Sum,
    Count,
    /// When a series began, which the client for Python adds to each as a gauge.
    Created,
}

/// The family of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// Its name without `_total`, `_bucket` and the like.
    pub(super) family: &'a str,
    pub(super) part: Part,
    pub(super) of: FamilyType,
}

/// The types that a page gives, and the names that have buckets.
#[derive(Debug, Default)]
pub(super) struct Types<'p> {
    types: HashMap<Cow<'p, str>, FamilyType>,
    buckets: HashSet<String>,
}

const PARTS: [(&str, Part); 5] = [
    ("_bucket", Part::Bucket),
    ("_sum", Part::Sum),
    ("_count", Part::Count),
    ("_created", Part::Created),
    ("_total", Part::Value),
];

impl<'p> Types<'p> {
    /// Takes a type line.
    pub(super) fn set(&mut self, name: Cow<'p, str>, of: FamilyType) {
        self.types.insert(name, of);
    }

    /// Takes a series that no type line may come with.
    pub(super) fn note(&mut self, sample: &SampleLine<'_>) {
        if let Some(family) = sample.name.strip_suffix("_bucket")
            && sample.label("le").is_some()
            && !self.buckets.contains(family)
        {
            self.buckets.insert(family.to_owned());
        }
    }

    fn has(&self, family: &str) -> bool {
        self.types.contains_key(family) || self.types.contains_key(&*format!("{family}_total"))
    }

    /// Where a series belongs.
    pub(super) fn place<'a>(&self, name: &'a str) -> Place<'a> {
        if let Some(&of) = self.types.get(name) {
            if let Some(family) = name.strip_suffix("_created").filter(|family| self.has(family)) {
                return Place { family, part: Part::Created, of };
            }
            let counter = name.strip_suffix("_total").filter(|_| of == FamilyType::Counter);
            return Place { family: counter.unwrap_or(name), part: Part::Value, of };
        }
        for (suffix, part) in PARTS {
            let Some(family) = name.strip_suffix(suffix) else { continue };
            if let Some(&of) = self.types.get(family) {
                return Place { family, part, of };
            }
            let of = match part {
                _ if self.buckets.contains(family) => FamilyType::Histogram,
                Part::Value => FamilyType::Counter,
                _ => continue,
            };
            return Place { family, part, of };
        }
        Place { family: name, part: Part::Value, of: FamilyType::Unknown }
    }
}

/// Names are the same whether `:` was replaced or not, and whether Ray Serve has put its own word
/// before the families of the engines that it runs.
pub(super) fn plain(name: &str) -> String {
    let plain = name.replace(':', "_");
    let of_ray = plain.strip_prefix("ray_");
    let of_ray = of_ray.filter(|name| name.starts_with("vllm_") || name.starts_with("sglang_"));
    of_ray.map(str::to_owned).unwrap_or(plain)
}

/// Whether a table reads families of a type so.
pub(super) fn fits(read: Read, of: FamilyType) -> bool {
    match read {
        // The plugin of Triton's cache calls its counters gauges.
        Read::Counter => {
            matches!(of, FamilyType::Counter | FamilyType::Gauge | FamilyType::Unknown)
        }
        Read::Level => matches!(of, FamilyType::Gauge | FamilyType::Unknown),
        Read::Histogram => of == FamilyType::Histogram,
        Read::Sum => matches!(of, FamilyType::Histogram | FamilyType::Summary),
        Read::Label(..) | Read::NewestLabel(_) | Read::NewestNames(_) => {
            matches!(of, FamilyType::Gauge | FamilyType::Unknown | FamilyType::Other)
        }
    }
}
