//! `libhlml.so`, Intel's management library for Gaudi: one function a symbol.
//!
//! Signatures, structures and codes are those of `hlml.h` (HabanaAI/gohlml) and of habana-pyhlml
//! 1.24.2, which calls the same library. Where the two differ a structure has grown, so a buffer has
//! room for the larger one and more. A symbol that the loaded library lacks is `Unsupported`.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;
use std::ptr;

/// Bytes of a name, a serial number or a version; the library cuts longer ones.
const TEXT: usize = 128;
/// Counters of a port, and bytes of the name of one (`HABANA_LINK_CNT_MAX_NUM`, `HABANA_LINK_STR_LEN`
/// and two, of `habanalabs_accel.h` 1.24).
const COUNTERS: usize = 256;
const COUNTER_NAME: usize = 34;
/// How much more than that a later library may write.
const SPARE: usize = 4;
/// Words of the masks of ports.
const PORT_WORDS: usize = 2;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HlmlError {
    /// The library, the driver or the device has no such thing.
    #[error("not supported")]
    Unsupported,
    /// There is nothing now.
    #[error("no data")]
    Absent,
    /// The device is gone.
    #[error("the device is lost")]
    Lost,
    /// The driver is not loaded.
    #[error("the driver is not loaded")]
    DriverGone,
    /// Anything else, by its number.
    #[error("error {0}")]
    Failed(c_int),
}

/// A device of the library, for as long as the library is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Handle(*mut c_void);

// SAFETY: the handle is a number of the library, which takes calls from any thread (verified by
// users of 1.24: one thread a device, in parallel).
unsafe impl Send for Handle {}

/// The loaded and initialised library.
#[derive(Debug)]
pub struct Hlml(Library);

/// The counters of a port by name.
pub type PortCounters = Vec<(String, u64)>;

/// `hlml_nic_stats_info_t`.
#[repr(C)]
struct NicStats {
    port: u32,
    names: *mut c_char,
    values: *mut u64,
    count: *mut u32,
}

const _: () = assert!(size_of::<NicStats>() == 32);

/// Calls a function of the library with arguments of these types.
macro_rules! call {
    ($library:expr, $name:expr, ($($type:ty),*), $($argument:expr),*) => {{
        // SAFETY: the type is the function's in `hlml.h`.
        let function = unsafe {
            $library.get::<unsafe extern "C" fn($($type),*) -> c_int>($name.to_bytes_with_nul())
        };
        let function = function.map_err(|_| HlmlError::Unsupported)?;
        // SAFETY: the library is initialised, except for its own initialisation; every pointer is to
        // a live buffer of at least the size that the function writes.
        check(unsafe { function($($argument),*) })?;
    }};
}

fn check(code: c_int) -> Result<(), HlmlError> {
    match code {
        0 => Ok(()),
        // An argument that this version of the library does not know, or a call that it has not.
        2 | 3 => Err(HlmlError::Unsupported),
        6 | 21 => Err(HlmlError::Absent),
        1 | 9 => Err(HlmlError::DriverGone),
        15 => Err(HlmlError::Lost),
        code => Err(HlmlError::Failed(code)),
    }
}

