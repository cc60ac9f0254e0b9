//! `ncclConfig_t`, and what a driver of a rank puts into one.

use crate::abi::INVALID_ARGUMENT;
use gpuwho_common::nccl::CONFIG_MAGIC;
use std::ffi::{c_char, c_int};
use std::{io, ptr};

/// As `nccl.h` of 2.29 has it, on a machine with 64 bits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    rest: [c_int; 8],
}

const _: () = assert!(size_of::<Config>() == 88);

/// `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// `NCCL_CONFIG_INITIALIZER`.
    const INITIALIZER: Self = Self {
        size: size_of::<Self>(),
        magic: CONFIG_MAGIC,
        version: 22_907,
        blocking: UNDEFINED,
        cga_cluster_size: UNDEFINED,
        min_ctas: UNDEFINED,
        max_ctas: UNDEFINED,
        net_name: ptr::null(),
        split_share: UNDEFINED,
        traffic_class: UNDEFINED,
        comm_name: ptr::null(),
        rest: [UNDEFINED; 8],
    };
}

/// Refuses a configuration that nobody initialised (`parseCommConfig` of `src/init.cc`).
///
/// # Safety
///
/// Null, or as large as it says.
pub(crate) unsafe fn configured(config: *const Config) -> Result<(), u32> {
    // SAFETY: as promised by the caller.
    match unsafe { config.as_ref() } {
        Some(config) if config.magic != CONFIG_MAGIC => Err(INVALID_ARGUMENT),
        _ => Ok(()),
    }
}

/// A configuration, and the text it points to.
#[derive(Debug)]
pub(crate) struct Configuration {
    config: Config,
    #[expect(dead_code, reason = "kept for who reads it")]
    text: Vec<u8>,
}

impl Configuration {
    /// With this name and a zero byte; without one where it is nothing.
    pub(crate) fn named(mut text: Vec<u8>) -> Self {
        let has_name = !text.is_empty();
        text.push(0);
        let comm_name = if has_name { text.as_ptr().cast() } else { ptr::null() };
        Self { config: Config { comm_name, ..Config::INITIALIZER }, text }
    }

    /// With a name behind whose last byte no memory is.
    pub(crate) fn endless(text: &[u8]) -> io::Result<Self> {
        const PAGE: usize = 4_096;
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping wherever there is room; it is never given back.
        let pages = unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE, access, kind, -1, 0) };
        let begin = PAGE.checked_sub(text.len()).ok_or(io::ErrorKind::InvalidInput)?;
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the text ends with the first of two pages, which nobody else knows of; the
        // second is made unreadable.
        let comm_name = unsafe {
            let at = pages.cast::<u8>().add(begin);
            ptr::copy_nonoverlapping(text.as_ptr(), at, text.len());
            if libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_NONE) != 0 {
                return Err(io::Error::last_os_error());
            }
            at.cast_const().cast()
        };
        let config = Config { comm_name, ..Config::INITIALIZER };
        Ok(Self { config, text: Vec::new() })
    }

    /// As no header initialises it.
    pub(crate) fn bad(size: usize, magic: u32, comm_name: usize) -> Self {
        let comm_name = ptr::with_exposed_provenance(comm_name);
        let config = Config { size, magic, comm_name, ..Config::INITIALIZER };
        Self { config, text: Vec::new() }
    }

    /// What the library is given.
    pub(crate) fn as_ptr(&self) -> *const Config {
        &raw const self.config
    }
}
