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

/// The same with a number of the caller's choice, free or not yet used again; needs
/// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
pub fn fork_as(pid: u32) -> io::Result<Option<Pid>> {
    let wanted = [libc::pid_t::try_from(pid).unwrap_or(libc::pid_t::MAX)];
    // SAFETY: all of its fields are integers, for which zero is a value.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    arguments.set_tid = wanted.as_ptr().addr() as u64;
    arguments.set_tid_size = 1;
    let size = size_of::<libc::clone_args>();
    // SAFETY: without flags clone3 is a fork, with fork's contract (see above); the arguments and
    // the array they point to outlive the call, which only reads them.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw))
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

/// Gives the process, or for PIDs its next child, namespaces of its own.
pub fn own_namespaces(which: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of the namespaces shares or unshares the table of open files, which is all the
    // contract of `unshare_unsafe` is about; FILES is not among what callers pass.
    unsafe { rustix::thread::unshare_unsafe(which - UnshareFlags::FILES) }?;
    Ok(())
}

/// Ends the process by a fault of its own, as a program with an error in it does: the kernel says so
/// in its log.
pub fn crash() -> io::Result<()> {
    // SAFETY: a new mapping of one page takes no memory of anybody's.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            1,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is ours and nothing else refers to it. It cannot be written, so that the write
    // ends the process.
    unsafe { page.cast::<u8>().write_volatile(1) };
    Err(io::Error::other("the write came back"))
}
