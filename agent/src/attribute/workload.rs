//! What a pod belongs to, from its own metadata.

use crate::catalog::attributes::AttrSet;
use std::collections::BTreeMap;

/// A pod's metadata, as the kubelet or the runtime has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodMeta {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Empty where the source does not tell.
    pub(crate) owners: Vec<OwnerReference>,
}

/// What Kubernetes says owns a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerReference {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) controller: bool,
}

/// Labels and annotations that the operator asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedLabels {}

/// The workload, and what else was asked for.
pub(crate) fn describe(_meta: &PodMeta, _wanted: &WantedLabels) -> (AttrSet, AttrSet) {
    (AttrSet::new(), AttrSet::new())
}
