//! Reads the records that the BPF programs write, and the device programs that are attached to a
//! cgroup.

use aya::Pod;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// `BPF_MAP_LOOKUP_BATCH` (`enum bpf_cmd`), 5.6.
const LOOKUP_BATCH: libc::c_int = 24;
/// Number of entries of the first call; one bucket of the map must fit.
const FIRST_BATCH: u32 = 64;
/// Upper bound of the entries of one call: more than any of the agent's maps has.
const LARGEST_BATCH: u32 = 1 << 20;

/// The part of `union bpf_attr` that batches use.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// Reads every entry of a hash map, some hundreds a system call. It may miss entries that are added
/// or removed during the call.
pub fn entries<K: Pod, V: Pod>(map: BorrowedFd<'_>) -> io::Result<Vec<(K, V)>> {
    let mut found = Vec::new();
    let mut most = FIRST_BATCH;
    let mut position = None;
    loop {
        match batch::<K, V>(map, position, most, &mut found) {
            Ok(Some(next)) => position = Some(next),
            Ok(None) => return Ok(found),
            // One bucket has more entries than the call has room for.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && most < LARGEST_BATCH => {
                most *= 2;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reads the entries from a position on; returns the next position, or `None` at the end.
fn batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    from: Option<u64>,
    most: u32,
    found: &mut Vec<(K, V)>,
) -> io::Result<Option<u64>> {
    let room = most as usize;
    let mut keys: Vec<MaybeUninit<K>> = Vec::with_capacity(room);
    let mut values: Vec<MaybeUninit<V>> = Vec::with_capacity(room);
    let mut next = 0_u64;
    let mut attr = BatchAttr {
        in_batch: from.as_ref().map_or(0, |from| std::ptr::from_ref(from).addr() as u64),
        out_batch: (&raw mut next).addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count: most,
        map_fd: map.as_raw_fd().cast_unsigned(),
        elem_flags: 0,
        flags: 0,
    };
    // The attribute has the addresses as numbers.
    keys.as_mut_ptr().expose_provenance();
    values.as_mut_ptr().expose_provenance();
    (&raw mut next).expose_provenance();
    // SAFETY: the attribute has the layout of `union bpf_attr`'s batch part and outlives the call;
    // keys and values have room for `count` entries of the map's own sizes (the caller's types are
    // the map's records), a position is four bytes for a hash map, and nothing else is written.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut attr, size_of::<BatchAttr>())
    };
    let error = (result < 0).then(io::Error::last_os_error);
    let ended = error.as_ref().is_some_and(|error| error.raw_os_error() == Some(libc::ENOENT));
    if let Some(error) = error.filter(|_| !ended) {
        return Err(error);
    }
    let count = (attr.count as usize).min(room);
    // SAFETY: the kernel has written `count` keys and values, at most as many as there is room
    // for; every bit pattern is valid (the Pod contract).
    unsafe {
        keys.set_len(count);
        values.set_len(count);
        let pairs = keys.iter().zip(&values);
        found.extend(pairs.map(|(key, value)| (key.assume_init_read(), value.assume_init_read())));
    }
    Ok((!ended).then_some(next))
}

/// The record that `bytes` are; `None` if they are not exactly as long.
pub fn record<T: Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() != size_of::<T>() {
        return None;
    }
    // SAFETY: the length is that of T, every bit pattern is a valid T (the Pod contract, upheld by
    // the `abi!` macro), and read_unaligned asks for no alignment.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// One BPF instruction: opcode, registers, offset, immediate.
pub type Instruction = [u8; 8];

/// A program attached to a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its instructions after the verifier's own changes.
    pub instructions: Vec<Instruction>,
}

/// Largest number of programs of one kind on a cgroup (`BPF_CGROUP_MAX_PROGS`).
const MAX_PROGRAMS: u32 = 64;
/// Largest number of instructions read of a program; one device takes five, and a host has some
/// tens of devices at most.
const MAX_INSTRUCTIONS: u32 = 4096;

