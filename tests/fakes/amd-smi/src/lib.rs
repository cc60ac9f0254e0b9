//! A `libamd_smi.so` without AMD: the symbols and structures of `amdsmi.h` that the agent uses, as they are in
//! 25 (amdsmi 6.4.4 of PyPI), 26 (7.0.2, header of 26.5) and 27 (as 26 with a field more); answers from the
//! file `libamd_smi.answers` beside the library, read at every call.
//!
//! A line is a word and what it stands for. `version 26` picks the structures, `devices` lists the PCI
//! addresses; `market_name`, `oam_id`, `model_number`, `product_serial` and `part_number` have one text for
//! each device, between `|`. A function's name has a behaviour behind it: `code N`, which it returns; `ones`,
//! which fills its structure; `hang`, as long as the line says so; or `crash`.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SUCCESS: c_int = 0;
const INVALID: c_int = 1;
const NOT_FOUND: c_int = 31;
const NOT_INITIALISED: c_int = 32;
/// `AMDSMI_INIT_AMD_GPUS`.
const GPUS: u64 = 2;
/// `AMDSMI_MAX_STRING_LENGTH` of 25 and later, `AMDSMI_MAX_DATE_LENGTH` of 25.
const TEXT: usize = 256;
const DATE: usize = 32;

/// A device's handle is its index and one.
type Device = *mut c_void;
type Text = [u8; TEXT];

static IS_INITIALISED: AtomicBool = AtomicBool::new(false);

/// `amdsmi_version_t` of 25.
#[repr(C)]
struct Version25 {
    year: u32,
    major: u32,
    minor: u32,
    release: u32,
    build: *const c_char,
}

/// `amdsmi_version_t` from 26 on.
#[repr(C)]
struct Version26 {
    major: u32,
    minor: u32,
    release: u32,
    build: *const c_char,
}

/// `amdsmi_asic_info_t` of 25 and later; 26 and 27 have taken words of `reserved`.
#[repr(C)]
struct Asic {
    market_name: Text,
    vendor_id: u32,
    vendor_name: Text,
    subvendor_id: u32,
    device_id: u64,
    rev_id: u32,
    serial: Text,
    oam_id: u32,
    num_of_compute_units: u32,
    target_graphics_version: u64,
    reserved: [u32; 22],
}

/// `amdsmi_board_info_t`; 25 has 32 reserved words.
#[repr(C)]
struct Board<const RESERVED: usize> {
    model_number: Text,
    product_serial: Text,
    fru_id: Text,
    product_name: Text,
    manufacturer_name: Text,
    reserved: [u64; RESERVED],
}

/// `amdsmi_vbios_info_t`; 26.1 and later have `boot_firmware` in the first of 68 reserved words.
#[repr(C)]
struct Vbios<const DATE: usize, const RESERVED: usize> {
    name: Text,
    build_date: [u8; DATE],
    part_number: Text,
    version: Text,
    reserved: [u64; RESERVED],
}

/// The sizes in amdsmi's Python wrappers, which `clang2py` generates from the header.
const _: () = {
    assert!(size_of::<Version25>() == 24 && size_of::<Version26>() == 24);
    assert!(size_of::<Asic>() == 896 && std::mem::offset_of!(Asic, oam_id) == 788);
    assert!(size_of::<Board<32>>() == 1536 && size_of::<Board<64>>() == 1792);
    assert!(size_of::<Vbios<DATE, 32>>() == 1056 && size_of::<Vbios<TEXT, 68>>() == 1568);
};

/// The file beside this library, which the process has mapped.
fn answers() -> Option<PathBuf> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
        let mut own = paths.filter(|path| path.ends_with("libamd_smi.so"));
        Some(own.next()?.with_file_name("libamd_smi.answers"))
    };
    PLACE.get_or_init(find).clone()
}

/// What a word stands for.
fn line(word: &str) -> Option<String> {
    let text = fs::read_to_string(answers()?).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '))?;
    Some(rest.to_owned())
}

/// The bytes of a device's text, with zeros behind them.
fn text_of<const LENGTH: usize>(word: &str, device: Device) -> [u8; LENGTH] {
    let all = line(word).unwrap_or_default();
    let text = all.split('|').nth(device.addr().saturating_sub(1)).unwrap_or_default();
    let mut bytes = [0; LENGTH];
    // The last byte stays: a text ends.
    for (to, byte) in bytes.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *to = byte;
    }
    bytes
}

fn version() -> u32 {
    let first = line("version").and_then(|line| line.split(' ').next()?.parse().ok());
    first.unwrap_or(26)
}

