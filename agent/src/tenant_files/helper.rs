//! The agent's end of a helper: starting it, asking it under a deadline, ending it.

use super::wire::{Answer, Reply, Request, WireError, receive, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A helper that runs.
#[derive(Debug)]
pub(super) struct Helper {
    socket: OwnedFd,
    child: Child,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// Not in time.
    #[error("no answer in time")]
    Late,
    /// It no longer talks.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl Helper {
    /// Starts one. Only its socket is inherited: it ends when the agent does.
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

    /// Asks and waits for the answer.
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
        let patience = deadline.saturating_duration_since(Instant::now());
        if !self.has_answer(patience) {
            return Err(AskError::Late);
        }
        Ok(self.receive()?)
    }

    /// Whether there is something to receive within the time, if only the helper's end.
    pub(super) fn has_answer(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
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

    /// The answer that is there.
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

    /// Kills it; inside the kernel it may stay all the same.
    pub(super) fn kill(&mut self) {
        // It fails only on one that has been waited for.
        let _ = self.child.kill();
    }

    /// Waits for the end of one that was killed and hangs nowhere.
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
        // One that hangs in the kernel is reaped by whoever reaps the agent.
        let _ = self.child.try_wait();
    }
}
