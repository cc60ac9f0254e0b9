//! A file that a process maps: opened once, with `O_PATH`, and identified by `statx` on that
//! descriptor. Everything else (its symbols, its version, its probes) goes through the descriptor,
//! so that it refers to one inode, whatever the process maps, links or mounts in the meantime.
//!
//! A file on a local file system cannot block a reader and is read here; one on a network file
//! system is read in a helper process. A file whose file system is a process (FUSE) that the
//! operator does not trust (`mounts`) is refused: the kernel reads the code at a probe's address
//! while no process of the host can fork (`prepare_uprobe` below `dup_mmap_sem`), and such a file
//! system may never answer.

use super::FileKey;
use super::elf::ReadAt;
use super::mounts::may_hang;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use gpuwho_owners::tenant_files::{
    Link, ReadError, TenantFile, TenantFiles, let_go, read_no_further,
};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags, openat, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;

/// Distinguishes a file from a copy of it: size, and the times of modification and change in
/// nanoseconds.
pub(in super::super) type Stamp = (u64, [i64; 4]);

/// Whether a file is on a local file system, by the attributes that the file system supports (ext4,
/// XFS, Btrfs, tmpfs since 6.0; erofs). An overlay has the attributes of the lower file; FUSE and
/// NFS support none of them.
fn is_local(known: StatxAttributes) -> bool {
    known.contains(StatxAttributes::NODUMP)
        // SMB supports both.
        || known.contains(StatxAttributes::COMPRESSED)
            && !known.contains(StatxAttributes::ENCRYPTED)
}

/// Opens tenants' files.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Opener<'a> {
    pub files: &'a TenantFiles,
    pub paths: &'a Paths,
    /// Directories below which FUSE mounts are trusted.
    pub trusted: &'a [PathBuf],
}

/// Why a file is not read, or not probed.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum NotRead {
    /// It is no longer mapped there.
    #[error("it is no longer mapped")]
    Gone,
    /// A device, or another kind of file that is not regular.
    #[error("it is not a regular file")]
    NoFile,
    /// It cannot be read now: it is leased, or its file system does not answer.
    #[error("{0}")]
    Refused(#[from] ReadError),
    /// Its file system is a process, or may be one.
    #[error("its file system ({0}) may never answer, and the host would wait with it")]
    UserSpace(String),
    /// The system call failed.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// An opened file.
#[derive(Debug)]
pub(in super::super) struct Mapped {
    file: TenantFile,
    pub key: FileKey,
    pub stamp: Stamp,
    is_local: bool,
}

/// The content of a file.
pub(super) enum Content<'a> {
    Here(File, u64),
    InHelper(&'a TenantFile, u64),
}

impl Mapped {
    /// Opens the file that a process maps at a range; never blocks longer than the helper's
    /// deadline.
    pub(in super::super) fn open(
        opener: Opener<'_>,
        process: ProcKey,
        range: (u64, u64),
    ) -> Result<Self, NotRead> {
        let (begin, end) = range;
        let file = match opener.files.open(process, &Link::Mapping { begin, end }) {
            Ok(file) => file,
            Err(ReadError::Failed(Errno::NOENT | Errno::INVAL | Errno::SRCH)) => {
                return Err(NotRead::Gone);
            }
            Err(refused) => return Err(refused.into()),
        };
        // Does not query the server of a network file system.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let stat = statx(file.place(), c"", flags, wanted).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
            return Err(NotRead::NoFile);
        }
        let is_local = is_local(stat.stx_attributes_mask);
        if !is_local
            && let Some(kind) = may_hang(opener.paths, opener.trusted, process, stat.stx_mnt_id)
        {
            return Err(NotRead::UserSpace(kind));
        }
        let key = FileKey { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino };
        Ok(Self { file, key, stamp: stamp(&stat), is_local })
    }

    /// Opens the content. A lease on the file is an error, not a wait.
    pub(super) fn content(&self) -> io::Result<Content<'_>> {
        if !self.is_local {
            return Ok(Content::InHelper(&self.file, self.stamp.0));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(CWD, self.place(), flags, Mode::empty())?;
        read_no_further(&file);
        Ok(Content::Here(file.into(), self.stamp.0))
    }

    /// A path by which the kernel opens exactly this inode, as long as this value exists.
    pub(super) fn place(&self) -> PathBuf {
        let place: BorrowedFd<'_> = self.file.place();
        PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()))
    }
}

impl ReadAt for Content<'_> {
    fn read_at(&self, room: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::Here(file, _) => {
                let read = std::os::unix::fs::FileExt::read_at(file, room, at)?;
                let_go(file, at, read);
                Ok(read)
            }
            Self::InHelper(file, _) => Ok(file.read_at(room, at)?),
        }
    }

    fn size(&self) -> io::Result<u64> {
        let (Self::Here(_, size) | Self::InHelper(_, size)) = self;
        Ok(*size)
    }
}

/// Distinguishes a file from others.
fn stamp(stat: &Statx) -> Stamp {
    let (written, changed) = (stat.stx_mtime, stat.stx_ctime);
    let ns = |nsec: u32| i64::from(nsec);
    let times = [written.tv_sec, ns(written.tv_nsec), changed.tv_sec, ns(changed.tv_nsec)];
    (stat.stx_size, times)
}