/// Behaves as the file says of a function; else makes its structure.
fn answer<T>(name: &str, to: *mut T, make: impl FnOnce() -> T) -> c_int {
    if !IS_INITIALISED.load(Ordering::Relaxed) {
        return NOT_INITIALISED;
    }
    match line(name).as_deref() {
        Some("hang") => {
            // As a driver's, it may end.
            while line(name).as_deref() == Some("hang") {
                thread::sleep(Duration::from_millis(50));
            }
        }
        Some("crash") => {
            let nowhere = ptr::without_provenance_mut::<u64>(8);
            // SAFETY: none; nothing is mapped there, and the process ends by the fault.
            unsafe { nowhere.write_volatile(1) };
            process::abort()
        }
        Some("ones") => {
            // SAFETY: the caller's structure.
            unsafe { ptr::write_bytes(to, 0xff, 1) };
            return SUCCESS;
        }
        Some(code) => {
            let code = code.strip_prefix("code ").and_then(|code| code.parse().ok());
            return code.unwrap_or(INVALID);
        }
        None => {}
    }
    // SAFETY: as above.
    unsafe { to.write(make()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn amdsmi_init(flags: u64) -> c_int {
    if flags != GPUS {
        return INVALID;
    }
    IS_INITIALISED.store(true, Ordering::Relaxed);
    answer("amdsmi_init", &raw mut *Box::leak(Box::new(0_u8)), || 0)
}

#[unsafe(no_mangle)]
extern "C" fn amdsmi_get_lib_version(to: *mut c_void) -> c_int {
    let (name, major) = ("amdsmi_get_lib_version", version());
    let build = || CString::new(format!("{major}.0.0")).unwrap_or_default().into_raw().cast_const();
    if major <= 25 {
        let make = || Version25 { year: major, major: 3, minor: 0, release: 0, build: build() };
        return answer(name, to.cast(), make);
    }
    answer(name, to.cast(), || Version26 { major, minor: 0, release: 0, build: build() })
}

/// `amdsmi_bdf_t` is a union of 64 bits, passed by value.
#[unsafe(no_mangle)]
extern "C" fn amdsmi_get_processor_handle_from_bdf(place: u64, to: *mut Device) -> c_int {
    let [bus, device, function] = [place >> 8 & 0xff, place >> 3 & 0x1f, place & 7];
    let address = format!("{:04x}:{bus:02x}:{device:02x}.{function}", place >> 16);
    let known = line("devices").unwrap_or_default();
    let Some(index) = known.split(' ').position(|known| known == address) else {
        return NOT_FOUND;
    };
    let handle = || ptr::without_provenance_mut(index + 1);
    answer("amdsmi_get_processor_handle_from_bdf", to, handle)
}

#[unsafe(no_mangle)]
extern "C" fn amdsmi_get_gpu_asic_info(device: Device, to: *mut c_void) -> c_int {
    let number = text_of::<TEXT>("oam_id", device);
    let number = String::from_utf8_lossy(&number);
    let make = || Asic {
        market_name: text_of("market_name", device),
        vendor_id: 0x1002,
        vendor_name: [0; TEXT],
        subvendor_id: 0x1002,
        device_id: 0x74a1,
        rev_id: 0,
        serial: [0; TEXT],
        oam_id: number.trim_end_matches('\0').parse().unwrap_or(u32::MAX),
        num_of_compute_units: 304,
        target_graphics_version: 942,
        reserved: [0; 22],
    };
    answer("amdsmi_get_gpu_asic_info", to.cast(), make)
}

#[unsafe(no_mangle)]
extern "C" fn amdsmi_get_gpu_board_info(device: Device, to: *mut c_void) -> c_int {
    fn make<const RESERVED: usize>(device: Device) -> Board<RESERVED> {
        Board {
            model_number: text_of("model_number", device),
            product_serial: text_of("product_serial", device),
            fru_id: [0; TEXT],
            product_name: [0; TEXT],
            manufacturer_name: [0; TEXT],
            reserved: [0; RESERVED],
        }
    }
    let name = "amdsmi_get_gpu_board_info";
    match version() {
        25 => answer(name, to.cast(), || make::<32>(device)),
        _ => answer(name, to.cast(), || make::<64>(device)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn amdsmi_get_gpu_vbios_info(device: Device, to: *mut c_void) -> c_int {
    fn make<const DATE: usize, const RESERVED: usize>(device: Device) -> Vbios<DATE, RESERVED> {
        Vbios {
            name: [0; TEXT],
            build_date: [b'2'; DATE],
            part_number: text_of("part_number", device),
            version: text_of("part_number", ptr::null_mut()),
            reserved: [0; RESERVED],
        }
    }
    let name = "amdsmi_get_gpu_vbios_info";
    match version() {
        25 => answer(name, to.cast(), || make::<DATE, 32>(device)),
        _ => answer(name, to.cast(), || make::<TEXT, 68>(device)),
    }
}
