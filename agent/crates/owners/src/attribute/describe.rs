//! A workload's names as attributes, and which of them stay while their source is unavailable.

use super::{Pod, Workload};
use gpuwho_model::catalog::attributes as attr;
use gpuwho_model::catalog::attributes::AttrSet;
use gpuwho_model::ids::ContainerId;
use std::sync::Arc;

impl Workload {
    pub(super) fn describe(&self, set: &mut AttrSet) {
        set.set_some(&attr::CONTAINER_ID, self.container.as_ref().map(ContainerId::as_str));
        self.name(set);
        if let Some(slurm) = &self.slurm {
            slurm.describe_task(set);
        }
        set.set_some(&attr::MACHINE_NAME, self.machine.clone());
        set.set_some(&attr::SYSTEMD_UNIT, self.unit.clone());
    }

    /// The pod, the job, the allocation, without the ids of the container and the step.
    pub(super) fn name(&self, set: &mut AttrSet) {
        if let Some(pod) = &self.pod {
            set.set(&attr::K8S_POD_UID, pod.uid.as_str());
            set.set_some(&attr::K8S_POD_NAME, pod.name.clone());
            set.set_some(&attr::K8S_NAMESPACE_NAME, pod.namespace.clone());
            set.set_some(&attr::K8S_CONTAINER_NAME, pod.container.clone());
            set.set_some(&attr::K8S_POD_QOS, pod.qos);
            if let Some(facts) = &pod.facts {
                set.extend(&facts.workload);
            }
        } else if let Some(facts) = &self.facts {
            set.set_some(&attr::CONTAINER_NAME, facts.name.clone());
        }
        if let Some(slurm) = &self.slurm {
            slurm.describe_job(set);
        }
        if let Some(allocation) = &self.allocation {
            set.set(&attr::SCHEDULER, allocation.scheduler);
            set.set(&attr::SCHEDULER_ALLOCATION, Arc::clone(&allocation.id));
            set.set_some(&attr::SCHEDULER_TASK, allocation.task.clone());
        }
    }

    /// The attributes for info series: labels, image, node.
    pub(super) fn detail(&self, set: &mut AttrSet) {
        if let Some(facts) = &self.facts {
            set.set_some(&attr::CONTAINER_IMAGE_NAME, facts.image.clone());
            set.set(&attr::CONTAINER_RUNTIME, facts.runtime);
            set.extend(&facts.details);
        }
        if let Some(facts) = self.pod.as_ref().and_then(|pod| pod.facts.as_ref()) {
            set.set_some(&attr::K8S_NODE_NAME, facts.node.clone());
            set.extend(&facts.details);
        }
        if let Some(slurm) = &self.slurm {
            slurm.detail_job(set);
        }
    }

    /// Removes the names that only sources of names know.
    pub(super) fn clear_names(&mut self) {
        self.facts = None;
        self.reconsider();
        if let Some(pod) = &mut self.pod {
            *pod = Pod { qos: pod.qos, ..Pod::unnamed(pod.uid.clone()) };
        }
    }

    /// Restores the names that `before` had for the same things and that no source provides now: a
    /// source that is down never removes an owner's names.
    pub(super) fn keep_names(&mut self, before: &Self) {
        // The runtime that confirmed a service's container may be unavailable now.
        if self.unconfirmed().is_some_and(|id| before.container.as_ref() == Some(id))
            && self.unit == before.unit
        {
            self.reconsider();
        }
        let has_facts = self.facts.is_some();
        if self.container.is_some() && self.container == before.container {
            self.facts = self.facts.take().or_else(|| before.facts.clone());
        }
        if let (Some(task), Some(known)) = (&mut self.slurm, &before.slurm)
            && task.job == known.job
        {
            task.facts = task.facts.take().or_else(|| known.facts.clone());
            if task.step == known.step && task.task == known.task {
                task.rank = task.rank.take().or_else(|| known.rank.clone());
            }
        }
        let (Some(pod), Some(known)) = (&mut self.pod, &before.pod) else { return };
        if pod.uid != known.uid {
            return;
        }
        pod.name = pod.name.take().or_else(|| known.name.clone());
        pod.namespace = pod.namespace.take().or_else(|| known.namespace.clone());
        pod.facts = pod.facts.take().or_else(|| known.facts.clone());
        if self.container == before.container && !has_facts {
            pod.container = pod.container.take().or_else(|| known.container.clone());
        }
    }
}
