//! The end of this process and of those that it starts, and its standard output.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

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

/// Whether two threads, of any processes, have the same table of descriptors (`kcmp(2)`); `None` where the
/// kernel does not say.
pub fn share_files(one: u32, other: u32) -> Option<bool> {
    /// `KCMP_FILES` (`linux/kcmp.h`).
    const FILES: libc::c_ulong = 2;
    // SAFETY: the call takes numbers only, any of which it checks.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, FILES, 0_u64, 0_u64) };
    (answer >= 0).then_some(answer == 0)
}

/// Has the kernel kill the command's process when the thread that starts it ends, so also when this
/// process does.
pub fn end_with_this_thread(command: &mut Command) {
    let kill = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: runs between fork and exec: one system call, which takes no lock and allocates nothing.
    unsafe { command.pre_exec(kill) };
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
