//! The agent's end of a device reader child: starting it, talking to it under a deadline, and
//! letting go of it without force.

use super::wire::{Frame, Inbox, Outbox, Request, WireError};
use crate::paths::Paths;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to run as the child.
#[derive(Clone, Debug)]
pub(super) struct Program<'a> {
    /// The agent's own binary.
    pub(super) path: &'a Path,
    /// Name of the vendor.
    pub(super) vendor: &'static str,
    /// The library; empty for a vendor without one.
    pub(super) library: &'a Path,
    /// The host's directories.
    pub(super) paths: &'a Paths,
    /// The switches that are off.
    pub(super) off: &'a [String],
    /// Added to the environment.
    pub(super) environment: &'a [(OsString, OsString)],
    /// Whether it tells what happens on its standard output.
    pub(super) events: bool,
    /// Whether it gives up its capabilities and most system calls.
    pub(super) confined: bool,
    /// How long one device may keep the others waiting.
    pub(super) stall: Duration,
}

/// Why there is no child, or none any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// It could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The binary.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It could not be told from others.
    #[error("cannot watch the reader process: {0}")]
    Watch(#[source] io::Error),
    /// It no longer talks.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// A running child.
#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    inbox: Inbox,
    outbox: Outbox,
    leaving: ExitingChild,
    events: Option<ChildStdout>,
}

/// A child that was let go of.
#[derive(Debug)]
pub(super) struct ExitingChild {
    child: Child,
    gone: Arc<OwnedFd>,
}

impl Link {
    /// Starts a child.
    pub(super) fn start(program: &Program<'_>) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Start { program: program.path.to_owned(), source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(program.path);
        command.args(["device-reader", program.vendor]);
        if program.library != Path::new("") {
            command.arg("--library").arg(program.library);
        }
        if program.events {
            command.arg("--events");
        }
        for key in program.off {
            command.arg("--without").arg(key);
        }
        command.arg("--proc").arg(&program.paths.proc).arg("--sys").arg(&program.paths.sys);
        if !program.confined {
            command.arg("--unconfined");
        }
        command.arg("--stall-ms").arg(program.stall.as_millis().to_string());
        // The receiver's headers may be secrets; a vendor's library has no use for them.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"OTEL_") {
                command.env_remove(name);
            }
        }
        command.envs(program.environment.iter().map(|(name, value)| (name, value)));
        let reported = if program.events { Stdio::piped() } else { Stdio::null() };
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(reported);
        let mut child = command.spawn().map_err(failed)?;
        let events = child.stdout.take();
        match watch(&child) {
            Ok(gone) => {
                let leaving = ExitingChild { child, gone: Arc::new(gone) };
                let (inbox, outbox) = (Inbox::default(), Outbox::default());
                Ok(Self { socket: ours, inbox, outbox, leaving, events })
            }
            Err(error) => {
                drop((ours, command));
                reap(child);
                Err(LinkError::Watch(error))
            }
        }
    }

    /// Its PID.
    pub(super) fn pid(&self) -> u32 {
        self.leaving.child.id()
    }

    /// Where it tells what happens, once.
    pub(super) fn events(&mut self) -> Option<ChildStdout> {
        self.events.take()
    }

    /// What another thread needs to make it leave.
    pub(super) fn hangup(&self) -> Result<CloseHandle, LinkError> {
        let socket = self.socket.try_clone().map_err(LinkError::Watch)?;
        Ok(CloseHandle { socket, gone: Arc::clone(&self.leaving.gone) })
    }

    /// Asks.
    pub(super) fn send(&mut self, request: &Request) -> Result<(), LinkError> {
        Ok(self.outbox.send(&mut self.socket, request)?)
    }

    /// The next answer; `None` when there is none by the deadline.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Option<Frame>, LinkError> {
        loop {
            if let Some(frame) = self.inbox.take()? {
                return Ok(Some(frame));
            }
            let patience = deadline.saturating_duration_since(Instant::now());
            if !readable(&self.socket, patience).map_err(WireError::Socket)? {
                return Ok(None);
            }
            self.inbox.fill(&mut self.socket)?;
        }
    }

    /// Hangs up: the child closes the library and ends, unless a call hangs.
    pub(super) fn close(self) -> ExitingChild {
        // Also where a [`Hangup`] has the socket too. Fails only on one that is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.leaving
    }
}

impl ExitingChild {
    /// How it ended, if it has within the patience.
    pub(super) fn ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        // On an error of the wait itself `try_wait` still gives the truth.
        let _ = readable(&self.gone, patience);
        self.child.try_wait().ok().flatten()
    }

    /// Its PID.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Makes a child leave, from any thread.
#[derive(Debug)]
pub(super) struct CloseHandle {
    socket: UnixStream,
    gone: Arc<OwnedFd>,
}

impl CloseHandle {
    /// Hangs up and waits; true when the child is gone, and with it every handle it held.
    pub(super) fn hang_up(self, patience: Duration) -> bool {
        // Fails only on a socket that is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
        readable(&self.gone, patience).unwrap_or(false)
    }
}

/// A descriptor that becomes readable when the child ends.
fn watch(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(rustix::io::Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for a child whose socket was closed before it was asked anything.
fn reap(mut child: Child) {
    // An error means that there is no such child any more.
    let _ = child.wait();
}

/// Whether a file descriptor becomes readable in time.
fn readable(fd: &impl std::os::fd::AsFd, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
