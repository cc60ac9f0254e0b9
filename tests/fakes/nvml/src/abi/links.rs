//! The fields that say how a device is connected: NVLink by link and in sum, the link to the CPU,
//! and what the driver advises to do. Numbers as in `nvml.h` of CUDA 13.0; all of them are below
//! those that driver 580.82 gave new meanings.

use super::fields::Typed;
use super::{exports, on_device, put, whole, whole32};
use crate::curve::Curve;
use crate::runtime::Code;
use crate::scenario::Device;
use crate::scenario::links::{C2c, Errors, NvLink};
use nvml_wrapper_sys::bindings::{
    field_id as id, nvmlDevice_t, nvmlEnableState_t,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlReturn_t,
};
use std::ffi::c_uint;

/// The scope of all links together.
const ALL_LINKS: c_uint = c_uint::MAX;
/// Bytes of a KiB.
const KIB: f64 = 1024.0;

/// Answers a field of these; `None` for any other.
pub(super) fn answer(
    (field, scope): (c_uint, c_uint),
    device: Device<'_>,
    seconds: f64,
) -> Option<Result<Typed, Code>> {
    let group = device.group;
    let nvlink = || group.nvlink.as_ref().ok_or(NOT_SUPPORTED);
    let c2c = || group.c2c.as_ref().ok_or(NOT_SUPPORTED);
    Some(match field {
        id::NVML_FI_DEV_NVLINK_LINK_COUNT => nvlink().map(|nvlink| Typed::U32(nvlink.links)),
        id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => {
            let action = group.modes.recovery.as_ref().ok_or(NOT_SUPPORTED);
            action.map(|curve| Typed::U32(whole32(device.value(curve, seconds))))
        }
        id::NVML_FI_DEV_C2C_LINK_COUNT => c2c().map(|c2c| Typed::U32(c2c.links)),
        id::NVML_FI_DEV_C2C_LINK_GET_STATUS
        | id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW
        | id::NVML_FI_DEV_C2C_LINK_ERROR_INTR..=id::NVML_FI_DEV_C2C_LINK_POWER_STATE => {
            c2c().and_then(|c2c| chip_link(c2c, (field, scope), device, seconds))
        }
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
        | id::NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL => {
            nvlink().and_then(|nvlink| total(nvlink, field, device, seconds))
        }
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX..=id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX
        | id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES
        | id::NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES => {
            nvlink().and_then(|nvlink| carried(nvlink, (field, scope), device, seconds))
        }
        id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY..=id::NVML_FI_DEV_NVLINK_GET_VERSION
        | id::NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS
            ..=id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER
        | id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0
            ..=id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15 => {
            nvlink().and_then(|nvlink| of_link(nvlink, (field, scope), device, seconds))
        }
        _ => return None,
    })
}

/// What links have carried; of one that is not active there is no count.
fn carried(
    nvlink: &NvLink,
    (field, scope): (c_uint, c_uint),
    device: Device<'_>,
    seconds: f64,
) -> Result<Typed, Code> {
    let (rate, wire) = match field {
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => (&nvlink.transmit, 1.0),
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => (&nvlink.receive, 1.0),
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX => (&nvlink.transmit, nvlink.wire),
        id::NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX => (&nvlink.receive, nvlink.wire),
        id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES => (&nvlink.transmit, KIB),
        _ => (&nvlink.receive, KIB),
    };
    let in_bytes = field >= id::NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES;
    if in_bytes != nvlink.byte_counters {
        return Err(NOT_SUPPORTED);
    }
    let link =
        if scope == ALL_LINKS && !in_bytes { None } else { Some(known(nvlink.links, scope)?) };
    if link.is_some_and(|link| nvlink.state(device, link, seconds) != 1) {
        return Err(NOT_SUPPORTED);
    }
    Ok(Typed::U64(whole(nvlink.carried_kib(device, rate, link, seconds) * wire)))
}

