//! Slurm's variables in a process's environment or a drop file.
//!
//! Read as a stream, 4 KiB at a time: only the names of [`super::facts::LABELS`] and a few more are
//! stored, all others are skipped. Costs 4 µs for a typical environment of 1.5 kB.

use super::facts::{LABELS, Label};
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

/// The most that is read. The kernel allows up to a quarter of the stack limit (usually 2 MB) of
/// arguments and environment; a variable beyond this limit is missing, which is not wrong.
pub(super) const MAX_READ: u64 = 128 * 1024;
/// A longer value is dropped, not cut: half a name is a wrong name.
const MAX_VALUE: usize = 256;
/// Maximum length of a name; all wanted names are shorter.
const MAX_NAME: usize = 48;
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
        let mut reader = source.take(MAX_READ + 1);
        let mut chunk = [0_u8; 4096];
        let mut variable = Variable::default();
        let mut seen = 0_u64;
        let outcome = loop {
            let bytes = match reader.read(&mut chunk) {
                Ok(0) => break Ok(()),
                Ok(count) => chunk.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => break Err(error),
            };
            for byte in bytes {
                seen += 1;
                if *byte == end {
                    claims.take(&variable);
                    variable.clear();
                } else {
                    variable.push(*byte);
                }
            }
        };
        claims.truncated = seen > MAX_READ;
        // The limit may have cut the last variable.
        if !claims.truncated {
            claims.take(&variable);
        }
        chunk.fill(0);
        outcome.map(|()| claims)
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
    fn take(&mut self, variable: &Variable) {
        let Some((name, value)) = variable.parts() else { return };
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

/// The variable being read: at most a wanted name and its value.
struct Variable {
    bytes: [u8; MAX_NAME + 1 + MAX_VALUE],
    len: usize,
    /// Whether it is too long, or not one of Slurm's.
    skipped: bool,
}

impl Default for Variable {
    fn default() -> Self {
        Self { bytes: [0; MAX_NAME + 1 + MAX_VALUE], len: 0, skipped: false }
    }
}

impl Drop for Variable {
    fn drop(&mut self) {
        self.bytes.fill(0);
    }
}

impl Variable {
    /// The prefix of every wanted name; nothing else is stored, not even temporarily.
    const PREFIX: &'static [u8] = b"SLURM_";

    fn push(&mut self, byte: u8) {
        let expected = Self::PREFIX.get(self.len);
        if self.skipped || expected.is_some_and(|expected| *expected != byte) {
            self.skipped = true;
        } else if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        } else {
            self.skipped = true;
        }
    }

    fn parts(&self) -> Option<(&str, &str)> {
        let text = self.bytes.get(..self.len).filter(|_| !self.skipped)?;
        let (name, value) = std::str::from_utf8(text).ok()?.split_once('=')?;
        (name.len() <= MAX_NAME && value.len() <= MAX_VALUE).then_some((name, value))
    }

    fn clear(&mut self) {
        if let Some(used) = self.bytes.get_mut(..self.len) {
            used.fill(0);
        }
        self.len = 0;
        self.skipped = false;
    }
}

#[cfg(test)]
mod tests;
