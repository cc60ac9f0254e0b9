//! Drops privileges permanently before a process runs code that is not the agent's.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use std::ffi::{c_int, c_long};
use std::io;

/// The first descriptor after the three that the agent passes to a child.
const FIRST_INHERITED: u32 = 3;
/// Calls that fail with `EPERM` in a process under [`refuse_calls`]: calls that access other
/// processes, load code into the kernel, or change mounts and namespaces. Reading a device needs none
/// of them.
const REFUSED: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_personality,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
];
/// Those that start a program.
const RUNNING: &[c_long] = &[libc::SYS_execve, libc::SYS_execveat];
/// The only calls allowed in a process under [`allow_reading`]: opening, stat and reading, its
/// socket, its memory, and its exit.
const READING: &[c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// Flags of `clone` that make a namespace; a user namespace has every capability inside it.
const NEW_NAMESPACES: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// The architecture in `struct seccomp_data` (`linux/audit.h`).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Calls of x86-64's x32 ABI have this bit in their number; other architectures do not use it.
const X32: u32 = 0x4000_0000;
/// Offsets in `struct seccomp_data`, and of the lower half of its first argument on the
/// little-endian targets.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

/// Drops every capability but these, for the calling thread and those that it starts later. Call it
/// while the process has one thread.
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    // After this no program can regain a capability. So the next lines may fail without
    // `CAP_SETPCAP`, which the agent does not have as a service.
    set_no_new_privs(true)?;
    for capability in CapabilitySet::all().iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    clear_ambient_capability_set()?;
    let held = capabilities(None)?.permitted & kept;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: held, permitted: held, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}

/// Closes every descriptor but the first three. Call it before the process has opened any: the
/// owner of another open descriptor would lose it.
pub fn close_inherited() {
    let (first, last, flags) = (FIRST_INHERITED, u32::MAX, 0_u32);
    // SAFETY: closes descriptors and touches no memory. By this function's contract none of them is
    // owned by anything in this process. Before Linux 5.9 it fails, and they stay open.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
}

/// Makes the calls in [`REFUSED`] and the making of namespaces fail, for the calling thread, those
/// that it starts later, and the programs that it becomes. With `may_run` it may start programs.
pub fn refuse_calls(may_run: bool) -> io::Result<()> {
    install(refusing(if may_run { &[] } else { RUNNING }))
}

/// Makes every call fail that is not in [`READING`], for the calling thread. It can start none.
pub fn allow_reading() -> io::Result<()> {
    install(allowing(READING))
}

