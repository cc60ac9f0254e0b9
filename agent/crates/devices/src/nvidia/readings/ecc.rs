//! ECC errors, and retired or remapped memory.

use super::Of;
use crate::nvidia::caller::{Call, NvmlCaller};
use crate::nvidia::fields::Field;
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::wear as metric;
use gpuwho_model::catalog::wear::{
    EccCount, EccError, EccLocation, RetirementCause, SpareRows, SramUnit,
};
use gpuwho_sys::nvml::wear;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, MemoryLocation};
use std::ops::RangeInclusive;

/// A larger count comes from a register that does not answer.
const ERRORS: RangeInclusive<u64> = 0..=1 << 48;
/// No device has more banks.
const BANKS: RangeInclusive<u32> = 0..=1 << 20;

/// Errors of all memories.
const TOTALS: &[(Field, EccError, EccCount)] = &[
    (Field::VolatileCorrectedAll, EccError::Corrected, EccCount::Volatile),
    (Field::VolatileUncorrectedAll, EccError::Uncorrected, EccCount::Volatile),
    (Field::AggregateCorrectedAll, EccError::Corrected, EccCount::Aggregate),
    (Field::AggregateUncorrectedAll, EccError::Uncorrected, EccCount::Aggregate),
];

/// Errors by memory, since the driver was loaded.
const VOLATILE: &[(Field, EccError, EccLocation)] = &[
    (Field::VolatileCorrectedDram, EccError::Corrected, EccLocation::Dram),
    (Field::VolatileUncorrectedDram, EccError::Uncorrected, EccLocation::Dram),
    (Field::VolatileCorrectedL1, EccError::Corrected, EccLocation::L1),
    (Field::VolatileUncorrectedL1, EccError::Uncorrected, EccLocation::L1),
    (Field::VolatileCorrectedL2, EccError::Corrected, EccLocation::L2),
    (Field::VolatileUncorrectedL2, EccError::Uncorrected, EccLocation::L2),
    (Field::VolatileCorrectedRegisters, EccError::Corrected, EccLocation::Registers),
    (Field::VolatileUncorrectedRegisters, EccError::Uncorrected, EccLocation::Registers),
    (Field::VolatileCorrectedTexture, EccError::Corrected, EccLocation::Texture),
    (Field::VolatileUncorrectedTexture, EccError::Uncorrected, EccLocation::Texture),
    (Field::VolatileUncorrectedBarrier, EccError::Uncorrected, EccLocation::Barrier),
];

/// Errors by memory, since the board was made.
const AGGREGATE: &[(Field, EccError, EccLocation)] = &[
    (Field::AggregateCorrectedDram, EccError::Corrected, EccLocation::Dram),
    (Field::AggregateUncorrectedDram, EccError::Uncorrected, EccLocation::Dram),
    (Field::AggregateCorrectedL1, EccError::Corrected, EccLocation::L1),
    (Field::AggregateUncorrectedL1, EccError::Uncorrected, EccLocation::L1),
    (Field::AggregateCorrectedL2, EccError::Corrected, EccLocation::L2),
    (Field::AggregateUncorrectedL2, EccError::Uncorrected, EccLocation::L2),
    (Field::AggregateCorrectedRegisters, EccError::Corrected, EccLocation::Registers),
    (Field::AggregateUncorrectedRegisters, EccError::Uncorrected, EccLocation::Registers),
    (Field::AggregateCorrectedTexture, EccError::Corrected, EccLocation::Texture),
    (Field::AggregateUncorrectedTexture, EccError::Uncorrected, EccLocation::Texture),
    (Field::AggregateUncorrectedBarrier, EccError::Uncorrected, EccLocation::Barrier),
];

/// Errors of the static memories, for drivers and users without the summary call.
const OLD_SRAM: [(Call, EccError, EccCount); 4] = [
    (Call::SramCorrectedVolatile, EccError::Corrected, EccCount::Volatile),
    (Call::SramUncorrectedVolatile, EccError::Uncorrected, EccCount::Volatile),
    (Call::SramCorrectedAggregate, EccError::Corrected, EccCount::Aggregate),
    (Call::SramUncorrectedAggregate, EccError::Uncorrected, EccCount::Aggregate),
];

