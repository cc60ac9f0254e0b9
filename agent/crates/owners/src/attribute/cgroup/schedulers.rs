//! Schedulers that put their own unit of work in the path: Nomad, HTCondor, ECS.

use super::shapes::{STATIC_UID_LEN, is_hex, is_uuid};
use crate::attribute::SchedulerUnit;
use std::sync::Arc;

/// The unit of work that a component names, given the component above it.
pub(super) fn allocation(previous: &str, component: &str) -> Option<SchedulerUnit> {
    nomad(previous, component)
        .or_else(|| htcondor(previous, component))
        .or_else(|| ecs(previous, component))
}

/// `{share,reserve}.slice/ALLOC.TASK.scope` (v2), `{shared,reserved}/ALLOC.TASK` (v1).
fn nomad(previous: &str, component: &str) -> Option<SchedulerUnit> {
    if !matches!(previous, "share.slice" | "reserve.slice" | "shared" | "reserved") {
        return None;
    }
    let (id, task) = component.split_once('.')?;
    let task = task.strip_suffix(".scope").unwrap_or(task);
    (is_uuid(id) && !task.is_empty()).then(|| SchedulerUnit {
        scheduler: "nomad",
        id: Arc::from(id),
        task: Some(Arc::from(task)),
    })
}

/// `htcondor/condor_EXECUTE_DIRECTORY_SLOT@NODE`.
fn htcondor(previous: &str, component: &str) -> Option<SchedulerUnit> {
    if previous != "htcondor" {
        return None;
    }
    let (name, _node) = component.strip_prefix("condor_")?.split_once('@')?;
    let start = name.rfind("slot")?;
    Some(SchedulerUnit { scheduler: "htcondor", id: Arc::from(name.get(start..)?), task: None })
}

/// `ecstasks-TASK.slice` (v2), `ecs/TASK` (v1).
fn ecs(previous: &str, component: &str) -> Option<SchedulerUnit> {
    let id = match component.strip_prefix("ecstasks-") {
        Some(rest) => rest.strip_suffix(".slice")?,
        None if previous == "ecs" => component,
        None => return None,
    };
    let id = is_hex(id, STATIC_UID_LEN).then(|| Arc::from(id))?;
    Some(SchedulerUnit { scheduler: "ecs", id, task: None })
}