/// Length of an instruction and of the known part of `struct bpf_prog_info`, in the kernel's 32-bit
/// type.
const INSTRUCTION_LEN: u32 = 8;
const PROGRAM_INFO_LEN: u32 = 80;
const _: () = assert!(size_of::<Instruction>() == INSTRUCTION_LEN as usize);
const _: () = assert!(size_of::<ProgramInfo>() == PROGRAM_INFO_LEN as usize);
const _: () = assert!(size_of::<QueryAttr>() == 32 && size_of::<InfoAttr>() == 16);

/// Commands and kinds of `bpf(2)` (`linux/bpf.h`).
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_CGROUP_DEVICE: u32 = 6;

/// `union bpf_attr` for `BPF_PROG_QUERY`, as of Linux 4.15.
#[repr(C)]
struct QueryAttr {
    target_fd: i32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    reserved: u32,
}

/// `union bpf_attr` for `BPF_PROG_GET_FD_BY_ID`.
#[repr(C)]
struct ByIdAttr {
    prog_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct InfoAttr {
    bpf_fd: i32,
    info_len: u32,
    info: u64,
}

/// `struct bpf_prog_info` up to the name (Linux 4.15); the kernel fills the given length.
#[repr(C)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_prog_len: u32,
    xlated_prog_len: u32,
    jited_prog_insns: u64,
    xlated_prog_insns: u64,
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// The device programs attached to the cgroup (v2) whose directory is open as `cgroup` itself,
/// not those of its parents. Needs `CAP_SYS_ADMIN`, or `CAP_BPF` and `CAP_NET_ADMIN`.
pub fn device_programs(cgroup: BorrowedFd<'_>) -> io::Result<Vec<AttachedProgram>> {
    let mut ids = [0_u32; MAX_PROGRAMS as usize];
    let mut attr = QueryAttr {
        target_fd: cgroup.as_raw_fd(),
        attach_type: BPF_CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        prog_ids: (&raw mut ids) as u64,
        prog_cnt: MAX_PROGRAMS,
        reserved: 0,
    };
    bpf(BPF_PROG_QUERY, &mut attr)?;
    let mut programs = Vec::new();
    for id in ids.iter().take(attr.prog_cnt as usize) {
        match by_id(*id).and_then(|program| read_program(&program)) {
            Ok(program) => programs.push(program),
            // The program was detached and unloaded between the two calls.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(programs)
}

fn by_id(prog_id: u32) -> io::Result<OwnedFd> {
    let mut attr = ByIdAttr { prog_id, next_id: 0, open_flags: 0 };
    let fd = bpf(BPF_PROG_GET_FD_BY_ID, &mut attr)?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the call just returned this descriptor, so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn read_program(program: &OwnedFd) -> io::Result<AttachedProgram> {
    let mut instructions = vec![[0_u8; INSTRUCTION_LEN as usize]; MAX_INSTRUCTIONS as usize];
    let mut info = ProgramInfo {
        kind: 0,
        id: 0,
        tag: [0; 8],
        jited_prog_len: 0,
        xlated_prog_len: MAX_INSTRUCTIONS * INSTRUCTION_LEN,
        jited_prog_insns: 0,
        xlated_prog_insns: instructions.as_mut_ptr() as u64,
        load_time: 0,
        created_by_uid: 0,
        nr_map_ids: 0,
        map_ids: 0,
        name: [0; 16],
    };
    let mut attr = InfoAttr {
        bpf_fd: program.as_raw_fd(),
        info_len: PROGRAM_INFO_LEN,
        info: (&raw mut info) as u64,
    };
    bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    let count = info.xlated_prog_len / INSTRUCTION_LEN;
    if count > MAX_INSTRUCTIONS {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a program of too many steps"));
    }
    instructions.truncate(count as usize);
    let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(AttachedProgram { name: String::from_utf8_lossy(name).into_owned(), instructions })
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is the part of `union bpf_attr` that `command` takes, of the size given, and
    // every address in it is of a live buffer of the length given beside it, which the callers
    // above uphold; all of them outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

#[cfg(any(test, feature = "fixtures"))]
#[allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "for tests only"
)]
pub mod fixture;
#[cfg(test)]
mod tests;
