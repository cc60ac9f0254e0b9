//! The end of this process and of those that it starts, and its standard output.

use super::confine;
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, kill_process,
    set_dumpable_behavior, set_parent_process_death_signal, setrlimit, waitpid,
};
use rustix::thread::{CapabilitySet, set_thread_groups};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at whether a child has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Standard output's number.
const STDOUT: i32 = 1;

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process without running exit handlers or library destructors: those of a vendor's
/// library would wait for the very lock that a hung call holds.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` takes any status and has no precondition; it does not return.
    unsafe { _exit(status) }
}

/// Whether two threads, of any processes, have the same table of descriptors (`kcmp(2)`); `None` where the
/// kernel does not say.
pub fn share_files(one: u32, other: u32) -> Option<bool> {
    /// `KCMP_FILES` (`linux/kcmp.h`).
    const FILES: libc::c_ulong = 2;
    // SAFETY: the call takes numbers only, any of which it checks.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one, other, FILES, 0_u64, 0_u64) };
    (answer >= 0).then_some(answer == 0)
}

/// Has the kernel kill the command's process when the thread that starts it ends, so also when this
/// process does.
pub fn end_with_this_thread(command: &mut Command) {
    let kill = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: runs between fork and exec: one system call, which takes no lock and allocates nothing.
    unsafe { command.pre_exec(kill) };
}

/// Runs `work` in a copy of this process, and gives what it returns as its exit status: 0 to 255. After
/// `limit` the copy is killed, and the answer is `None`; one that waits in the kernel and cannot be killed yet
/// is left behind, and ends when it can. Call it while the process has one thread.
pub fn in_child(limit: Duration, work: impl FnOnce() -> i32) -> io::Result<Option<i32>> {
    // SAFETY: by this function's contract no other thread holds a lock that the copy would miss.
    let child = match unsafe { libc::fork() } {
        0 => exit_now(work()),
        child => Pid::from_raw(child).ok_or_else(io::Error::last_os_error)?,
    };
    let until = Instant::now() + limit;
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG)? {
            Some((_, status)) => return Ok(status.exit_status()),
            None if Instant::now() < until => thread::sleep(LOOK_EVERY),
            None => break,
        }
    }
    // Nobody else waits for it, so the number is still its own.
    kill_process(child, Signal::KILL)?;
    Ok(None)
}

/// From now on the calling thread opens files with the rights of a user and a group alone, for good. The process stays
/// root's otherwise, without capabilities: the kernel judges signals and ptrace by the ids that do not change
/// (`kill_ok_by_cred`, `__ptrace_may_access`), and a mount of the user's own FUSE by them as well
/// (`fuse_allow_current_process`), so that he can neither stop it nor read it.
pub fn open_files_as(user: u32, group: u32) -> io::Result<()> {
    set_thread_groups(&[])?;
    // SAFETY: both change the calling thread's ids alone; the second call of each gives what the first has set.
    let set = unsafe {
        libc::setfsgid(group);
        libc::setfsuid(user);
        [libc::setfsgid(group), libc::setfsuid(user)]
    };
    if set != [group, user].map(u32::cast_signed) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    confine::keep_capabilities(CapabilitySet::empty())?;
    // The change of ids has undone the first two.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?)
}

/// Takes standard output for the caller alone: what others print to it from now on (a vendor's library,
/// say) goes to standard error.
pub fn take_stdout() -> io::Result<File> {
    let out = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: `io::stdout` stands for this number too, and nobody closes it: here it is never dropped.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(STDOUT) });
    rustix::io::dup2(io::stderr(), &mut place)?;
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Long enough to look at the child.
    const LONG: Duration = Duration::from_mins(10);

    #[test]
    fn a_child_that_opens_files_as_a_user_is_roots_for_him_and_ends_in_time() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: needs root");
        }
        let limit = Duration::from_secs(3);
        let began = Instant::now();
        let work = || {
            let is_done = open_files_as(65_534, 65_534).is_ok();
            thread::sleep(if is_done { LONG } else { Duration::ZERO });
            1
        };
        let look = |pid: String| {
            let status = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            while !status().contains("\nCapEff:\t0000000000000000\n") {
                thread::sleep(LOOK_EVERY);
            }
            let as_nobody = |program: &str, arguments: &[&str]| {
                let user = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
                let output = Command::new("setpriv").args(user).args(arguments).output().unwrap();
                output.status.success()
            };
            let signals = ["-STOP", "-KILL", "-0"].map(|it| as_nobody("kill", &[it, &pid]));
            let files = ["environ", "mem", "fd/0", "maps"];
            let reads = files.map(|it| as_nobody("head", &["-c1", &format!("/proc/{pid}/{it}")]));
            (status(), signals, reads)
        };
        let parent = rustix::thread::gettid().as_raw_pid();
        let looking = thread::spawn(move || {
            let path = format!("/proc/self/task/{parent}/children");
            loop {
                let children = fs::read_to_string(&path).unwrap();
                if let Some(pid) = children.split_whitespace().next() {
                    return look(pid.to_owned());
                }
            }
        });
        assert_eq!(in_child(limit, work).unwrap(), None);
        assert!(began.elapsed() < limit * 3);
        let (status, signals, reads) = looking.join().unwrap();
        assert!(status.contains("\nUid:\t0\t0\t0\t65534\n"), "{status}");
        assert!(status.contains("\nGroups:\t \n"), "{status}");
        assert_eq!((signals, reads), ([false; 3], [false; 4]));
        assert_eq!(in_child(limit, || 7).unwrap(), Some(7));
    }
}
