//! The facts about a job beyond its cgroup's name, each with its source.
//!
//! [`LABELS`] is the one table of them: the Slurm variables that contain a fact, the attribute that
//! shows it, and whether it is on every point. A stronger source replaces a weaker one's value; of
//! equal sources the first stays, so that all points of a job agree.

use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::{AttrKey, AttrSet};
use std::sync::Arc;

/// The source of a fact, the least trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The environment of one of the job's processes, which the user controls.
    Environment,
    /// The kernel's user id of the job's processes.
    Process,
    /// A mapping file of the site for another tool.
    Mapping,
    /// A drop file of the node's Prolog.
    Prolog,
    /// The title of the job's own slurmstepd.
    Slurmstepd,
    /// The cgroup's path.
    Cgroup,
}

impl Source {
    /// The value of the source attribute.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Process => "process",
            Self::Mapping => "mapping",
            Self::Prolog => "prolog",
            Self::Slurmstepd => "slurmstepd",
            Self::Cgroup => "cgroup",
        }
    }
}

/// One fact and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// As its source spells it.
    pub value: Arc<str>,
    /// Its source.
    pub source: Source,
}

/// A kind of fact about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    /// The job's number as users see it; for an array task its raw number.
    JobId,
    /// Slurm's unique id of this run.
    Sluid,
    /// The array's number.
    ArrayJob,
    /// The task's index in the array.
    ArrayTask,
    /// The heterogeneous job's leader.
    HetJob,
    /// The component's index in it.
    HetOffset,
    /// Its number of components.
    HetSize,
    /// The cluster.
    Cluster,
    /// The user's name.
    User,
    /// The user's number.
    Uid,
    /// The charged account.
    Account,
    /// The partition.
    Partition,
    /// The quality of service.
    Qos,
    /// The job's name.
    Name,
    /// The nodes, in Slurm's notation.
    Nodes,
    /// The number of nodes.
    NodeCount,
    /// The number of tasks.
    Tasks,
    /// The number of restarts.
    Restarts,
    /// The allocated GPUs on this node: Slurm's node-wide numbers, or the device names of a mapping
    /// directory.
    Gpus,
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A decimal number of at most 32 bits.
    Number,
    /// Anything printable.
    Text,
}

/// A kind of fact: where it is read and where it is shown.
pub(super) struct LabelDef {
    pub(super) label: Label,
    /// Slurm's variables that contain it; the first one set counts.
    pub(super) variables: &'static [&'static str],
    pub(super) shape: Shape,
    attribute: &'static AttrKey,
    /// Whether it is on every point; else only on info series.
    is_identity: bool,
}

const fn def(
    label: Label,
    variables: &'static [&'static str],
    shape: Shape,
    attribute: &'static AttrKey,
    is_identity: bool,
) -> LabelDef {
    LabelDef { label, variables, shape, attribute, is_identity }
}

/// Every fact, in the order of [`Label`].
#[rustfmt::skip]
pub(super) static LABELS: [LabelDef; 19] = [
    def(Label::JobId, &["SLURM_JOB_ID", "SLURM_JOBID"], Shape::Number, &attr::SLURM_JOB_ID, true),
    def(Label::Sluid, &["SLURM_JOB_SLUID"], Shape::Text, &attr::SLURM_JOB_SLUID, false),
    def(Label::ArrayJob, &["SLURM_ARRAY_JOB_ID"], Shape::Number, &attr::SLURM_ARRAY_JOB_ID, true),
    def(Label::ArrayTask, &["SLURM_ARRAY_TASK_ID"], Shape::Number, &attr::SLURM_ARRAY_TASK_ID, true),
    def(Label::HetJob, &["SLURM_HET_JOB_ID"], Shape::Number, &attr::SLURM_HET_JOB_ID, false),
    def(Label::HetOffset, &["SLURM_HET_JOB_OFFSET"], Shape::Number, &attr::SLURM_HET_JOB_OFFSET, false),
    def(Label::HetSize, &["SLURM_HET_SIZE", "SLURM_PACK_SIZE"], Shape::Number, &attr::SLURM_HET_JOB_SIZE, false),
    def(Label::Cluster, &["SLURM_CLUSTER_NAME"], Shape::Text, &attr::SLURM_CLUSTER_NAME, true),
    def(Label::User, &["SLURM_JOB_USER"], Shape::Text, &attr::SLURM_JOB_USER, true),
    def(Label::Uid, &["SLURM_JOB_UID"], Shape::Number, &attr::SLURM_JOB_UID, false),
    def(Label::Account, &["SLURM_JOB_ACCOUNT"], Shape::Text, &attr::SLURM_JOB_ACCOUNT, true),
    def(Label::Partition, &["SLURM_JOB_PARTITION"], Shape::Text, &attr::SLURM_JOB_PARTITION, true),
    def(Label::Qos, &["SLURM_JOB_QOS"], Shape::Text, &attr::SLURM_JOB_QOS, false),
    def(Label::Name, &["SLURM_JOB_NAME"], Shape::Text, &attr::SLURM_JOB_NAME, true),
    def(Label::Nodes, &["SLURM_JOB_NODELIST", "SLURM_NODELIST"], Shape::Text, &attr::SLURM_JOB_NODES, false),
    def(Label::NodeCount, &["SLURM_JOB_NUM_NODES"], Shape::Number, &attr::SLURM_JOB_NODE_COUNT, false),
    def(Label::Tasks, &["SLURM_NTASKS", "SLURM_JOB_NTASKS"], Shape::Number, &attr::SLURM_JOB_TASK_COUNT, false),
    def(Label::Restarts, &["SLURM_RESTART_COUNT", "SLURM_JOB_RESTART_COUNT"], Shape::Number, &attr::SLURM_JOB_RESTARTS, false),
    def(Label::Gpus, &["SLURM_JOB_GPUS"], Shape::Text, &attr::SLURM_JOB_GPUS, false),
];

