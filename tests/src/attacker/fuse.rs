//! A file system in which every name is a file, and some requests are never answered: what a hung
//! NFS server or a sidecar's FUSE mount looks like to whoever reads it. The kernel's own protocol
//! (`linux/fuse.h`, 7.31), without a library.

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::thread;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
pub(super) const READ: u32 = 15;
pub(super) const WRITE: u32 = 16;
const RELEASE: u32 = 18;
pub(super) const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Before each request: length, opcode, unique number, node, user, group, process, rest.
const HEADER: usize = 40;
/// A directory's and a file's number.
const ROOT: u64 = 1;
const FILE: u64 = 2;
const SIZE: u64 = 4096;

/// Mounts the file system at a directory that only this thread and its children see; needs root.
/// Everybody who comes by a process may use it.
pub(super) fn mount_at(directory: &Path) -> io::Result<File> {
    crate::sys::own_namespaces(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = CString::new(options)?;
    mount("gpuwho-hang", directory, "fuse", MountFlags::empty(), options.as_c_str())?;
    Ok(device)
}

/// Mounts the file system for this thread alone and refuses every read as a driver does that is busy.
pub fn refuse_reads(directory: &Path) -> io::Result<()> {
    let device = mount_at(directory)?;
    thread::spawn(move || serve_with(device, &[], Some(Errno::BUSY)));
    Ok(())
}

/// Answers until the mount is gone, but never the requests in `silent`.
pub(super) fn serve(device: File, silent: &[u32]) -> io::Result<()> {
    serve_with(device, silent, None)
}

/// The same; reads are refused with an error, if there is one.
fn serve_with(mut device: File, silent: &[u32], refusal: Option<Errno>) -> io::Result<()> {
    let mut request = vec![0; 256 * 1024];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let number = |at: usize| request.get(at..).and_then(|bytes| bytes.first_chunk::<4>());
        let opcode = number(4).map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let long = |at: usize| request.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        let unique = long(8).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let node = long(16).map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let is_answered = !matches!(opcode, FORGET | BATCH_FORGET | INTERRUPT);
        if length < HEADER || !is_answered || silent.contains(&opcode) {
            continue;
        }
        let body = match opcode {
            INIT => Ok(init()),
            LOOKUP => Ok([&entry()[..], &attributes(FILE)].concat()),
            GETATTR => Ok([&[0; 16][..], &attributes(node)].concat()),
            OPEN | OPENDIR => Ok(vec![0; 16]),
            WRITE => Ok([request.get(56..60).unwrap_or(&[0; 4]), &[0; 4]].concat()),
            // Whole: after a short answer the kernel takes the file to end there.
            READ => refusal.map_or_else(
                || Ok(vec![0; number(56).map_or(0, |bytes| u32::from_ne_bytes(*bytes)) as usize]),
                Err,
            ),
            FLUSH | RELEASE => Ok(Vec::new()),
            _ => Err(Errno::NOSYS),
        };
        answer(&mut device, unique, body)?;
    }
}

fn answer(device: &mut File, unique: u64, body: Result<Vec<u8>, Errno>) -> io::Result<()> {
    let (error, body) = match body {
        Ok(body) => (0, body),
        Err(errno) => (-errno.raw_os_error(), Vec::new()),
    };
    let length = u32::try_from(16 + body.len()).unwrap_or(16);
    let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
    match device.write(&[head, body].concat()) {
        // Whoever asked was killed meanwhile.
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
        written => written.map(drop),
    }
}

/// Version 7.31, no read-ahead, no flags, writes of a page; the rest has defaults.
fn init() -> Vec<u8> {
    let mut body = [7_u32, 31, 0, 0, 0, 4096, 1].iter().flat_map(|n| n.to_ne_bytes()).collect();
    Vec::resize(&mut body, 64, 0);
    body
}

/// Node, generation, and that nothing of it may be kept.
fn entry() -> [u8; 40] {
    let mut body = [0; 40];
    body[..8].copy_from_slice(&FILE.to_ne_bytes());
    body
}

fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == ROOT { 0o040_777 } else { 0o100_666 };
    let longs = [node, if node == ROOT { 0 } else { SIZE }, 8, 0, 0, 0];
    let words = [0, 0, 0, mode, 1, super::NOBODY, super::NOBODY, 0, 4096, 0];
    let longs = longs.iter().flat_map(|number| number.to_ne_bytes());
    longs.chain(words.iter().flat_map(|number| number.to_ne_bytes())).collect()
}