/// Exports the fields, and calls older functions for those that the driver lacks.
pub(super) fn read((device, fields): Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    push(out, &metric::ECC_ENABLED, (), fields.whole(Field::EccEnabled));
    push(out, &metric::ECC_ENABLED_NEXT, (), fields.whole(Field::EccEnabledNext));
    for (field, error, count) in TOTALS {
        push(out, &metric::ECC_ERRORS, (*error, *count), fields.whole(*field));
    }
    for (field, error, location) in VOLATILE {
        push(out, &metric::ECC_VOLATILE, (*error, *location), fields.whole(*field));
    }
    for (field, error, location) in AGGREGATE {
        push(out, &metric::ECC_AGGREGATE, (*error, *location), fields.whole(*field));
    }
    for (field, cause) in [
        (Field::RetiredCorrected, RetirementCause::Corrected),
        (Field::RetiredUncorrected, RetirementCause::Uncorrected),
    ] {
        push(out, &metric::RETIRED_PAGES, cause, fields.whole(field));
    }
    push(out, &metric::RETIREMENT_PENDING, (), fields.whole(Field::RetirementPending));
    remapped_rows((device, fields), caller, out);
}

fn remapped_rows((device, fields): Of<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let (mut corrected, mut uncorrected) =
        (fields.whole(Field::RemappedCorrected), fields.whole(Field::RemappedUncorrected));
    let (mut pending, mut failed) =
        (fields.whole(Field::RemapPending), fields.whole(Field::RemapFailure));
    if fields.lacks(Field::RemappedCorrected, caller)
        && let Some(rows) = caller.call(Call::RemappedRows, || wear::remapped_rows(device))
    {
        corrected = Some(i64::from(rows.corrected));
        uncorrected = Some(i64::from(rows.uncorrected));
        (pending, failed) = (Some(i64::from(rows.pending)), Some(i64::from(rows.failed)));
    }
    push(out, &metric::REMAPPED_ROWS, RetirementCause::Corrected, corrected);
    push(out, &metric::REMAPPED_ROWS, RetirementCause::Uncorrected, uncorrected);
    push(out, &metric::REMAP_PENDING, (), pending);
    push(out, &metric::REMAP_FAILED, (), failed);
}

/// The ECC mode, for drivers without the fields.
pub(super) fn old_mode(
    (device, fields): Of<'_>,
    caller: &mut NvmlCaller,
    out: &mut Vec<WireValue>,
) {
    if fields.lacks(Field::EccEnabled, caller) {
        let mode = caller.call(Call::EccMode, || device.is_ecc_enabled());
        let now = mode.as_ref().map(|mode| i64::from(mode.currently_enabled));
        push(out, &metric::ECC_ENABLED, (), now);
        let next = mode.map(|mode| i64::from(mode.pending_enabled));
        push(out, &metric::ECC_ENABLED_NEXT, (), next);
    }
}

/// Memory banks by remaining spare rows.
pub(super) fn spare_rows(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let Some(banks) = caller.call(Call::SpareRows, || wear::spare_rows(device)) else { return };
    for (left, banks) in SpareRows::ALL.iter().zip(banks) {
        let banks = caller.in_range(Some(banks), BANKS).map(i64::from);
        push(out, &metric::SPARE_ROWS, *left, banks);
    }
}

/// Errors of the static memories: the summary, or counter by counter.
pub(super) fn sram(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let Some(sram) = caller.call(Call::SramErrors, || wear::sram_errors(device)) else {
        for (call, error, count) in OLD_SRAM {
            let (kind, counter) = (nvml_kind(error), nvml_counter(count));
            let errors = caller
                .call(call, || device.memory_error_counter(kind, counter, MemoryLocation::SRAM));
            report(error, count, caller.in_range(errors, ERRORS), out);
        }
        return;
    };
    for (error, counts) in
        [(EccError::Corrected, sram.corrected), (EccError::Uncorrected, sram.uncorrected)]
    {
        for (count, errors) in EccCount::ALL.iter().zip(counts) {
            report(error, *count, caller.in_range(Some(errors), ERRORS), out);
        }
    }
    for (unit, errors) in SramUnit::ALL.iter().zip(sram.units) {
        let errors = caller.in_range(Some(errors), ERRORS).and_then(super::bytes);
        push(out, &metric::ECC_SRAM, *unit, errors);
    }
    push(out, &metric::ECC_SRAM_EXCEEDED, (), Some(i64::from(sram.exceeded)));
}

/// Exports errors of the static memories.
fn report(error: EccError, count: EccCount, errors: Option<u64>, out: &mut Vec<WireValue>) {
    let metric = match count {
        EccCount::Volatile => &metric::ECC_VOLATILE,
        EccCount::Aggregate => &metric::ECC_AGGREGATE,
    };
    push(out, metric, (error, EccLocation::Sram), errors.and_then(super::bytes));
}

fn nvml_kind(error: EccError) -> MemoryError {
    match error {
        EccError::Corrected => MemoryError::Corrected,
        EccError::Uncorrected => MemoryError::Uncorrected,
    }
}

fn nvml_counter(count: EccCount) -> EccCounter {
    match count {
        EccCount::Volatile => EccCounter::Volatile,
        EccCount::Aggregate => EccCounter::Aggregate,
    }
}
