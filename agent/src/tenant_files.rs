//! Reads that a tenant can make hang, done in a helper process: files on a tenant's own mounts,
//! and what the kernel reads out of a process's memory (`environ`, `cmdline`, `maps`, `mem`), whose
//! pages may be backed by a file system that never answers.
//!
//! A thread that hangs in such a read cannot be given up; a process can. A helper is the agent's
//! own binary (`gpuwho file-reader`), started when it is first needed, ended when nobody has
//! needed it for [`IDLE`]. It answers one request at a time under a deadline. One that misses it
//! is killed, and its tenant is refused until it has ended and a back-off is over; the others go on
//! with the next helper, of at most [`MOST_HELPERS`]. With nothing to read there is no helper.
//!
//! The agent never holds a readable descriptor of a tenant's file: already its `close` would ask
//! a FUSE server (`FUSE_FLUSH`) and wait for it. It holds `O_PATH` descriptors, which fix the inode.
//!
//! A request costs two switches between processes more than the read itself.

mod answer;
mod file;
#[doc(hidden)]
pub mod fuzz;
mod helper;
mod pool;
mod serve;
mod tenant;
mod wire;

pub(crate) use answer::{let_go, open_place, read_no_further, regular};
pub(crate) use file::TenantDirectory;
pub use file::{ProcReader, TenantFile};
pub use pool::PoolStatus;
pub use serve::{ServeError, serve};
pub use tenant::FileOwner;

use crate::catalog::agent::{DropReason, SourceState};
use crate::collect::nccl::inspector::files::{FileFilter, FoundFile, Opened, Search, SearchResult};
use crate::collect::status::Report;
use crate::ids::ProcKey;
use crate::paths::Paths;
use pool::Pool;
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wire::{Answer, Reply, Request};
pub use wire::{Link, MAX_DESCRIPTORS, MAX_READ, ProcFile, Stat};

/// What the helpers are called among the sources.
pub const NAME: &str = "tenant_files";

/// How long a helper may take for an answer. A disk that wakes up and a slow network file system
/// answer in it.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// Helpers at once: each is a process of some MiB, and one that hangs may stay in the kernel as
/// long as its tenant likes.
pub const MAX_HELPERS: usize = 4;
/// After so long without a request a helper is ended.
pub const IDLE: Duration = Duration::from_mins(1);

/// Why something was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A read for this tenant has not come back, or has not long ago.
    #[error("a file system of {tenant} did not answer {} s ago", since.as_secs())]
    Hung {
        /// Whose it is.
        tenant: FileOwner,
        /// How long ago it was asked.
        since: Duration,
    },
    /// This tenant's reads take too long to wait for more of them now.
    #[error("file systems of {0} answer too slowly")]
    Slow(FileOwner),
    /// Every helper hangs, or is busy with others.
    #[error("every process that reads tenants' files hangs or is busy")]
    Exhausted,
    /// A helper could not be started, or ended, or said what is no answer.
    #[error("a process that reads tenants' files failed: {0}")]
    Helper(String),
    /// The read itself failed.
    #[error("{0}")]
    Failed(Errno),
}

impl From<ReadError> for io::Error {
    fn from(refused: ReadError) -> Self {
        match refused {
            ReadError::Failed(errno) => errno.into(),
            refused => Self::other(refused),
        }
    }
}

/// Reads tenants' files and memory. Cheap to clone; may be used by every thread.
#[derive(Clone, Debug)]
pub struct TenantFiles {
    paths: Arc<Paths>,
    means: Means,
    patience: Duration,
    /// Each process is a tenant of its own.
    by_process: bool,
}

#[derive(Clone, Debug)]
enum Means {
    /// In the calling thread, which may hang.
    Direct,
    /// In helpers.
    Helpers(Arc<Pool>),
}

impl TenantFiles {
    /// Reads in helpers, which run this very binary, also after an upgrade replaced its file.
    pub fn new(paths: &Paths) -> Self {
        Self::running(paths, PathBuf::from("/proc/self/exe"))
    }

