//! Accesses kernel file systems that the host has not mounted, without changing the host's mounts.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, fsconfig_create,
    fsmount, fsopen, mount, mount_change,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::io;
use std::os::fd::OwnedFd;
use std::thread;

/// Opens the root directory of a new file system instance without mounting it (kernel 5.2).
pub fn detached(file_system: &str) -> io::Result<OwnedFd> {
    let context = fsopen(file_system, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(mount, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Runs `work` in a thread with its own mount namespace, in which tracefs is at its default place.
/// The namespace ends with the thread.
pub fn with_tracefs<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| private_tracefs().map(|()| work()));
        thread.join().unwrap_or_else(|_| Err(io::Error::other("thread ended early")))
    })
}

fn private_tracefs() -> io::Result<()> {
    // SAFETY: called on a thread made for it; a mount namespace of its own changes what paths mean
    // to this thread only, and no file descriptor table or memory is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("tracefs", "/sys/kernel/tracing", "tracefs", flags, None)?)
}
