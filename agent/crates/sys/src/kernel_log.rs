//! The kernel log by `syslog(2)`.

use std::ffi::c_int;
use std::io;

/// `SYSLOG_ACTION_READ_ALL` of `linux/syslog.h`: copies the last records that fit, without removing
/// them.
const READ_ALL: c_int = 3;

/// Reads the last complete records of the log that fit in this many bytes; needs `CAP_SYSLOG`.
pub fn read_end(most: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; most];
    let length = c_int::try_from(most).unwrap_or(c_int::MAX);
    // SAFETY: the kernel writes at most `length` bytes, which `buffer` has, and the bytes are
    // initialised.
    let read = unsafe { libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), length) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    buffer.truncate(read);
    Ok(buffer)
}
