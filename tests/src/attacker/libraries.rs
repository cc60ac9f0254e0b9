//! Files that a process maps as a collective library.

use super::elf::{self, CODE};
use super::{Attack, become_nobody};
use crate::sys::{self, Lease};
use crate::until::until;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::thread::UnshareFlags;
use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The attacks, by name. Arguments: a folder that everybody may write to, a file of root's, and of
/// the last two perhaps the device to hold.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "library-of-root", run: library_of_root },
    Attack { name: "swapped-library", run: swapped_library },
    Attack { name: "link-to-a-fifo", run: link_to_a_fifo },
    Attack { name: "leased-libraries", run: leased_libraries },
    Attack { name: "deep-mappings", run: deep_mappings },
    Attack { name: "sparse-libraries", run: sparse_libraries },
    Attack { name: "behind-mounts", run: behind_mounts },
];

/// Stands for a GPU's node: everybody may open it, and hardly anybody keeps it open.
pub const NODE: &str = "/dev/random";
/// Longer than the agent takes to see a new process, on a busy machine.
const ASKED_WITHIN: Duration = Duration::from_mins(1);
/// To 32,768 mounts.
const DOUBLINGS: usize = 15;
/// Bytes of a crafted library, of which all are mapped.
const SIZE: usize = elf::SIZE;

/// Not an attack: a process of root's that runs a function of root's own library and says what it
/// returns, once a line of input.
fn library_of_root(arguments: &[String]) -> io::Result<()> {
    let file = File::open(path(arguments, 1)?)?;
    let code = sys::map(&file, None, SIZE)? + CODE;
    for line in io::stdin().lines() {
        line?;
        print_line(&sys::call(code).to_string())?;
    }
    Ok(())
}

/// Lets the agent ask for a library and puts root's own in its place before it goes on.
fn swapped_library(arguments: &[String]) -> io::Result<()> {
    let (folder, roots) = (path(arguments, 0)?, File::open(path(arguments, 1)?)?);
    become_nobody()?;
    sys::ignore_lease_signals();
    // The first byte of the constant that root's function returns.
    let library = crafted(&folder.join("libnccl.so.2"), CODE + 1)?;
    let at = sys::map(&library, None, SIZE)?;
    sys::lease(&library, Lease::Write)?;
    let _node = hold()?;
    asked(&library)?;
    sys::map(&roots, Some(at), SIZE)?;
    sys::lease(&library, Lease::None)?;
    wait("swapped")
}

/// Lets the agent ask for a library, takes the next one away and puts a link in its place.
fn link_to_a_fifo(arguments: &[String]) -> io::Result<()> {
    let (folder, fifo) = (path(arguments, 0)?, path(arguments, 1)?);
    become_nobody()?;
    sys::ignore_lease_signals();
    let (first, second) = (folder.join("first.so"), folder.join("second.so"));
    let library = crafted(&first, CODE)?;
    let next = crafted(&second, CODE)?;
    // Room for both, since the agent goes by address.
    let at = sys::map(&library, None, 2 * SIZE)?;
    sys::map(&library, Some(at), SIZE)?;
    sys::map(&next, Some(at + SIZE), SIZE)?;
    sys::lease(&library, Lease::Write)?;
    let _node = hold()?;
    asked(&library)?;
    sys::unmap(at + SIZE, SIZE)?;
    fs::remove_file(&second)?;
    symlink(fifo, &second)?;
    sys::lease(&library, Lease::None)?;
    wait("swapped")
}

/// Many libraries, each of which makes who opens it wait.
fn leased_libraries(arguments: &[String]) -> io::Result<()> {
    let folder = path(arguments, 0)?;
    become_nobody()?;
    sys::ignore_lease_signals();
    let make = |number| crafted(&folder.join(format!("leased{number}.so")), CODE);
    let all = (0..20).map(make).collect::<io::Result<Vec<File>>>()?;
    for library in &all {
        sys::map(library, None, SIZE)?;
        sys::lease(library, Lease::Write)?;
    }
    let _node = hold()?;
    let is_asked = || all.iter().any(sys::is_lease_broken).then_some(());
    until(ASKED_WITHIN, is_asked).ok_or(io::ErrorKind::TimedOut)?;
    wait("asked")
}