fn install(mut filter: Vec<libc::sock_filter>) -> io::Result<()> {
    set_no_new_privs(true)?;
    let length = u16::try_from(filter.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: `program` describes `filter`, whose `length` instructions outlive the call; the
    // kernel copies and checks them and writes nothing.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Loads a call's number, if it is this architecture's.
fn beginning() -> Vec<libc::sock_filter> {
    let mut filter = vec![load(ARCH)];
    filter.extend(unless(libc::BPF_JEQ, ARCHITECTURE, fail(libc::ENOSYS)));
    filter.push(load(NUMBER));
    filter
}

fn allowing(calls: &[c_long]) -> Vec<libc::sock_filter> {
    let mut filter = beginning();
    for call in calls {
        filter.extend(when(libc::BPF_JEQ, number(*call), give(libc::SECCOMP_RET_ALLOW)));
    }
    filter.push(fail(libc::EPERM));
    filter
}

fn refusing(more: &[c_long]) -> Vec<libc::sock_filter> {
    let mut filter = beginning();
    filter.extend(when(libc::BPF_JGE, X32, fail(libc::ENOSYS)));
    for call in REFUSED.iter().chain(more) {
        filter.extend(when(libc::BPF_JEQ, number(*call), fail(libc::EPERM)));
    }
    // Its flags are behind a pointer; the C library falls back to `clone` where it is missing.
    filter.extend(when(libc::BPF_JEQ, number(libc::SYS_clone3), fail(libc::ENOSYS)));
    filter.extend(unless(libc::BPF_JEQ, number(libc::SYS_clone), give(libc::SECCOMP_RET_ALLOW)));
    filter.push(load(FIRST_ARGUMENT));
    filter.extend(when(libc::BPF_JSET, NEW_NAMESPACES.cast_unsigned(), fail(libc::EPERM)));
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    filter
}

/// A system call's number, which is small on every architecture.
fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn load(offset: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

fn give(action: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

fn fail(errno: c_int) -> libc::sock_filter {
    give(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

fn when(compare: u32, with: u32, then: libc::sock_filter) -> [libc::sock_filter; 2] {
    [instruction(libc::BPF_JMP | compare | libc::BPF_K, 0, 1, with), then]
}

fn unless(compare: u32, with: u32, then: libc::sock_filter) -> [libc::sock_filter; 2] {
    [instruction(libc::BPF_JMP | compare | libc::BPF_K, 1, 0, with), then]
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    // The opcodes of classic BPF have eight bits.
    libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::{allow_reading, keep_capabilities, refuse_calls};
    use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, no_new_privs, unshare_unsafe};
    use std::fs;
    use std::io::{self, Write as _};
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;

    #[test]
    fn a_thread_that_gave_its_capabilities_up_has_none_and_gets_none_back() {
        let look = || {
            keep_capabilities(CapabilitySet::empty()).unwrap();
            let status = Command::new("cat").arg("/proc/self/status").output().unwrap().stdout;
            (capabilities(None).unwrap(), no_new_privs().unwrap(), status)
        };
        let (own, fixed, program) = thread::spawn(look).join().unwrap();
        let sets = [own.effective, own.permitted, own.inheritable];
        assert_eq!((sets, fixed), ([CapabilitySet::empty(); 3], true));
        let program = String::from_utf8(program).unwrap();
        assert!(program.contains("CapEff:\t0000000000000000\n"), "{program}");
        assert!(program.contains("CapPrm:\t0000000000000000\n"), "{program}");
    }

    #[test]
    fn calls_that_read_no_device_fail_and_threads_start_as_before() {
        let look = || {
            refuse_calls(false).unwrap();
            // SAFETY: fails before it does anything; a namespace of users would be this thread's
            // own.
            let namespace = unsafe { unshare_unsafe(UnshareFlags::NEWUSER) };
            let program = Command::new("true").status();
            (namespace, program, thread::spawn(|| 7).join().unwrap())
        };
        let (namespace, program, seven) = thread::spawn(look).join().unwrap();
        assert_eq!(namespace, Err(rustix::io::Errno::PERM));
        assert_eq!(program.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(seven, 7);
    }

    #[test]
    fn a_process_that_may_run_a_vendors_program_is_refused_the_rest() {
        let look = || {
            refuse_calls(true).unwrap();
            // SAFETY: fails before it does anything.
            let namespace = unsafe { unshare_unsafe(UnshareFlags::NEWUSER) };
            (namespace, Command::new("true").status().unwrap().success())
        };
        let (namespace, has_run) = thread::spawn(look).join().unwrap();
        assert_eq!((namespace, has_run), (Err(rustix::io::Errno::PERM), true));
    }

    #[test]
    fn a_confined_process_can_read_but_not_write_or_connect() {
        let look = || {
            let mut file = tempfile::tempfile().unwrap();
            allow_reading().unwrap();
            let read = fs::read("/proc/self/stat").map(|bytes| !bytes.is_empty());
            let written = file.write(b"x").map_err(|error| error.raw_os_error());
            let connected = UnixStream::connect("/nowhere").map(drop);
            let started = thread::Builder::new().spawn(|| ()).map(drop);
            (read, written, connected, started)
        };
        let (read, written, connected, started) = thread::spawn(look).join().unwrap();
        assert!(read.unwrap());
        assert_eq!(written, Err(Some(libc::EPERM)));
        assert_eq!(connected.unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert!(started.is_err());
    }

    #[test]
    fn a_process_cannot_get_a_namespace_by_clone_either() {
        let look = || {
            refuse_calls(false).unwrap();
            let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
            // SAFETY: without `CLONE_VM` it would be a fork, and it fails before that.
            let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
            if child == 0 {
                super::super::process::exit_now(1);
            }
            (child, io::Error::last_os_error().raw_os_error())
        };
        assert_eq!(thread::spawn(look).join().unwrap(), (-1, Some(libc::EPERM)));
    }
}
