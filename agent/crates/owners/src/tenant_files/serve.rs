//! A helper process: `gpuwho file-reader`. It has only the privileges for reading other processes,
//! and little memory and few descriptors.

use super::answer::answer;
use super::wire::{Reply, Request, WireError, receive, send};
use gpuwho_model::paths::Paths;
use gpuwho_sys::confine;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_name, set_no_new_privs,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

/// Address space in bytes: the program and two messages.
const MAX_MEMORY: u64 = 256 * 1024 * 1024;
/// Descriptors: those of a message, and a few more.
const MAX_OPEN: u64 = 256;
/// `OOM_SCORE_ADJ_MAX`; raising the own value needs no privilege.
const FIRST_TO_GO: &str = "1000";
/// Upper bound of capability numbers.
const CAPABILITIES: u64 = 64;

/// Why a helper ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It could not drop its privileges.
    #[error("cannot drop privileges: {0}")]
    Privileges(Errno),
    /// It could not install the filter of system calls.
    #[error("cannot restrict system calls: {0}")]
    Calls(#[source] io::Error),
    /// The socket to the agent failed.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Serves until the agent closes the socket.
pub fn serve(proc: PathBuf, socket: &OwnedFd) -> Result<(), ServeError> {
    // The name in `ps` and `top`; setting a short name does not fail.
    let _ = set_name(c"file-reader");
    // The OOM killer picks the helper before the agent. Where `/proc` is missing or read-only, it
    // treats both alike.
    let _ = fs::write("/proc/self/oom_score_adj", FIRST_TO_GO);
    drop_privileges().map_err(ServeError::Privileges)?;
    confine::allow_reading().map_err(ServeError::Calls)?;
    let paths = Paths { proc, ..Paths::default() };
    loop {
        match turn(&paths, socket) {
            Ok(()) => {}
            Err(WireError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits for a request and answers it. A failure to pass descriptors is an answer too, and the
/// helper continues.
fn turn(paths: &Paths, socket: &OwnedFd) -> Result<(), WireError> {
    let mut reply = match receive::<Request>(socket.as_fd()) {
        Ok((request, _, passed)) => {
            let lent: Vec<_> = passed.iter().map(OwnedFd::as_fd).collect();
            answer(paths, &request, &lent)
        }
        Err(WireError::Descriptors(error)) => Reply::failed(error),
        Err(error) => return Err(error),
    };
    let given: Vec<_> = reply.descriptors.iter().map(OwnedFd::as_fd).collect();
    let sent = match send(socket.as_fd(), &reply.answer, &reply.bytes, &given) {
        Err(WireError::Descriptors(error)) => {
            let failed = Reply::failed(error);
            send(socket.as_fd(), &failed.answer, &[], &[])
        }
        sent => sent,
    };
    // Environments hold secrets.
    reply.bytes.fill(0);
    sent
}

/// Drops the privileges that reading does not need.
fn drop_privileges() -> Result<(), Errno> {
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::As, limit(MAX_MEMORY))?;
    setrlimit(Resource::Nofile, limit(MAX_OPEN))?;
    setrlimit(Resource::Core, limit(0))?;
    let held = capabilities(None)?.permitted;
    // Needed for other users' processes and files, and for links in `map_files`: checkpointing,
    // which was a part of CAP_SYS_ADMIN before Linux 5.9.
    let mut needed = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    if !held.contains(CapabilitySet::CHECKPOINT_RESTORE) {
        needed |= CapabilitySet::SYS_ADMIN;
    }
    for number in 0..CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if !needed.contains(one) {
            // Fails without the privilege, and for numbers that the kernel does not have.
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    // Fails only on kernels before 4.3, which have no ambient set.
    let _ = clear_ambient_capability_set();
    let kept = held & needed;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    set_no_new_privs(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant_files::wire::{Answer, MAX_DESCRIPTORS};
    use rustix::fs::{Mode, OFlags, open};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Uid, geteuid, getrlimit};
    use rustix::thread::set_thread_uid;

    /// A user id under which no other process sends descriptors.
    const UNUSED_UID: u32 = 60_321;
    /// Number of in-flight descriptors that fit into a socket's buffer.
    const MANY: u64 = 20_480;

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// Requests a descriptor; returns the error number, if any, and the number of received
    /// descriptors.
    fn asks((ours, theirs): &(OwnedFd, OwnedFd)) -> (Option<i32>, usize) {
        let request = Request::Directory { process: None, path: "/".into() };
        send(ours.as_fd(), &request, &[], &[]).unwrap();
        turn(&Paths::default(), theirs).unwrap();
        let (answer, _, passed) = receive::<Answer>(ours.as_fd()).unwrap();
        (if let Answer::Failed(error) = answer { Some(error) } else { None }, passed.len())
    }

    #[test]
    fn descriptors_that_cannot_be_passed_are_an_answer_and_the_helper_goes_on() {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if !geteuid().is_root() || most > MANY {
            println!("skipped: needs root and at most {MANY} open files");
            return;
        }
        // Only this thread changes its user, because in-flight descriptors are counted by user.
        let all = std::thread::spawn(|| {
            set_thread_uid(Uid::from_raw(UNUSED_UID)).unwrap();
            let null = open("/dev/null", OFlags::RDONLY, Mode::empty()).unwrap();
            let (full, asked) = (pair(), pair());
            let passed = [null.as_fd(); MAX_DESCRIPTORS];
            let refused = loop {
                if let Err(error) = send(full.0.as_fd(), &0_u8, &[], &passed) {
                    break error;
                }
            };
            assert!(matches!(refused, WireError::Descriptors(Errno::TOOMANYREFS)), "{refused:?}");
            let during = asks(&asked);
            drop(full);
            (during, asks(&asked))
        });
        let (during, after) = all.join().unwrap();
        assert_eq!(during, (Some(Errno::TOOMANYREFS.raw_os_error()), 0));
        assert_eq!(after, (None, 1));
    }
}
