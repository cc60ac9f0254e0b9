//! Reads in a helper process what a tenant can make hang: files on a tenant's own mounts, and the
//! files in `/proc` that the kernel reads out of a process's memory (`environ`, `cmdline`, `maps`,
//! `mem`): a file system that never answers may back the pages.
//!
//! A thread that hangs in such a read cannot be killed; a process can. A helper is the agent's own
//! binary (`gpuwho file-reader`). The agent starts it at the first request and ends it after
//! [`IDLE`] without requests. A helper answers one request at a time under a deadline. The agent
//! kills one that misses it, and refuses that tenant's requests until the helper has ended and a
//! back-off is over. Other tenants use the next helper, of at most [`MAX_HELPERS`]. Without
//! requests there is no helper.
//!
//! The agent never holds a readable descriptor of a tenant's file: even its `close` would send
//! `FUSE_FLUSH` to a FUSE server and wait. It holds `O_PATH` descriptors, which fix the inode.
//!
//! A request costs two context switches more than the read itself.

mod answer;
mod file;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod helper;
pub mod names;
mod pool;
pub mod search;
mod serve;
mod tenant;
mod wire;

pub use answer::{let_go, open_place, read_no_further, regular};
pub use file::TenantDirectory;
pub use file::{ProcReader, TenantFile};
pub use pool::PoolStatus;
pub use serve::{ServeError, serve};
pub use tenant::FileOwner;
use tenant::RecentTenants;

use crate::tenant_files::search::{FileFilter, FoundFile, Opened, Search, SearchResult};
use gpuwho_model::catalog::agent::{DropReason, SourceState};
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_model::status::Report;
use pool::Pool;
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wire::{Answer, Reply, Request};
pub use wire::{Link, MAX_DESCRIPTORS, MAX_READ, ProcFile, Stat};

/// The helpers' name in the status registry.
pub const NAME: &str = "tenant_files";

/// Time for a helper's answer. A disk that spins up and a slow network file system answer in it.
pub const DEADLINE: Duration = Duration::from_secs(2);
/// Helpers at once: each is a process of some MiB, and a tenant can keep a hung one in the kernel
/// without limit.
pub const MAX_HELPERS: usize = 4;
/// Time without a request after which a helper is ended: to start one again takes milliseconds.
pub const IDLE: Duration = Duration::from_secs(15);

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// A read for this tenant has not returned, or a recent one did not.
    #[error("a file system of {tenant} did not answer {} s ago", since.as_secs())]
    Hung {
        /// The tenant.
        tenant: FileOwner,
        /// Time since the read began.
        since: Duration,
    },
    /// This tenant's reads are too slow to make more of them now.
    #[error("file systems of {0} answer too slowly")]
    Slow(FileOwner),
    /// Every helper hangs or is busy with other tenants.
    #[error("every process that reads tenants' files hangs or is busy")]
    Exhausted,
    /// A helper could not be started, ended early, or sent an invalid answer.
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
    timeout: Duration,
    /// Whether each process counts as a tenant of its own.
    by_process: bool,
    tenants: RecentTenants,
}

#[derive(Clone, Debug)]
enum Means {
    /// Reads in the calling thread, which may hang.
    Direct,
    /// Reads in helpers.
    Helpers(Arc<Pool>),
}

impl TenantFiles {
    /// Reads in helpers. They run the same binary as the agent, even after an upgrade replaced its
    /// file.
    pub fn new(paths: &Paths) -> Self {
        Self::running(paths, PathBuf::from("/proc/self/exe"))
    }

    fn running(paths: &Paths, program: PathBuf) -> Self {
        let pool = Pool::new(program, &paths.proc, DEADLINE);
        Self {
            paths: Arc::new(paths.clone()),
            means: Means::Helpers(Arc::new(pool)),
            timeout: DEADLINE,
            by_process: false,
            tenants: RecentTenants::default(),
        }
    }

