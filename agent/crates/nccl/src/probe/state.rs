//! The status of the source, with reason and remedy.

use super::budget::controller::ProbeBudget;
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::nccl::ProbeLevel;

/// Computes the status from refusals, incompletely observed processes, the number of files in use
/// and the most reduced budget.
pub(super) fn of(
    refused: Option<&str>,
    problem: Option<String>,
    files: u64,
    decision: Option<(&ProbeBudget, String)>,
) -> (SourceState, String, String) {
    if let Some(why) = refused {
        let remedy = "run gpuwho doctor to see what the kernel refuses";
        return (SourceState::Degraded, why.into(), remedy.into());
    }
    if let Some(why) = problem {
        let remedy = "its calls may not be counted; those of all other processes are";
        return (SourceState::Degraded, why, remedy.into());
    }
    if files == 0 {
        let reason = "no process that holds a device has NCCL or RCCL loaded";
        return (SourceState::Absent, reason.into(), String::new());
    }
    let Some((budget, owner)) = decision else {
        return (SourceState::Ready, String::new(), String::new());
    };
    let limit = budget.budget();
    let because = |what: &str| {
        let reason = format!("more than {limit} hits a second and process: {what}, of {owner}");
        (SourceState::Degraded, reason, "raise nccl.budget to see more".into())
    };
    match budget.level() {
        ProbeLevel::Entries => because("durations and open calls are not seen"),
        ProbeLevel::Detached => because("calls are not counted for some minutes"),
        ProbeLevel::Full | ProbeLevel::Off => (SourceState::Ready, String::new(), String::new()),
    }
}
