//! Answers requests on the control sockets from the current state of sources and ownership.

use super::core::{Core, health_clock};
use crate::control::Answer;
use crate::who::{
    Device, EngineView, Holder, HostReport, Instance, Process, SCHEMA, Source, Totals,
};
use gpuwho_collect::snapshot::{
    Control, DeviceSnapshot, InstanceSnapshot, ProcessSnapshot, ReaderSnapshot,
};
use gpuwho_model::catalog::device::DeviceState;
use gpuwho_model::ids::{InstanceId, OwnerId};
use gpuwho_model::text::printable;
use gpuwho_owners::attribute::ProcessAttribution;
use gpuwho_owners::attribute::view::OwnerView;
use gpuwho_owners::engines::{EngineFacts, Serving};
use gpuwho_pipeline::accounting::only_owner;
use gpuwho_pipeline::cost::receipts::ReceiptReport;
use gpuwho_pipeline::event::recent::EventReport;
use gpuwho_pipeline::health::report::HealthReport;
use humantime::format_duration;
use std::sync::Arc;
use std::time::Duration;

/// Ended processes in one answer: enough for a burst, and still a small answer.
const MAX_ENDED: usize = 1024;

impl Core {
    fn device(&self, read: DeviceSnapshot) -> Device {
        let info = self.context.inventory.get(read.gpu);
        let text = |text: Option<String>| text.unwrap_or_else(|| "?".into());
        // What was read before says nothing of a device that does not answer now.
        let is_ok = read.state == DeviceState::Ok;
        let live = |value: Option<i64>| value.filter(|_| is_ok);
        let device = Device {
            uuid: text(info.as_ref().map(|info| info.uuid.to_string())),
            index: info.as_ref().map_or(0, |info| info.index),
            vendor: info.as_ref().map_or_else(String::new, |info| info.vendor.clone()),
            pci_address: info.as_ref().and_then(|info| info.pci_address.clone()),
            model: text(info.as_ref().and_then(|info| info.model.clone())),
            state: read.state.as_str().into(),
            reason: read.reason,
            read_age_seconds: read.age.map(|age| age.as_secs_f64()),
            utilization: read.utilization.filter(|_| is_ok),
            memory_used_bytes: live(read.memory_used),
            memory_limit_bytes: live(read.memory_limit),
            power_watts: read.power.filter(|_| is_ok),
            temperature_celsius: read.temperature.filter(|_| is_ok),
            instances: read
                .instances
                .iter()
                .filter_map(|read| self.instance(read, is_ok))
                .collect(),
            processes: read.processes.iter().map(|process| self.process(process, is_ok)).collect(),
            health: Core::health(self).conditions(read.gpu),
            ..Device::default()
        };
        let named = read.processes.iter().filter_map(|listed| listed.process);
        let owners = named.clone().map(|process| {
            let known = self.context.ownership.attribution(process);
            known.map_or(OwnerId::UNATTRIBUTED, |known| known.owner)
        });
        let only = only_owner(owners, read.processes.len() - named.count());
        device.with_rest(only.is_some_and(|owner| owner != OwnerId::UNATTRIBUTED))
    }

    fn instance(&self, read: &InstanceSnapshot, is_ok: bool) -> Option<Instance> {
        let info = self.context.inventory.instance(read.instance)?;
        Some(Instance {
            uuid: info.uuid.to_string(),
            gpu_instance: info.gpu_instance,
            compute_instance: info.compute_instance,
            profile: info.profile.clone(),
            memory_used_bytes: read.memory_used.filter(|_| is_ok),
            memory_limit_bytes: read.memory_limit.filter(|_| is_ok),
        })
    }

    /// Processes that hold a device now.
    fn holders(&self) -> Vec<Holder> {
        let living = self.context.ownership.openers();
        let readers: Vec<_> = self.context.readers.all().iter().map(Control::snapshot).collect();
        living.iter().map(|owner| self.holder(owner, &readers)).collect()
    }

    /// Processes that ended a short while ago, the latest first. Another process may have the same
    /// nodes by now.
    fn ended(&self) -> Vec<Holder> {
        let mut ended = self.context.ownership.ended();
        ended.sort_by_key(|owner| std::cmp::Reverse(owner.exited_ns));
        ended.truncate(MAX_ENDED);
        ended.iter().map(|owner| self.holder(owner, &[])).collect()
    }

    fn holder(&self, owner: &ProcessAttribution, readers: &[ReaderSnapshot]) -> Holder {
        let granted = readers.iter();
        let granted =
            granted.flat_map(|reader| reader.granted(&owner.nodes, &self.context.inventory));
        Holder {
            owner: OwnerView::of(owner),
            nodes: owner.nodes.iter().map(ToString::to_string).collect(),
            instances: granted.filter_map(|instance| self.mig_uuid(instance)).collect(),
        }
    }

