//! The workload of a pod from its own metadata: the controller that made it, the training job, the
//! inference service, the queue. Uses what the node has: the labels that controllers put on their pods.
//!
//! A name is never taken from the pod's name alone. If a controller makes the pod's name from its
//! own, the label that proves it must be present and agree; what labels cannot prove is left out.
//! Pure functions, run once for each change of a pod.

mod frameworks;

use gpuwho_model::catalog::attributes::{self as attr, AttrKey, AttrSet, PodKeys};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A pod's metadata as a provider reads it; what the provider does not have is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodMeta {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Its annotations.
    pub(crate) annotations: BTreeMap<String, String>,
    /// The node it runs on.
    pub(crate) node: Option<String>,
    /// When it was made, in seconds since 1970.
    pub(crate) created_s: Option<i64>,
}

/// The labels and annotations that the operator selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedLabels {
    labels: Vec<Pattern>,
    annotations: Vec<Pattern>,
}

/// A key, or a prefix of keys if it was written with a `*` at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Key(String),
    Start(String),
}

/// An invalid pattern.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no key: write a whole key, or the start of one and a `*` at its end")]
pub struct PatternError(String);

/// Maximum length of a value that becomes an attribute. Label values have at most 63 characters;
/// annotations may have 256 KiB, and longer values are left out, not cut.
const MAX_VALUE_LEN: usize = 1024;
/// Letters of random name suffixes and of the hashes encoded with them (apimachinery
/// `rand.SafeEncodeString`).
const SAFE_LETTERS: &str = "bcdfghjklmnpqrstvwxz2456789";
/// Length of the random suffix of a generated name (apiserver `names.SimpleNameGenerator`).
const RANDOM_SUFFIX: usize = 5;
/// Maximum length of a generated name: one of this length may have been cut before its random
/// suffix.
const MAX_GENERATED_LEN: usize = 63;
/// How long after its scheduled minute a CronJob's pod may be made (retries of a long job).
const CRON_WINDOW_S: i64 = 30 * 24 * 3600;

/// A pod's workload for every point, and its other selected attributes for info series.
pub(crate) fn describe(meta: &PodMeta, wanted: &WantedLabels) -> (AttrSet, AttrSet) {
    let mut workload = AttrSet::new();
    let controller = Controller::of(meta);
    for (key, name) in &controller.names {
        workload.set(key, name.as_str());
    }
    let (kind, name) = match frameworks::workload(meta) {
        Some((kind, name)) => (kind, Some(name)),
        None => (controller.kind, controller.name),
    };
    workload.set_some(&attr::WORKLOAD_KIND, kind.as_deref());
    workload.set_some(&attr::WORKLOAD_NAME, name.as_deref());
    workload.set_some(&attr::WORKLOAD_QUEUE, frameworks::queue(meta));
    (workload, wanted.pick(meta))
}

/// The built-in controllers above a pod.
#[derive(Debug, Default)]
struct Controller {
    names: Vec<(&'static AttrKey, String)>,
    /// The outermost of them.
    kind: Option<String>,
    name: Option<String>,
}

impl Controller {
    /// From the labels that controllers put on their pods.
    fn of(meta: &PodMeta) -> Self {
        if let Some(set) = replica_set_of(meta) {
            return Self::replica_set(meta, set);
        }
        if let Some(set) = stateful_set_of(meta) {
            return Self::plain("StatefulSet", &attr::K8S_STATEFULSET_NAME, set);
        }
        if let Some(set) = daemon_set_of(meta) {
            return Self::plain("DaemonSet", &attr::K8S_DAEMONSET_NAME, set);
        }
        job_of(meta).map(|job| Self::job(meta, job)).unwrap_or_default()
    }

    fn plain(kind: &str, key: &'static AttrKey, name: &str) -> Self {
        Self {
            names: vec![(key, name.to_owned())],
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
        }
    }

    /// A ReplicaSet, and the Deployment or Rollout with a template hash at the end of its name.
    fn replica_set(meta: &PodMeta, set: &str) -> Self {
        let above = |label: &str| {
            let hash = meta.labels.get(label).filter(|hash| !hash.is_empty())?;
            let name = set.strip_suffix(hash.as_str())?.strip_suffix('-')?;
            (!name.is_empty()).then(|| name.to_owned())
        };
        let mut found = Self::plain("ReplicaSet", &attr::K8S_REPLICASET_NAME, set);
        if let Some(deployment) = above(POD_TEMPLATE_HASH) {
            found.names.push((&attr::K8S_DEPLOYMENT_NAME, deployment.clone()));
            (found.kind, found.name) = (Some("Deployment".into()), Some(deployment));
        } else if let Some(rollout) = above(ROLLOUT_TEMPLATE_HASH) {
            (found.kind, found.name) = (Some("Rollout".into()), Some(rollout));
        }
        found
    }

