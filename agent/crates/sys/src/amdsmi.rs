//! `libamd_smi.so`, AMD's management library: what it knows of a board's identity.
//!
//! Signatures and codes are those of `amdsmi.h`. Its structures have changed with each major version of the
//! library, so that [`LAYOUTS`] has a row for each: 25 (ROCm 6.4, by amdsmi 6.4.4 of PyPI), 26 (ROCm 7, by amdsmi 7.0.2 and the
//! header of 26.5) and 27 (ROCm 10, by AMD's changelog of 10.1: a new field has taken reserved words). Only
//! texts and one number are read, each by its offset, into a buffer larger than any of the structures.

use libloading::Library;
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::ptr;

/// Graphics processors only (`AMDSMI_INIT_AMD_GPUS`).
const INIT_GPUS: u64 = 2;
/// Words of the buffer that a function writes: 4 KiB. The largest structure has 1,792 bytes, and the
/// library writes a whole one.
const WORDS: usize = 512;
/// What a number is that the library does not have: all ones of 16 or of 32 bits.
const NO_NUMBER: [u32; 2] = [0xffff, u32::MAX];

/// Where a text is in a structure: its offset and its length.
type Text = (usize, usize);

/// Where the values are in a major version's structures.
#[derive(Debug)]
struct Layout {
    major: u32,
    /// In `amdsmi_asic_info_t`.
    market_name: Text,
    oam: usize,
    /// In `amdsmi_board_info_t`.
    model_number: Text,
    serial: Text,
    /// In `amdsmi_vbios_info_t`.
    vbios_part: Text,
}

const LAYOUTS: &[Layout] = &[
    // The build's date has 32 bytes there.
    Layout { major: 25, vbios_part: (288, 256), ..CURRENT },
    Layout { major: 26, ..CURRENT },
    Layout { major: 27, ..CURRENT },
];
const CURRENT: Layout = Layout {
    major: 26,
    market_name: (0, 256),
    oam: 788,
    model_number: (0, 256),
    serial: (256, 256),
    vbios_part: (512, 256),
};

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmdSmiError {
    /// The library, the driver or the device has no such thing.
    #[error("not supported")]
    Unsupported,
    /// Anything else, by its number.
    #[error("error {0}")]
    Failed(c_int),
}

/// What [`AmdSmi::load`] failed at.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The dynamic linker.
    #[error("{0}")]
    Link(#[from] libloading::Error),
    /// A call.
    #[error("{0}: {1}")]
    Call(&'static str, AmdSmiError),
    /// No layout is known.
    #[error("version {0} of the library is not known (25 to 27 are)")]
    Version(u32),
}

/// A device of the library, for as long as the library is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Handle(*mut c_void);

// SAFETY: the handle is a number of the library, which locks each device.
unsafe impl Send for Handle {}

/// The loaded and initialised library.
#[derive(Debug)]
pub struct AmdSmi {
    library: Library,
    layout: &'static Layout,
}

/// A structure that the library has written.
struct Written([u64; WORDS]);

/// What the library says of a board; texts as they are, trimmed and not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    /// The product's name by the tables of libdrm (`amdgpu.ids`).
    pub market_name: Option<String>,
    /// The module's number on the baseboard.
    pub oam: Option<u32>,
    /// The board's part number.
    pub model_number: Option<String>,
    /// The board's serial number.
    pub serial: Option<String>,
    /// The part number of the VBIOS, as the file `vbios_version` has it.
    pub vbios_part: Option<String>,
}

/// Calls a function of the library with arguments of these types.
macro_rules! call {
    ($library:expr, $name:expr, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the type is the function's in `amdsmi.h`.
        let function = unsafe {
            $library.get::<unsafe extern "C" fn($($type),*) -> c_int>($name.to_bytes_with_nul())
        };
        function.map_err(|_| AmdSmiError::Unsupported).and_then(|function| {
            // SAFETY: the library is initialised, except for its own initialisation; every pointer is to
            // a live buffer of at least the size that the function writes.
            check(unsafe { function($($argument),*) })
        })
    }};
}

/// `amdsmi_status_t`: 2 and 3 are not supported and not yet implemented, 40 is no data.
fn check(code: c_int) -> Result<(), AmdSmiError> {
    match code {
        0 => Ok(()),
        2 | 3 | 40 => Err(AmdSmiError::Unsupported),
        code => Err(AmdSmiError::Failed(code)),
    }
}

