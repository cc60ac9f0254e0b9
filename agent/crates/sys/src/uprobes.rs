//! Attaches and detaches many uprobes of one file with one link (`BPF_LINK_TYPE_UPROBE_MULTI`): the
//! kernel synchronizes its processors once, not once a probe.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Commands, kinds and flags of `bpf(2)` (`linux/bpf.h`).
pub(super) const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;
/// Bytes kept of the verifier's log.
const LOG_LEN: u32 = 64 << 10;

/// The attach kind of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Entries, or returns; Linux 6.6.
    Multi,
    /// Entries, and returns that the program selects at the entry; Linux 6.13.
    Session,
}

impl Kind {
    /// `enum bpf_attach_type`.
    const fn attach_type(self) -> u32 {
        match self {
            Self::Multi => 48,
            Self::Session => 57,
        }
    }
}

/// A function's offset in its file, and its cookie for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The value that `bpf_get_attach_cookie` returns.
    pub cookie: u64,
}

/// `union bpf_attr` for `BPF_PROG_LOAD`, up to the attach type (4.17).
#[repr(C)]
pub(super) struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

impl LoadAttr {
    /// A program of a kind; the data that it points to must outlive it.
    pub(super) fn new<I>(
        prog_type: u32,
        expected_attach_type: u32,
        name: &str,
        instructions: &[I],
        license: &CStr,
    ) -> Self {
        const { assert!(size_of::<I>() == 8) };
        let mut prog_name = [0; 16];
        // The last byte stays zero.
        prog_name.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
        Self {
            prog_type,
            insn_cnt: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            insns: instructions.as_ptr() as u64,
            license: license.as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log_buf: 0,
            kern_version: 0,
            prog_flags: 0,
            prog_name,
            prog_ifindex: 0,
            expected_attach_type,
        }
    }
}

/// `union bpf_attr` for `BPF_LINK_CREATE` with many uprobes (6.6).
#[repr(C)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    link_flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    flags: u32,
    pid: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<LoadAttr>() == 72 && size_of::<LinkAttr>() == 64);

/// Loads a program of 8-byte instructions. An error has the verifier's log.
pub fn load<I: Copy>(
    name: &str,
    instructions: &[I],
    license: &CStr,
    kind: Kind,
) -> Result<OwnedFd, (io::Error, String)> {
    let attach = kind.attach_type();
    let mut attr = LoadAttr::new(BPF_PROG_TYPE_KPROBE, attach, name, instructions, license);
    match bpf(BPF_PROG_LOAD, &mut attr) {
        Ok(program) => Ok(program),
        Err(error) => {
            let mut log = vec![0_u8; LOG_LEN as usize];
            (attr.log_level, attr.log_size) = (1, LOG_LEN);
            attr.log_buf = log.as_mut_ptr() as u64;
            // The second attempt fails for the same reason, with the verifier's log.
            let has_log = bpf(BPF_PROG_LOAD, &mut attr).is_err();
            let message =
                log.split(|byte| *byte == 0).next().filter(|_| has_log).unwrap_or_default();
            Err((error, String::from_utf8_lossy(message).into_owned()))
        }
    }
}

/// Attaches a program to functions of a file, at their entry or return, until the link is closed.
pub fn attach(
    program: BorrowedFd<'_>,
    kind: Kind,
    at_return: bool,
    file: &CStr,
    places: &[Place],
) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = places.iter().map(|place| place.offset).collect();
    let cookies: Vec<u64> = places.iter().map(|place| place.cookie).collect();
    let mut attr = LinkAttr {
        prog_fd: program.as_raw_fd().cast_unsigned(),
        target_fd: 0,
        attach_type: kind.attach_type(),
        link_flags: 0,
        path: file.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        ref_ctr_offsets: 0,
        cookies: cookies.as_ptr() as u64,
        cnt: u32::try_from(places.len()).map_err(io::Error::other)?,
        flags: if at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        pid: 0,
        reserved: 0,
    };
    bpf(BPF_LINK_CREATE, &mut attr)
}

/// Whether the kernel supports such links: it then checks the file, and refuses a directory.
pub fn is_offered(program: BorrowedFd<'_>, kind: Kind) -> bool {
    let tried = attach(program, kind, false, c"/", &[Place { offset: 0, cookie: 0 }]);
    tried.is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is the part of `union bpf_attr` that `command` takes, of the size given; every
    // address in it is of a live buffer or string of the length given beside it, which the callers
    // above uphold, and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call just returned this descriptor, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
