//! The values that one batched call reads: which there are, what their numbers mean to this driver,
//! and what each last said.
//!
//! A reading makes one call for every value whose turn it is. A value that the device does not
//! support is asked for once a handle; one that failed is asked for again at the next reading.
//!
//! Drivers from 580.82 on (CUDA 13.0 Update 1) gave the numbers 251 to 273 other meanings. The table
//! has the numbers of the header that comes with the bindings, which is older; they are translated
//! by the driver's version. Where that is not known, none of these numbers is asked for.

use super::ask::{Ask, Call, Pace, Verdict};
use crate::sys::nvml::fields::{Batch, Number};
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::field_id as nvml;
use std::collections::BTreeMap;

/// The whole device.
pub(super) const DEVICE: u32 = 0;
/// Of the power fields: the module around the device, processor and all.
pub(super) const MODULE: u32 = 1;
/// Of the NVLink counters: all links together.
pub(super) const ALL_LINKS: u32 = u32::MAX;

/// What a value counts in; its factor leads to the catalogue's base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A number of something, a state, bytes.
    Number,
    Celsius,
    Milliwatt,
    Millijoule,
    Nanosecond,
    MegabytePerSecond,
}

/// What is known of a field.
struct Row {
    /// Its number before driver 580.82.
    id: u32,
    pace: Pace,
    unit: Unit,
    /// Of which parts it is always asked for.
    scopes: &'static [u32],
}

/// Declares the fields.
macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $field:ident = $id:ident, $pace:ident, $unit:ident, of $scopes:expr;)+) => {
        /// A value of the batched call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Field { $($(#[doc = $doc])+ $field,)+ }

        impl Field {
            const ALL: &'static [Self] = &[$(Self::$field),+];

            fn row(self) -> Row {
                match self {
                    $(Self::$field => Row {
                        id: nvml::$id,
                        pace: Pace::$pace,
                        unit: Unit::$unit,
                        scopes: &$scopes,
                    },)+
                }
            }
        }
    };
}

