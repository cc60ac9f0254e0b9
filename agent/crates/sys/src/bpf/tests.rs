use super::*;
use crate::uprobes::{BPF_PROG_LOAD, LoadAttr};
use std::ffi::CStr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

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

/// `r0 = 0; exit`: forbids every device.
const DENY_ALL: [Instruction; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // The next run has another name.
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn make(name: &str) -> Option<Directory> {
    let path = unified()?.join(format!("gpuwho-test-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).ok()?;
    Some(Directory(path))
}

fn programs(path: &Path) -> io::Result<Vec<AttachedProgram>> {
    device_programs(std::fs::File::open(path)?.as_fd())
}

#[test]
fn the_kernel_gives_back_the_program_that_was_attached_to_a_cgroup() {
    let Some(directory) = make("bpf") else {
        eprintln!("skipped: needs root and a writable cgroup2 mount");
        return;
    };
    let open = std::fs::File::open(&directory.0).unwrap();
    match attach_device_program(open.as_fd(), c"Slurm_Cgroup_v2", &DENY_ALL) {
        Ok(()) => {}
        Err(error) => {
            eprintln!("skipped: needs cgroup device programs: {error}");
            return;
        }
    }
    let expected =
        AttachedProgram { name: "Slurm_Cgroup_v2".to_owned(), instructions: DENY_ALL.to_vec() };
    assert_eq!(programs(&directory.0).unwrap(), [expected]);
}

#[test]
fn a_directory_that_is_no_cgroup_has_no_programs_to_give() {
    programs(Path::new("/")).unwrap_err();
}

#[test]
fn record_of_another_length_is_refused() {
    assert_eq!(record::<u32>(&7_u32.to_ne_bytes()), Some(7));
    assert_eq!(record::<u32>(&[0; 3]), None);
    assert_eq!(record::<u32>(&[0; 5]), None);
}
