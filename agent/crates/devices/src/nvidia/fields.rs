//! The values of one batched call: which fields exist, their numbers for this driver, and their
//! last values.
//!
//! A reading makes one call for every value that is due. A field that the device does not support
//! is queried once per handle; one that failed is queried again at the next reading.
//!
//! Drivers from 580.82 on (CUDA 13.0 Update 1) changed the meaning of the numbers 251 to 273. The
//! table has the numbers of the older header in the bindings; they are translated by the driver's
//! version. If the version is unknown, none of these numbers is queried.

mod table;

use super::caller::{Call, ErrorClass, NvmlCaller};
use gpuwho_sys::nvml::fields::{Batch, Number};
use nvml_wrapper::Device;
use std::collections::BTreeMap;
pub(super) use table::Field;

/// Scope: the whole device.
pub(super) const DEVICE: u32 = 0;
/// Scope of the power fields: the module around the device, including its CPU.
pub(super) const MODULE: u32 = 1;
/// Scope of the NVLink counters: the sum of all links.
pub(super) const ALL_LINKS: u32 = u32::MAX;

/// The numbering of 251 to 273 that a driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbering {
    /// Drivers before 580.82.
    Old,
    /// Drivers from 580.82 on.
    Renumbered,
}

/// The last value of one field of one scope.
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
    /// The fields of the batch, in its order.
    asked: Vec<(Field, u32)>,
}

impl Fields {
    /// Starts with every field that the table always queries; `driver` is the driver's version.
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

    /// Adds a field of a scope (a link, for example) to the next readings.
    pub(super) fn want(&mut self, field: Field, scope: u32) {
        self.slots.entry((field, scope)).or_default();
    }

    /// Queries an unsupported field of a scope again: the scope has changed.
    pub(super) fn renew(&mut self, field: Field, scope: u32) {
        if let Some(slot) = self.slots.get_mut(&(field, scope)) {
            slot.unsupported = false;
        }
    }

    /// Whether a field of a scope was queried and is not supported.
    pub(super) fn is_unsupported(&self, field: Field, scope: u32) -> bool {
        self.slots.get(&(field, scope)).is_some_and(|slot| slot.unsupported)
    }

    /// Queries everything that is due, in one call.
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
                // All ones is the value of a missing register.
                Ok(Number::U32(u32::MAX) | Number::U64(u64::MAX)) => caller.reject(),
                Ok(value) => slot.value = Some(value),
                Err(class) => slot.unsupported = class == ErrorClass::Unsupported,
            }
        }
    }

    /// Chooses the fields to query, and clears their last values.
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

    /// The value of a field of the device, in base units.
    pub(super) fn base(&self, field: Field) -> Option<f64> {
        self.base_of(field, DEVICE)
    }

    /// The value of a field of a scope, in base units.
    pub(super) fn base_of(&self, field: Field, scope: u32) -> Option<f64> {
        let slot = self.slots.get(&(field, scope))?;
        field.info().unit.base(slot.value?)
    }

    /// The value of a field of the device, as an integer: a count, a state, bytes.
    pub(super) fn whole(&self, field: Field) -> Option<i64> {
        self.whole_of(field, DEVICE)
    }

    /// The value of a field of a scope, as an integer.
    pub(super) fn whole_of(&self, field: Field, scope: u32) -> Option<i64> {
        match self.slots.get(&(field, scope))?.value? {
            Number::U32(value) => Some(i64::from(value)),
            Number::U64(value) => i64::try_from(value).ok(),
            Number::I64(value) => Some(value),
            Number::F64(_) => None,
        }
    }

    /// The value of a 64-bit counter of the device; a narrower counter wraps and is left out.
    pub(super) fn wide(&self, field: Field) -> Option<i64> {
        let slot = self.slots.get(&(field, DEVICE))?;
        self.whole(field).filter(|_| matches!(slot.value, Some(Number::U64(_))))
    }

    /// Whether the device is known to lack a field; then an older call may have the value.
    pub(super) fn lacks(&self, field: Field, caller: &NvmlCaller) -> bool {
        let slot = self.slots.get(&(field, DEVICE));
        let known =
            field.id(self.numbering).is_some() && slot.is_some_and(|slot| !slot.unsupported);
        !known || caller.lacks(Call::Fields)
    }
}

impl Field {
    /// Its number for a driver; `None` if unknown.
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
    /// The numbering of a driver version, such as `580.82.07`.
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
    fn renumbered_fields_follow_the_drivers_version() {
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
    fn a_number_of_unknown_meaning_is_not_queried() {
        for driver in [None, Some(""), Some("580"), Some("vGPU 18.1")] {
            assert_eq!(ids(driver), [Some(186), Some(74), None, None, None], "{driver:?}");
        }
    }

    #[test]
    fn no_two_fields_have_one_number() {
        // Payload is polled at different rates per link and in total.
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
