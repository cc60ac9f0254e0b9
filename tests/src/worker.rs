//! Starts workers, knows when they hold their nodes, and ends them.

pub mod act;
pub mod nodes;
pub mod orders;
mod pass;
pub mod script;

use crate::program;
use crate::stage::Group;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use script::{Hold, Script};
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A worker is ready in milliseconds; a storm of thousands on a small machine in seconds.
const READY_WITHIN: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Why there is no worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// No program.
    #[error(transparent)]
    NotBuilt(#[from] program::NotBuilt),
    /// It did not start.
    #[error("start worker: {0}")]
    Start(io::Error),
    /// It ended, or said something else.
    #[error("worker said {said:?} instead of ready (its own words are on standard error)")]
    NotReady {
        /// What it said.
        said: String,
    },
    /// A cgroup did not take it.
    #[error("move worker to {path}: {source}")]
    Move {
        /// The cgroup.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// A running worker. Ends with it: its children, and everything it held.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    children: Vec<u32>,
    reported: Option<ChildStdin>,
}

impl Worker {
    /// Starts a worker in a group (without one: where the caller is) and waits until it holds.
    pub fn start(group: Option<&Group>, script: &Script) -> Result<Self, WorkerError> {
        Self::start_with(group, script, &[])
    }

    /// The same with more in its environment.
    pub fn start_with(
        group: Option<&Group>,
        script: &Script,
        environment: &[(&str, &str)],
    ) -> Result<Self, WorkerError> {
        let mut script = script.clone();
        if let Some(group) = group {
            let directories = group.directories.iter();
            script.join = directories.map(|path| path.display().to_string()).collect();
        }
        let mut child = Command::new(program::worker()?)
            .args(script.to_arguments())
            .envs([nodes::environment()])
            .envs(environment.iter().copied())
            // Ctrl-C at a terminal is for whoever started the worker, who then ends it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(WorkerError::Start)?;
        let stdin = child.stdin.take();
        let out = child.stdout.take();
        let mut worker = Self { child, children: Vec::new(), reported: stdin };
        let said = out.map(first_line).transpose().map_err(WorkerError::Start)?;
        worker.children = ready(&said.unwrap_or_default(), worker.pid())?;
        Ok(worker)
    }

    /// Holds GPUs in a group until told.
    pub fn on(group: &Group, gpus: &[u32]) -> Result<Self, WorkerError> {
        Self::start(Some(group), &Script { gpus: gpus.to_vec(), ..Script::default() })
    }

    /// Opens GPUs, exits after `time`, and is reaped; gives the PID it had.
    pub fn flash(group: &Group, gpus: &[u32], time: Duration) -> Result<u32, WorkerError> {
        let script = Script { gpus: gpus.to_vec(), hold: Hold::For(time), ..Script::default() };
        let mut worker = Self::start(Some(group), &script)?;
        worker.child.wait().map_err(WorkerError::Start)?;
        Ok(worker.pid())
    }

    /// Its PID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The PIDs it forked: its children, or a storm's processes, which have exited.
    pub fn children(&self) -> &[u32] {
        &self.children
    }

    /// Moves it to another group, its children not.
    pub fn move_to(&self, group: &Group) -> Result<(), WorkerError> {
        for directory in &group.directories {
            fs::write(directory.join("cgroup.procs"), self.pid().to_string())
                .map_err(|source| WorkerError::Move { path: group.path.clone(), source })?;
        }
        Ok(())
    }

    /// Ends it; returns when it has been reaped.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself when told, after its children; the signal is for one that cannot. One
        // that has ended already is what was wanted.
        drop(self.reported.take());
        let pid = rustix::process::Pid::from_child(&self.child);
        let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .is_ok_and(|pidfd| readable(&pidfd, Timespec { tv_sec: 2, tv_nsec: 0 }));
        if !ended {
            let _gone = self.child.kill();
        }
        let _reaped = self.child.wait();
    }
}

fn first_line(mut out: ChildStdout) -> io::Result<String> {
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    while !said.ends_with(b"\n") {
        if !readable(&out, READY_WITHIN) {
            break;
        }
        match out.read(&mut chunk)? {
            0 => break,
            count => said.extend(chunk.iter().take(count)),
        }
    }
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Waits until a descriptor can be read, or is at its end.
fn readable(fd: &impl std::os::fd::AsFd, within: Timespec) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&within)).is_ok_and(|count| count > 0)
}

fn ready(said: &str, pid: u32) -> Result<Vec<u32>, WorkerError> {
    let pids = said.trim_end().strip_prefix(&format!("ready {pid}"));
    let children =
        pids.and_then(|pids| pids.split_whitespace().map(|pid| pid.parse().ok()).collect());
    children.ok_or_else(|| WorkerError::NotReady { said: said.to_owned() })
}
