//! One talk with a client: a request of one line, an answer of one line, a deadline for both.

use rustix::net::sockopt::socket_peercred;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A request is a few words.
const MAX_REQUEST_LEN: usize = 4096;
/// From being accepted to having taken the whole answer, less the time the answer took to make:
/// a client that reads or writes slowly is not waited for longer.
const DEADLINE: Duration = Duration::from_secs(2);

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The client is to write, or to read on.
    Waits,
    /// It is over, well or not.
    Ended,
}

/// A connection and who is behind it.
#[derive(Debug)]
pub(super) struct Talk {
    stream: UnixStream,
    /// Who connected, in the kernel's word.
    pub(super) uid: u32,
    /// Root or the agent's own user.
    pub(super) is_privileged: bool,
    until: Instant,
    received: Vec<u8>,
    is_asked: bool,
    answer: Option<Vec<u8>>,
    written: usize,
}

impl Talk {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let uid = socket_peercred(&stream)?.uid;
        let is_privileged = uid.is_root() || uid == rustix::process::geteuid();
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            uid: uid.as_raw(),
            is_privileged,
            until: Instant::now() + DEADLINE,
            received: Vec::new(),
            is_asked: false,
            answer: None,
            written: 0,
        })
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// When it is over at the latest.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// The request, once all of it is there and nothing was answered.
    pub(super) fn request(&self) -> Option<&[u8]> {
        (self.is_asked && self.answer.is_none()).then_some(&self.received)
    }

    /// Whether the client has not said what it wants.
    pub(super) fn is_silent(&self) -> bool {
        !self.is_asked
    }

    /// Whether the client is to read.
    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    /// Takes the answer, which took so long to make.
    pub(super) fn put(&mut self, answer: Vec<u8>, took: Duration) {
        self.until += took;
        self.answer = Some(answer);
    }

    /// Reads or writes what can be.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        if now >= self.until {
            return Step::Ended;
        }
        let step = if self.answer.is_none() { self.listen() } else { self.speak() };
        // A client that hung up is done with.
        step.unwrap_or(Step::Ended)
    }

    fn listen(&mut self) -> io::Result<Step> {
        let mut chunk = [0; 512];
        while !self.is_asked {
            match (&self.stream).read(&mut chunk) {
                // It has said all it wants to say.
                Ok(0) => self.is_asked = true,
                Ok(count) => {
                    let new = chunk.get(..count).unwrap_or_default();
                    self.received.extend_from_slice(new);
                    self.is_asked = new.contains(&b'\n') || self.received.len() >= MAX_REQUEST_LEN;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Waits),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Step::Waits)
    }

    fn speak(&mut self) -> io::Result<Step> {
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
