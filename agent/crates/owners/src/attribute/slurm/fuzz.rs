//! Entry points of the fuzz targets (`tests/fuzz`).

use super::stepd;

/// The job and step in a command line as slurmstepd writes it.
pub fn title(command_line: &str) -> Option<(u32, Option<String>)> {
    stepd::parse(command_line).map(|title| (title.job, title.step.map(|step| step.to_string())))
}
