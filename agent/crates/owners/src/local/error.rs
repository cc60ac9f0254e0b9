//! The cause of a failed call over a local socket, and the remedy.

use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::status::Report;
use hyper::StatusCode;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::{Code, Status};

/// Longest part of the server's message that is reported.
const MESSAGE_CHARS: usize = 200;

/// A failed call: the socket, the call and the cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {call}: {cause}", socket.display())]
pub(crate) struct LocalError {
    /// The socket.
    pub(crate) socket: PathBuf,
    /// The method or the path.
    pub(crate) call: String,
    /// The cause.
    pub(crate) cause: Cause,
}

/// The cause of a failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cause {
    /// There is no such socket.
    #[error("there is no such socket")]
    Absent,
    /// The socket exists, but no process listens on it.
    #[error("no process listens")]
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
    /// The requested resource does not exist.
    #[error("not found")]
    NotFound,
    /// The answer exceeds the bound.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The server answered with an error.
    #[error("answered {status}: {message}")]
    Answered {
        /// Its code.
        status: String,
        /// Its message.
        message: String,
    },
    /// The answer does not follow the protocol.
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

    /// Finds the cause of a failed connection or exchange.
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

    /// Whether no server is there: the caller tries such a socket again every few seconds.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.cause, Cause::Absent | Cause::Refused)
    }

    /// The status of the source behind the socket; one that answered before has failed and is not
    /// absent.
    pub(crate) fn report_after(&self, answered: bool) -> Report {
        if answered && self.is_absent() {
            let remedy = "start the server of this socket; the agent keeps the last answers";
            let (socket, call) = (self.socket.display(), &self.call);
            let reason = format!("{socket}: {call}: not answering ({})", self.cause);
            return Report::of(SourceState::Failed, reason, remedy);
        }
        self.report()
    }

    /// The status of the source behind the socket.
    pub(crate) fn report(&self) -> Report {
        let (state, remedy) = match &self.cause {
            Cause::Absent => (SourceState::Absent, ""),
            Cause::Refused => {
                (SourceState::Absent, "start the server of this socket, or remove the file")
            }
            Cause::Denied => (
                SourceState::Failed,
                "run the agent as root, or let its user connect to the socket",
            ),
            Cause::TimedOut(_) => (
                SourceState::Hung,
                "see the log of this socket's server; the agent continues without it",
            ),
            Cause::Unimplemented => {
                (SourceState::Failed, "check that the socket is the right one; update its server")
            }
            Cause::TooLarge(_) | Cause::NotFound | Cause::Answered { .. } => {
                (SourceState::Failed, "see the log of this socket's server")
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

/// The server's message in one line, with a bounded length.
fn message(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS).collect();
    if text.is_empty() { "no reason given".to_owned() } else { text }
}
