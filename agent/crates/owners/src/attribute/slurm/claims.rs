//! Slurm's variables in a process's environment or a drop file.
//!
//! Only the names of [`super::facts::LABELS`] and a few more are stored. Costs 4 µs for a typical environment of 1.5 kB.

use super::facts::{LABELS, Label};
use crate::attribute::variables::{self, Wanted};
use std::io::{self, Read};

/// The Slurm variables of one environment or drop file. Nothing in it is trusted yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmEnv {
    values: Vec<(&'static str, String)>,
    /// A heterogeneous job's variables for each component, by component number.
    components: Vec<(u16, Label, String)>,
    /// Whether the source was longer than is read: missing variables may be in the rest.
    pub truncated: bool,
}

/// Bytes of a value.
const MAX_VALUE: usize = 256;
/// Components of a heterogeneous job (`MAX_HET_JOB_COMPS` in `slurm.h`), times the facts of each.
const MAX_COMPONENTS: usize = 128 * 5;

/// Names in addition to those of the table.
pub(super) const STEP: &[&str] = &["SLURM_STEP_ID", "SLURM_STEPID"];
pub(super) const RANK: &[&str] = &["SLURM_PROCID"];
pub(super) const LOCAL_RANK: &[&str] = &["SLURM_LOCALID"];
pub(super) const STEP_GPUS: &[&str] = &["SLURM_STEP_GPUS"];
static OTHER_NAMES: &[&[&str]] = &[STEP, RANK, LOCAL_RANK, STEP_GPUS];

/// Facts of which a heterogeneous job's tasks have one for each component (`NAME_HET_GROUP_n`;
/// before 20.11, and still in 22.05's tasks, `NAME_PACK_GROUP_n`).
const OF_COMPONENTS: &[Label] =
    &[Label::JobId, Label::Account, Label::Partition, Label::Qos, Label::Nodes];

impl SlurmEnv {
    /// Reads variables terminated by `end`: NUL in an environment, a newline in a file.
    pub fn read(source: impl Read, end: u8) -> io::Result<Self> {
        let mut claims = Self::default();
        let wanted = Wanted { prefixes: &[b"SLURM_"], max_value: MAX_VALUE };
        claims.truncated =
            variables::read(source, end, wanted, |name, value| claims.take(name, value))?;
        Ok(claims)
    }

    /// Whether no variable of Slurm's is set.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The first of these variables that is set.
    pub(super) fn get(&self, names: &[&str]) -> Option<&str> {
        let of = |name: &&str| self.values.iter().find(|(known, _)| known == name);
        names.iter().find_map(of).map(|(_, value)| value.as_str())
    }

    /// The variable of a fact.
    pub(super) fn label(&self, label: Label) -> Option<&str> {
        self.get(label.def().variables)
    }

    /// The heterogeneous job's component with this job number.
    pub(super) fn component_of(&self, job: u32) -> Option<u16> {
        let mut ids = self.components.iter().filter(|(_, label, _)| *label == Label::JobId);
        ids.find(|(_, _, id)| id.parse() == Ok(job)).map(|(component, ..)| *component)
    }

    /// The facts of one component.
    pub(super) fn component(&self, component: u16) -> impl Iterator<Item = (Label, &str)> {
        let of = move |(number, ..): &&(u16, Label, String)| *number == component;
        self.components.iter().filter(of).map(|(_, label, value)| (*label, value.as_str()))
    }

    /// Stores a variable; of several with one name the first counts, as for `getenv`.
    fn take(&mut self, name: &str, value: &str) {
        if let Some(known) = known_name(name) {
            if self.get(&[known]).is_none() {
                self.values.push((known, value.to_owned()));
            }
        } else if let Some((label, component)) = component_name(name) {
            let mut of_component = self.component(component);
            if self.components.len() < MAX_COMPONENTS && !of_component.any(|(is, _)| is == label) {
                drop(of_component);
                self.components.push((component, label, value.to_owned()));
            }
        }
    }
}

/// The name in the tables, if it is wanted.
fn known_name(name: &str) -> Option<&'static str> {
    let labels = LABELS.iter().flat_map(|row| row.variables);
    let others = OTHER_NAMES.iter().copied().flatten();
    labels.chain(others).copied().find(|known| *known == name)
}

fn component_name(name: &str) -> Option<(Label, u16)> {
    let (base, number) =
        name.split_once("_HET_GROUP_").or_else(|| name.split_once("_PACK_GROUP_"))?;
    let label = OF_COMPONENTS.iter().find(|label| label.def().variables.contains(&base))?;
    Some((*label, number.parse().ok()?))
}

#[cfg(test)]
mod tests;
