//! Reads many values of a device in one call: `nvmlDeviceGetFieldValues`.
//!
//! Each value has its own return code and type. The library makes one driver call for values that
//! the driver returns together.

use super::{handle, layout};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlValueType_enum_NVML_VALUE_TYPE_DOUBLE as DOUBLE,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT as SIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG as SIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT as UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG as UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG as UNSIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT as UNSIGNED_SHORT,
};
use std::ffi::c_int;

layout!(nvmlFieldValue_t, 40, scopeId at 4, timestamp at 8, latencyUsec at 16, valueType at 24,
    nvmlReturn at 28, value at 32);

/// A value in the type that the driver chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// 16 or 32 bits.
    U32(u32),
    /// 64 bits.
    U64(u64),
    /// Signed.
    I64(i64),
    /// Floating point.
    F64(f64),
}

/// The requested values and their answers. The buffer is reused.
#[derive(Default)]
pub struct Batch {
    values: Vec<nvmlFieldValue_t>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("values", &self.values.len()).finish()
    }
}

impl Batch {
    /// Removes all requested values.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    /// Adds a requested value: the field's number and its scope (link, power domain).
    pub fn push(&mut self, id: u32, scope: u32) {
        // SAFETY: integers and a union of numbers, for all of which zero is a value.
        let empty: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        // An error until it is answered: the library may leave fields out of its answer.
        let none = NvmlError::NoData.into();
        let field = nvmlFieldValue_t { fieldId: id, scopeId: scope, nvmlReturn: none, ..empty };
        self.values.push(field);
    }

    /// Whether no value is requested.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Reads all requested values in one call. It succeeds if the call did; each value has its own
    /// result.
    pub fn ask(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        let call = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
        let count = c_int::try_from(self.values.len()).map_err(|_| NvmlError::InvalidArg)?;
        // SAFETY: the handle is the library's own, and `values` has `count` entries.
        nvml_try(unsafe { call(handle(device), count, self.values.as_mut_ptr()) })
    }

    /// The answers in the order of the requests.
    pub fn answers(&self) -> impl Iterator<Item = Result<Number, NvmlError>> {
        self.values.iter().map(number)
    }
}

fn number(field: &nvmlFieldValue_t) -> Result<Number, NvmlError> {
    nvml_try(field.nvmlReturn)?;
    let value = field.value;
    // SAFETY: the library wrote the member that the type names; every bit pattern is a number of
    // each, and what it did not write was zeroed.
    let number = unsafe {
        match field.valueType {
            DOUBLE => Number::F64(value.dVal),
            UNSIGNED_INT => Number::U32(value.uiVal),
            UNSIGNED_LONG => Number::U64(value.ulVal),
            UNSIGNED_LONG_LONG => Number::U64(value.ullVal),
            SIGNED_LONG_LONG => Number::I64(value.sllVal),
            SIGNED_INT => Number::I64(i64::from(value.siVal)),
            UNSIGNED_SHORT => Number::U32(u32::from(value.usVal)),
            other => return Err(NvmlError::UnexpectedVariant(other)),
        }
    };
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::{Batch, Number};
    use nvml_wrapper::error::NvmlError;
    use nvml_wrapper_sys::bindings::nvmlValue_t;

    fn answer(kind: u32, code: u32, value: nvmlValue_t) -> Result<Number, NvmlError> {
        let mut batch = Batch::default();
        batch.push(83, 0);
        let field = batch.values.first_mut().unwrap();
        (field.valueType, field.nvmlReturn, field.value) = (kind, code, value);
        batch.answers().next().unwrap()
    }

    #[test]
    fn each_type_is_read_from_its_own_member() {
        let read = |kind, value| answer(kind, 0, value).unwrap();
        assert_eq!(read(0, nvmlValue_t { dVal: 1.5 }), Number::F64(1.5));
        // The other bytes of the union are not part of the value.
        let garbage = 0xdead_beef_0000_0000_u64;
        assert_eq!(read(1, nvmlValue_t { ullVal: garbage | 7 }), Number::U32(7));
        assert_eq!(read(3, nvmlValue_t { ullVal: garbage }), Number::U64(garbage));
        assert_eq!(read(4, nvmlValue_t { sllVal: -9 }), Number::I64(-9));
        assert_eq!(read(5, nvmlValue_t { siVal: -9 }), Number::I64(-9));
        assert_eq!(read(6, nvmlValue_t { ullVal: garbage | 0x1_0007 }), Number::U32(7));
    }

    #[test]
    fn a_value_that_was_not_answered_is_none() {
        let mut batch = Batch::default();
        batch.push(83, 0);
        let unanswered = batch.answers().next().unwrap();
        assert!(matches!(unanswered, Err(NvmlError::NoData)), "{unanswered:?}");
        let unsupported = answer(1, 3, nvmlValue_t { uiVal: 7 });
        assert!(matches!(unsupported, Err(NvmlError::NotSupported)), "{unsupported:?}");
        let strange = answer(9, 0, nvmlValue_t { uiVal: 7 });
        assert!(matches!(strange, Err(NvmlError::UnexpectedVariant(9))), "{strange:?}");
    }
}
