//! What a batch says of the devices' throttling, and of the owners' tokens and collectives, for their
//! receipts.

use super::State;
use super::increase::Counted;
use super::open::{OnDevice, Open};
use crate::identity::Registries;
use gpuwho_model::catalog::device;
use gpuwho_model::ids::GpuId;
use gpuwho_model::ids::OwnerId;
use gpuwho_model::sample::{Batch, Sample, Subject, Value};

impl State {
    /// Adds what a batch says of throttling, tokens and collectives.
    pub(super) fn read(&mut self, batch: &Batch, context: &Registries<'_>) {
        for (_, sample) in &batch.samples {
            let is_read =
                matches!(sample.subject, Subject::Gpu(_) | Subject::Engine(_) | Subject::Member(_));
            if !is_read {
                continue;
            }
            match (sample.subject, &sample.value) {
                (Subject::Gpu(gpu), Value::Int(bytes))
                    if *sample.metric == *device::MEMORY_LIMIT.def() =>
                {
                    let bytes = u64::try_from(*bytes).ok();
                    self.on_device(gpu, context, |device| device.memory_limit = bytes);
                }
                (Subject::Gpu(gpu), Value::Double(watts))
                    if *sample.metric == *device::POWER_LIMIT.def() =>
                {
                    let noted = |device: &mut OnDevice| {
                        device.power_limit = device.power_limit.max(*watts);
                    };
                    self.on_device(gpu, context, noted);
                }
                _ => {}
            }
            let Some(counted) = Counted::of(sample.metric) else { continue };
            let Some(more) = self.increases.of(sample) else { continue };
            match sample.subject {
                Subject::Gpu(gpu) => self.throttled(gpu, sample, more),
                Subject::Engine(engine) => {
                    let owner = context.engines.facts(engine).and_then(|facts| facts.owner);
                    self.with(owner, context, |open| open.tokens(counted, more));
                }
                Subject::Member(member) => {
                    let facts = context.communicators.facts(member);
                    let process = facts.as_ref().map(|facts| facts.process);
                    let process = process.and_then(|key| context.ownership.attribution(key));
                    let rank = facts.and_then(|facts| facts.rank);
                    self.with(process.map(|process| process.owner), context, |open| {
                        open.collectives(counted, more, rank);
                    });
                }
                _ => {}
            }
        }
    }

    /// Changes the sums of those with something on a device.
    fn on_device(&mut self, gpu: GpuId, context: &Registries<'_>, change: impl Fn(&mut OnDevice)) {
        let Some(info) = context.inventory.get(gpu) else { return };
        for key in self.on.get(&gpu).into_iter().flatten() {
            let open = self.open.get_mut(key);
            open.and_then(|open| open.device(info.uuid.as_str())).map(&change);
        }
    }

    fn throttled(&mut self, gpu: GpuId, sample: &Sample, seconds: f64) {
        let reasons = device::ThrottleReason::ALL;
        let reason = sample.dims.first().and_then(|place| reasons.get(usize::from(*place)));
        let is_limit = |reason: &&device::ThrottleReason| {
            use device::ThrottleReason as Reason;
            !matches!(reason, Reason::Idle | Reason::ApplicationClocks)
        };
        let Some(reason) = reason.filter(is_limit) else { return };
        for key in self.on.get(&gpu).into_iter().flatten() {
            if let Some(open) = self.open.get_mut(key) {
                open.throttled(reason.as_str(), seconds);
            }
        }
    }

    fn with(
        &mut self,
        owner: Option<OwnerId>,
        context: &Registries<'_>,
        add: impl FnOnce(&mut Open),
    ) {
        let known = owner.and_then(|owner| self.known(owner, context.ownership));
        if let Some(open) = known.and_then(|known| self.open.get_mut(&known.key)) {
            add(open);
        }
    }
}