    /// A Job, and the CronJob that its name and the pod's creation time prove.
    fn job(meta: &PodMeta, job: &str) -> Self {
        let mut found = Self::plain("Job", &attr::K8S_JOB_NAME, job);
        if let Some(cron) = cron_job_of(job, meta.created_s) {
            found.names.push((&attr::K8S_CRONJOB_NAME, cron.to_owned()));
            (found.kind, found.name) = (Some("CronJob".into()), Some(cron.to_owned()));
        }
        found
    }
}

/// Deployment controller: on the ReplicaSet, its selector and its pods
/// (`apps/v1.DefaultDeploymentUniqueLabelKey`).
const POD_TEMPLATE_HASH: &str = "pod-template-hash";
/// The same of Argo Rollouts (`v1alpha1.DefaultRolloutUniqueLabelKey`).
const ROLLOUT_TEMPLATE_HASH: &str = "rollouts-pod-template-hash";
/// DaemonSet: a hash. StatefulSet: its revision's name, which starts with the set's name
/// (`apps/v1.ControllerRevisionHashLabelKey`).
const REVISION: &str = "controller-revision-hash";
/// DaemonSet (`extensions.DaemonSetTemplateGenerationKey`).
const TEMPLATE_GENERATION: &str = "pod-template-generation";
/// StatefulSet (`apps/v1.StatefulSetPodNameLabel`).
const STATEFUL_POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
/// StatefulSet, from Kubernetes 1.28 (`apps/v1.PodIndexLabel`).
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
/// Job, from Kubernetes 1.27 (`batch/v1.JobNameLabel`).
const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// Job, all versions; others use the key too, so the controller's UID must be present as well.
const LEGACY_JOB_NAME: &str = "job-name";
const LEGACY_JOB_UID: &str = "controller-uid";

/// `SET-RANDOM`, if `SET` ends in the hash of the label.
fn replica_set_of(meta: &PodMeta) -> Option<&str> {
    let set = without_random_suffix(&meta.name)?;
    [POD_TEMPLATE_HASH, ROLLOUT_TEMPLATE_HASH].iter().find_map(|label| {
        let hash = meta.labels.get(*label).filter(|hash| !hash.is_empty())?;
        let owner = set.strip_suffix(hash.as_str())?.strip_suffix('-')?;
        (!owner.is_empty()).then_some(set)
    })
}

/// `SET-INDEX`, if the labels contain the pod's name, its index and a revision of `SET`.
fn stateful_set_of(meta: &PodMeta) -> Option<&str> {
    let label = |name: &str| meta.labels.get(name).map(String::as_str);
    let (set, index) = meta.name.rsplit_once('-')?;
    let named = label(STATEFUL_POD_NAME) == Some(meta.name.as_str());
    let indexed = label(POD_INDEX).is_none_or(|reported| reported == index);
    let number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
    let revised = label(REVISION)?.strip_prefix(set)?.starts_with('-');
    (named && indexed && number && revised && !set.is_empty()).then_some(set)
}

/// `SET-RANDOM`, if the labels are those of a DaemonSet's pod and the name was not cut.
fn daemon_set_of(meta: &PodMeta) -> Option<&str> {
    let labelled = meta.labels.contains_key(REVISION)
        && meta.labels.contains_key(TEMPLATE_GENERATION)
        && meta.name.len() < MAX_GENERATED_LEN;
    labelled.then(|| without_random_suffix(&meta.name)).flatten()
}

fn job_of(meta: &PodMeta) -> Option<&str> {
    let legacy = || {
        meta.labels.contains_key(LEGACY_JOB_UID).then(|| meta.labels.get(LEGACY_JOB_NAME)).flatten()
    };
    meta.labels.get(JOB_NAME).or_else(legacy).map(String::as_str).filter(|name| !name.is_empty())
}

/// `CRONJOB-MINUTES`, if the minutes since 1970 are shortly before the pod's creation: a number
/// that a user put at the end of a Job's name is not.
fn cron_job_of(job: &str, created_s: Option<i64>) -> Option<&str> {
    let (cron, minutes) = job.rsplit_once('-')?;
    let plain = !minutes.starts_with('0') && minutes.bytes().all(|byte| byte.is_ascii_digit());
    let scheduled_s = minutes.parse::<i64>().ok()?.checked_mul(60)?;
    let age_s = created_s?.checked_sub(scheduled_s)?;
    (plain && (0..CRON_WINDOW_S).contains(&age_s) && !cron.is_empty()).then_some(cron)
}

/// A generated name without its random suffix.
fn without_random_suffix(name: &str) -> Option<&str> {
    let (base, end) = name.rsplit_once('-')?;
    let random = end.len() == RANDOM_SUFFIX && end.chars().all(|c| SAFE_LETTERS.contains(c));
    (random && !base.is_empty()).then_some(base)
}

impl WantedLabels {
    /// Parses the configured keys; `example.com/*` matches every key with that prefix.
    pub fn new(labels: &[String], annotations: &[String]) -> Result<Self, PatternError> {
        Ok(Self { labels: Pattern::all(labels)?, annotations: Pattern::all(annotations)? })
    }

    /// The selected labels and annotations of a pod.
    fn pick(&self, meta: &PodMeta) -> AttrSet {
        let mut details = AttrSet::new();
        let parts = [
            (&self.labels, &meta.labels, &attr::K8S_POD_LABEL),
            (&self.annotations, &meta.annotations, &attr::K8S_POD_ANNOTATION),
        ];
        for (patterns, values, keys) in parts {
            for (key, value) in values {
                if value.len() <= MAX_VALUE_LEN
                    && patterns.iter().any(|pattern| pattern.matches(key))
                {
                    set_pod_key(&mut details, keys, key, value);
                }
            }
        }
        details
    }
}

fn set_pod_key(details: &mut AttrSet, keys: &'static PodKeys, key: &str, value: &str) {
    if let Some(key) = keys.key(key) {
        details.set(key, Arc::<str>::from(value));
    }
}

impl Pattern {
    fn all(keys: &[String]) -> Result<Vec<Self>, PatternError> {
        keys.iter().map(|key| Self::parse(key)).collect()
    }

    fn parse(text: &str) -> Result<Self, PatternError> {
        let (start, many) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
        if start.contains(['*', ' ']) || text.is_empty() {
            return Err(PatternError(text.to_owned()));
        }
        let start = start.to_owned();
        Ok(if many { Self::Start(start) } else { Self::Key(start) })
    }

    fn matches(&self, key: &str) -> bool {
        match self {
            Self::Key(wanted) => wanted == key,
            Self::Start(start) => key.starts_with(start.as_str()),
        }
    }
}

#[cfg(test)]
mod tests;
