//! The system calls of the workers that have no safe interface. Only for processes of one thread.

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
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

/// Nanoseconds of CPU that a process has spent, its threads that have ended included.
pub fn process_cpu(pid: u32) -> io::Result<u64> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut clock = 0;
    // SAFETY: the call writes to the variable, which outlives it.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the variable, which outlives it.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
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

/// Lets a command's process hold a node as its standard error, opened by itself: neither this process nor
/// another that it starts meanwhile ever has it.
pub fn hold_node<'a>(command: &'a mut Command, node: &Path) -> io::Result<&'a mut Command> {
    let node = CString::new(node.as_os_str().as_bytes())?;
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; the closure makes three
    // system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            // A console must not become the process's terminal.
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            let node = open(node.as_c_str(), flags, Mode::empty())?;
            let copied = libc::dup2(node.as_raw_fd(), libc::STDERR_FILENO);
            if copied < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Ok(command)
}

/// Gives the process, or for PIDs its next child, namespaces of its own.
pub fn own_namespaces(which: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of the namespaces shares or unshares the table of open files, which is all the
    // contract of `unshare_unsafe` is about; FILES is not among what callers pass.
    unsafe { rustix::thread::unshare_unsafe(which - UnshareFlags::FILES) }?;
    Ok(())
}

/// Lets the loopback interface of the process's network namespace carry packets.
pub fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all of its fields are integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    // SAFETY: the request outlives the call, which only reads it, and its flags are set.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Maps a file's first bytes, changes them, and takes the mapping away.
pub fn dirty_and_unmap(file: &File, length: usize) -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, of the length that is written and unmapped, and nobody else has
    // its address.
    unsafe {
        let at = mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)?;
        at.cast::<u8>().write_volatile(1);
        Ok(munmap(at, length)?)
    }
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

/// Maps a file's beginning to be read and run, at a place of the caller's choice or any other; gives
/// the address. It stays until the process ends.
pub fn map(file: &File, at: Option<usize>, length: usize) -> io::Result<usize> {
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    let place = std::ptr::without_provenance_mut(at.unwrap_or(0));
    // SAFETY: callers give either no address, or one inside a mapping that this function made and
    // that nothing in Rust refers to.
    let mapped = unsafe {
        libc::mmap(
            place,
            length,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE | fixed,
            file.as_raw_fd(),
            0,
        )
    };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped.addr()) }
}

/// Takes a part of what [`map`] has mapped away.
pub fn unmap(at: usize, length: usize) -> io::Result<()> {
    // SAFETY: the range is one that `map` has mapped, and nothing in Rust refers to it.
    let result = unsafe { libc::munmap(std::ptr::without_provenance_mut(at), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs a function without arguments that [`map`] has mapped.
pub fn call(at: usize) -> i32 {
    let place = std::ptr::with_exposed_provenance::<()>(at);
    // SAFETY: the caller has mapped a file there whose code is such a function for this processor.
    let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(place) };
    function()
}

/// A lease on a file.
#[derive(Clone, Copy, Debug)]
pub enum Lease {
    /// Nobody else opens it before it is given back.
    Write,
    /// None.
    None,
}

/// Takes or gives back a lease; to be taken the file must be open once.
pub fn lease(file: &File, kind: Lease) -> io::Result<()> {
    let kind = match kind {
        Lease::Write => libc::F_WRLCK,
        Lease::None => libc::F_UNLCK,
    };
    // SAFETY: the call takes an open file and a number.
    let result =
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::c_int::from(kind)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether somebody waits for a lease of writing to be given back, or does not have to any more.
pub fn is_lease_broken(file: &File) -> bool {
    // SAFETY: the call takes an open file and gives a number.
    let kind = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    kind != libc::c_int::from(libc::F_WRLCK)
}

/// A lease that somebody waits for ends the process, unless it ignores that.
pub fn ignore_lease_signals() {
    // SAFETY: to ignore a signal runs no code in its place.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// Lets the kernel show so many bytes of zeros as this process's environment, and as its command
/// line; they take no memory, and this needs no privilege (`prctl_set_mm_map`, Linux 6.18).
pub fn show_as_environment(length: usize) -> io::Result<()> {
    // SAFETY: a new mapping takes nothing of anybody's; nothing is written to it.
    let zeros = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if zeros == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    // From the third of `proc_pid_stat(5)` on.
    let fields: Vec<u64> = after.split(' ').map(|word| word.trim().parse().unwrap_or(0)).collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    // SAFETY: without a change `sbrk` only gives the address.
    let brk = unsafe { libc::sbrk(0) }.addr() as u64;
    let (begin, end) = (zeros.addr() as u64, (zeros.addr() + length) as u64);
    // `struct prctl_mm_map`: code, data, heap, stack, arguments, environment, no auxiliary vector
    // and no program.
    let map = [
        field(26),
        field(27),
        field(45),
        field(46),
        field(47),
        brk,
        field(28),
        begin,
        end,
        begin,
        end,
        0,
        u64::from(u32::MAX) << 32,
    ];
    // SAFETY: the kernel reads as many bytes as are given; the addresses are what it shows in
    // `/proc`, and change nothing in the process itself.
    let result = unsafe {
        libc::prctl(libc::PR_SET_MM, libc::PR_SET_MM_MAP, map.as_ptr(), size_of_val(&map), 0)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What of BPF the kernel has by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BpfObject {
    /// A program.
    Program,
    /// A map.
    Map,
}

/// Whether the kernel has such an object under this number.
pub fn bpf_object_exists(kind: BpfObject, id: u32) -> io::Result<bool> {
    // `BPF_PROG_GET_FD_BY_ID` and `BPF_MAP_GET_FD_BY_ID` (`enum bpf_cmd`).
    let command: libc::c_int = if kind == BpfObject::Program { 13 } else { 14 };
    // The number, the one after it, and flags.
    let attributes = [id, 0, 0, 0];
    // SAFETY: the kernel reads as many bytes as are given, and the array outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes))
    };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) };
    }
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the descriptor is new and nobody else's.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
    Ok(true)
}
