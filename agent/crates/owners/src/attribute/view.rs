//! An owner as people and JSON get it.

use super::slurm::SlurmTask;
use super::{Method, ProcessAttribution};
use gpuwho_model::text::printable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An owner, flat, as the table and JSON show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnerView {
    /// The workload in a few words: the pod, the job, the unit or the container.
    #[serde(default)]
    pub owner: Option<String>,
    /// PID on the host.
    pub pid: u32,
    /// When it started, in 1/100 s since boot: with the PID the process's identity. 0 where it is
    /// not known.
    pub start_ticks: u64,
    /// Command name.
    pub comm: String,
    /// User name, or the number.
    pub user: String,
    /// Real user id; absent where nothing is known of the process.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Pod namespace.
    pub namespace: Option<String>,
    /// Pod name, or its UID where the name is unknown.
    pub pod: Option<String>,
    /// Pod UID.
    pub pod_uid: Option<String>,
    /// Container name.
    pub container: Option<String>,
    /// Container id.
    pub container_id: Option<String>,
    /// Slurm job.
    pub slurm_job: Option<String>,
    /// Slurm step.
    pub slurm_step: Option<String>,
    /// Slurm task on this node.
    pub slurm_task: Option<String>,
    /// Slurm job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    /// Container's image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// systemd unit.
    pub unit: Option<String>,
    /// `cgroup`, `kernel`, `slurmstepd`, `pending` or `none`.
    pub method: String,
    /// What it says of itself and nothing proves, by attribute.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, String>,
}

impl OwnerView {
    /// An owner that is known.
    pub fn of(owner: &ProcessAttribution) -> Self {
        let pod = owner.workload.pod.as_ref();
        let slurm = owner.workload.slurm.as_ref();
        let text = |text: &std::sync::Arc<str>| printable(text).into_owned();
        let view = Self {
            owner: None,
            pid: owner.process.pid,
            start_ticks: owner.process.start_ticks,
            comm: text(&owner.comm),
            user: owner.user.as_ref().map_or_else(|| owner.uid.to_string(), text),
            uid: Some(owner.uid),
            namespace: pod.and_then(|pod| pod.namespace.as_ref().map(text)),
            pod: pod.map(|pod| pod.name.as_ref().map_or_else(|| pod.uid.to_string(), text)),
            pod_uid: pod.map(|pod| pod.uid.to_string()),
            container: pod.and_then(|pod| pod.container.as_ref().map(text)),
            container_id: owner.workload.container.as_ref().map(ToString::to_string),
            slurm_job: slurm.map(|slurm| text(&slurm.number())),
            slurm_step: slurm.and_then(|slurm| slurm.step.as_ref().map(text)),
            slurm_task: slurm.and_then(|slurm| slurm.task.as_ref().map(text)),
            job_name: slurm.and_then(SlurmTask::name).as_ref().map(text),
            image: owner.workload.facts.as_ref().and_then(|facts| facts.image.as_ref().map(text)),
            unit: owner.workload.unit.as_ref().map(text),
            method: match owner.method {
                // One that may still be found is more than one of whom nothing is known.
                Method::Pending => "pending",
                found => found.as_str(),
            }
            .into(),
            claims: owner
                .workload
                .claimed
                .each()
                .map(|(key, name)| (key.name.to_owned(), printable(name).into_owned()))
                .collect(),
        };
        Self { owner: view.workload(), ..view }
    }

    /// A process the driver names and nothing else is known of.
    pub fn unknown(pid: u32) -> Self {
        Self { pid, comm: "?".into(), user: "?".into(), method: "none".into(), ..Self::default() }
    }

    fn workload(&self) -> Option<String> {
        if let Some(pod) = &self.pod {
            // Of a pod without a name the UID is there, which does not say what it is.
            let is_named = Some(pod) != self.pod_uid.as_ref();
            let kind = if is_named { "" } else { "pod " };
            let namespace = self.namespace.as_ref().map_or(String::new(), |ns| format!("{ns}/"));
            let container = self.container.as_ref().map_or(String::new(), |c| format!(" [{c}]"));
            return Some(format!("{kind}{namespace}{pod}{container}"));
        }
        if let Some(job) = &self.slurm_job {
            let step = self.slurm_step.as_ref().map_or(String::new(), |step| format!(".{step}"));
            let task =
                self.slurm_task.as_ref().map_or(String::new(), |task| format!(" task {task}"));
            return Some(format!("slurm {job}{step}{task}"));
        }
        if let Some(container) = &self.container_id {
            return Some(format!("container {}", container.get(..12).unwrap_or(container)));
        }
        self.unit.clone()
    }
}
