//! Device programs on cgroups as slurmstepd attaches them, for tests.

use super::{BPF_CGROUP_DEVICE, Instruction, bpf};
use crate::uprobes::{BPF_PROG_LOAD, LoadAttr};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::PathBuf;

const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;

/// `union bpf_attr` for `BPF_PROG_ATTACH`.
#[repr(C)]
struct AttachAttr {
    target_fd: i32,
    attach_bpf_fd: i32,
    attach_type: u32,
    attach_flags: u32,
}

/// Attaches a device program to a cgroup like slurmstepd; the kernel detaches it with the cgroup.
pub fn attach_device_program(
    cgroup: BorrowedFd<'_>,
    name: &CStr,
    instructions: &[Instruction],
) -> io::Result<()> {
    let name = name.to_str().unwrap();
    let kind = BPF_PROG_TYPE_CGROUP_DEVICE;
    let mut attr = LoadAttr::new(kind, BPF_CGROUP_DEVICE, name, instructions, c"GPL");
    let fd = bpf(BPF_PROG_LOAD, &mut attr)?;
    // SAFETY: the call just returned this descriptor, so it is open and has no other owner.
    let program = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()) };
    let mut attr = AttachAttr {
        target_fd: cgroup.as_raw_fd(),
        attach_bpf_fd: program.as_raw_fd(),
        attach_type: BPF_CGROUP_DEVICE,
        attach_flags: 0,
    };
    bpf(BPF_PROG_ATTACH, &mut attr).map(drop)
}

/// The unified hierarchy of this host.
pub fn unified() -> Option<PathBuf> {
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    places.into_iter().find(|place| place.join("cgroup.controllers").exists())
}
