//! A process's own files in `/proc`: its identity, its start time, its cgroup.
//!
//! All files are opened through one handle on `/proc/PID`, which stays with that process: after its
//! exit, reads fail (`ESRCH`) even if the PID is reused. Four reads for each process, once, when it
//! is first seen; if its first thread has exited, two more for every thread until a live one is
//! found.
//!
//! A process is alive until its last thread has ended ([`ProcStat::has_ended`]). A thread that
//! exits is still part of it, but its cgroup lines no longer show the process's place
//! ([`ProcStat::is_exiting`]).

pub(crate) mod stat;
mod status;

use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::text::MAX_FILE;
use procfs::process::Process;
use rustix::fs::{Dir, DirEntry, readlinkat};
pub(crate) use stat::ProcStat;
pub use status::ProcStatus;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Most files of a process are shorter, and so read at once.
const COMMON_FILE: usize = 4096;

/// A process's folder in `/proc`, opened once.
#[derive(Debug)]
pub(crate) struct Folder(Process);

impl Folder {
    /// Opens the folder of the process that has this PID now.
    pub(crate) fn open(paths: &Paths, pid: u32) -> Option<Self> {
        Process::new_with_root(paths.proc.join(pid.to_string())).ok().map(Self)
    }

    /// Opens one of its files; a thread's file with [`Folder::another`]'s prefix.
    pub(crate) fn file(&self, name: &str) -> Option<File> {
        self.0.open_relative(name).ok()
    }

    /// Reads one of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let mut bytes = Vec::with_capacity(COMMON_FILE);
        self.file(name)?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Its `stat`; with what [`Folder::other_threads`] gives, that of a thread.
    pub(crate) fn stat(&self, thread: &str) -> Option<ProcStat> {
        ProcStat::read(self.file(&format!("{thread}stat"))?)
    }

    /// Its `status`.
    pub(crate) fn status(&self, thread: &str) -> Option<ProcStatus> {
        ProcStatus::read(self.file(&format!("{thread}status"))?)
    }

    /// Its `stat`, and the `cgroup` lines of a thread that had not begun to exit when they were
    /// read.
    pub(crate) fn stat_and_cgroup(&self) -> Option<(ProcStat, Option<String>)> {
        let cgroup = self.text("cgroup");
        let stat = self.stat("")?;
        if !stat.is_exiting() {
            return Some((stat, cgroup));
        }
        let of = |thread: &String| {
            let cgroup = self.text(&format!("{thread}cgroup"))?;
            self.lives(thread).then_some(cgroup)
        };
        Some((stat, self.other_threads().iter().find_map(of)))
    }

    /// What comes before the name of a file of another thread than the first that lives.
    pub(crate) fn another(&self) -> Option<String> {
        self.other_threads().into_iter().find(|thread| self.lives(thread))
    }

    fn lives(&self, thread: &str) -> bool {
        self.stat(thread).is_some_and(|stat| !stat.is_exiting())
    }

    fn other_threads(&self) -> Vec<String> {
        self.threads().map(|thread| format!("task/{thread}/")).collect()
    }

    /// The numbers of its threads, read as they are asked for.
    pub(crate) fn threads(&self) -> impl Iterator<Item = u32> {
        let entries = self.file("task").and_then(|folder| Dir::new(folder).ok());
        let number = |entry: DirEntry| entry.file_name().to_str().ok()?.parse::<u32>().ok();
        entries.into_iter().flat_map(Iterator::flatten).filter_map(number)
    }
}

/// A live process and the handle that stays with it.
pub struct Living {
    folder: Folder,
    /// The path prefix of its files: those of an exited first thread are useless.
    thread: String,
    /// The process.
    pub key: ProcKey,
    /// Command name; bytes that are not UTF-8 are replaced.
    pub comm: Arc<str>,
    /// The PID of its parent when it was found.
    pub parent: u32,
    /// Changes with each program that it executes ([`ProcStat::arguments_at`]).
    pub arguments_at: u64,
    /// Whether it has executed no program since it was forked ([`ProcStat::is_fork`]).
    pub is_fork: bool,
}

impl Living {
    /// The process that has this PID now. An exiting process is not alive; one with an exited first
    /// thread is, while another thread runs.
    pub fn find(paths: &Paths, pid: u32) -> Option<Self> {
        let folder = Folder::open(paths, pid)?;
        let stat = folder.stat("")?;
        let thread = if stat.is_exiting() { folder.another()? } else { String::new() };
        let key = ProcKey { pid, start_ticks: stat.start_ticks };
        let is_fork = stat.is_fork();
        let ProcStat { comm, parent, arguments_at, .. } = stat;
        Some(Self { folder, thread, key, comm, parent, arguments_at, is_fork })
    }

    /// The process with this identity, if it is alive.
    pub fn same(paths: &Paths, key: ProcKey) -> Option<Self> {
        Self::find(paths, key.pid).filter(|living| living.key == key)
    }

    /// Whether the process with this identity is alive. It is called regularly for every process,
    /// so it is one small read.
    pub fn is_alive(paths: &Paths, key: ProcKey) -> bool {
        let stat = File::open(paths.proc.join(format!("{}/stat", key.pid)));
        let stat = stat.ok().and_then(ProcStat::read);
        stat.is_some_and(|stat| stat.start_ticks == key.start_ticks && !stat.has_ended())
    }

    /// Its `status`.
    pub fn status(&self) -> Option<ProcStatus> {
        self.folder.status(&self.thread)
    }

    /// Real user id; `None` for a thread id that is not a thread group's.
    pub fn uid(&self) -> Option<u32> {
        let status = self.status()?;
        (status.group()? == self.key.pid).then_some(status.uids()?[0])
    }

    /// The PID of its parent now.
    pub(crate) fn parent(&self) -> Option<u32> {
        Some(self.folder.stat("")?.parent)
    }

    /// The path of its executable, if the agent may read it.
    pub fn program(&self) -> Option<PathBuf> {
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

    /// Its `cgroup` lines; `None` if it started to exit before they were read.
    pub(crate) fn cgroup(&self) -> Option<String> {
        self.folder.stat_and_cgroup()?.1
    }

    /// Reads one of its files as text; bytes that are not UTF-8 are replaced.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        self.folder.text(&format!("{}{name}", self.thread))
    }
}