    fn running(paths: &Paths, program: PathBuf) -> Self {
        let pool = Pool::new(program, &paths.proc, DEADLINE);
        Self {
            paths: Arc::new(paths.clone()),
            means: Means::Helpers(Arc::new(pool)),
            patience: DEADLINE,
            by_process: false,
        }
    }

    /// Reads in the calling thread: for a command that a person waits for and can interrupt.
    pub fn direct(paths: &Paths) -> Self {
        let (paths, means) = (Arc::new(paths.clone()), Means::Direct);
        Self { paths, means, patience: DEADLINE, by_process: false }
    }

    /// The same for a caller who can wait so long only. What comes later is dropped.
    #[must_use]
    pub fn within(&self, patience: Duration) -> Self {
        Self { patience: patience.min(DEADLINE), ..self.clone() }
    }

    /// The same for what waits for no file system, only for a process's lock on its mappings: a
    /// process that hangs there speaks for itself alone, and its tenant's file systems not for it.
    #[must_use]
    pub(crate) fn of_mappings(&self) -> Self {
        Self { by_process: true, ..self.clone() }
    }

    /// One of a process's files in `/proc`, from its start, as a stream.
    pub fn proc_file(&self, process: ProcKey, file: ProcFile) -> Result<ProcReader, ReadError> {
        let tenant = self.tenant(process)?;
        let request = Request::Proc { process, file, offset: 0, length: wire::most() };
        let reply = self.ask(&tenant, &request, &[])?;
        let is_whole = reply.bytes.len() < MAX_READ;
        Ok(ProcReader {
            files: self.clone(),
            tenant,
            // A full answer comes with the open file for what is left.
            file: reply.descriptors.into_iter().next().filter(|_| !is_whole),
            offset: reply.bytes.len() as u64,
            chunk: reply.bytes,
            taken: 0,
        })
    }

    /// Bytes of a process's memory; all of them, and at most [`MAX_READ`].
    pub fn memory(
        &self,
        process: ProcKey,
        address: u64,
        length: usize,
    ) -> Result<Vec<u8>, ReadError> {
        let tenant = self.tenant(process)?;
        let wanted = u32::try_from(length).map_err(|_| ReadError::Failed(Errno::INVAL))?;
        let file = ProcFile::Memory;
        let request = Request::Proc { process, file, offset: address, length: wanted };
        let bytes = self.ask(&tenant, &request, &[])?.bytes;
        if bytes.len() == length { Ok(bytes) } else { Err(ReadError::Failed(Errno::FAULT)) }
    }

    /// The regular file that a link of a process's leads to. Everything else is refused unopened.
    pub fn open(&self, process: ProcKey, link: &Link) -> Result<TenantFile, ReadError> {
        let tenant = self.tenant(process)?;
        let request = Request::Open { process, link: link.clone() };
        let mut reply = self.ask(&tenant, &request, &[])?;
        match (reply.answer, reply.descriptors.pop()) {
            (Answer::Stat(stat), Some(place)) => Ok(self.file(tenant, stat, place)),
            _ => Err(no_answer()),
        }
    }

    /// A directory as a process names it: below its own root if the path is absolute, else below
    /// the directory it is in. No link leads out.
    pub(crate) fn directory(
        &self,
        process: ProcKey,
        path: &Path,
    ) -> Result<TenantDirectory, ReadError> {
        self.directory_for(self.tenant(process)?, Some(process), path)
    }

    /// A directory that the operator named.
    pub(crate) fn operators(&self, path: &Path) -> Result<TenantDirectory, ReadError> {
        self.directory_for(FileOwner::operator(), None, path)
    }

    fn directory_for(
        &self,
        tenant: FileOwner,
        process: Option<ProcKey>,
        path: &Path,
    ) -> Result<TenantDirectory, ReadError> {
        let request = Request::Directory { process, path: path.to_owned() };
        let place = self.ask(&tenant, &request, &[])?.descriptors.pop().ok_or_else(no_answer)?;
        Ok(TenantDirectory { files: self.clone(), tenant, place })
    }