fields! {
    /// Of the memory stacks; 0 on boards without that sensor.
    MemoryTemperature = NVML_FI_DEV_MEMORY_TEMP, EveryTick, Celsius, of [DEVICE];
    /// Energy used since the driver was loaded.
    Energy = NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, EveryTick, Millijoule, of [DEVICE];
    /// Power, averaged over a second; Ampere (but GA100) and later.
    PowerAverage = NVML_FI_DEV_POWER_AVERAGE, EveryTick, Milliwatt, of [DEVICE, MODULE];
    /// Power now.
    PowerInstant = NVML_FI_DEV_POWER_INSTANT, EveryTick, Milliwatt, of [DEVICE, MODULE];
    /// The lowest power limit that can be set.
    PowerLimitMinimum = NVML_FI_DEV_POWER_MIN_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The highest power limit that can be set.
    PowerLimitMaximum = NVML_FI_DEV_POWER_MAX_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The power limit at the start.
    PowerLimitDefault = NVML_FI_DEV_POWER_DEFAULT_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The power limit in force.
    PowerLimitEnforced = NVML_FI_DEV_POWER_CURRENT_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The power limit that was asked for.
    PowerLimitRequested = NVML_FI_DEV_POWER_REQUESTED_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// Time the clocks were held down by the power limit.
    HeldByPowerCap = NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were held down by another device of the group.
    HeldBySyncBoost = NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were held down by the board's limit.
    HeldByBoardLimit = NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were low for want of load.
    HeldByLowUtilization = NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were held down by the limit of voltage or reliability.
    HeldByReliability = NVML_FI_DEV_PERF_POLICY_RELIABILITY, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were held down by software for the temperature.
    HeldBySoftwareThermal = NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were held down by hardware for the temperature.
    HeldByHardwareThermal = NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were held down by the external power brake.
    HeldByPowerBrake = NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, EveryTick, Nanosecond, of [DEVICE];
    /// Rows remapped for corrected errors.
    RemappedCorrected = NVML_FI_DEV_REMAPPED_COR, EveryTick, Number, of [DEVICE];
    /// Rows remapped for uncorrected errors.
    RemappedUncorrected = NVML_FI_DEV_REMAPPED_UNC, EveryTick, Number, of [DEVICE];
    /// Whether rows wait for a reset.
    RemapPending = NVML_FI_DEV_REMAPPED_PENDING, EveryTick, Number, of [DEVICE];
    /// Whether a row could not be remapped.
    RemapFailure = NVML_FI_DEV_REMAPPED_FAILURE, EveryTick, Number, of [DEVICE];
    /// What the driver advises to do.
    RecoveryAction = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, EveryTick, Number, of [DEVICE];
    /// How many NVLinks there are.
    NvLinks = NVML_FI_DEV_NVLINK_LINK_COUNT, Once, Number, of [DEVICE];
    /// KiB of payload sent, by link or by all.
    NvLinkSent = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, EveryTick, Number, of [ALL_LINKS];
    /// KiB of payload received, by link or by all.
    NvLinkReceived = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, EveryTick, Number, of [ALL_LINKS];
    /// KiB sent with what the protocol adds, by all links.
    NvLinkRawSent = NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, EveryTick, Number, of [ALL_LINKS];
    /// KiB received with what the protocol adds, by all links.
    NvLinkRawReceived = NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, EveryTick, Number, of [ALL_LINKS];
    /// Flow control digits with a wrong checksum, all links.
    NvLinkFlits = NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Data with a wrong checksum, all links.
    NvLinkData = NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Data with a wrong ECC, all links.
    NvLinkEcc = NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Sent again, all links.
    NvLinkReplays = NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Recoveries, all links.
    NvLinkRecoveries = NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// State of a link.
    LinkState = NVML_FI_DEV_NVLINK_GET_STATE, Medium, Number, of [];
    /// KiB of payload a link sent.
    LinkSent = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, Medium, Number, of [];
    /// KiB of payload a link received.
    LinkReceived = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, Medium, Number, of [];
    /// Bytes a link sent, by another counter of the fifth generation.
    LinkSentBytes = NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, Medium, Number, of [];
    /// Bytes a link received, by another counter of the fifth generation.
    LinkReceivedBytes = NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, Medium, Number, of [];
    /// Sent again on a link.
    LinkReplays = NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, Medium, Number, of [];
    /// Recoveries of a link.
    LinkRecoveries = NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, Medium, Number, of [];
    /// Wrong checksums on a link.
    LinkCrc = NVML_FI_DEV_NVLINK_ERROR_DL_CRC, Medium, Number, of [];
    /// Malformed packets a link received.
    LinkMalformed = NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, Medium, Number, of [];
    /// Packets a link had no buffer for.
    LinkOverruns = NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, Medium, Number, of [];
    /// Packets a link received with an error.
    LinkReceiveErrors = NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, Medium, Number, of [];
    /// Packets a link received that the other end had marked as bad.
    LinkRemoteErrors = NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, Medium, Number, of [];
    /// Packets a link received with a header that does not fit.
    LinkGeneralErrors = NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, Medium, Number, of [];
    /// Times that a link's local errors passed their threshold.
    LinkIntegrity = NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, Medium, Number, of [];
    /// Packets a link did not send.
    LinkDiscards = NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, Medium, Number, of [];
    /// Recoveries that brought a link back.
    LinkRecovered = NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, Medium, Number, of [];
    /// Recoveries after which a link was down.
    LinkUnrecovered = NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, Medium, Number, of [];
    /// Errors that a link's correction left over.
    LinkEffective = NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, Medium, Number, of [];
    /// Wrong symbols a link received.
    LinkSymbols = NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, Medium, Number, of [];
    /// A link's bit error rate after correction, packed.
    LinkEffectiveRate = NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, Slow, Number, of [];
    /// A link's bit error rate of symbols, packed.
    LinkSymbolRate = NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, Slow, Number, of [];
    /// Speed of a link.
    LinkSpeed = NVML_FI_DEV_NVLINK_GET_SPEED, Medium, MegabytePerSecond, of [];
    /// Version of a link.
    LinkVersion = NVML_FI_DEV_NVLINK_GET_VERSION, Once, Number, of [];
    /// Codewords of a link with no symbol corrected.
    LinkCorrected0 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, Slow, Number, of [];
    /// Codewords of a link with one symbol corrected.
    LinkCorrected1 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_1, Slow, Number, of [];
    /// Codewords of a link with 2 symbols corrected.
    LinkCorrected2 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_2, Slow, Number, of [];
    /// Codewords of a link with 3 symbols corrected.
    LinkCorrected3 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_3, Slow, Number, of [];
    /// Codewords of a link with 4 symbols corrected.
    LinkCorrected4 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_4, Slow, Number, of [];
    /// Codewords of a link with 5 symbols corrected.
    LinkCorrected5 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_5, Slow, Number, of [];
    /// Codewords of a link with 6 symbols corrected.
    LinkCorrected6 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_6, Slow, Number, of [];
    /// Codewords of a link with 7 symbols corrected.
    LinkCorrected7 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_7, Slow, Number, of [];
    /// Codewords of a link with 8 symbols corrected.
    LinkCorrected8 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_8, Slow, Number, of [];
    /// Codewords of a link with 9 symbols corrected.
    LinkCorrected9 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_9, Slow, Number, of [];
    /// Codewords of a link with 10 symbols corrected.
    LinkCorrected10 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_10, Slow, Number, of [];
    /// Codewords of a link with 11 symbols corrected.
    LinkCorrected11 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_11, Slow, Number, of [];
    /// Codewords of a link with 12 symbols corrected.
    LinkCorrected12 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_12, Slow, Number, of [];
    /// Codewords of a link with 13 symbols corrected.
    LinkCorrected13 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_13, Slow, Number, of [];
    /// Codewords of a link with 14 symbols corrected.
    LinkCorrected14 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_14, Slow, Number, of [];
    /// Codewords of a link with 15 symbols corrected.
    LinkCorrected15 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15, Slow, Number, of [];
    /// How many links to the CPU of the module there are.
    ChipLinks = NVML_FI_DEV_C2C_LINK_COUNT, Once, Number, of [DEVICE];
    /// Whether a link to the CPU is active.
    ChipLinkStatus = NVML_FI_DEV_C2C_LINK_GET_STATUS, Medium, Number, of [];
    /// Speed of a link to the CPU.
    ChipLinkSpeed = NVML_FI_DEV_C2C_LINK_GET_MAX_BW, Slow, MegabytePerSecond, of [];
    /// Wrong checksums on a link to the CPU.
    ChipLinkCrc = NVML_FI_DEV_C2C_LINK_ERROR_INTR, Medium, Number, of [];
    /// Sent again on a link to the CPU.
    ChipLinkReplays = NVML_FI_DEV_C2C_LINK_ERROR_REPLAY, Medium, Number, of [];
    /// Sent again twice in a row on a link to the CPU.
    ChipLinkDoubleReplays = NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, Medium, Number, of [];
    /// Whether a link to the CPU saves power.
    ChipLinkPower = NVML_FI_DEV_C2C_LINK_POWER_STATE, Slow, Number, of [];
}

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
            field.row().scopes.iter().for_each(|scope| fields.want(*field, *scope));
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
    pub(super) fn read(&mut self, device: &Device<'_>, ask: &mut Ask) {
        self.begin(ask);
        if self.batch.is_empty() {
            return;
        }
        let batch = &mut self.batch;
        if ask.ask(Call::Fields, || batch.ask(device)).is_none() {
            return;
        }
        for (place, answer) in self.asked.iter().zip(self.batch.answers()) {
            let Some(slot) = self.slots.get_mut(place) else { continue };
            match ask.book(place, answer) {
                Ok(value) => slot.value = Some(value),
                Err(verdict) => slot.unsupported = verdict == Verdict::Unsupported,
            }
        }
    }

    /// Chooses what to ask for, and forgets what was said of it before.
    fn begin(&mut self, ask: &Ask) {
        self.batch.clear();
        self.asked.clear();
        for ((field, scope), slot) in &mut self.slots {
            if ask.renewed() {
                *slot = Slot::default();
            }
            let due = slot.value.is_none() || ask.due(field.row().pace);
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
        field.row().unit.base(slot.value?)
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

    /// Whether the device has a field, as far as is known: of what it lacks, an older call may
    /// tell.
    pub(super) fn lacks(&self, field: Field, ask: &Ask) -> bool {
        let slot = self.slots.get(&(field, DEVICE));
        let known =
            field.id(self.numbering).is_some() && slot.is_some_and(|slot| !slot.unsupported);
        !known || ask.lacks(Call::Fields)
    }
}

impl Field {
    /// Its number for a driver; `None` where that is not known.
    fn id(self, numbering: Option<Numbering>) -> Option<u32> {
        match (self.row().id, numbering) {
            (id @ ..=250, _) | (id @ 251..=273, Some(Numbering::Old)) => Some(id),
            (id @ 251..=255, Some(Numbering::Renumbered)) => Some(id + 18),
            (id @ 256..=273, Some(Numbering::Renumbered)) => Some(id - 5),
            (251..=273, None) => None,
            (id @ 274.., _) => Some(id),
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

impl Unit {
    fn base(self, value: Number) -> Option<f64> {
        let value = match value {
            Number::U32(value) => f64::from(value),
            Number::U64(value) => value as f64,
            Number::I64(value) => value as f64,
            Number::F64(value) => value,
        };
        let base = match self {
            Self::Number | Self::Celsius => value,
            Self::Milliwatt | Self::Millijoule => value / 1e3,
            Self::Nanosecond => value / 1e9,
            Self::MegabytePerSecond => value * 1e6,
        };
        base.is_finite().then_some(base)
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
        let wanted: usize = Field::ALL.iter().map(|field| field.row().scopes.len()).sum();
        assert_eq!(fields.slots.len(), wanted);
    }
}