/// A file below two thousand directories with long names, mapped many times.
fn deep_mappings(arguments: &[String]) -> io::Result<()> {
    let folder = path(arguments, 0)?.join("deep");
    fs::create_dir(&folder)?;
    // So that nobody has to remove them.
    sys::own_namespaces(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("deep", &folder, "tmpfs", MountFlags::NOSUID, c"mode=0777" as &CStr)?;
    become_nobody()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut place = openat(CWD, &folder, flags, Mode::empty())?;
    let name = "d".repeat(240);
    for _ in 0..2_000 {
        mkdirat(&place, &name, Mode::RWXU)?;
        place = openat(&place, &name, flags, Mode::empty())?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mut file = File::from(openat(&place, "file", flags, Mode::RWXU)?);
    file.write_all(&[0; 4096])?;
    for _ in 0..1_500 {
        sys::map(&file, None, 4096)?;
    }
    let _node = hold_of(arguments)?;
    wait("mapped")
}

/// Files with symbols and names that are holes, which cost their owner nothing.
fn sparse_libraries(arguments: &[String]) -> io::Result<()> {
    let folder = path(arguments, 0)?;
    become_nobody()?;
    for number in 0..40 {
        let file = folder.join(format!("sparse{number}.so"));
        elf::write_sparse(&file)?;
        sys::map(&File::open(file)?, None, SIZE)?;
    }
    let _node = hold_of(arguments)?;
    wait("mapped")
}

/// Libraries on a file system that only the list of mounts tells from one that may never answer, behind thirty
/// thousand mounts with long names: more than the agent reads of it.
fn behind_mounts(arguments: &[String]) -> io::Result<()> {
    let folder = path(arguments, 0)?.join("mounts");
    fs::create_dir(&folder)?;
    // So that nobody has to remove them.
    sys::own_namespaces(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("mounts", &folder, "tmpfs", MountFlags::NOSUID, c"mode=0755,nr_inodes=0" as &CStr)?;
    // Each doubles what is there.
    for number in 0..DOUBLINGS {
        let place = folder.join(format!("{number:030}"));
        fs::create_dir(&place)?;
        mount_bind_recursive(&folder, &place)?;
    }
    let last = folder.join("last");
    fs::create_dir(&last)?;
    mount("last", &last, "ramfs", MountFlags::NOSUID, c"mode=0777" as &CStr)?;
    become_nobody()?;
    for number in 0..20 {
        let library = crafted(&last.join(format!("libnccl{number}.so.2")), CODE)?;
        sys::map(&library, None, SIZE)?;
    }
    let _node = hold_of(arguments)?;
    wait("mapped")
}

/// A library whose functions are at a place in it, opened once: else there is no lease to be had.
fn crafted(path: &Path, at: usize) -> io::Result<File> {
    fs::write(path, elf::library(at as u64))?;
    File::open(path)
}

/// Waits until somebody wants to open the file.
fn asked(library: &File) -> io::Result<()> {
    let is_asked = || sys::is_lease_broken(library).then_some(());
    Ok(until(ASKED_WITHIN, is_asked).ok_or(io::ErrorKind::TimedOut)?)
}

fn hold() -> io::Result<OwnedFd> {
    hold_of(&[])
}

fn hold_of(arguments: &[String]) -> io::Result<OwnedFd> {
    let node = arguments.get(2).map_or(NODE, String::as_str);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(openat(CWD, node, flags, Mode::empty())?)
}

fn path(arguments: &[String], at: usize) -> io::Result<PathBuf> {
    Ok(arguments.get(at).ok_or(io::ErrorKind::InvalidInput)?.into())
}

fn print_line(word: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{word}")?;
    output.flush()
}

/// Says that it is done, and stays until nobody wants it any more.
fn wait(word: &str) -> io::Result<()> {
    print_line(word)?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