    /// The Inspector's files among those that a process has open; `pid` is its number in its own
    /// PID namespace.
    pub(crate) fn open_by(
        &self,
        process: ProcKey,
        pid: u32,
        wanted: &FileFilter,
    ) -> Result<SearchResult, ReadError> {
        self.search(&self.tenant(process)?, Search::OpenBy { process, pid }, &[], wanted)
    }

    fn search(
        &self,
        tenant: &FileOwner,
        search: Search,
        passed: &[BorrowedFd<'_>],
        wanted: &FileFilter,
    ) -> Result<SearchResult, ReadError> {
        let request = Request::Search { search, wanted: wanted.clone() };
        let reply = self.ask(tenant, &request, passed)?;
        let Answer::Found(seen, refused) = reply.answer else { return Err(no_answer()) };
        let opened = seen.into_iter().zip(reply.descriptors).map(|((kind, stat), place)| Opened {
            seen: FoundFile::new(kind, &stat),
            file: self.file(tenant.clone(), stat, place),
        });
        Ok(SearchResult { files: opened.collect(), refused })
    }

    /// Where the host's files are.
    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Whose reads those of a process are.
    pub fn tenant(&self, process: ProcKey) -> Result<FileOwner, ReadError> {
        match self.means {
            Means::Direct => Ok(FileOwner::default()),
            Means::Helpers(_) if self.by_process => Ok(FileOwner::mappings(process)),
            Means::Helpers(_) => {
                FileOwner::of(&self.paths, process).ok_or(ReadError::Failed(Errno::SRCH))
            }
        }
    }

    /// Ends what is idle, kills what is late, and says how the helpers are. To be called now and
    /// then.
    pub fn status(&self) -> PoolStatus {
        match &self.means {
            Means::Direct => PoolStatus::default(),
            Means::Helpers(pool) => pool.status(),
        }
    }

    fn file(&self, tenant: FileOwner, stat: Stat, place: OwnedFd) -> TenantFile {
        TenantFile { files: self.clone(), tenant, stat, place }
    }

    fn ask(
        &self,
        tenant: &FileOwner,
        request: &Request,
        passed: &[BorrowedFd<'_>],
    ) -> Result<Reply, ReadError> {
        let reply = match &self.means {
            Means::Direct => answer::answer(&self.paths, request, passed),
            Means::Helpers(pool) => pool.ask(tenant, request, passed, self.patience)?,
        };
        match reply.answer {
            Answer::Failed(errno) => Err(ReadError::Failed(Errno::from_raw_os_error(errno))),
            _ => Ok(reply),
        }
    }
}

impl PoolStatus {
    /// The report of the source [`NAME`].
    pub fn report(&self) -> Report {
        let report = match self.hung.iter().max_by_key(|(_, since)| *since) {
            None => Report::ready(),
            Some((tenant, since)) => {
                let is_full = self.stuck == MAX_HELPERS;
                let state = if is_full { SourceState::Hung } else { SourceState::Degraded };
                let (stuck, tenants, seconds) = (self.stuck, self.hung.len(), since.as_secs());
                let reason = format!(
                    "a file of {tenant} did not answer {seconds} s ago; nothing is read of \
                     {tenants} tenants now, and {stuck} of {MAX_HELPERS} processes that read hang"
                );
                Report::of(state, reason, "see that tenant's network and FUSE mounts")
            }
        };
        let refused = (DropReason::TenantHung, self.refused);
        let exhausted = (DropReason::HelpersExhausted, self.exhausted);
        Report { errors: self.misses + self.failed, dropped: vec![refused, exhausted], ..report }
    }
}

fn no_answer() -> ReadError {
    ReadError::Helper("an answer to something else".to_owned())
}

#[cfg(test)]
mod tests;
