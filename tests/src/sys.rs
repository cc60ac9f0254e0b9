//! The system calls of the workers that have no safe interface. Only for processes of one thread.

use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Splits the process in two, as a data loader does; `None` in the child.
pub fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the callers are the worker's main functions, and the worker never starts a thread:
    // no lock can be held by another thread at the moment of the fork.
    let pid = unsafe { libc::fork() };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(Pid::from_raw(pid)) }
}

/// Ends the process without running anything else, as a child after [`fork`] must.
pub fn quit(code: i32) -> ! {
    // SAFETY: `_exit` has no precondition; it only never returns.
    unsafe { libc::_exit(code) }
}

/// Lets a command's process be killed when the thread that started it ends, so that nothing
/// outlives a test or demo that was killed itself.
pub fn die_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes
    // one system call and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}

/// Gives the process mounts of its own.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: CLONE_NEWNS alone leaves the table of open files shared as it was, which is all the
    // contract of `unshare_unsafe` is about.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    Ok(())
}