impl AmdSmi {
    /// Loads the library and initialises it; refuses a version whose structures are not known.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: runs the library's initialisers, which is what the operator configured it for; the
        // process exists for this library alone.
        let library = unsafe { Library::new(path) }?;
        call!(library, c"amdsmi_init", (u64), INIT_GPUS)
            .map_err(|error| LoadError::Call("amdsmi_init", error))?;
        let layout = layout(version(&library)?)?;
        Ok(Self { library, layout })
    }

    /// The device at a PCI address.
    pub fn device(&self, address: &str) -> Result<Handle, AmdSmiError> {
        let place = place(address).ok_or(AmdSmiError::Unsupported)?;
        let mut handle = ptr::null_mut();
        let name = c"amdsmi_get_processor_handle_from_bdf";
        // The union `amdsmi_bdf_t` is passed as the 64 bits that it has.
        call!(self.library, name, (u64, *mut *mut c_void), place, &raw mut handle)?;
        if handle.is_null() { Err(AmdSmiError::Unsupported) } else { Ok(Handle(handle)) }
    }

    /// What `amdsmi_get_gpu_asic_info` has.
    pub fn asic(&self, device: Handle, board: &mut Board) -> Result<(), AmdSmiError> {
        let written = self.get(c"amdsmi_get_gpu_asic_info", device)?;
        board.market_name = written.text(self.layout.market_name);
        board.oam = written.number(self.layout.oam).filter(|oam| !NO_NUMBER.contains(oam));
        Ok(())
    }

    /// What `amdsmi_get_gpu_board_info` has.
    pub fn board(&self, device: Handle, board: &mut Board) -> Result<(), AmdSmiError> {
        let written = self.get(c"amdsmi_get_gpu_board_info", device)?;
        board.model_number = written.text(self.layout.model_number);
        board.serial = written.text(self.layout.serial);
        Ok(())
    }

    /// What `amdsmi_get_gpu_vbios_info` has.
    pub fn vbios(&self, device: Handle, board: &mut Board) -> Result<(), AmdSmiError> {
        let written = self.get(c"amdsmi_get_gpu_vbios_info", device)?;
        board.vbios_part = written.text(self.layout.vbios_part);
        Ok(())
    }

    /// Calls a function that writes a structure about a device.
    fn get(&self, name: &CStr, device: Handle) -> Result<Written, AmdSmiError> {
        let mut written = Written([0; WORDS]);
        let Handle(device) = device;
        let types = (device, written.0.as_mut_ptr().cast());
        call!(self.library, name, (*mut c_void, *mut c_void), types.0, types.1)?;
        Ok(written)
    }
}

/// The library's major version: the first word of `amdsmi_version_t`. In 25 that is the year, which is the
/// same number, and the major version follows.
fn version(library: &Library) -> Result<u32, LoadError> {
    let mut written = Written([0; WORDS]);
    let to = written.0.as_mut_ptr().cast();
    call!(library, c"amdsmi_get_lib_version", (*mut c_void), to)
        .map_err(|error| LoadError::Call("amdsmi_get_lib_version", error))?;
    let first = written.number(0).filter(|word| *word > 0);
    Ok(first.or_else(|| written.number(size_of::<u32>())).unwrap_or_default())
}

fn layout(major: u32) -> Result<&'static Layout, LoadError> {
    let known = LAYOUTS.iter().find(|layout| layout.major == major);
    known.ok_or(LoadError::Version(major))
}

/// `amdsmi_bdf_t` of an address like `0000:c1:00.0`: 3 bits of function, 5 of device, 8 of bus.
fn place(address: &str) -> Option<u64> {
    let mut parts = address.split([':', '.']).map(|part| u64::from_str_radix(part, 16).ok());
    let mut next = |most: u64| parts.next()?.filter(|number| *number <= most);
    let (domain, bus, device, function) =
        (next(u64::from(u32::MAX))?, next(0xff)?, next(0x1f)?, next(7)?);
    Some(domain << 16 | bus << 8 | device << 3 | function)
}

impl Written {
    fn bytes(&self, at: usize, length: usize) -> Option<Vec<u8>> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Some(bytes.get(at..at.checked_add(length)?)?.to_vec())
    }

    /// A text that ends within its place and is UTF-8.
    fn text(&self, (at, length): Text) -> Option<String> {
        let bytes = self.bytes(at, length)?;
        let text = CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok()?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn number(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(at, size_of::<u32>())?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_versions_layout_is_used_and_an_unknown_version_is_refused() {
        let majors: Vec<_> = LAYOUTS.iter().map(|layout| layout.major).collect();
        assert_eq!(majors, [25, 26, 27]);
        for layout in LAYOUTS {
            let texts = [layout.market_name, layout.model_number, layout.serial, layout.vbios_part];
            assert!(texts.iter().all(|(at, length)| at + length <= WORDS * 8), "{layout:?}");
        }
        let refused = layout(28).unwrap_err().to_string();
        assert_eq!(refused, "version 28 of the library is not known (25 to 27 are)");
        assert!(layout(0).is_err(), "nothing was written");
    }

    #[test]
    fn an_address_is_packed_as_the_library_has_it() {
        assert_eq!(place("0000:c1:00.0"), Some(0xc100));
        assert_eq!(place("0002:05:1f.7"), Some(0x2_05ff));
        for wrong in ["", "0000:c1", "0000:100:00.0", "0000:c1:20.0", "0000:c1:00.8", "x:c1:00.0"] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_text_without_an_end_or_that_is_none_is_not_read() {
        let mut written = Written([0; WORDS]);
        written.0[0] = u64::from_ne_bytes(*b" MI300X ");
        assert_eq!(written.text((0, 256)), Some("MI300X".to_owned()));
        assert_eq!(written.text((0, 8)), None, "no end");
        assert_eq!(written.text((8, 8)), None, "empty");
        assert_eq!(written.text((WORDS * 8 - 4, 8)), None, "outside");
        written.0[1] = u64::MAX - 0xff00_0000_0000_0000;
        assert_eq!(written.text((8, 8)), None, "no UTF-8");
        assert_eq!(written.number(8), Some(u32::MAX));
    }
}
