//! One process's own files in `/proc`: who it is, when it started, where it is.
//!
//! Every file is opened through one handle on `/proc/PID`, which stays with that process: when
//! the process ends and its number goes to another, reads fail (`ESRCH`) instead of answering for
//! the other. Four reads a process, once, when it is first seen; of one whose first thread has
//! ended two more for every thread, until one lives.

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

/// One process's folder in `/proc`, opened once.
#[derive(Debug)]
pub(crate) struct Folder(Process);

impl Folder {
    /// That of the process that has this number now.
    pub(crate) fn open(paths: &Paths, pid: u32) -> Option<Self> {
        Process::new_with_root(paths.proc.join(pid.to_string())).ok().map(Self)
    }

    /// One of its files; of a thread's with [`Folder::thread`]'s word before the name.
    pub(crate) fn file(&self, name: &str) -> Option<File> {
        self.0.open_relative(name).ok()
    }

    /// One of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let mut bytes = Vec::new();
        self.file(name)?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its `stat`; `None` where the file has no name in parentheses between spaces, on which procfs
    /// panics, or is nothing that [`Life`] reads.
    fn stat(&self) -> Option<Stat> {
        let text = self.text("stat")?;
        let (before, after) = text.trim().rsplit_once(')')?;
        let has_name = after.starts_with(' ') && before.split_once('(')?.0.ends_with(' ');
        let is_plain = after.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        let is_whole = has_name && is_plain && text.len() <= MAX_STAT;
        is_whole.then(|| Stat::from_read(text.as_bytes()).ok())?
    }

    /// What comes before the name of a living thread's file: nothing for the first thread,
    /// `task/TID/` of another where the first has ended. `None` if the process is exiting.
    pub(crate) fn thread(&self) -> Option<String> {
        let first = String::new();
        if self.lives(&first) {
            return Some(first);
        }
        self.others().into_iter().find(|thread| self.lives(thread))
    }

    /// The lines of a thread that had not begun to exit when they were read: those of one that has
    /// are no place of its ([`is_on_its_way_out`]).
    pub(crate) fn cgroup(&self) -> Option<String> {
        let of = |thread: &str| {
            let text = self.text(&format!("{thread}cgroup"))?;
            self.lives(thread).then_some(text)
        };
        of("").or_else(|| self.others().iter().find_map(|thread| of(thread)))
    }

    fn lives(&self, thread: &str) -> bool {
        let text = self.text(&format!("{thread}stat"));
        text.and_then(|text| Life::parse(text.as_bytes())).is_some_and(|life| !life.is_exiting)
    }

    fn others(&self) -> Vec<String> {
        let Some(entries) = self.file("task").and_then(|folder| Dir::new(folder).ok()) else {
            return Vec::new();
        };
        let number = |entry: DirEntry| entry.file_name().to_str().ok()?.parse::<u32>().ok();
        entries.flatten().filter_map(number).map(|thread| format!("task/{thread}/")).collect()
    }
}

/// A living process and the handle that stays with it.
pub(crate) struct Living {
    folder: Folder,
    /// Before the name of its files: those of a first thread that has ended say nothing.
    thread: String,
    /// The process.
    pub(crate) key: ProcKey,
    /// Command name; bytes that are not UTF-8 are replaced.
    pub(crate) comm: Arc<str>,
}

impl Living {
    /// The process that has this number now. One that is exiting is not living; one whose first
    /// thread has ended is, while another lives.
    pub(crate) fn find(paths: &Paths, pid: u32) -> Option<Self> {
        let folder = Folder::open(paths, pid)?;
        let stat = folder.stat()?;
        let is_ended = is_on_its_way_out(stat.state, stat.flags);
        let thread = if is_ended { folder.thread()? } else { String::new() };
        let key = ProcKey { pid, start_ticks: stat.starttime };
        Some(Self { folder, thread, key, comm: Arc::from(stat.comm) })
    }

    /// This very process, if it lives.
    pub(crate) fn same(paths: &Paths, key: ProcKey) -> Option<Self> {
        Self::find(paths, key.pid).filter(|living| living.key == key)
    }

