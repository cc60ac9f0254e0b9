//! One client's connection: a request of one line, an answer of one line, one deadline for both.

use rustix::net::sockopt::socket_peercred;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Largest request in bytes.
const MAX_REQUEST_LEN: usize = 4096;
/// Time from accepting a connection to the end of the answer, without the time to make the answer.
/// It bounds how long a slow client is served.
const DEADLINE: Duration = Duration::from_secs(2);

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The client has to send or to receive.
    Waits,
    /// The connection is over, with or without success.
    Ended,
}

/// A connection and its user.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    /// The user who connected, according to the kernel.
    pub(super) uid: u32,
    /// The process that connected; 0 where it is in no namespace that the agent sees.
    pub(super) pid: i32,
    /// Whether it is root or the agent's own user.
    pub(super) is_privileged: bool,
    until: Instant,
    received: Vec<u8>,
    is_complete: bool,
    answer: Option<Vec<u8>>,
    written: usize,
}

impl Client {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let peer = socket_peercred(&stream)?;
        let uid = peer.uid;
        let is_privileged = uid.is_root() || uid == rustix::process::geteuid();
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            uid: uid.as_raw(),
            pid: peer.pid.as_raw_nonzero().get(),
            is_privileged,
            until: Instant::now() + DEADLINE,
            received: Vec::new(),
            is_complete: false,
            answer: None,
            written: 0,
        })
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The deadline.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The complete request, until it is answered.
    pub(super) fn request(&self) -> Option<&[u8]> {
        (self.is_complete && self.answer.is_none()).then_some(&self.received)
    }

    /// Whether the client has not sent its request.
    pub(super) fn is_silent(&self) -> bool {
        !self.is_complete
    }

    /// Whether there is an answer for the client to receive.
    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    /// Sets the answer, and extends the deadline by the time it took to make.
    pub(super) fn put(&mut self, answer: Vec<u8>, took: Duration) {
        self.until += took;
        self.answer = Some(answer);
    }

    /// Reads or writes as far as possible without blocking.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        if now >= self.until {
            return Step::Ended;
        }
        let step = if self.answer.is_none() { self.receive() } else { self.send() };
        // The client has closed the connection.
        step.unwrap_or(Step::Ended)
    }

    fn receive(&mut self) -> io::Result<Step> {
        let mut chunk = [0; 512];
        while !self.is_complete {
            match (&self.stream).read(&mut chunk) {
                // The client has closed its sending side.
                Ok(0) => self.is_complete = true,
                Ok(count) => {
                    let new = chunk.get(..count).unwrap_or_default();
                    self.received.extend_from_slice(new);
                    self.is_complete =
                        new.contains(&b'\n') || self.received.len() >= MAX_REQUEST_LEN;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Step::Waits)
    }

    fn send(&mut self) -> io::Result<Step> {
        let Some(answer) = &self.answer else { return Ok(Step::Waits) };
        loop {
            let rest = answer.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(Step::Ended);
            }
            match (&self.stream).write(rest) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
