//! A helper process: `gpuwho file-reader`. It has the privileges that looking into other processes
//! takes and no others, and room for little.

use super::answer::answer;
use super::wire::{Request, WireError, receive, send};
use crate::paths::Paths;
use crate::sys::confine;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_name, set_no_new_privs,
};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

/// Address space: the program itself, and two messages.
const MOST_MEMORY: u64 = 256 * 1024 * 1024;
/// Descriptors: those of a message, and some.
const MOST_OPEN: u64 = 256;
/// What no process of the agent's can have more of.
const CAPABILITIES: u64 = 64;

/// Why a helper ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It could not give up what it does not need.
    #[error("cannot give up privileges: {0}")]
    Privileges(Errno),
    /// Nor the system calls.
    #[error("cannot give up system calls: {0}")]
    Calls(#[source] io::Error),
    /// The socket to the agent failed.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Serves until the agent closes the socket.
pub fn serve(proc: PathBuf, socket: &OwnedFd) -> Result<(), ServeError> {
    // As `ps` and `top` show it; fails on no name that is short enough.
    let _ = set_name(c"file-reader");
    give_up().map_err(ServeError::Privileges)?;
    confine::allow_reading().map_err(ServeError::Calls)?;
    let paths = Paths { proc, ..Paths::default() };
    loop {
        let (request, _, passed) = match receive::<Request>(socket.as_fd()) {
            Ok(received) => received,
            Err(WireError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let lent: Vec<_> = passed.iter().map(OwnedFd::as_fd).collect();
        let mut reply = answer(&paths, &request, &lent);
        drop(lent);
        drop(passed);
        let given: Vec<_> = reply.descriptors.iter().map(OwnedFd::as_fd).collect();
        match send(socket.as_fd(), &reply.answer, &reply.bytes, &given) {
            Ok(()) => {}
            Err(WireError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // Environments hold secrets.
        reply.bytes.fill(0);
    }
}

/// Gives up what reading does not need.
fn give_up() -> Result<(), Errno> {
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::As, limit(MOST_MEMORY))?;
    setrlimit(Resource::Nofile, limit(MOST_OPEN))?;
    setrlimit(Resource::Core, limit(0))?;
    let held = capabilities(None)?.permitted;
    // Other users' processes and files; and, to follow a link in `map_files`, the right to
    // checkpoint, which before Linux 5.9 was a part of this one.
    let mut needed = CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    if !held.contains(CapabilitySet::CHECKPOINT_RESTORE) {
        needed |= CapabilitySet::SYS_ADMIN;
    }
    for number in 0..CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if !needed.contains(one) {
            // Refused to those who may not change it, and for numbers that the kernel lacks.
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    // Refused by nobody; kernels before 4.3 have no such set.
    let _ = clear_ambient_capability_set();
    let kept = held & needed;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    set_no_new_privs(true)
}
