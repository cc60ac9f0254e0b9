//! NVML calls that the safe wrapper does not have, or makes as two calls where one is enough: one
//! function a symbol, one file a topic.
//!
//! A symbol that the loaded library lacks gives an error value (`FailedToLoadSymbol`), which the
//! reader treats as unsupported. Structures are those of the bindings; their layout is checked
//! against `nvml.h` at compile time. Structures with a version word set it.

pub mod board;
pub mod clocks;
pub mod engines;
pub mod events;
pub mod fabric;
pub mod fields;
pub mod lists;
pub mod mig;
pub mod wear;

pub mod gpm;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlDevice_t;

/// Checks a structure's size and field offsets against those of a C compiler for `nvml.h` on the
/// 64-bit targets.
macro_rules! layout {
    ($structure:ty, $size:literal $(, $field:ident at $offset:literal)*) => {
        const _: () = {
            assert!(size_of::<$structure>() == $size);
            $(assert!(std::mem::offset_of!($structure, $field) == $offset);)*
        };
    };
}
use layout;

/// The word with a structure's version and size.
const fn version_word<T>(version: u32) -> u32 {
    // `NVML_STRUCT_VERSION` of `nvml.h`; the library's structures are far below 16 MiB.
    #[expect(clippy::cast_possible_truncation, reason = "sizes of a few bytes")]
    let size = size_of::<T>() as u32;
    size | version << 24
}

/// Closes every handle that the library holds. `Nvml`'s own `Drop` does it too, but not for an
/// `Nvml` that is borrowed for the life of the process.
pub fn shutdown(nvml: &Nvml) -> Result<(), NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlShutdown.as_ref())?;
    // SAFETY: the library is initialised, because there is an `Nvml`.
    nvml_try(unsafe { call() })
}

fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is used only while `device`, and so the library, is borrowed.
    unsafe { device.handle() }
}
