//! A process's own files in `/proc`: its identity, its start time, its cgroup.
//!
//! All files are opened through one handle on `/proc/PID`, which stays with that process: after its
//! exit, reads fail (`ESRCH`) even if the PID is reused. Four reads for each process, once, when it
//! is first seen; if its first thread has exited, two more for every thread until a live one is
//! found.

use super::cgroup::{Placement, parse_proc_cgroup};
use super::{Host, KernelCgroups, Method, ProcessAttribution};
use crate::ids::{ContainerId, ProcKey};
use crate::paths::Paths;
use crate::text::MAX_FILE;
use procfs::FromRead as _;
use procfs::process::{Process, Stat};
use rustix::fs::{Dir, DirEntry, readlinkat};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;

/// A process's folder in `/proc`, opened once.
#[derive(Debug)]
pub(crate) struct Folder(Process);

impl Folder {
    /// Opens the folder of the process that has this PID now.
    pub(crate) fn open(paths: &Paths, pid: u32) -> Option<Self> {
        Process::new_with_root(paths.proc.join(pid.to_string())).ok().map(Self)
    }

    /// Opens one of its files; a thread's file with [`Folder::thread`]'s prefix.
    pub(crate) fn file(&self, name: &str) -> Option<File> {
        self.0.open_relative(name).ok()
    }

    /// Reads one of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let mut bytes = Vec::new();
        self.file(name)?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its `stat`; `None` if the file has no name in parentheses between spaces, on which procfs
    /// panics, or does not have the kernel's form.
    fn stat(&self) -> Option<Stat> {
        let text = self.text("stat")?;
        let (before, after) = text.trim().rsplit_once(')')?;
        let has_name = after.starts_with(' ') && before.split_once('(')?.0.ends_with(' ');
        let is_plain = after.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let is_whole = has_name && is_plain && text.len() <= MAX_STAT;
        is_whole.then(|| Stat::from_read(text.as_bytes()).ok())?
    }

    /// The path prefix of a live thread's files: empty for the first thread, `task/TID/` for
    /// another one if the first has exited. `None` if the process is exiting.
    pub(crate) fn thread(&self) -> Option<String> {
        let first = String::new();
        if self.is_alive(&first) {
            return Some(first);
        }
        self.other_threads().into_iter().find(|thread| self.is_alive(thread))
    }

    /// The cgroup lines of a thread that was not exiting when they were read: an exiting thread's
    /// lines do not show its place ([`is_exiting`]).
    pub(crate) fn cgroup(&self) -> Option<String> {
        let of = |thread: &str| {
            let text = self.text(&format!("{thread}cgroup"))?;
            self.is_alive(thread).then_some(text)
        };
        of("").or_else(|| self.other_threads().iter().find_map(|thread| of(thread)))
    }

    fn is_alive(&self, thread: &str) -> bool {
        let text = self.text(&format!("{thread}stat"));
        text.and_then(|text| Life::parse(text.as_bytes())).is_some_and(|life| !life.is_exiting)
    }

    fn other_threads(&self) -> Vec<String> {
        let Some(entries) = self.file("task").and_then(|folder| Dir::new(folder).ok()) else {
            return Vec::new();
        };
        let number = |entry: DirEntry| entry.file_name().to_str().ok()?.parse::<u32>().ok();
        entries.flatten().filter_map(number).map(|thread| format!("task/{thread}/")).collect()
    }
}

/// A live process and the handle that stays with it.
pub(crate) struct Living {
    folder: Folder,
    /// The path prefix of its files: those of an exited first thread are useless.
    thread: String,
    /// The process.
    pub(crate) key: ProcKey,
    /// Command name; bytes that are not UTF-8 are replaced.
    pub(crate) comm: Arc<str>,
}

impl Living {
    /// The process that has this PID now. An exiting process is not alive; one with an exited first
    /// thread is, while another thread runs.
    pub(crate) fn find(paths: &Paths, pid: u32) -> Option<Self> {
        let folder = Folder::open(paths, pid)?;
        let stat = folder.stat()?;
        let is_ended = is_exiting(stat.state, stat.flags);
        let thread = if is_ended { folder.thread()? } else { String::new() };
        let key = ProcKey { pid, start_ticks: stat.starttime };
        Some(Self { folder, thread, key, comm: Arc::from(stat.comm) })
    }

    /// The process with this identity, if it is alive.
    pub(crate) fn same(paths: &Paths, key: ProcKey) -> Option<Self> {
        Self::find(paths, key.pid).filter(|living| living.key == key)
    }

    /// Whether the process with this identity still exists, which it does with any thread left. It
    /// is called regularly for every process, so it is one small read.
    pub(crate) fn remains(paths: &Paths, key: ProcKey) -> bool {
        Life::read(paths, key.pid).is_some_and(|life| {
            life.start_ticks == key.start_ticks && (!life.is_exiting || life.threads > 1)
        })
    }

    /// Whether the process with this identity exists, even if it is exiting: it may still hold its
    /// devices.
    pub(crate) fn is_there(paths: &Paths, key: ProcKey) -> bool {
        Life::read(paths, key.pid).is_some_and(|life| {
            life.start_ticks == key.start_ticks && (!life.is_dead || life.threads > 1)
        })
    }

