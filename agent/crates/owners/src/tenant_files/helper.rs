//! The agent's end of a helper: starts it, sends requests under a deadline, ends it.

use super::wire::{Answer, Reply, Request, WireError, receive, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running helper.
#[derive(Debug)]
pub(super) struct Helper {
    socket: OwnedFd,
    child: Child,
}

/// Why a helper did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// It missed the deadline.
    #[error("no answer in time")]
    Late,
    /// The socket failed.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl Helper {
    /// Starts a helper. It inherits only its socket, and ends when the agent closes the socket.
    pub(super) fn start(program: &Path, proc: &Path) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let child = Command::new(program)
            .arg0("gpuwho")
            .arg("file-reader")
            .arg("--proc")
            .arg(proc)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { socket: ours, child })
    }

    /// Sends a request and waits for the answer.
    pub(super) fn ask(
        &self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<Reply, AskError> {
        match send(self.socket.as_fd(), request, &[], passed) {
            Err(WireError::Descriptors(error)) => return Ok(Reply::failed(error)),
            sent => sent?,
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        if !self.has_answer(timeout) {
            return Err(AskError::Late);
        }
        Ok(self.receive()?)
    }

    /// Whether something can be received within the time; the helper's end counts.
    pub(super) fn has_answer(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(timeout) = Timespec::try_from(left) else { return false };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Receives an answer.
    pub(super) fn receive(&self) -> Result<Reply, WireError> {
        match receive::<Answer>(self.socket.as_fd()) {
            Ok((answer, bytes, descriptors)) => Ok(Reply { answer, bytes, descriptors }),
            Err(WireError::Descriptors(error)) => Ok(Reply::failed(error)),
            Err(error) => Err(error),
        }
    }

    /// Its PID.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it. A helper that hangs in the kernel may not end.
    pub(super) fn kill(&mut self) {
        // It fails only on one that has been waited for.
        let _ = self.child.kill();
    }

    /// Waits for the end of a killed helper that does not hang in the kernel.
    pub(super) fn wait(&mut self) {
        // It fails only on one that has been waited for.
        let _ = self.child.wait();
    }

    /// Whether it has ended; reaps it then.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
        // If it hangs in the kernel, the process that reaps the agent reaps it.
        let _ = self.child.try_wait();
    }
}
