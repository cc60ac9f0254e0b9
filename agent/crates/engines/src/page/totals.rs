//! Series that are the total of others of their family.

use super::super::exposition::{Label, SampleLine};
use super::super::table::Engine;
use std::collections::HashSet;

/// Series with an empty label that no engine of the page keeps: the total of those that differ from it
/// in this label only, as SGLang's with `priority=""` are.
#[derive(Debug, Default)]
pub(super) struct Totals<'p> {
    labels: HashSet<&'p str>,
    /// The name, the empty label and the other labels of each.
    series: HashSet<(&'p str, &'p str, Vec<&'p Label<'p>>)>,
}

impl<'p> Totals<'p> {
    pub(super) fn of(samples: &'p [(usize, SampleLine<'p>)], engines: &[&Engine]) -> Self {
        let mut totals = Self::default();
        let is_kept = |name: &str| engines.iter().any(|engine| engine.keeps(name));
        for (_, sample) in samples {
            for (label, value) in &sample.labels {
                if value.is_empty() && !is_kept(label) {
                    totals.labels.insert(label);
                    totals.series.insert((&sample.name, label, others(sample, label)));
                }
            }
        }
        totals
    }

    /// Whether one of them has the value of this series in it.
    pub(super) fn have(&self, sample: &SampleLine<'_>) -> bool {
        sample.labels.iter().any(|(label, value)| {
            !value.is_empty()
                && self.labels.contains(&**label)
                && self.series.contains(&(&*sample.name, &**label, others(sample, label)))
        })
    }
}

/// The labels of a series beside one, in order.
fn others<'a>(sample: &'a SampleLine<'_>, label: &str) -> Vec<&'a Label<'a>> {
    let mut others: Vec<_> = sample.labels.iter().filter(|(name, _)| name != label).collect();
    others.sort_unstable();
    others
}