    /// Real user id; `None` for a thread id that is not a thread group's.
    pub(crate) fn uid(&self) -> Option<u32> {
        let status = self.read("status")?;
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name)).map(str::split_ascii_whitespace)
        };
        let group: u32 = field("Tgid:")?.next()?.parse().ok()?;
        let uid = field("Uid:")?.next()?.parse().ok()?;
        (group == self.key.pid).then_some(uid)
    }

    /// Real, effective, saved and file system user ids.
    pub(crate) fn uids(&self) -> Option<[u32; 4]> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let ids: Vec<u32> =
            line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        ids.try_into().ok()
    }

    /// Whether SIGKILL is pending: the kernel has killed it, and it has not started to exit.
    pub(crate) fn is_killed(&self) -> bool {
        const KILL: u64 = 1 << 8;
        let status = self.read("status").unwrap_or_default();
        let pending = status.lines().filter_map(|line| {
            let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(set.trim(), 16).ok()
        });
        pending.fold(0, |all, set| all | set) & KILL != 0
    }

    /// The PID of its parent.
    pub(crate) fn parent(&self) -> Option<u32> {
        u32::try_from(self.folder.stat()?.ppid).ok()
    }

    /// The path of its executable, if the agent may read it.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        if self.thread.is_empty() {
            return self.folder.0.exe().ok();
        }
        // An exited first thread has none (`get_task_exe_file`).
        let link = readlinkat(self.folder.file(&self.thread)?, "exe", Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(link.into_bytes())))
    }

    /// Opens one of its files in `/proc`.
    pub(crate) fn open(&self, name: &str) -> Option<File> {
        self.folder.file(&format!("{}{name}", self.thread))
    }

    /// Its placement; `None` if it started to exit before this was read.
    pub(crate) fn placement(&self) -> Option<Placement> {
        self.folder.cgroup().map(|text| parse_proc_cgroup(&text))
    }

    /// Reads one of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        self.folder.text(&format!("{}{name}", self.thread))
    }
}

/// The fields of `/proc/PID/stat` that show whether a process is alive.
#[derive(Debug, PartialEq, Eq)]
struct Life {
    is_exiting: bool,
    /// A zombie: it has released everything it held.
    is_dead: bool,
    threads: i64,
    start_ticks: u64,
}

/// More than the file's 52 numbers and 64-byte name need.
const MAX_STAT: usize = 2048;

impl Life {
    fn read(paths: &Paths, pid: u32) -> Option<Self> {
        let mut buffer = [0; MAX_STAT];
        let mut file = File::open(paths.proc.join(format!("{pid}/stat"))).ok()?;
        let length = file.read(&mut buffer).ok()?;
        Self::parse(buffer.get(..length)?)
    }

    /// Parses the file. The name is in parentheses and may itself contain them, and any other byte.
    fn parse(text: &[u8]) -> Option<Self> {
        let name_ends = text.iter().rposition(|byte| *byte == b')')?;
        let numbers = std::str::from_utf8(text.get(name_ends + 1..)?).ok()?;
        let mut fields = numbers.split_ascii_whitespace();
        // Fields 3, 9, 20 and 22 of proc_pid_stat(5).
        let state = fields.next()?.chars().next()?;
        let flags = fields.nth(5)?.parse().ok()?;
        let threads = fields.nth(10)?.parse().ok()?;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        let is_exiting = is_exiting(state, flags);
        Some(Self { is_exiting, is_dead: is_dead(state), threads, start_ticks })
    }
}

/// A container's cgroup directory, if the host's process with this PID is in it.
pub(crate) fn container_cgroup(paths: &Paths, pid: u32, id: &ContainerId) -> Option<Arc<str>> {
    let living = Living::find(paths, pid)?;
    let Placement::Known { path, workload } = living.placement()? else { return None };
    if workload.container.as_ref() != Some(id) || workload.pod.is_some() {
        return None;
    }
    // An init system in the container moves its processes further down.
    let mut end = 0;
    for component in path.split_inclusive('/') {
        end += component.len();
        if component.contains(id.as_str()) {
            break;
        }
    }
    path.get(..end).map(|path| Arc::from(path.trim_end_matches('/')))
}

/// Whether a task is exiting. Its v1 lines are then `/` (`proc_cgroup_show`, 6.18), so its most
/// specific line may be a weaker one.
fn is_exiting(state: char, flags: u32) -> bool {
    const PF_EXITING: u32 = 0x4;
    flags & PF_EXITING != 0 || is_dead(state)
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// The first resolver: the live process's own files.
pub(crate) fn resolve(host: &Host, _cgroups: &KernelCgroups, owner: &mut ProcessAttribution) {
    let Some(living) = Living::same(&host.paths, owner.process) else { return };
    owner.comm = Arc::clone(&living.comm);
    if let Some(uid) = living.uid() {
        owner.uid = uid;
    }
    match living.placement() {
        Some(Placement::Known { path, workload }) => {
            owner.cgroup = Some(path);
            owner.workload = *workload;
            owner.method = Method::Proc;
        }
        Some(Placement::WrongNamespace) => host.hierarchies.note_wrong_namespace(),
        Some(Placement::Disagree | Placement::Nothing) | None => {}
    }
}

#[cfg(test)]
mod tests;
