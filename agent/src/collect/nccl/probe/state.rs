//! What the source says of itself, with its reason and what can be done.

use super::budget::controller::ProbeBudget;
use crate::catalog::agent::SourceState;
use crate::catalog::nccl::GovernorLevel;

/// State, reason and remedy: of what the kernel refused, of what a process maps that is not seen, of
/// so many libraries in use, and of what is allowed the owner that is allowed least.
pub(super) fn of(
    refused: Option<&str>,
    trouble: Option<String>,
    files: u64,
    decision: Option<(&ProbeBudget, String)>,
) -> (SourceState, String, String) {
    if let Some(why) = refused {
        let remedy = "run gpuwho doctor to see what the kernel refuses";
        return (SourceState::Degraded, why.into(), remedy.into());
    }
    if let Some(why) = trouble {
        let remedy = "its calls may not be counted; everybody else's are";
        return (SourceState::Degraded, why, remedy.into());
    }
    if files == 0 {
        let reason = "no process that holds a device has NCCL or RCCL loaded";
        return (SourceState::Absent, reason.into(), String::new());
    }
    let Some((governor, owner)) = decision else {
        return (SourceState::Ready, String::new(), String::new());
    };
    let budget = governor.budget();
    let because = |what: &str| {
        let reason = format!("more than {budget} hits a second and process: {what}, of {owner}");
        (SourceState::Degraded, reason, "raise nccl.budget to see more".into())
    };
    match governor.level() {
        GovernorLevel::Entries => because("durations and open calls are not seen"),
        GovernorLevel::Cycled => {
            let cycle = governor.cycle();
            because(&format!("calls are counted one second in {cycle}"))
        }
        GovernorLevel::Detached => because("calls are not counted for some minutes"),
        GovernorLevel::Full | GovernorLevel::Off => {
            (SourceState::Ready, String::new(), String::new())
        }
    }
}
