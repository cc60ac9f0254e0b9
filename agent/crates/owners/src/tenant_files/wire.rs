//! The messages between the agent and a helper: one message a request and one an answer
//! (`SOCK_SEQPACKET`), with descriptors. Both ends are the same binary; the agent still refuses
//! messages longer than [`MAX_FRAME`].

use crate::tenant_files::names::Kind;
use crate::tenant_files::search::{FileFilter, Search};
use gpuwho_model::ids::ProcKey;
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Largest number of bytes in one answer: the chunk of the Inspector's reader.
pub const MAX_READ: usize = 64 * 1024;
/// Largest message: the bytes and the encoded answer before them.
const MAX_FRAME: usize = MAX_READ + 16 * 1024;
/// Descriptors of one message; the kernel takes 253 (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 128;

/// [`MAX_READ`] in the type of requests.
pub(super) fn max_read() -> u32 {
    u32::try_from(MAX_READ).unwrap_or(u32::MAX)
}

/// A request to a helper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Read one of a process's files in `/proc`; the answer has the open file if there may be more.
    Proc { process: ProcKey, file: ProcFile, offset: u64, length: u32 },
    /// Read more of such a file, which is passed.
    ReadOn { offset: u64, length: u32 },
    /// Open the regular file that a link leads to.
    Open { process: ProcKey, link: Link },
    /// Read a file that `Open` returned, which is passed.
    Read { offset: u64, length: u32 },
    /// The current metadata of such a file.
    Stat,
    /// Open a directory below a process's root or working directory; without a process, the
    /// operator's.
    Directory { process: Option<ProcKey>, path: PathBuf },
    /// Find files of NCCL's Inspector, in a passed directory if there is one.
    Search { search: Search, wanted: FileFilter },
}

/// Files of a process that the kernel reads out of the process's memory, or under a lock that its
/// page faults hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcFile {
    /// Its environment.
    Environment,
    /// Its command line.
    CommandLine,
    /// Its mappings.
    Maps,
    /// Its memory, by address.
    Memory,
}

impl ProcFile {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Environment => "environ",
            Self::CommandLine => "cmdline",
            Self::Maps => "maps",
            Self::Memory => "mem",
        }
    }
}

/// A link in a process's `/proc` directory that leads to an open or mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// Mapped at this range, as `maps` prints it.
    Mapping {
        /// First address.
        begin: u64,
        /// First address after the range.
        end: u64,
    },
    /// Open under this number.
    Descriptor(u32),
}

/// Metadata of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Major and minor number of its file system's device.
    pub device: (u32, u32),
    /// Its inode number.
    pub inode: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Its owner.
    pub uid: u32,
    /// Time of the last change of its contents, in nanoseconds since 1970.
    pub modified_ns: u64,
}

/// A helper's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Bytes, after this message.
    Bytes,
    /// Metadata of a file, which is passed after `Open`.
    Stat(Stat),
    /// A directory, which is passed.
    Directory,
    /// Files, passed in this order, and the number of files that could not be opened.
    Found(Vec<(Kind, Stat)>, u64),
    /// An error's number.
    Failed(i32),
}

/// An answer with its bytes and descriptors.
#[derive(Debug)]
pub(super) struct Reply {
    pub answer: Answer,
    pub bytes: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Reply {
    /// The answer for an error.
    pub(super) fn failed(error: Errno) -> Self {
        Answer::Failed(error.raw_os_error()).into()
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, bytes: Vec::new(), descriptors: Vec::new() }
    }
}

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] Errno),
    /// The other end is gone.
    #[error("the other end is gone")]
    Closed,
    /// The descriptors exceed the receiver's limit of open files, or the limit of one user's
    /// in-flight descriptors (`too_many_unix_fds`).
    #[error("descriptors cannot be passed: {0}")]
    Descriptors(Errno),
    /// Longer than a message may be.
    #[error("a message is too long")]
    TooLong,
    /// Not one of these messages.
    #[error("not a message: {0}")]
    Message(#[from] postcard::Error),
}

/// Sends a message, then bytes, then descriptors, as one.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    head: &impl Serialize,
    bytes: &[u8],
    passed: &[BorrowedFd<'_>],
) -> Result<(), WireError> {
    let head = postcard::to_stdvec(head)?;
    if head.len() + bytes.len() > MAX_FRAME || passed.len() > MAX_DESCRIPTORS {
        return Err(WireError::TooLong);
    }
    let mut room = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut room);
    if !passed.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(passed)) {
        return Err(WireError::TooLong);
    }
    let parts = [IoSlice::new(&head), IoSlice::new(bytes)];
    match sendmsg(socket, &parts, &mut beside, SendFlags::NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(WireError::Closed),
        Err(error @ Errno::TOOMANYREFS) => Err(WireError::Descriptors(error)),
        Err(error) => Err(error.into()),
    }
}

/// Waits for a message.
pub(super) fn receive<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
) -> Result<(T, Vec<u8>, Vec<OwnedFd>), WireError> {
    let mut frame = vec![0; MAX_FRAME];
    let mut room = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut room);
    let mut parts = [IoSliceMut::new(&mut frame)];
    let received = loop {
        match recvmsg(socket, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(WireError::Closed),
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(WireError::TooLong);
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(WireError::Descriptors(Errno::MFILE));
    }
    frame.truncate(received.bytes);
    if frame.is_empty() {
        return Err(WireError::Closed);
    }
    let (head, rest) = postcard::take_from_bytes(&frame)?;
    let head_length = frame.len() - rest.len();
    let bytes = frame.split_off(head_length);
    Ok((head, bytes, descriptors))
}
