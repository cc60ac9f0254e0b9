//! Libraries that processes map: any bytes in a file. Its tables and names are read from where it
//! says that they are.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{FromRawFd as _, OwnedFd};

unsafe extern "C" {
    fn memfd_create(name: *const std::ffi::c_char, flags: std::ffi::c_uint) -> std::ffi::c_int;
}

fuzz_target!(|bytes: &[u8]| {
    // SAFETY: the name ends in NUL; the call touches no other memory.
    let fd = unsafe { memfd_create(c"library".as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: the call just returned it, so it is open and nobody else's.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(bytes).unwrap();
    gpuwho::collect::kernel::nccl::fuzz::library(&file);
});