    /// Whether this very process is still there. A group whose leader ended is, while it has
    /// other threads. Every holder is asked for now and then, so this is one small read.
    pub(crate) fn remains(paths: &Paths, key: ProcKey) -> bool {
        Life::read(paths, key.pid).is_some_and(|life| {
            life.start_ticks == key.start_ticks && (!life.is_exiting || life.threads > 1)
        })
    }

    /// Whether this very process is there, be it on its way out: what it holds it may still hold.
    pub(crate) fn is_there(paths: &Paths, key: ProcKey) -> bool {
        Life::read(paths, key.pid).is_some_and(|life| {
            life.start_ticks == key.start_ticks && (!life.is_dead || life.threads > 1)
        })
    }

    /// Real user id; `None` for the number of a thread that does not lead its group.
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

    /// Whether SIGKILL is pending: the kernel has ended it, and it has not yet begun to exit.
    pub(crate) fn is_killed(&self) -> bool {
        const KILL: u64 = 1 << 8;
        let status = self.read("status").unwrap_or_default();
        let pending = status.lines().filter_map(|line| {
            let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
            u64::from_str_radix(set.trim(), 16).ok()
        });
        pending.fold(0, |all, set| all | set) & KILL != 0
    }

    /// The process that started it, or that took it over.
    pub(crate) fn parent(&self) -> Option<u32> {
        u32::try_from(self.folder.stat()?.ppid).ok()
    }

    /// The file it runs, where the agent may look.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        if self.thread.is_empty() {
            return self.folder.0.exe().ok();
        }
        // A first thread that has ended has none any more (`get_task_exe_file`).
        let link = readlinkat(self.folder.file(&self.thread)?, "exe", Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(link.into_bytes())))
    }

    /// One of its files in `/proc`.
    pub(crate) fn open(&self, name: &str) -> Option<File> {
        self.folder.file(&format!("{}{name}", self.thread))
    }

    /// Where it is; unknown if it began to exit before this was read.
    pub(crate) fn placement(&self) -> Option<Placement> {
        self.folder.cgroup().map(|text| parse_proc_cgroup(&text))
    }

    /// One of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        self.folder.text(&format!("{}{name}", self.thread))
    }
}

/// The part of `/proc/PID/stat` that tells whether its process lives.
#[derive(Debug, PartialEq, Eq)]
struct Life {
    is_exiting: bool,
    /// A zombie: all that it held is let go.
    is_dead: bool,
    threads: i64,
    start_ticks: u64,
}

/// More than the file's 52 numbers and its name of 64 bytes can be.
const MAX_STAT: usize = 2048;

impl Life {
    fn read(paths: &Paths, pid: u32) -> Option<Self> {
        let mut buffer = [0; MAX_STAT];
        let mut file = File::open(paths.proc.join(format!("{pid}/stat"))).ok()?;
        let length = file.read(&mut buffer).ok()?;
        Self::parse(buffer.get(..length)?)
    }

    /// The name is in parentheses and may itself hold them, and any other byte.
    fn parse(text: &[u8]) -> Option<Self> {
        let name_ends = text.iter().rposition(|byte| *byte == b')')?;
        let numbers = std::str::from_utf8(text.get(name_ends + 1..)?).ok()?;
        let mut fields = numbers.split_ascii_whitespace();
        // Fields 3, 9, 20 and 22 of proc_pid_stat(5).
        let state = fields.next()?.chars().next()?;
        let flags = fields.nth(5)?.parse().ok()?;
        let threads = fields.nth(10)?.parse().ok()?;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        let is_exiting = is_on_its_way_out(state, flags);
        Some(Self { is_exiting, is_dead: is_dead(state), threads, start_ticks })
    }
}

/// The directory of a container, if the host's process of this number is in it.
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

/// An exiting task's v1 lines say `/` whatever it did (`proc_cgroup_show`, 6.18), so that its
/// most specific line may be a weaker one.
fn is_on_its_way_out(state: char, flags: u32) -> bool {
    const PF_EXITING: u32 = 0x4;
    flags & PF_EXITING != 0 || is_dead(state)
}

fn is_dead(state: char) -> bool {
    matches!(state, 'Z' | 'X' | 'x')
}

/// The first source: the living process's own files.
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
