//! What a worker does, step by step.

use super::script::{Hold, Opener, Script};
use super::{nodes, pass};
use crate::{libtpu, sys};
use rustix::process::{
    Gid, Pid, Signal, Uid, WaitOptions, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, set_thread_gid, set_thread_groups, set_thread_uid};
use std::ffi::CString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// No worker outlives whoever started it.
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// A container's shim ends its processes; a thread of it that ends must not.
pub fn outlive_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(None)?)
}

/// Joins cgroups; every line of `/proc/self/cgroup` is right before the first open.
pub fn join(directories: &[String]) -> io::Result<()> {
    for directory in directories {
        fs::write(Path::new(directory).join("cgroup.procs"), "0")
            .map_err(|error| io::Error::new(error.kind(), format!("{directory}: {error}")))?;
    }
    Ok(())
}

/// Does what a container with a cgroup namespace of its own can do: makes directories below its
/// own groups and moves there.
pub fn nest(script: &Script) -> io::Result<()> {
    let Some(path) = &script.nest else { return Ok(()) };
    sys::own_namespaces(UnshareFlags::NEWCGROUP)?;
    let inner: Vec<_> = script.join.iter().map(|outer| format!("{outer}/{path}")).collect();
    for outer in &script.join {
        let mut directory = PathBuf::from(outer);
        for component in Path::new(path) {
            let above = directory.clone();
            directory.push(component);
            fs::create_dir(&directory)?;
            // Without CPUs and memory nodes of its own a cpuset (v1) takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"].map(Path::new) {
                if let Ok(value) = fs::read(above.join(file)) {
                    fs::write(directory.join(file), value)?;
                }
            }
        }
    }
    join(&inner)
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
    if let Some(scenario) = &script.libtpu {
        libtpu::serve(scenario, &script.gpus)?;
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
        match fork_opener(script)? {
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

/// Opens the nodes in the script's opener, or takes them from another process, and holds them.
pub fn open_and_hold(script: &Script) -> io::Result<()> {
    match script.opener {
        Opener::Worker => hold(script, obtain(script)?),
        Opener::Thread => {
            let opened = thread::scope(|scope| scope.spawn(|| obtain(script)).join());
            hold(script, opened.map_err(|_| io::Error::other("the thread panicked"))??)
        }
        Opener::Daemon => in_child(script, || {
            // The parent between ends at once; init is the daemon's parent.
            match sys::fork()? {
                Some(_) => sys::quit(0),
                None => Ok(rustix::process::setsid().map(drop)?),
            }
        }),
        Opener::PidNamespace => {
            sys::own_namespaces(UnshareFlags::NEWPID)?;
            in_child(script, || Ok(()))
        }
        Opener::Number(_) => in_child(script, || Ok(())),
    }
}

/// Forks a process that prepares itself, opens the nodes and holds them until told; says ready
/// with its number when it does.
fn in_child(script: &Script, prepare: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (reader, writer) = rustix::pipe::pipe()?;
    let Some(child) = fork_opener(script)? else {
        let opened = prepare().and_then(|()| obtain(script));
        // The number in the host's namespace, whatever namespace this is.
        let own = fs::read_link("/proc/self").ok();
        let own = own.and_then(|own| own.to_str()?.parse::<i32>().ok()).unwrap_or(0);
        let reported = opened.and_then(|open| {
            rustix::io::write(&writer, &own.to_ne_bytes())?;
            wait(script)?;
            drop(open);
            Ok(())
        });
        sys::quit(i32::from(reported.is_err()));
    };
    drop(writer);
    let mut number = [0; 4];
    if rustix::io::read(&reader, &mut number)? < number.len() {
        return Err(io::Error::other("the child could not open"));
    }
    say_ready(std::iter::once(i32::from_ne_bytes(number)))?;
    wait(script)?;
    waitpid(Some(child), WaitOptions::empty())?;
    Ok(())
}

fn fork_opener(script: &Script) -> io::Result<Option<Pid>> {
    match script.opener {
        Opener::Number(pid) => sys::fork_as(pid),
        _ => sys::fork(),
    }
}

/// The script's open nodes: opened, or taken from another process; given away as well if asked.
fn obtain(script: &Script) -> io::Result<Vec<OwnedFd>> {
    let open = match &script.take {
        Some(socket) => vec![pass::take(Path::new(socket))?],
        None => nodes::open_gpus(script)?,
    };
    if let (Some(socket), Some(last)) = (&script.give, open.last()) {
        pass::give(Path::new(socket), last)?;
    }
    Ok(open)
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