impl Label {
    pub(super) fn def(self) -> &'static LabelDef {
        let at = self as usize;
        // The table has an entry for each label; a test checks its order.
        LABELS.get(at).unwrap_or(&LABELS[0])
    }
}

/// The known facts about a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts([Option<Fact>; LABELS.len()]);

impl Facts {
    /// One fact.
    pub fn get(&self, label: Label) -> Option<&Fact> {
        self.0.get(label as usize)?.as_ref()
    }

    /// One fact's value.
    pub fn value(&self, label: Label) -> Option<&Arc<str>> {
        self.get(label).map(|fact| &fact.value)
    }

    /// The job's number, if it is known.
    pub fn number(&self) -> Option<u32> {
        self.value(Label::JobId)?.parse().ok()
    }

    /// Whether no fact is known.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Stores a fact unless an equal or stronger source has provided it.
    pub(super) fn put(&mut self, label: Label, value: &str, source: Source) {
        let is_valid = match label.def().shape {
            Shape::Number => value.parse::<u32>().is_ok(),
            // Slurm prints its null pointers.
            Shape::Text => {
                !value.is_empty() && value != "(null)" && !value.chars().any(char::is_control)
            }
        };
        let Some(place) = self.0.get_mut(label as usize).filter(|_| is_valid) else { return };
        if place.as_ref().is_none_or(|known| known.source < source) {
            *place = Some(Fact { value: Arc::from(value), source });
        }
    }

    /// Adds the small identity for every point of the job, and the least trusted source of it.
    pub fn describe(&self, set: &mut AttrSet) {
        self.write(set, |def| def.is_identity);
        let shown = LABELS.iter().filter(|def| def.is_identity && def.label != Label::JobId);
        let weakest = shown.filter_map(|def| self.get(def.label)).map(|fact| fact.source).min();
        set.set_some(&attr::SLURM_FACTS_SOURCE, weakest.map(Source::as_str));
    }

    /// Adds all facts, for an info series.
    pub fn describe_all(&self, set: &mut AttrSet) {
        self.write(set, |_| true);
        let weakest = self.0.iter().flatten().map(|fact| fact.source).min();
        set.set_some(&attr::SLURM_FACTS_SOURCE, weakest.map(Source::as_str));
    }

    fn write(&self, set: &mut AttrSet, is_shown: impl Fn(&LabelDef) -> bool) {
        for def in LABELS.iter().filter(|def| is_shown(def)) {
            set.set_some(def.attribute, self.value(def.label).map(Arc::clone));
        }
    }

    /// Stores the facts of another set that come from stronger sources.
    pub(super) fn merge(&mut self, other: &Self) {
        for def in &LABELS {
            if let Some(fact) = other.get(def.label) {
                self.put(def.label, &fact.value, fact.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_labels() {
        for (at, def) in LABELS.iter().enumerate() {
            assert_eq!(def.label as usize, at, "{:?}", def.label);
        }
    }

    #[test]
    fn a_stronger_source_replaces_a_weaker_and_never_the_other_way() {
        let mut facts = Facts::default();
        facts.put(Label::Account, "evil", Source::Environment);
        facts.put(Label::Account, "later", Source::Environment);
        assert_eq!(facts.value(Label::Account).map(AsRef::as_ref), Some("evil"));
        facts.put(Label::Account, "ml", Source::Prolog);
        facts.put(Label::Account, "evil", Source::Environment);
        let fact = Fact { value: "ml".into(), source: Source::Prolog };
        assert_eq!(facts.get(Label::Account), Some(&fact));
    }

    #[test]
    fn a_value_of_the_wrong_form_is_ignored() {
        let mut facts = Facts::default();
        for (label, value) in [
            (Label::JobId, "12x"),
            (Label::ArrayTask, "-1"),
            (Label::JobId, "4294967296"),
            (Label::Name, ""),
            (Label::Account, "(null)"),
            (Label::Name, "a\nb"),
            (Label::Account, "\u{1b}[2J"),
        ] {
            facts.put(label, value, Source::Environment);
        }
        assert!(facts.is_empty(), "{facts:?}");
    }
}
