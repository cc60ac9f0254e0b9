//! Answers requests on the control sockets from the current state of sources and ownership.

use super::core::Core;
use crate::attribute::ProcessAttribution;
use crate::catalog::device::DeviceState;
use crate::collect::device::snapshot::{
    Control, DeviceSnapshot, InstanceSnapshot, ProcessSnapshot, ReaderSnapshot,
};
use crate::control::Answer;
use crate::host;
use crate::ids::InstanceId;
use crate::who::{Device, Holder, HostReport, Instance, OwnerView, Process, Source};
use std::time::Duration;

/// Ended processes in one answer: enough for a burst, and still a small answer.
const MAX_ENDED: usize = 1024;

impl Core {
    fn device(&self, read: DeviceSnapshot) -> Device {
        let info = self.context.inventory.get(read.gpu);
        let text = |text: Option<String>| text.unwrap_or_else(|| "?".into());
        Device {
            uuid: text(info.as_ref().map(|info| info.uuid.to_string())),
            index: info.as_ref().map_or(0, |info| info.index),
            model: text(info.as_ref().and_then(|info| info.model.clone())),
            state: read.state.as_str().into(),
            reason: read.reason,
            read_age_seconds: read.age.map(|age| age.as_secs_f64()),
            utilization: read.utilization,
            memory_used_bytes: read.memory_used,
            memory_limit_bytes: read.memory_limit,
            power_watts: read.power,
            temperature_celsius: read.temperature,
            instances: read.instances.iter().filter_map(|read| self.instance(read)).collect(),
            processes: read.processes.iter().map(|process| self.process(process)).collect(),
            others: None,
        }
    }

    fn instance(&self, read: &InstanceSnapshot) -> Option<Instance> {
        let info = self.context.inventory.instance(read.instance)?;
        Some(Instance {
            uuid: info.uuid.to_string(),
            gpu_instance: info.gpu_instance,
            compute_instance: info.compute_instance,
            profile: info.profile.clone(),
            memory_used_bytes: read.memory_used,
            memory_limit_bytes: read.memory_limit,
        })
    }

    /// Processes that hold a device now, then those that ended a short while ago, the latest first.
    fn holders(&self) -> Vec<Holder> {
        let mut ended = self.context.ownership.ended();
        ended.sort_by_key(|owner| std::cmp::Reverse(owner.exited_ns));
        ended.truncate(MAX_ENDED);
        let living = self.context.ownership.openers();
        let readers: Vec<_> = self.context.readers.all().iter().map(Control::snapshot).collect();
        living.iter().chain(&ended).map(|owner| self.holder(owner, &readers)).collect()
    }

    fn holder(&self, owner: &ProcessAttribution, readers: &[ReaderSnapshot]) -> Holder {
        let exited = owner.exited_ns.is_some();
        // Another process may have the same nodes by now.
        let living = readers.iter().filter(|_| !exited);
        let granted =
            living.flat_map(|reader| reader.granted(&owner.nodes, &self.context.inventory));
        Holder {
            owner: OwnerView::of(owner),
            nodes: owner.nodes.iter().map(ToString::to_string).collect(),
            instances: granted.filter_map(|instance| self.mig_uuid(instance)).collect(),
            exited,
        }
    }

    fn mig_uuid(&self, instance: InstanceId) -> Option<String> {
        self.context.inventory.instance(instance).map(|info| info.uuid.to_string())
    }

    fn process(&self, listed: &ProcessSnapshot) -> Process {
        let owner = listed.process.and_then(|process| self.context.ownership.attribution(process));
        Process {
            owner: owner
                .map_or_else(|| OwnerView::unknown(listed.pid), |owner| OwnerView::of(&owner)),
            kind: listed.kind.map(|kind| kind.as_str().into()),
            instance: listed.instance.and_then(|instance| self.mig_uuid(instance)),
            memory_bytes: listed.memory,
            utilization: listed.utilization,
        }
    }
}

impl Answer for Core {
    fn who(&self) -> HostReport {
        self.refresh();
        // Indexes are unique within one vendor.
        let devices = self.context.readers.all().into_iter().flat_map(|reader| {
            let read = reader.snapshot().devices.into_iter();
            let mut devices: Vec<Device> = read.map(|read| self.device(read)).collect();
            devices.sort_by_key(|device| device.index);
            devices
        });
        HostReport {
            host: host::name(),
            version: env!("CARGO_PKG_VERSION").into(),
            devices: devices.collect(),
            holders: self.holders(),
            sources: self
                .context
                .board
                .all()
                .iter()
                .map(|(name, st)| Source::of(name, st))
                .collect(),
            ..HostReport::default()
        }
    }

    fn release(&self, length: Duration) -> String {
        let closed = self.context.readers.all().iter().all(|reader| reader.release(Some(length)));
        if closed {
            format!("every device handle is closed; the agent comes back in {length:?}")
        } else {
            "release requested; one reader is still blocked in a driver call".into()
        }
    }

    fn forget(&self, uuid: &str) -> Result<String, String> {
        let devices =
            self.context.readers.all().into_iter().flat_map(|reader| reader.snapshot().devices);
        let answers = devices.filter(|read| read.state == DeviceState::Ok).any(|read| {
            self.context.inventory.get(read.gpu).is_some_and(|info| info.uuid.as_str() == uuid)
        });
        if answers {
            return Err(format!("{uuid} answers: it would be remembered again at once"));
        }
        match self.context.inventory.register().remove(uuid) {
            Some(known) => {
                let model = known.model.unwrap_or_else(|| "device".into());
                Ok(format!("{model} {uuid} is forgotten"))
            }
            None => Err(format!("no device {uuid} is remembered; `gpuwho --json` has the UUIDs")),
        }
    }

    fn resume(&self) -> String {
        self.context.readers.all().iter().for_each(Control::resume);
        "the readers take the devices again at their next tick".into()
    }
}
