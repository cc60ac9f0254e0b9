//! Open files, directories and streams of a tenant. A helper reads each of them.

use super::wire::{self, Answer, Request};
use super::{FileOwner, MAX_READ, ReadError, Stat, TenantFiles, no_answer};
use crate::tenant_files::search::{FileFilter, Search, SearchResult};
#[cfg(any(test, feature = "fixtures"))]
use gpuwho_model::paths::Paths;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A tenant's regular file: the inode is fixed, the contents may change.
#[derive(Debug)]
pub struct TenantFile {
    pub(super) files: TenantFiles,
    pub(super) tenant: FileOwner,
    pub(super) stat: Stat,
    /// Opened with `O_PATH`.
    pub(super) place: OwnedFd,
}

impl TenantFile {
    /// An open file, read in the calling thread.
    #[cfg(any(test, feature = "fixtures"))]
    #[allow(clippy::unwrap_used, reason = "for tests only")]
    pub fn direct(file: &std::fs::File) -> Self {
        let files = TenantFiles::direct(&Paths::default());
        let stat = super::regular(file, rustix::fs::AtFlags::empty()).unwrap();
        files.file(FileOwner::default(), stat, file.try_clone().unwrap().into())
    }

    /// The metadata at the time of opening.
    pub fn stat(&self) -> Stat {
        self.stat
    }

    /// The inode, opened with `O_PATH`: `/proc/self/fd/N` leads to it.
    pub fn place(&self) -> BorrowedFd<'_> {
        self.place.as_fd()
    }

    /// The current metadata.
    pub fn stat_now(&self) -> Result<Stat, ReadError> {
        match self.files.ask(&self.tenant, &Request::Stat, &[self.place.as_fd()])?.answer {
            Answer::Stat(stat) => Ok(stat),
            _ => Err(no_answer()),
        }
    }

    /// Fills `room` up to the end of the file, with at most [`MAX_READ`] bytes.
    pub fn read_at(&self, room: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let length = u32::try_from(room.len()).unwrap_or(u32::MAX).min(wire::max_read());
        let request = Request::Read { offset, length };
        let bytes = self.files.ask(&self.tenant, &request, &[self.place.as_fd()])?.bytes;
        let count = bytes.len().min(room.len());
        let (Some(room), Some(bytes)) = (room.get_mut(..count), bytes.get(..count)) else {
            return Ok(0);
        };
        room.copy_from_slice(bytes);
        Ok(count)
    }
}

/// A tenant's directory.
#[derive(Debug)]
pub struct TenantDirectory {
    pub(super) files: TenantFiles,
    pub(super) tenant: FileOwner,
    pub(super) place: OwnedFd,
}

impl TenantDirectory {
    /// Finds the Inspector's files in it.
    pub fn search(&self, wanted: &FileFilter) -> Result<SearchResult, ReadError> {
        self.files.search(&self.tenant, Search::Directory, &[self.place.as_fd()], wanted)
    }
}

/// A file in `/proc`, read as a stream. Dropping it overwrites the buffer.
#[derive(Debug)]
pub struct ProcReader {
    pub(super) files: TenantFiles,
    pub(super) tenant: FileOwner,
    pub(super) file: Option<OwnedFd>,
    pub(super) offset: u64,
    pub(super) chunk: Vec<u8>,
    pub(super) taken: usize,
}

impl io::Read for ProcReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.chunk.len()
            && let Some(file) = &self.file
        {
            let request = Request::ReadOn { offset: self.offset, length: wire::max_read() };
            let next = self.files.ask(&self.tenant, &request, &[file.as_fd()])?.bytes;
            self.chunk.fill(0);
            self.offset += next.len() as u64;
            self.taken = 0;
            if next.len() < MAX_READ {
                self.file = None;
            }
            self.chunk = next;
        }
        let left = self.chunk.get(self.taken..).unwrap_or_default();
        let count = left.len().min(room.len());
        if let (Some(room), Some(left)) = (room.get_mut(..count), left.get(..count)) {
            room.copy_from_slice(left);
        }
        self.taken += count;
        Ok(count)
    }
}

impl Drop for ProcReader {
    fn drop(&mut self) {
        // Environments hold secrets.
        self.chunk.fill(0);
    }
}