    fn mig_uuid(&self, instance: InstanceId) -> Option<String> {
        self.context.inventory.instance(instance).map(|info| info.uuid.to_string())
    }

    fn process(&self, listed: &ProcessSnapshot, is_ok: bool) -> Process {
        let owner = listed.process.and_then(|process| self.context.ownership.attribution(process));
        Process {
            owner: owner
                .map_or_else(|| OwnerView::unknown(listed.pid), |owner| OwnerView::of(&owner)),
            kind: listed.kind.map(|kind| kind.as_str().into()),
            instance: listed.instance.and_then(|instance| self.mig_uuid(instance)),
            memory_bytes: listed.memory.filter(|_| is_ok),
            utilization: listed.utilization.filter(|_| is_ok),
        }
    }

    fn engines(&self) -> Vec<EngineView> {
        let text = |text: &str| printable(text).into_owned();
        let view = |(facts, serving): (Arc<EngineFacts>, Serving)| {
            let owner =
                serving.process.and_then(|process| self.context.ownership.attribution(process));
            EngineView {
                owner: owner.map(|owner| OwnerView::of(&owner)).unwrap_or_default(),
                engine: facts.name.map(str::to_owned),
                version: facts.version.as_deref().map(text),
                address: facts.address.as_deref().map(text),
                port: facts.port,
                models: serving.models.iter().map(|model| text(model)).collect(),
                tokens_per_second: serving.tokens_per_second,
                running: serving.running,
                waiting: serving.waiting,
            }
        };
        self.context.engines.all().into_iter().map(view).collect()
    }
}

impl Answer for Core {
    fn who(&self) -> HostReport {
        self.refresh();
        // Indexes are unique within one vendor.
        let devices = self.context.readers.all().into_iter().flat_map(|reader| {
            let is_released = reader.released();
            let read = reader.snapshot().devices.into_iter().map(|read| match read.state {
                // Until the reader's next turn.
                DeviceState::Ok if is_released => {
                    DeviceSnapshot { state: DeviceState::Released, ..read }
                }
                _ => read,
            });
            let mut devices: Vec<Device> = read.map(|read| self.device(read)).collect();
            devices.sort_by_key(|device| device.index);
            devices
        });
        let devices: Vec<Device> = devices.collect();
        HostReport {
            schema: SCHEMA,
            host: self.host.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            totals: Totals::of(&devices),
            devices,
            holders: self.holders(),
            ended: self.ended(),
            engines: self.engines(),
            receivers: self.receivers.lock().clone(),
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

    fn events(&self, viewer: Option<u32>) -> EventReport {
        self.recent.report(self.host.clone(), viewer)
    }

    fn health(&self) -> HealthReport {
        let monitor = Core::health(self);
        monitor.report(&self.host, &self.context.inventory, health_clock())
    }

    fn receipts(&self, name: &str, viewer: Option<u32>) -> ReceiptReport {
        self.receipts.report(name, viewer)
    }

    fn release(&self, length: Duration) -> String {
        let readers = self.context.readers.all();
        // All readers, also those after one that hangs.
        let closed: Vec<bool> = readers.iter().map(|one| one.release(Some(length))).collect();
        let time = format_duration(length);
        if readers.iter().all(|reader| reader.snapshot().devices.is_empty()) {
            format!("no device to release; the agent opens none for {time}")
        } else if closed.contains(&false) {
            format!("release requested for {time}; one reader is still blocked in a driver call")
        } else {
            format!("devices released; the agent reopens them in {time}")
        }
    }

    fn forget(&self, uuid: &str) -> Result<String, String> {
        let devices =
            self.context.readers.all().into_iter().flat_map(|reader| reader.snapshot().devices);
        let answers = devices.filter(|read| read.state == DeviceState::Ok).any(|read| {
            self.context.inventory.get(read.gpu).is_some_and(|info| info.uuid.as_str() == uuid)
        });
        if answers {
            self.context.inventory.register().forget_link(uuid);
            return Ok(format!("{uuid} answers and stays; what its slot has shown is forgotten"));
        }
        match self.context.inventory.register().remove(uuid) {
            Some(known) => {
                Core::health(self).forget(&known.uuid);
                let model = known.model.unwrap_or_else(|| "device".into());
                Ok(format!("{model} {uuid} is forgotten"))
            }
            None => Err(format!("no device {uuid} is remembered; `gpuwho --json` has the UUIDs")),
        }
    }

    fn resume(&self) -> String {
        let readers = self.context.readers.all();
        if !readers.iter().any(Control::released) {
            return "no device is released".into();
        }
        readers.iter().for_each(Control::resume);
        "the agent reopens the devices at its next reading".into()
    }
}