fn total(nvlink: &NvLink, field: c_uint, device: Device<'_>, seconds: f64) -> Result<Typed, Code> {
    let errors = &nvlink.errors;
    let curve = match field {
        id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => &errors.crc,
        id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL => &errors.crc_data,
        id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL => &errors.replay,
        id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL => &errors.recovery,
        _ => &errors.ecc_data,
    };
    let curve = curve.as_ref().filter(|_| !nvlink.no_totals).ok_or(NOT_SUPPORTED)?;
    Ok(Typed::U64(whole(nvlink.total(device, curve, seconds))))
}

/// What a field says of one link.
fn of_link(
    nvlink: &NvLink,
    (field, scope): (c_uint, c_uint),
    device: Device<'_>,
    seconds: f64,
) -> Result<Typed, Code> {
    let link = known(nvlink.links, scope)?;
    let state = nvlink.state(device, link, seconds);
    match field {
        id::NVML_FI_DEV_NVLINK_GET_STATE => return Ok(Typed::U32(state)),
        id::NVML_FI_DEV_NVLINK_GET_VERSION => return Ok(Typed::U32(nvlink.version)),
        id::NVML_FI_DEV_NVLINK_GET_SPEED => {
            return Ok(Typed::U32(if state == 1 { nvlink.speed } else { 0 }));
        }
        id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER => return ber(nvlink.errors.effective_ber),
        id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER => return ber(nvlink.errors.symbol_ber),
        _ => {}
    }
    let curve = match field.checked_sub(id::NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0) {
        Some(bin) => nvlink.fec.get(bin as usize),
        None => kind(&nvlink.errors, field),
    };
    let curve = curve.ok_or(NOT_SUPPORTED)?;
    Ok(Typed::U64(whole(nvlink.count(device, curve, link, seconds))))
}

fn kind(errors: &Errors, field: c_uint) -> Option<&Curve> {
    let curve = match field {
        id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => &errors.replay,
        id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY => &errors.recovery,
        id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC => &errors.crc,
        id::NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS => &errors.malformed,
        id::NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS => &errors.overrun,
        id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS => &errors.received,
        id::NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS => &errors.remote,
        id::NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS => &errors.general,
        id::NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS => &errors.integrity,
        id::NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS => &errors.discarded,
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS => &errors.recovered,
        id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS => &errors.lost,
        id::NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS => &errors.effective,
        id::NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS => &errors.symbol,
        _ => return None,
    };
    curve.as_ref()
}

/// A bit error rate in the library's packing.
fn ber(reported: Option<[u32; 2]>) -> Result<Typed, Code> {
    let [mantissa, exponent] = reported.ok_or(NOT_SUPPORTED)?;
    Ok(Typed::U64(u64::from(mantissa << 8 | exponent)))
}

fn chip_link(
    c2c: &C2c,
    (field, scope): (c_uint, c_uint),
    device: Device<'_>,
    seconds: f64,
) -> Result<Typed, Code> {
    let link = known(c2c.links, scope)?;
    let active = !c2c.inactive.contains(&link);
    let count = |curve| Typed::U64(whole(c2c.count(device, curve, link, seconds)));
    Ok(match field {
        id::NVML_FI_DEV_C2C_LINK_GET_STATUS => Typed::U32(c_uint::from(active)),
        id::NVML_FI_DEV_C2C_LINK_GET_MAX_BW => Typed::U32(if active { c2c.speed } else { 0 }),
        id::NVML_FI_DEV_C2C_LINK_ERROR_INTR => count(&c2c.crc),
        id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY => count(&c2c.replay),
        id::NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B => count(&c2c.replay_back_to_back),
        _ => Typed::U32(c_uint::from(c2c.low_power.contains(&link))),
    })
}

/// A link's number, if there is one of it.
fn known(links: u32, scope: c_uint) -> Result<u32, Code> {
    if scope < links { Ok(scope) } else { Err(INVALID_ARGUMENT) }
}

exports! {
    /// Whether a link is active.
    fn nvmlDeviceGetNvLinkState(device: nvmlDevice_t, link: c_uint, to: *mut nvmlEnableState_t) |name|
        on_device(name, device, |call, device| {
            let nvlink = device.group.nvlink.as_ref().ok_or(NOT_SUPPORTED)?;
            let link = known(nvlink.links, link)?;
            put(to, c_uint::from(nvlink.state(device, link, call.seconds) == 1))
        });
}
