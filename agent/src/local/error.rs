//! Why a call over a local socket failed, and what the operator can do about it.

use crate::catalog::agent::SourceState;
use crate::collect::status::Report;
use hyper::StatusCode;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::{Code, Status};

/// Longest part of the other side's own message that is repeated.
const MESSAGE_CHARS: usize = 200;

/// What was called, on which socket, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {call}: {cause}", socket.display())]
pub(crate) struct LocalError {
    /// The socket.
    pub(crate) socket: PathBuf,
    /// The method or the path.
    pub(crate) call: String,
    /// What happened.
    pub(crate) cause: Cause,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    /// There is no such socket.
    #[error("there is no such socket")]
    Absent,
    /// The file is there and nobody listens.
    #[error("nobody listens")]
    Refused,
    /// The agent may not connect.
    #[error("permission denied")]
    Denied,
    /// No answer in time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The server does not have the method.
    #[error("not implemented there")]
    Unimplemented,
    /// What was asked for is not there.
    #[error("not found")]
    NotFound,
    /// The answer is larger than any true one.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The server answered with an error.
    #[error("answered {status}: {message}")]
    Answered {
        /// Its code.
        status: String,
        /// Its words.
        message: String,
    },
    /// The answer is not what the protocol says.
    #[error("cannot read the answer ({0})")]
    Garbled(String),
    /// The connection broke, or the other side does not speak the protocol.
    #[error("connection lost ({0})")]
    Lost(String),
}

impl LocalError {
    fn new(socket: &Path, call: &str, cause: Cause) -> Self {
        Self { socket: socket.to_owned(), call: call.to_owned(), cause }
    }

    pub(super) fn late(socket: &Path, call: &str, deadline: Duration) -> Self {
        Self::new(socket, call, Cause::TimedOut(deadline))
    }

    pub(super) fn too_large(socket: &Path, call: &str, limit: usize) -> Self {
        Self::new(socket, call, Cause::TooLarge(limit))
    }

    pub(crate) fn garbled(socket: &Path, call: &str, error: &dyn Error) -> Self {
        Self::new(socket, call, Cause::Garbled(message(&error.to_string())))
    }

    /// Reads the cause off a failed connection or exchange.
    pub(super) fn of(socket: &Path, call: &str, error: &(dyn Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut current = Some(error);
        while let Some(error) = current {
            text = error.to_string();
            if let Some(cause) = error.downcast_ref::<io::Error>().and_then(of_io) {
                return Self::new(socket, call, cause);
            }
            current = error.source();
        }
        Self::new(socket, call, Cause::Lost(message(&text)))
    }

    pub(super) fn of_status(socket: &Path, call: &str, status: &Status) -> Self {
        if let Some(source) = status.source() {
            return Self::of(socket, call, source);
        }
        let cause = match status.code() {
            Code::Unimplemented => Cause::Unimplemented,
            Code::NotFound => Cause::NotFound,
            Code::PermissionDenied => Cause::Denied,
            Code::OutOfRange => Cause::TooLarge(super::ANSWER_BYTES),
            code => {
                Cause::Answered { status: format!("{code:?}"), message: message(status.message()) }
            }
        };
        Self::new(socket, call, cause)
    }

    pub(super) fn of_http(socket: &Path, path: &str, status: StatusCode, body: &[u8]) -> Self {
        let cause = match status {
            StatusCode::NOT_FOUND => Cause::NotFound,
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Cause::Denied,
            status => Cause::Answered {
                status: status.to_string(),
                message: message(&String::from_utf8_lossy(body)),
            },
        };
        Self::new(socket, path, cause)
    }

    /// Whether nobody is there to answer: a socket that is worth a look every few seconds.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.cause, Cause::Absent | Cause::Refused)
    }

    /// How the source behind the socket stands; one that answered before is not absent but does not
    /// answer.
    pub(crate) fn report_after(&self, answered: bool) -> Report {
        if answered && self.is_away() {
            let remedy = "start what serves this socket; what it said stays known";
            let (socket, call) = (self.socket.display(), &self.call);
            let reason = format!("{socket}: {call}: not answering ({})", self.cause);
            return Report::of(SourceState::Failed, reason, remedy);
        }
        self.report()
    }

    /// How the source behind the socket stands, for the board.
    pub(crate) fn report(&self) -> Report {
        let (state, remedy) = match &self.cause {
            Cause::Absent => (SourceState::Absent, ""),
            Cause::Refused => (SourceState::Absent, "start what serves this socket, or remove it"),
            Cause::Denied => (
                SourceState::Failed,
                "run the agent as root, or let its user connect to the socket",
            ),
            Cause::TimedOut(_) => (
                SourceState::Hung,
                "look at the log of what serves this socket; the agent goes on without it",
            ),
            Cause::Unimplemented => {
                (SourceState::Failed, "check that the socket is the right one; update its server")
            }
            Cause::TooLarge(_) | Cause::NotFound | Cause::Answered { .. } => {
                (SourceState::Failed, "look at the log of what serves this socket")
            }
            Cause::Garbled(_) | Cause::Lost(_) => {
                (SourceState::Failed, "check that the socket is the right one")
            }
        };
        Report::of(state, self.to_string(), remedy)
    }
}

fn of_io(error: &io::Error) -> Option<Cause> {
    match error.kind() {
        io::ErrorKind::NotFound => Some(Cause::Absent),
        io::ErrorKind::ConnectionRefused => Some(Cause::Refused),
        io::ErrorKind::PermissionDenied => Some(Cause::Denied),
        _ => None,
    }
}

/// The other side's words, in one line and bounded.
fn message(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS).collect();
    if text.is_empty() { "no reason given".to_owned() } else { text }
}
