//! Increases of counters between two batches, for receipts.

use gpuwho_model::catalog::{DimIndexes, MetricDef, device, engine, inspector, nccl};
use gpuwho_model::labels::LabelSet;
use gpuwho_model::sample::{Sample, Subject, Value};
use std::collections::HashMap;

/// Counters that are remembered; beyond it all are forgotten, and one increase of each is lost.
const MAX_COUNTERS: usize = 16_384;

type Series = (&'static MetricDef, Subject, DimIndexes, Option<LabelSet>);

#[derive(Debug, Default)]
pub(super) struct Increases(HashMap<Series, f64>);

impl Increases {
    /// By how much a counter, or a distribution's sum, grew since its last reading; `None` for the first
    /// one and for a counter that began anew.
    pub(super) fn of(&mut self, sample: &Sample) -> Option<f64> {
        let now = match &sample.value {
            Value::Int(number) => *number as f64,
            Value::Double(number) => *number,
            Value::Histogram(histogram) => histogram.sum,
        };
        if self.0.len() >= MAX_COUNTERS {
            self.0.clear();
        }
        let Sample { metric, subject, dims, labels, .. } = sample;
        let before = self.0.insert((*metric, *subject, *dims, labels.clone()), now)?;
        Some(now - before).filter(|more| more.is_finite() && *more > 0.0)
    }
}

/// What a counter of a batch adds to a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Throttle,
    PromptTokens,
    GeneratedTokens,
    Collectives,
    Waiting,
}

impl Counted {
    pub(super) fn of(metric: &'static MetricDef) -> Option<Self> {
        let all = [
            (device::THROTTLE_TIME.def(), Self::Throttle),
            (engine::PROMPT_TOKENS.def(), Self::PromptTokens),
            (engine::GENERATED_TOKENS.def(), Self::GeneratedTokens),
            (inspector::DURATION.def(), Self::Collectives),
            (nccl::SPREAD.def(), Self::Waiting),
        ];
        all.iter().find(|(known, _)| *known == metric).map(|(_, counted)| *counted)
    }
}
