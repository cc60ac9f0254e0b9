//! Opens a cgroup's directory by its kernel id, which BPF programs record.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Type of a kernfs file handle: the 64-bit node id (`FILEID_KERNFS`, `linux/exportfs.h`, 5.5).
const FILEID_KERNFS: i32 = 0xfe;

/// `struct file_handle` with the eight bytes a kernfs handle has.
#[repr(C)]
struct KernfsHandle {
    handle_bytes: u32,
    handle_type: i32,
    id: [u8; 8],
}

/// Opens (as a path only) the kernfs node `id` of the file system that `mount` is in.
///
/// Needs `CAP_DAC_READ_SEARCH`; fails with `ESTALE` where the node has been removed.
pub fn open_kernfs_node(mount: BorrowedFd<'_>, id: u64) -> io::Result<OwnedFd> {
    let mut handle =
        KernfsHandle { handle_bytes: 8, handle_type: FILEID_KERNFS, id: id.to_ne_bytes() };
    // SAFETY: `handle` has the layout of `struct file_handle` followed by the `handle_bytes`
    // bytes it announces, and outlives the call; the kernel only reads it. `mount` is open for
    // as long as it is borrowed.
    let fd = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut handle).cast(),
            libc::O_PATH | libc::O_CLOEXEC | libc::O_DIRECTORY,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned this descriptor, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
