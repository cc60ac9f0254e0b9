//! What a user without privilege is told of others: how many processes they have on a device and
//! what these take together, and nothing else.

use super::{Device, Holder, HostReport, Process, Source};
use gpuwho_bpf::device_users;
use gpuwho_collect::kmsg;
use gpuwho_devices::DEVICES;
use gpuwho_owners::attribute::providers;
use gpuwho_owners::attribute::view::OwnerView;
use gpuwho_pipeline::event::recent::Summary;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Own processes in one answer, on devices and among the holders each; the rest counts as others'.
const MAX_OWN: usize = 256;

/// Processes that are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Others {
    /// How many.
    pub processes: usize,
    /// Their device memory, as far as the driver tells it.
    pub memory_bytes: Option<i64>,
    /// Fraction of time they kept the multiprocessors busy, together.
    pub utilization: Option<f64>,
}

impl HostReport {
    /// The answer to a user: devices, totals and the user's own processes.
    #[must_use]
    pub fn as_seen_by(&self, uid: u32) -> Self {
        let is_own = |owner: &OwnerView| owner.uid == Some(uid);
        let mut hidden = BTreeSet::new();
        let mut own = 0;
        let devices = self.devices.iter().map(|device| {
            let mut others = Others::default();
            let mut processes = Vec::new();
            for process in &device.processes {
                if is_own(&process.owner) && own < MAX_OWN {
                    own += 1;
                    processes.push(process.clone());
                } else {
                    hidden.insert(process.owner.pid);
                    others.add(process);
                }
            }
            let mut whole = device.without_processes();
            if others.processes > 0 {
                let all = whole.memory_exclusive_bytes.take();
                let (theirs, shared) = if processes.is_empty() { (all, None) } else { (None, all) };
                others.memory_bytes = others.memory_bytes.or(theirs);
                whole.memory_unsplittable_bytes = whole.memory_unsplittable_bytes.or(shared);
            }
            let others = Some(others).filter(|others| others.processes > 0);
            Device { processes, others, ..whole }
        });
        let devices = devices.collect();
        let mut holders: Vec<Holder> = Vec::new();
        for holder in &self.holders {
            if is_own(&holder.owner) && holders.len() < MAX_OWN {
                holders.push(holder.clone());
            } else {
                hidden.insert(holder.owner.pid);
            }
        }
        let ended = self.ended.iter().filter(|holder| is_own(&holder.owner));
        let engines = self.engines.iter().filter(|engine| is_own(&engine.owner));
        Self {
            schema: self.schema,
            host: self.host.clone(),
            version: self.version.clone(),
            totals: self.totals,
            devices,
            holders,
            ended: ended.take(MAX_OWN).cloned().collect(),
            engines: engines.cloned().collect(),
            // The server puts there what this user may see.
            events: Summary::default(),
            receivers: Vec::new(),
            sources: self.sources.iter().map(Source::without_names).collect(),
            others_hidden: true,
            hidden_processes: hidden.len(),
        }
    }
}

impl Others {
    pub(super) fn add(&mut self, process: &Process) {
        self.processes += 1;
        if let Some(bytes) = process.memory_bytes {
            self.memory_bytes = Some(self.memory_bytes.unwrap_or(0).saturating_add(bytes));
        }
        if let Some(busy) = process.utilization {
            self.utilization = Some(self.utilization.unwrap_or(0.0) + busy);
        }
    }
}

impl Source {
    /// What is said of the driver, the kernel and the runtimes concerns everybody, and what is absent
    /// names nobody; all else that is said of processes and their files may.
    fn without_names(&self) -> Self {
        let is_common = DEVICES.iter().any(|vendor| vendor.name == self.name)
            || [device_users::NAME, kmsg::NAME].contains(&&*self.name)
            || providers::is_provider(&self.name);
        if is_common || self.state == "absent" || self.reason.is_empty() {
            return self.clone();
        }
        let remedy = "ask as root".to_owned();
        Self { reason: "root is told why".to_owned(), remedy, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(uid: Option<u32>, pid: u32, memory: i64) -> Process {
        let owner = OwnerView { pid, uid, comm: format!("comm-{pid}"), ..OwnerView::default() };
        Process { owner, memory_bytes: Some(memory), utilization: Some(0.25), ..Process::default() }
    }

    #[test]
    fn a_user_is_told_the_own_processes_and_how_many_others_there_are() {
        let holder =
            |uid, pid| Holder { owner: process(Some(uid), pid, 0).owner, ..Holder::default() };
        let processes =
            vec![process(Some(7), 70, 1), process(Some(8), 80, 2), process(None, 90, 4)];
        let source = |name: &str| Source {
            name: name.into(),
            state: "degraded".into(),
            reason: "comm-80 in /home/eve".into(),
            ..Source::default()
        };
        let who = HostReport {
            devices: vec![Device { memory_used_bytes: Some(9), processes, ..Device::default() }],
            holders: vec![holder(7, 71), holder(8, 80)],
            ended: vec![holder(7, 72), holder(8, 81)],
            sources: vec![source("nvidia"), source("nccl")],
            ..HostReport::default()
        };
        let seen = who.as_seen_by(7);
        let text = serde_json::to_string(&seen).unwrap();
        let others = Others { processes: 2, memory_bytes: Some(6), utilization: Some(0.5) };
        assert_eq!(seen.devices[0].processes, [process(Some(7), 70, 1)]);
        assert_eq!(seen.devices[0].others, Some(others));
        assert_eq!(seen.devices[0].memory_used_bytes, Some(9));
        assert_eq!((seen.holders, seen.ended), (vec![holder(7, 71)], vec![holder(7, 72)]));
        assert_eq!((seen.others_hidden, seen.hidden_processes), (true, 2));
        // The driver's reason stays; that of a source about processes does not.
        assert_eq!(text.matches("comm-80").count(), 1, "{text}");
        assert_eq!(text.matches("comm-81").count() + text.matches("comm-90").count(), 0, "{text}");
    }

    #[test]
    fn memory_that_the_driver_does_not_divide_is_no_user_s_alone_where_others_are_on_it() {
        let bare = |uid, pid| Process { memory_bytes: None, ..process(Some(uid), pid, 0) };
        let seen = |processes: Vec<Process>| {
            let memory_used_bytes = Some(9);
            let device = Device { memory_used_bytes, processes, ..Device::default() };
            let devices = vec![device.with_rest(true)];
            let mut seen = HostReport { devices, ..HostReport::default() }.as_seen_by(7);
            let device = seen.devices.remove(0);
            let others = device.others.and_then(|others| others.memory_bytes);
            (device.memory_exclusive_bytes, device.memory_unsplittable_bytes, others)
        };
        assert_eq!(seen(vec![bare(7, 70)]), (Some(9), None, None));
        assert_eq!(seen(vec![bare(8, 80)]), (None, None, Some(9)));
        assert_eq!(seen(vec![bare(7, 70), bare(8, 80)]), (None, Some(9), None));
    }

    #[test]
    fn an_answer_to_a_user_with_many_processes_has_a_bound() {
        let processes = (0..2_000).map(|pid| process(Some(7), pid, 1)).collect();
        let device = Device { processes, ..Device::default() };
        let seen = HostReport { devices: vec![device], ..HostReport::default() }.as_seen_by(7);
        assert_eq!((seen.devices[0].processes.len(), seen.hidden_processes), (256, 1_744));
        assert!(serde_json::to_vec(&seen).unwrap().len() < 200_000);
    }
}
