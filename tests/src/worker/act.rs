//! What a worker does, step by step.

use super::nodes;
use super::script::{Hold, Script};
use crate::sys;
use rustix::process::{Gid, Signal, Uid, WaitOptions, set_parent_process_death_signal, waitpid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// No worker outlives whoever started it.
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Joins cgroups; every line of `/proc/self/cgroup` is right before the first open.
pub fn join(directories: &[String]) -> io::Result<()> {
    for directory in directories {
        fs::write(Path::new(directory).join("cgroup.procs"), "0")
            .map_err(|error| io::Error::new(error.kind(), format!("{directory}: {error}")))?;
    }
    Ok(())
}

/// Becomes a user of the same group number, without a way back.
pub fn become_user(uid: Option<u32>) -> io::Result<()> {
    let Some(uid) = uid else { return Ok(()) };
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(uid))?;
    set_thread_uid(Uid::from_raw(uid))?;
    // The kernel forgets the death signal when credentials change.
    die_with_parent()
}

/// Sets the command name.
pub fn take_name(comm: &str) -> io::Result<()> {
    Ok(rustix::thread::set_name(&CString::new(comm)?)?)
}

/// Makes the program that [`exec`] becomes.
pub fn install_program(name: &str) -> io::Result<()> {
    nodes::copy_program(name)
}

/// Becomes another program, whose command name the kernel takes from its file name; comes back
/// only with the reason why not.
pub fn exec(name: &str, script: &Script) -> io::Error {
    let script = Script { executed: true, ..script.clone() };
    Command::new(Path::new("/dev").join(name)).args(script.to_arguments()).exec()
}

/// Says that the nodes are open, and keeps them open.
pub fn hold(script: &Script, open: Vec<OwnedFd>) -> io::Result<()> {
    let mut children = Vec::new();
    for _ in 0..script.forks {
        if let Some(child) = sys::fork()? {
            children.push(child);
        } else {
            let held = die_with_parent().and_then(|()| wait(script));
            sys::quit(i32::from(held.is_err()));
        }
    }
    say_ready(children.iter().map(|child| child.as_raw_nonzero().get()))?;
    match script.hold {
        Hold::For(time) => thread::sleep(time),
        Hold::UntilTold | Hold::Storm { .. } => wait(script)?,
    }
    drop(open);
    for child in children {
        waitpid(Some(child), WaitOptions::empty())?;
    }
    Ok(())
}

/// Forks processes that open the script's nodes, if any, and exit at once.
pub fn storm(script: &Script, count: u32, per_second: u32) -> io::Result<()> {
    let gap = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
    let start = Instant::now();
    let mut pids = Vec::new();
    for turn in 0..count {
        thread::sleep((start + gap * turn).saturating_duration_since(Instant::now()));
        match sys::fork()? {
            Some(child) => {
                let ended = waitpid(Some(child), WaitOptions::empty())?;
                if ended.is_none_or(|(_, status)| status.exit_status() != Some(0)) {
                    return Err(io::Error::other("a process of the storm could not open"));
                }
                pids.push(child.as_raw_nonzero().get());
            }
            None => sys::quit(i32::from(nodes::open_gpus(script).is_err())),
        }
    }
    say_ready(pids.into_iter())?;
    wait(script)
}

fn say_ready(children: impl Iterator<Item = i32>) -> io::Result<()> {
    let mut line = format!("ready {}", std::process::id());
    for child in children {
        line.push(' ');
        line.push_str(&child.to_string());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Whoever started the worker holds the other end; a container has no other end.
fn wait(script: &Script) -> io::Result<()> {
    if script.contained {
        loop {
            thread::park();
        }
    }
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
