//! The agent's end of a device reader child: starts it, exchanges frames under a deadline, and
//! closes the connection without killing it.

use super::wire::{Frame, Inbox, Outbox, Request, WireError};
use gpuwho_collect::snapshot::HangUp;
use gpuwho_model::paths::Paths;
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
    /// Whether the child sends events on its standard output.
    pub(super) events: bool,
    /// Whether the child drops its capabilities and most system calls.
    pub(super) confined: bool,
    /// How long one device may delay the others.
    pub(super) stall: Duration,
}

/// Why no child is running.
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
    /// Its pidfd or its socket could not be opened.
    #[error("cannot watch the reader process: {0}")]
    Watch(#[source] io::Error),
    /// The socket failed or carried a malformed frame.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// A running child.
#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    inbox: Inbox,
    outbox: Outbox,
    exiting_child: ExitingChild,
    events: Option<ChildStdout>,
}

/// A child whose socket is closed.
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
        // The OTLP headers may be secrets; a vendor's library has no use for them.
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
                let exiting_child = ExitingChild { child, gone: Arc::new(gone) };
                let (inbox, outbox) = (Inbox::default(), Outbox::default());
                Ok(Self { socket: ours, inbox, outbox, exiting_child, events })
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
        self.exiting_child.child.id()
    }

    /// The child's event stream; `Some` on the first call only.
    pub(super) fn events(&mut self) -> Option<ChildStdout> {
        self.events.take()
    }

    /// A handle by which another thread can close the child.
    pub(super) fn hangup(&self) -> Result<CloseHandle, LinkError> {
        let socket = self.socket.try_clone().map_err(LinkError::Watch)?;
        Ok(CloseHandle { socket, gone: Arc::clone(&self.exiting_child.gone) })
    }

    /// Sends a request.
    pub(super) fn send(&mut self, request: &Request) -> Result<(), LinkError> {
        Ok(self.outbox.send(&mut self.socket, request)?)
    }

    /// The next answer; `None` at the deadline.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Option<Frame>, LinkError> {
        loop {
            if let Some(frame) = self.inbox.take()? {
                return Ok(Some(frame));
            }
            let timeout = deadline.saturating_duration_since(Instant::now());
            if !readable(&self.socket, timeout).map_err(WireError::Socket)? {
                return Ok(None);
            }
            self.inbox.fill(&mut self.socket)?;
        }
    }

    /// Closes the socket: the child closes the library and exits, unless a call hangs.
    pub(super) fn close(self) -> ExitingChild {
        // Shuts down the duplicate in a [`CloseHandle`] too. Fails only on a socket that is already
        // closed.
        let _ = self.socket.shutdown(Shutdown::Both);
        self.exiting_child
    }
}

impl ExitingChild {
    /// The exit status, if the child exits within `timeout`.
    pub(super) fn ended(&mut self, timeout: Duration) -> Option<ExitStatus> {
        // If the wait itself fails, `try_wait` still gives the state.
        let _ = readable(&self.gone, timeout);
        self.child.try_wait().ok().flatten()
    }

    /// Its PID.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Closes a child from any thread.
#[derive(Debug)]
pub(super) struct CloseHandle {
    socket: UnixStream,
    gone: Arc<OwnedFd>,
}

impl CloseHandle {
    /// The same for a reader's [`Control`](gpuwho_collect::snapshot::Control).
    pub(super) fn boxed(self) -> HangUp {
        Box::new(|timeout| self.hang_up(timeout))
    }

    /// Closes the socket and waits; true if the child has exited and so closed every handle.
    pub(super) fn hang_up(self, timeout: Duration) -> bool {
        // Fails only on a socket that is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
        readable(&self.gone, timeout).unwrap_or(false)
    }
}

/// Opens a pidfd, which becomes readable when the child exits.
fn watch(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(rustix::io::Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for a child whose socket was closed before the first request.
fn reap(mut child: Child) {
    // An error means that the child is already reaped.
    let _ = child.wait();
}

/// Whether a file descriptor becomes readable within `timeout`.
pub(super) fn readable(fd: &impl std::os::fd::AsFd, timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + timeout;
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
