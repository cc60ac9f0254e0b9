//! Files and memory that never answer a read.

use super::{Attack, become_nobody, fuse};
use crate::worker::act::{die_with_parent, join};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// The attacks, by name. Each takes a directory to mount at, a node that stands for a device, and
/// cgroups to join.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "hung-file", run: hung_file },
    Attack { name: "hung-environment", run: hung_environment },
];

/// Holds a device, and a file with a name of NCCL's Inspector whose bytes never come; nor does its
/// `close` come back.
fn hung_file(arguments: &[String]) -> io::Result<()> {
    hold(arguments, &[fuse::READ, fuse::FLUSH], |directory| {
        let path = directory.join(format!("node-pid{}.log", std::process::id()));
        OpenOptions::new().append(true).open(path)
    })
}

/// Holds a device, and its own memory map for ever: one thread unmaps a page that the file system
/// does not write, another waits to map one, and whoever reads the process's environment or command
/// line waits behind it. (A page of the environment itself on such a file system is not read:
/// `FOLL_ANON`, since Linux 4.17.)
fn hung_environment(arguments: &[String]) -> io::Result<()> {
    hold(arguments, &[fuse::WRITE], |directory| {
        let file = OpenOptions::new().read(true).write(true).open(directory.join("page"))?;
        // Both exist before the first begins: a new thread's stack is a mapping, too.
        for turn in 1..=2 {
            let ours = file.try_clone()?;
            thread::spawn(move || {
                thread::sleep(SOON * turn);
                crate::sys::dirty_and_unmap(&ours, PAGE)
            });
        }
        thread::sleep(SOON * 3);
        Ok(file)
    })
}

/// A page.
const PAGE: usize = 4096;
/// In which a thread is in its system call.
const SOON: Duration = Duration::from_millis(200);

/// Serves the file system, and lets a child hold what is asked for until the input closes.
fn hold(
    arguments: &[String],
    silent: &[u32],
    take: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<()> {
    let [directory, node, groups @ ..] = arguments else {
        return Err(io::Error::other("needs a directory and a node"));
    };
    let groups: Vec<String> =
        groups.iter().filter(|group| group.starts_with('/')).cloned().collect();
    join(&groups)?;
    let directory = Path::new(directory);
    let server = fuse::mount_at(directory)?;
    become_nobody()?;
    let Some(_child) = crate::sys::fork()? else {
        drop(server);
        let held = die_with_parent().and_then(|()| {
            let _file = take(directory)?;
            let _device = File::open(node)?;
            let mut out = io::stdout().lock();
            writeln!(out, "ready {}", std::process::id())?;
            out.flush()?;
            io::stdin().read_to_end(&mut Vec::new()).map(drop)
        });
        if let Err(error) = &held {
            eprintln!("attacker: {error}");
        }
        crate::sys::quit(i32::from(held.is_err()));
    };
    fuse::serve(server, silent)
}
