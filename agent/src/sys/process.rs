//! Ending this process, and its standard output; what a pidfd tells of another one.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

/// Standard output's number.
const STDOUT: i32 = 1;

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process without running exit handlers or library destructors: those of a vendor's
/// library would wait for the very lock that a hung call holds.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` takes any status and has no precondition; it does not return.
    unsafe { _exit(status) }
}

/// Takes standard output for the caller alone: what others print to it from now on (a vendor's library,
/// say) goes to standard error.
pub fn take_stdout() -> io::Result<File> {
    let out = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: `io::stdout` stands for this number too, and nobody closes it: here it is never dropped.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(STDOUT) });
    rustix::io::dup2(io::stderr(), &mut place)?;
    Ok(out.into())
}

/// `struct pidfd_info` as it was at first (`PIDFD_INFO_SIZE_VER0`, `linux/pidfd.h`, 6.13).
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    /// Process numbers and user ids.
    rest: [u32; 12],
}

/// `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`, of this size.
const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b;
/// `PIDFD_INFO_CGROUPID`: asked for, and told.
const CGROUP_ID: u64 = 1 << 2;

/// The number of a process's cgroup in the unified hierarchy; `None` where the kernel does not tell
/// it (before 6.13) or the process is gone.
pub(crate) fn cgroup_id(pid: u32) -> Option<u64> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let mut info = PidfdInfo { mask: CGROUP_ID, cgroup: 0, rest: [0; 12] };
    // SAFETY: `info` has the layout of the structure and the size that the request's number says,
    // outlives the call, and any bytes the kernel writes into it are values of its fields.
    let answer = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (answer == 0 && info.mask & CGROUP_ID != 0).then_some(info.cgroup)
}

#[cfg(test)]
mod tests {
    use super::cgroup_id;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn the_kernel_tells_the_number_of_the_own_cgroup() {
        let Some(id) = cgroup_id(std::process::id()) else {
            println!("skipped: needs Linux 6.13");
            return;
        };
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let numbers = roots.map(|root| std::fs::metadata(format!("{root}/{path}")));
        let numbers: Vec<_> = numbers.into_iter().flatten().map(|group| group.ino()).collect();
        assert!(numbers.contains(&id), "{id} is none of {numbers:?}");
    }
}
