//! A `libhlml.so` without Gaudi: the symbols and structures of `hlml.h` (HabanaAI/gohlml; of 1.24
//! where habana-pyhlml says that they have grown), answers from the file `libhlml.answers` beside
//! the library, read at every call.
//!
//! A line is a function's name and what it answers: numbers, in the order in which the function writes
//! them; `code N`, which it returns; `hang`, as long as the line says so, or `crash`. A function with a number as argument has it
//! behind a `/`: `hlml_device_get_temperature/3 41`. What has no line is not supported. `devices` lists
//! the PCI addresses. A word with `|` has one word for each device: `226000|226001`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

const NOT_SUPPORTED: c_int = 3;
const INVALID_ARGUMENT: c_int = 2;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
/// Bytes of a counter's name.
const NAME: usize = 34;

/// A device's handle is its index and one.
type Device = *mut c_void;

/// The file beside this library, which the process has mapped.
fn answers() -> Option<PathBuf> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
        let mut own = paths.filter(|path| path.ends_with("libhlml.so"));
        Some(own.next()?.with_file_name("libhlml.answers"))
    };
    PLACE.get_or_init(find).clone()
}

fn words(name: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(answers()?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// What a function answers, or the code that it returns.
fn answer(name: &str, device: Device) -> Result<Vec<String>, c_int> {
    let words = words(name).ok_or(NOT_SUPPORTED)?;
    match words.first().map(String::as_str) {
        Some("code") => Err(words.get(1).and_then(|code| code.parse().ok()).unwrap_or(49)),
        Some("hang") => {
            // As a driver's, it may end.
            while self::words(name).is_some_and(|words| words == ["hang"]) {
                thread::sleep(Duration::from_millis(50));
            }
            answer(name, device)
        }
        Some("crash") => {
            let nowhere = std::ptr::without_provenance_mut::<u64>(8);
            // SAFETY: none; nothing is mapped there, and the process ends by the fault.
            unsafe { nowhere.write_volatile(1) };
            process::abort()
        }
        _ => {
            let index = device.addr().saturating_sub(1);
            let one = |word: String| {
                let mut words = word.split('|');
                let of_all = words.clone().count() == 1;
                words.nth(if of_all { 0 } else { index }).unwrap_or_default().to_owned()
            };
            Ok(words.into_iter().map(one).collect())
        }
    }
}

/// Writes numbers of a type one after the other.
fn write<T: std::str::FromStr>(name: &str, device: Device, to: *mut T) -> c_int {
    let words = match answer(name, device) {
        Ok(words) => words,
        Err(code) => return code,
    };
    for (at, number) in words.iter().filter_map(|word| word.parse().ok()).enumerate() {
        // SAFETY: the caller's structure has room for as many as the function writes, which is what
        // the file has.
        unsafe { to.add(at).write(number) };
    }
    0
}

fn text(name: &str, device: Device, to: *mut c_char, room: c_uint) -> c_int {
    let text = match answer(name, device) {
        Ok(words) => words.join(" "),
        Err(code) => return code,
    };
    if text.len() >= room as usize {
        return INSUFFICIENT_SIZE;
    }
    copy(&text, to);
    0
}

/// Writes a text and the zero after it.
fn copy(text: &str, to: *mut c_char) {
    for (at, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the caller's buffer has room for the text and the zero.
        unsafe { to.add(at).write(c_char::from_ne_bytes([byte])) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn hlml_init() -> c_int {
    if words("hlml_init").is_none() {
        0
    } else {
        answer("hlml_init", std::ptr::null_mut()).err().unwrap_or(0)
    }
}

#[unsafe(no_mangle)]
extern "C" fn hlml_device_get_handle_by_pci_bus_id(
    address: *const c_char,
    to: *mut Device,
) -> c_int {
    // SAFETY: the caller gives a text that ends.
    let address = unsafe { CStr::from_ptr(address) }.to_string_lossy();
    let known = words("devices").unwrap_or_default();
    let Some(index) = known.iter().position(|known| *known == *address) else { return NOT_FOUND };
    // SAFETY: the caller's place for a handle.
    unsafe { to.write(std::ptr::without_provenance_mut(index + 1)) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn hlml_get_driver_version(to: *mut c_char, room: c_uint) -> c_int {
    text("hlml_get_driver_version", std::ptr::null_mut(), to, room)
}

/// Functions that write a text.
macro_rules! texts {
    ($($name:ident),+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Device, to: *mut c_char, room: c_uint) -> c_int {
            text(stringify!($name), device, to, room)
        }
    )+};
}
texts!(hlml_device_get_uuid, hlml_device_get_name, hlml_device_get_serial);

/// Functions that write numbers.
macro_rules! numbers {
    ($($name:ident: $type:ty),+ $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Device, to: *mut $type) -> c_int {
            write(stringify!($name), device, to)
        }
    )+};
}
numbers! {
    hlml_device_get_utilization_rates: c_uint,
    hlml_device_get_memory_info: u64,
    hlml_device_get_power_usage: c_uint,
    hlml_device_get_power_management_limit: c_uint,
    hlml_device_get_power_management_default_limit: c_uint,
    hlml_device_get_total_energy_consumption: u64,
    hlml_device_get_current_clocks_throttle_reasons: u64,
    hlml_device_get_replaced_rows_pending_status: c_uint,
    hlml_device_get_pcie_replay_counter: c_uint,
}

/// Functions that take a number and write one.
macro_rules! numbered {
    ($($name:ident: $type:ty),+ $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: Device, which: c_uint, to: *mut $type) -> c_int {
            write(&format!("{}/{which}", stringify!($name)), device, to)
        }
    )+};
}
numbered! {
    hlml_device_get_temperature: c_uint,
    hlml_device_get_temperature_threshold: c_uint,
    hlml_device_get_clock_info: c_uint,
    hlml_device_get_max_clock_info: c_uint,
    hlml_nic_get_link: u8,
}

#[unsafe(no_mangle)]
extern "C" fn hlml_device_get_ecc_mode(
    device: Device,
    now: *mut c_uint,
    then: *mut c_uint,
) -> c_int {
    let words = match answer("hlml_device_get_ecc_mode", device) {
        Ok(words) => words,
        Err(code) => return code,
    };
    let mut numbers = words.iter().map(|word| word.parse().unwrap_or(c_uint::MAX));
    for to in [now, then] {
        // SAFETY: the caller's places for a number each.
        unsafe { to.write(numbers.next().unwrap_or(c_uint::MAX)) };
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn hlml_device_get_total_ecc_errors(
    device: Device,
    kind: c_uint,
    count: c_uint,
    to: *mut u64,
) -> c_int {
    write(&format!("hlml_device_get_total_ecc_errors/{kind}/{count}"), device, to)
}

#[unsafe(no_mangle)]
extern "C" fn hlml_device_get_memory_error_counter(
    device: Device,
    kind: c_uint,
    count: c_uint,
    place: c_uint,
    to: *mut u64,
) -> c_int {
    write(&format!("hlml_device_get_memory_error_counter/{kind}/{count}/{place}"), device, to)
}

#[unsafe(no_mangle)]
extern "C" fn hlml_device_get_replaced_rows(
    device: Device,
    cause: c_uint,
    count: *mut c_uint,
    rows: *mut c_void,
) -> c_int {
    if !rows.is_null() {
        return INVALID_ARGUMENT;
    }
    write(&format!("hlml_device_get_replaced_rows/{cause}"), device, count)
}

/// Two words of each mask, as 1.24 has them.
#[unsafe(no_mangle)]
extern "C" fn hlml_get_mac_addr_info(device: Device, all: *mut u64, external: *mut u64) -> c_int {
    // SAFETY: the caller's places for two words each.
    unsafe {
        external.write(0);
        external.add(1).write(0);
    }
    write("hlml_get_mac_addr_info", device, all)
}

/// `hlml_nic_stats_info_t`.
#[repr(C)]
struct NicStats {
    port: u32,
    names: *mut c_char,
    values: *mut u64,
    count: *mut u32,
}

/// Of `name value name value …`.
#[unsafe(no_mangle)]
extern "C" fn hlml_nic_get_statistics(device: Device, info: *mut NicStats) -> c_int {
    // SAFETY: the caller's structure.
    let info = unsafe { &*info };
    let words = match answer("hlml_nic_get_statistics", device) {
        Ok(words) => words,
        Err(code) => return code,
    };
    let pairs: Vec<_> = words.chunks_exact(2).collect();
    for (at, pair) in pairs.iter().enumerate() {
        let number = pair[1].parse::<u64>().unwrap_or_default();
        // SAFETY: the caller has room for 256 names and numbers, and the file has fewer.
        let name = unsafe { info.names.add(at * NAME) };
        copy(&pair[0], name);
        // SAFETY: as above; each port has its number more than the first.
        unsafe { info.values.add(at).write(number + u64::from(info.port)) };
    }
    // SAFETY: the caller's place for the count.
    unsafe { info.count.write(u32::try_from(pairs.len()).unwrap_or_default()) };
    0
}
