//! The reads themselves; the caller decides the process.
//!
//! A file is opened for reading only after an `O_PATH` descriptor shows that it is regular: so
//! opening never waits for a FIFO and never touches a device. Every file is closed before the
//! answer is sent, because a `close` may hang like a read.

use super::wire::{Answer, Link, MAX_READ, Reply, Request, Stat};
use crate::process::Living;
use crate::tenant_files::search;
use gpuwho_model::ids::ProcKey;
use gpuwho_model::paths::Paths;
use rustix::fs::{
    Advice, AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, fadvise, openat, statx,
};
use rustix::io::{Errno, pread};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// Carries out a request in this thread.
pub(super) fn answer(paths: &Paths, request: &Request, passed: &[BorrowedFd<'_>]) -> Reply {
    attempt(paths, request, passed).unwrap_or_else(Reply::failed)
}

fn attempt(paths: &Paths, request: &Request, passed: &[BorrowedFd<'_>]) -> Result<Reply, Errno> {
    let first = || passed.first().copied().ok_or(Errno::BADF);
    match request {
        Request::Proc { process, file, offset, length } => {
            let living = Living::same(paths, *process).ok_or(Errno::SRCH)?;
            let file = living.open(file.name()).ok_or(Errno::NOENT)?;
            let bytes = fill(&file, *offset, *length)?;
            let descriptors = if bytes.len() < MAX_READ { Vec::new() } else { vec![file.into()] };
            Ok(Reply { answer: Answer::Bytes, bytes, descriptors })
        }
        Request::ReadOn { offset, length } => bytes(fill(first()?, *offset, *length)?),
        Request::Open { process, link } => {
            let name = match link {
                Link::Mapping { begin, end } => format!("map_files/{begin:x}-{end:x}"),
                Link::Descriptor(number) => format!("fd/{number}"),
            };
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let place = openat(own(paths, *process)?, name, flags, Mode::empty())?;
            let stat = regular(&place, AtFlags::STATX_DONT_SYNC)?;
            Ok(Reply { answer: Answer::Stat(stat), bytes: Vec::new(), descriptors: vec![place] })
        }
        Request::Read { offset, length } => {
            let file = open_place(first()?)?;
            let read = fill(&file, *offset, *length)?;
            let_go(&file, *offset, read.len());
            bytes(read)
        }
        Request::Stat => Ok(Answer::Stat(regular(first()?, AtFlags::empty())?).into()),
        Request::Directory { process, path } => {
            let place = match process {
                Some(process) => {
                    let place = search::directory_of(paths, *process, path)?;
                    // Checked after opening: until then the PID may go to another process.
                    Living::same(paths, *process).map(|_| place).ok_or(Errno::SRCH)?
                }
                None => search::directory(path)?,
            };
            let descriptors = vec![place];
            Ok(Reply { answer: Answer::Directory, bytes: Vec::new(), descriptors })
        }
        Request::Search { search, wanted } => {
            let places = search::search(paths, search, passed.first().copied(), wanted)?;
            let (mut found, mut descriptors) = (Vec::new(), Vec::new());
            for (kind, stat, place) in places.files {
                found.push((kind, stat));
                descriptors.push(place);
            }
            let answer = Answer::Found(found, places.refused);
            Ok(Reply { answer, bytes: Vec::new(), descriptors })
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the last word of each case above")]
fn bytes(bytes: Vec<u8>) -> Result<Reply, Errno> {
    Ok(Reply { answer: Answer::Bytes, bytes, descriptors: Vec::new() })
}

/// Opens `/proc/PID` of exactly this process. The descriptor stays with the process.
fn own(paths: &Paths, process: ProcKey) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, paths.proc.join(process.pid.to_string()), flags, Mode::empty())?;
    // Checked after opening: until then the PID may go to another process.
    Living::same(paths, process).map(|_| folder).ok_or(Errno::SRCH)
}

/// The metadata of a file, if it is a regular one.
pub fn regular(place: impl AsFd, sync: AtFlags) -> Result<Stat, Errno> {
    let stat = statx(place, c"", AtFlags::EMPTY_PATH | sync, StatxFlags::BASIC_STATS)?;
    if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let seconds = stat.stx_mtime.tv_sec.max(0).unsigned_abs();
    Ok(Stat {
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        size: stat.stx_size,
        uid: stat.stx_uid,
        modified_ns: seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(stat.stx_mtime.tv_nsec.into()),
    })
}

/// Opens a regular file for reading. A file under a lease is refused (`EWOULDBLOCK`) without
/// waiting.
pub fn open_place(place: BorrowedFd<'_>) -> Result<File, Errno> {
    regular(place, AtFlags::STATX_DONT_SYNC)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let through = format!("/proc/self/fd/{}", place.as_raw_fd());
    let file = openat(CWD, through, flags, Mode::empty())?;
    read_no_further(&file);
    Ok(file.into())
}

/// Turns off the kernel's read-ahead.
pub fn read_no_further(file: impl AsFd) {
    // A file system that does not support it has no page cache.
    let _ = fadvise(file, 0, None, Advice::Random);
}

/// Drops the cached pages that were just read, which count as the agent's memory until then. Pages
/// that a tenant's processes have read or mapped stay.
pub fn let_go(file: impl AsFd, offset: u64, length: usize) {
    if let Some(length) = NonZeroU64::new(length as u64) {
        let _ = fadvise(file, offset, Some(length), Advice::DontNeed);
    }
}

/// Reads up to `length` bytes, fewer only at the end.
fn fill(file: impl AsFd, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
    let length = usize::try_from(length).unwrap_or(MAX_READ).min(MAX_READ);
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
        match pread(&file, room, offset.wrapping_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            // Bytes before an unreadable page count.
            Err(_) if filled > 0 => break,
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
