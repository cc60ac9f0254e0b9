//! The values that one batched call reads: which there are, what their numbers mean to this driver,
//! and what each last said.
//!
//! A reading makes one call for every value whose turn it is. A value that the device does not
//! support is asked for once a handle; one that failed is asked for again at the next reading.
//!
//! Drivers from 580.82 on (CUDA 13.0 Update 1) gave the numbers 251 to 273 other meanings. The table
//! has the numbers of the header that comes with the bindings, which is older; they are translated
//! by the driver's version. Where that is not known, none of these numbers is asked for.

mod table;

use super::caller::{Call, ErrorClass, NvmlCaller};
use crate::sys::nvml::fields::{Batch, Number};
use nvml_wrapper::Device;
use std::collections::BTreeMap;
pub(super) use table::Field;

/// The whole device.
pub(super) const DEVICE: u32 = 0;
/// Of the power fields: the module around the device, processor and all.
pub(super) const MODULE: u32 = 1;
/// Of the NVLink counters: all links together.
pub(super) const ALL_LINKS: u32 = u32::MAX;

/// Which numbering of 251 to 273 a driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    /// Drivers before 580.82.
    Old,
    /// Drivers from 580.82 on.
    Renumbered,
}

/// What one field of one part last said.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    value: Option<Number>,
    unsupported: bool,
}

/// One device's fields.
#[derive(Debug)]
pub(super) struct Fields {
    numbering: Option<Numbering>,
    slots: BTreeMap<(Field, u32), Slot>,
    batch: Batch,
    /// What the batch asks for, in its order.
    asked: Vec<(Field, u32)>,
}

impl Fields {
    /// Everything the table asks for always, of a device of a driver of a version.
    pub(super) fn new(driver: Option<&str>) -> Self {
        let mut fields = Self {
            numbering: driver.and_then(Numbering::of),
            slots: BTreeMap::new(),
            batch: Batch::default(),
            asked: Vec::new(),
        };
        for field in Field::ALL {
            field.info().scopes.iter().for_each(|scope| fields.want(*field, *scope));
        }
        fields
    }

    /// Asks for a field of a part (a link, say), too, from the next reading on.
    pub(super) fn want(&mut self, field: Field, scope: u32) {
        self.slots.entry((field, scope)).or_default();
    }

    /// Asks again for a field of a part that was found to be unsupported: the part is another now.
    pub(super) fn renew(&mut self, field: Field, scope: u32) {
        if let Some(slot) = self.slots.get_mut(&(field, scope)) {
            slot.unsupported = false;
        }
    }

    /// Whether a field of a part was asked for and is not supported.
    pub(super) fn refuses(&self, field: Field, scope: u32) -> bool {
        self.slots.get(&(field, scope)).is_some_and(|slot| slot.unsupported)
    }

    /// Asks for everything whose turn it is, in one call.
    pub(super) fn read(&mut self, device: &Device<'_>, caller: &mut NvmlCaller) {
        self.begin(caller);
        if self.batch.is_empty() {
            return;
        }
        let batch = &mut self.batch;
        if caller.call(Call::Fields, || batch.ask(device)).is_none() {
            return;
        }
        for (place, answer) in self.asked.iter().zip(self.batch.answers()) {
            let Some(slot) = self.slots.get_mut(place) else { continue };
            match caller.record(place, answer) {
                // All ones is what a register reads that is not there.
                Ok(Number::U32(u32::MAX) | Number::U64(u64::MAX)) => caller.reject(),
                Ok(value) => slot.value = Some(value),
                Err(verdict) => slot.unsupported = verdict == ErrorClass::Unsupported,
            }
        }
    }

    /// Chooses what to ask for, and forgets what was said of it before.
    fn begin(&mut self, caller: &NvmlCaller) {
        self.batch.clear();
        self.asked.clear();
        for ((field, scope), slot) in &mut self.slots {
            if caller.renewed() {
                *slot = Slot::default();
            }
            let due = slot.value.is_none() || caller.due(field.info().pace);
            let Some(id) = field.id(self.numbering).filter(|_| due && !slot.unsupported) else {
                continue;
            };
            slot.value = None;
            self.batch.push(id, *scope);
            self.asked.push((*field, *scope));
        }
    }

    /// What a field of the device said, in base units.
    pub(super) fn base(&self, field: Field) -> Option<f64> {
        self.base_of(field, DEVICE)
    }

