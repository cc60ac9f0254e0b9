//! A file that a process maps: opened once, with `O_PATH`, and known by what `statx` says of that
//! descriptor. Everything else (its symbols, its version, its probes) goes through the descriptor, so
//! that it is of one inode whatever the process maps, links or mounts meanwhile.
//!
//! A file on a file system of this kernel's own cannot make a reader wait, and is read here; one on a
//! network file system is read in a helper process. One whose file system is a process (FUSE) that
//! the operator does not trust (`mounts`) is refused: the kernel reads the code that it puts a probe into while no process of the host can
//! fork (`prepare_uprobe` below `dup_mmap_sem`), and such a file system answers when it likes.

use super::FileKey;
use super::elf::ReadAt;
use super::mounts::may_hang;
use crate::ids::ProcKey;
use crate::paths::Paths;
use crate::tenant_files::{Link, ReadError, TenantFile, TenantFiles, let_go, read_no_further};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags, openat, statx,
};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::PathBuf;

/// What tells a file from a copy of it: size, and the times of writing and of change to the
/// nanosecond.
pub(in super::super) type Stamp = (u64, [i64; 4]);

/// Whether a file is of a file system of this kernel's own, by the attributes that it knows of (ext4,
/// XFS, Btrfs, tmpfs since 6.0; erofs). An overlay shows those of the file below it; FUSE and NFS know
/// none of them.
fn is_local(known: StatxAttributes) -> bool {
    known.contains(StatxAttributes::NODUMP)
        // SMB shows both.
        || known.contains(StatxAttributes::COMPRESSED)
            && !known.contains(StatxAttributes::ENCRYPTED)
}

/// How tenants' files are opened.
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
    /// It is not mapped there any more.
    #[error("it is not mapped any more")]
    Gone,
    /// A device, or something else that is no regular file.
    #[error("it is no regular file")]
    NoFile,
    /// It cannot be read now: its lease is somebody's, or its file system does not answer.
    #[error("{0}")]
    Refused(#[from] ReadError),
    /// Its file system is a process, or may be one.
    #[error("its file system ({0}) may never answer, and the host would wait with it")]
    UserSpace(String),
    /// The system call failed.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

/// A file that was opened.
#[derive(Debug)]
pub(in super::super) struct Mapped {
    file: TenantFile,
    pub key: FileKey,
    pub stamp: Stamp,
    is_local: bool,
}

/// Its bytes.
pub(super) enum Content<'a> {
    Here(File, u64),
    InHelper(&'a TenantFile, u64),
}

impl Mapped {
    /// What a process maps at a range; never waits for more than the helper's deadline.
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
        // Without asking the server of a file system.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let stat = statx(file.place(), c"", flags, wanted).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
            return Err(NotRead::NoFile);
        }
        let is_local = is_local(stat.stx_attributes_mask);
        if !is_local {
            let mount = stat.stx_mnt_id;
            if let Some(kind) = may_hang(opener.paths, opener.trusted, process, mount) {
                return Err(NotRead::UserSpace(kind));
            }
        }
        let key = FileKey { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino };
        Ok(Self { file, key, stamp: stamp(&stat), is_local })
    }

    /// Its bytes. A lease on it is a refusal, never a wait.
    pub(super) fn content(&self) -> io::Result<Content<'_>> {
        if !self.is_local {
            return Ok(Content::InHelper(&self.file, self.stamp.0));
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(CWD, self.place(), flags, Mode::empty())?;
        read_no_further(&file);
        Ok(Content::Here(file.into(), self.stamp.0))
    }

    /// A path that leads the kernel to this very inode, as long as this is there.
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

/// What tells a file from others.
fn stamp(stat: &Statx) -> Stamp {
    let (written, changed) = (stat.stx_mtime, stat.stx_ctime);
    let ns = |nsec: u32| i64::from(nsec);
    let times = [written.tv_sec, ns(written.tv_nsec), changed.tv_sec, ns(changed.tv_nsec)];
    (stat.stx_size, times)
}