/// What [`Hlml::load`] failed at.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The dynamic linker.
    #[error("{0}")]
    Link(#[from] libloading::Error),
    /// The library.
    #[error("hlml_init: {0}")]
    Init(#[from] HlmlError),
}

impl Hlml {
    /// Loads the library and initialises it.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: runs the library's initialisers, which is what the operator configured it for; the
        // process is a reader child, whose crash costs nothing but itself.
        let library = unsafe { Library::new(path) }?;
        let this = Self(library);
        this.init()?;
        Ok(this)
    }

    fn init(&self) -> Result<(), HlmlError> {
        call!(self.0, c"hlml_init", (),);
        Ok(())
    }

    /// The device at a PCI address.
    pub fn device(&self, address: &str) -> Result<Handle, HlmlError> {
        let address = CString::new(address).map_err(|_| HlmlError::Absent)?;
        let mut handle = ptr::null_mut();
        let name = c"hlml_device_get_handle_by_pci_bus_id";
        let types = (address.as_ptr(), &raw mut handle);
        call!(self.0, name, (*const c_char, *mut *mut c_void), types.0, types.1);
        if handle.is_null() { Err(HlmlError::Absent) } else { Ok(Handle(handle)) }
    }

    /// The kernel driver's version.
    pub fn driver_version(&self) -> Result<String, HlmlError> {
        let (mut text, room) = room();
        let name = c"hlml_get_driver_version";
        call!(self.0, name, (*mut c_char, c_uint), text.as_mut_ptr(), room);
        read(&text)
    }

    /// The UUID.
    pub fn uuid(&self, device: Handle) -> Result<String, HlmlError> {
        self.text(c"hlml_device_get_uuid", device)
    }

    /// The product's name.
    pub fn name(&self, device: Handle) -> Result<String, HlmlError> {
        self.text(c"hlml_device_get_name", device)
    }

    /// The board's serial number.
    pub fn serial(&self, device: Handle) -> Result<String, HlmlError> {
        self.text(c"hlml_device_get_serial", device)
    }

    /// Percent of the last second in which the device was busy.
    pub fn utilization(&self, device: Handle) -> Result<u32, HlmlError> {
        // `hlml_utilization_t` has one word in old versions, two in new ones.
        let words: [c_uint; 16] = self.get(c"hlml_device_get_utilization_rates", device)?;
        Ok(words[0])
    }

    /// Bytes of memory: free, total, used.
    pub fn memory(&self, device: Handle) -> Result<[u64; 3], HlmlError> {
        let words: [c_ulonglong; 8] = self.get(c"hlml_device_get_memory_info", device)?;
        let [free, total, used, ..] = words;
        Ok([free, total, used])
    }

    /// Milliwatts now.
    pub fn power(&self, device: Handle) -> Result<u32, HlmlError> {
        self.get(c"hlml_device_get_power_usage", device)
    }

    /// The limit in milliwatts that is set.
    pub fn power_limit(&self, device: Handle) -> Result<u32, HlmlError> {
        self.get(c"hlml_device_get_power_management_limit", device)
    }

    /// The limit in milliwatts that it starts with.
    pub fn default_power_limit(&self, device: Handle) -> Result<u32, HlmlError> {
        self.get(c"hlml_device_get_power_management_default_limit", device)
    }

    /// Millijoules since the driver was loaded.
    pub fn energy(&self, device: Handle) -> Result<u64, HlmlError> {
        self.get(c"hlml_device_get_total_energy_consumption", device)
    }

    /// Degrees of a sensor (`hlml_temperature_sensors_t`).
    pub fn temperature(&self, device: Handle, sensor: u32) -> Result<u32, HlmlError> {
        self.get_of(c"hlml_device_get_temperature", device, sensor)
    }

    /// Degrees of a threshold (`hlml_temperature_thresholds_t`).
    pub fn threshold(&self, device: Handle, which: u32) -> Result<u32, HlmlError> {
        self.get_of(c"hlml_device_get_temperature_threshold", device, which)
    }

    /// Megahertz of a clock (`hlml_clock_type_t`) now.
    pub fn clock(&self, device: Handle, which: u32) -> Result<u32, HlmlError> {
        self.get_of(c"hlml_device_get_clock_info", device, which)
    }

    /// The highest megahertz of a clock.
    pub fn highest_clock(&self, device: Handle, which: u32) -> Result<u32, HlmlError> {
        self.get_of(c"hlml_device_get_max_clock_info", device, which)
    }

    /// The bits of what keeps the clocks down now.
    pub fn throttle_reasons(&self, device: Handle) -> Result<u64, HlmlError> {
        self.get(c"hlml_device_get_current_clocks_throttle_reasons", device)
    }

    /// Whether ECC is on: 1 or 0.
    pub fn ecc_mode(&self, device: Handle) -> Result<[u32; 2], HlmlError> {
        let (mut now, mut then): (c_uint, c_uint) = (0, 0);
        let name = c"hlml_device_get_ecc_mode";
        let places = (&raw mut now, &raw mut then);
        let Handle(device) = device;
        call!(self.0, name, (*mut c_void, *mut c_uint, *mut c_uint), device, places.0, places.1);
        Ok([now, then])
    }

    /// Errors of all memories by kind (0 corrected) and count (0 volatile).
    pub fn ecc_errors(&self, device: Handle, [kind, count]: [u32; 2]) -> Result<u64, HlmlError> {
        let mut word = 0;
        call!(
            self.0,
            c"hlml_device_get_total_ecc_errors",
            (*mut c_void, c_uint, c_uint, *mut c_ulonglong),
            device.0,
            kind,
            count,
            &raw mut word
        );
        Ok(word)
    }

    /// Errors of one memory by kind, count and place (0 SRAM).
    pub fn memory_errors(
        &self,
        device: Handle,
        [kind, count, place]: [u32; 3],
    ) -> Result<u64, HlmlError> {
        let mut word = 0;
        call!(
            self.0,
            c"hlml_device_get_memory_error_counter",
            (*mut c_void, c_uint, c_uint, c_uint, *mut c_ulonglong),
            device.0,
            kind,
            count,
            place,
            &raw mut word
        );
        Ok(word)
    }

    /// The number of rows that were replaced for a cause (0 corrected errors, 1 an uncorrected one).
    pub fn replaced_rows(&self, device: Handle, cause: u32) -> Result<u32, HlmlError> {
        let mut count = 0;
        call!(
            self.0,
            c"hlml_device_get_replaced_rows",
            (*mut c_void, c_uint, *mut c_uint, *mut c_void),
            device.0,
            cause,
            &raw mut count,
            ptr::null_mut()
        );
        Ok(count)
    }

    /// Whether rows wait for a reset to be replaced: 1 or 0.
    pub fn rows_pending(&self, device: Handle) -> Result<u32, HlmlError> {
        self.get(c"hlml_device_get_replaced_rows_pending_status", device)
    }

    /// PCIe packets that were sent again.
    pub fn replays(&self, device: Handle) -> Result<u32, HlmlError> {
        self.get(c"hlml_device_get_pcie_replay_counter", device)
    }

    /// The numbers of the network ports.
    pub fn ports(&self, device: Handle) -> Result<Vec<u32>, HlmlError> {
        // A mask is one word in old versions, two in new ones.
        let (mut all, mut external) = ([0_u64; PORT_WORDS * SPARE], [0_u64; PORT_WORDS * SPARE]);
        let name = c"hlml_get_mac_addr_info";
        let places = (all.as_mut_ptr(), external.as_mut_ptr());
        let Handle(device) = device;
        call!(self.0, name, (*mut c_void, *mut u64, *mut u64), device, places.0, places.1);
        let words = all.iter().take(PORT_WORDS).zip((0..).step_by(64));
        let ports = words.flat_map(|(word, first)| {
            (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
        });
        Ok(ports.collect())
    }

    /// Whether a port's link is up.
    pub fn port_is_up(&self, device: Handle, port: u32) -> Result<bool, HlmlError> {
        // A C `bool`, read as a byte.
        let up: u8 = self.get_of(c"hlml_nic_get_link", device, port)?;
        Ok(up != 0)
    }

    /// A port's counters. Takes a tenth of a second, because the firmware is asked.
    pub fn port_counters(&self, device: Handle, port: u32) -> Result<PortCounters, HlmlError> {
        let mut names = vec![0 as c_char; COUNTERS * COUNTER_NAME * SPARE];
        let mut values = vec![0_u64; COUNTERS * SPARE];
        let mut count = 0;
        let mut info = NicStats {
            port,
            names: names.as_mut_ptr(),
            values: values.as_mut_ptr(),
            count: &raw mut count,
        };
        let name = c"hlml_nic_get_statistics";
        let Handle(device) = device;
        call!(self.0, name, (*mut c_void, *mut NicStats), device, &raw mut info);
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(COUNTERS);
        let texts = names.chunks(COUNTER_NAME).map(|name| read(name).unwrap_or_default());
        Ok(texts.zip(values).take(count).filter(|(name, _)| !name.is_empty()).collect())
    }

    fn text(&self, name: &CStr, device: Handle) -> Result<String, HlmlError> {
        let (mut text, room) = room();
        let Handle(device) = device;
        call!(self.0, name, (*mut c_void, *mut c_char, c_uint), device, text.as_mut_ptr(), room);
        read(&text)
    }

    /// Calls a function that writes one value.
    fn get<T: Default>(&self, name: &CStr, device: Handle) -> Result<T, HlmlError> {
        let mut value = T::default();
        call!(self.0, name, (*mut c_void, *mut T), device.0, &raw mut value);
        Ok(value)
    }

    /// Calls a function that takes a number and writes one value.
    fn get_of<T: Default>(&self, name: &CStr, device: Handle, which: u32) -> Result<T, HlmlError> {
        let mut value = T::default();
        let Handle(device) = device;
        call!(self.0, name, (*mut c_void, c_uint, *mut T), device, which, &raw mut value);
        Ok(value)
    }
}

/// A buffer for a text, and its size.
fn room() -> ([c_char; TEXT], c_uint) {
    ([0; TEXT], c_uint::try_from(TEXT).unwrap_or_default())
}

/// The text in a buffer; `Absent` if it is empty, does not end or is not UTF-8.
fn read(text: &[c_char]) -> Result<String, HlmlError> {
    let bytes: Vec<u8> = text.iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    let text = CStr::from_bytes_until_nul(&bytes).ok().and_then(|text| text.to_str().ok());
    let text = text.map(str::trim).filter(|text| !text.is_empty());
    text.map(str::to_owned).ok_or(HlmlError::Absent)
}