    /// What a field of a part said, in base units.
    pub(super) fn base_of(&self, field: Field, scope: u32) -> Option<f64> {
        let slot = self.slots.get(&(field, scope))?;
        field.info().unit.base(slot.value?)
    }

    /// What a field of the device said, as a whole number: a count, a state, bytes.
    pub(super) fn whole(&self, field: Field) -> Option<i64> {
        self.whole_of(field, DEVICE)
    }

    /// What a field of a part (a link, say) said, as a whole number.
    pub(super) fn whole_of(&self, field: Field, scope: u32) -> Option<i64> {
        match self.slots.get(&(field, scope))?.value? {
            Number::U32(value) => Some(i64::from(value)),
            Number::U64(value) => i64::try_from(value).ok(),
            Number::I64(value) => Some(value),
            Number::F64(_) => None,
        }
    }

    /// The same of a counter that the driver keeps in 64 bits; one of fewer wraps.
    pub(super) fn wide(&self, field: Field) -> Option<i64> {
        let slot = self.slots.get(&(field, DEVICE))?;
        self.whole(field).filter(|_| matches!(slot.value, Some(Number::U64(_))))
    }

    /// Whether the device has a field, as far as is known: of what it lacks, an older call may
    /// tell.
    pub(super) fn lacks(&self, field: Field, caller: &NvmlCaller) -> bool {
        let slot = self.slots.get(&(field, DEVICE));
        let known =
            field.id(self.numbering).is_some() && slot.is_some_and(|slot| !slot.unsupported);
        !known || caller.lacks(Call::Fields)
    }
}

impl Field {
    /// Its number for a driver; `None` where that is not known.
    fn id(self, numbering: Option<Numbering>) -> Option<u32> {
        match (self.info().id, numbering) {
            (251..=273, None) => None,
            (id @ 251..=255, Some(Numbering::Renumbered)) => Some(id + 18),
            (id @ 256..=273, Some(Numbering::Renumbered)) => Some(id - 5),
            (id, _) => Some(id),
        }
    }
}

impl Numbering {
    /// That of a driver, by its version: `580.82.07`.
    fn of(driver: &str) -> Option<Self> {
        let mut parts = driver.split('.').map(|part| part.parse::<u32>().ok());
        let (major, minor) = (parts.next()??, parts.next()??);
        Some(if (major, minor) >= (580, 82) { Self::Renumbered } else { Self::Old })
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, Fields, Numbering};
    use std::collections::BTreeSet;

    fn ids(driver: Option<&str>) -> [Option<u32>; 5] {
        let numbering = driver.and_then(Numbering::of);
        [
            Field::PowerInstant,
            Field::HeldByPowerCap,
            Field::HeldBySoftwareThermal,
            Field::HeldByHardwareThermal,
            Field::HeldByPowerBrake,
        ]
        .map(|field| field.id(numbering))
    }

    #[test]
    fn the_numbers_that_were_given_new_meanings_follow_the_driver_s_version() {
        let old = [186, 74, 251, 252, 253].map(Some);
        let renumbered = [186, 74, 269, 270, 271].map(Some);
        for driver in ["470.256.02", "575.57.08", "580.65.06", "580.81"] {
            assert_eq!(ids(Some(driver)), old, "{driver}");
        }
        for driver in ["580.82.07", "580.95.05", "580.100", "590.44.01", "610.12"] {
            assert_eq!(ids(Some(driver)), renumbered, "{driver}");
        }
    }

    #[test]
    fn a_number_whose_meaning_is_not_known_is_not_asked_for() {
        for driver in [None, Some(""), Some("580"), Some("vGPU 18.1")] {
            assert_eq!(ids(driver), [Some(186), Some(74), None, None, None], "{driver:?}");
        }
    }

    #[test]
    fn no_two_fields_have_one_number() {
        // Payload is asked for at another pace by link than by all of them.
        let twice = 2;
        for numbering in [Numbering::Old, Numbering::Renumbered] {
            let ids: BTreeSet<_> =
                Field::ALL.iter().filter_map(|field| field.id(Some(numbering))).collect();
            assert_eq!(ids.len() + twice, Field::ALL.len(), "{numbering:?}");
        }
    }

    #[test]
    fn every_field_of_the_table_is_wanted_from_the_start() {
        let fields = Fields::new(Some("580.95.05"));
        let wanted: usize = Field::ALL.iter().map(|field| field.info().scopes.len()).sum();
        assert_eq!(fields.slots.len(), wanted);
    }
}