    /// Reads in the calling thread, for an interactive command that the user can interrupt.
    pub fn direct(paths: &Paths) -> Self {
        let (paths, means) = (Arc::new(paths.clone()), Means::Direct);
        let tenants = RecentTenants::default();
        Self { paths, means, timeout: DEADLINE, by_process: false, tenants }
    }

    /// The same with a shorter timeout. A later answer is dropped.
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { timeout: timeout.min(DEADLINE), ..self.clone() }
    }

    /// The same for reads that wait only for a process's lock on its mappings, not for a file
    /// system. Each process then counts as a tenant of its own, so that one hung process or file
    /// system does not stop the reads of the tenant's other processes.
    #[must_use]
    pub fn of_mappings(&self) -> Self {
        Self { by_process: true, ..self.clone() }
    }

    /// Reads one of a process's files in `/proc` from its start, as a stream.
    pub fn proc_file(&self, process: ProcKey, file: ProcFile) -> Result<ProcReader, ReadError> {
        let tenant = self.tenant(process)?;
        let request = Request::Proc { process, file, offset: 0, length: wire::max_read() };
        let reply = self.ask(&tenant, &request, &[])?;
        let is_whole = reply.bytes.len() < MAX_READ;
        Ok(ProcReader {
            files: self.clone(),
            tenant,
            // A full answer includes the open file for the rest.
            file: reply.descriptors.into_iter().next().filter(|_| !is_whole),
            offset: reply.bytes.len() as u64,
            chunk: reply.bytes,
            taken: 0,
        })
    }

    /// Reads bytes of a process's memory, all of them, at most [`MAX_READ`].
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

    /// Opens the regular file to which a process's link leads. Other files are refused without
    /// opening.
    pub fn open(&self, process: ProcKey, link: &Link) -> Result<TenantFile, ReadError> {
        let tenant = self.tenant(process)?;
        let request = Request::Open { process, link: link.clone() };
        let mut reply = self.ask(&tenant, &request, &[])?;
        match (reply.answer, reply.descriptors.pop()) {
            (Answer::Stat(stat), Some(place)) => Ok(self.file(tenant, stat, place)),
            _ => Err(no_answer()),
        }
    }

    /// Opens a directory by a process's own path: below its root if the path is absolute, otherwise
    /// below its working directory. No link leads out of it.
    pub fn directory(&self, process: ProcKey, path: &Path) -> Result<TenantDirectory, ReadError> {
        self.directory_for(self.tenant(process)?, Some(process), path)
    }

    /// Opens a directory that the operator configured.
    pub fn operators(&self, path: &Path) -> Result<TenantDirectory, ReadError> {
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

    /// Finds the Inspector's files among a process's open files; `pid` is its PID in its own PID
    /// namespace.
    pub fn open_by(
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

    /// The places of the host's files.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The tenant to which reads of a process are charged.
    pub fn tenant(&self, process: ProcKey) -> Result<FileOwner, ReadError> {
        match self.means {
            Means::Direct => Ok(FileOwner::default()),
            Means::Helpers(_) if self.by_process => Ok(FileOwner::mappings(process)),
            Means::Helpers(_) => {
                let find = || FileOwner::of(&self.paths, process);
                self.tenants.get(process, find).ok_or(ReadError::Failed(Errno::SRCH))
            }
        }
    }

    /// Ends idle helpers, kills late ones, and returns the helpers' status. The agent calls it at
    /// every tick.
    pub fn status(&self) -> PoolStatus {
        match &self.means {
            Means::Direct => PoolStatus::default(),
            Means::Helpers(pool) => pool.status(),
        }
    }

    /// Ends all helpers, at most in this time; what hangs in the kernel stays.
    pub fn close(&self, limit: Duration) {
        if let Means::Helpers(pool) = &self.means {
            pool.close(limit);
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
            Means::Helpers(pool) => pool.ask(tenant, request, passed, self.timeout)?,
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
                    "a file of {tenant} did not answer {seconds} s ago; files of {tenants} tenants \
                     are not read now, and {stuck} of {MAX_HELPERS} reading processes hang"
                );
                Report::of(state, reason, "check that tenant's network and FUSE mounts")
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
