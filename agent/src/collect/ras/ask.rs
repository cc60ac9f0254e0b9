//! Asking one of NCCL's status sockets: a few lines each way, then one document, and the socket is
//! closed. What listens there is part of somebody's job: everything it sends has a limit in length
//! and in time.

use super::answer::{Answer, from_json};
use super::text::from_text;
use crate::catalog::nccl::RasOutcome;
use crate::sys::namespace;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// For a connection on the same host.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// What NCCL is told to wait for its own processes: what its client tells it too.
const NCCL_WAITS: u64 = 5;
/// For the first lines, which NCCL answers at once. The kernel may have given the connection to a
/// process that is stopped: then another one of those that share the port will answer.
const GREETS_WITHIN: Duration = Duration::from_secs(3);
/// For everything after: NCCL's wait, twice over, since it asks along a chain.
const WITHIN: Duration = Duration::from_secs(12);
/// Of one line of the handshake.
const MOST_LINE: u64 = 512;
/// Of a document; read as it comes, so that it is never all in memory. Ten communicators of 4,096
/// ranks have 30 MB.
const MOST_BYTES: u64 = 64 << 20;
/// Of a document as text, which is short and read whole.
const MOST_TEXT: u64 = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("cannot enter the network of the process: {0}")]
    Namespace(io::Error),
    #[error("cannot connect to {at}: {source}")]
    Connect { at: SocketAddr, source: io::Error },
    #[error("no whole answer in time")]
    Late,
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    #[error("the answer is longer than any job's")]
    TooLong,
    #[error("`{0}` is no answer of NCCL's")]
    NotNccl(String),
    #[error("the answer is of a form that is not known: {0}")]
    NotUnderstood(String),
}

impl AskError {
    /// The catalogue's word.
    pub(super) fn outcome(&self) -> RasOutcome {
        match self {
            Self::Namespace(_) | Self::Connect { .. } => RasOutcome::Unreachable,
            Self::Late | Self::Broken(_) => RasOutcome::Late,
            Self::TooLong => RasOutcome::TooLong,
            Self::NotNccl(_) | Self::NotUnderstood(_) => RasOutcome::NotUnderstood,
        }
    }
}

/// Asks what listens at an address, in the network namespace of `network` where that is not the
/// agent's own.
pub(super) fn ask(at: SocketAddr, network: Option<&File>) -> Result<Answer, AskError> {
    let connect = || TcpStream::connect_timeout(&at, CONNECT_WITHIN);
    let stream = match network {
        None => connect().map_err(|source| AskError::Connect { at, source })?,
        Some(network) => {
            let connected = namespace::in_network(network, || Ok(connect()));
            let connected = connected.map_err(AskError::Namespace)?;
            connected.map_err(|source| AskError::Connect { at, source })?
        }
    };
    converse(stream, (GREETS_WITHIN, WITHIN), MOST_BYTES)
}

fn converse(
    stream: TcpStream,
    (greeting, all): (Duration, Duration),
    left: u64,
) -> Result<Answer, AskError> {
    let until = Instant::now() + greeting;
    let mut talk = Talk { reader: BufReader::new(Limited { stream, until, left }) };
    let hello = talk.say("CLIENT PROTOCOL 2")?;
    if !hello.starts_with("SERVER PROTOCOL ") {
        return Err(AskError::NotNccl(shown(&hello)));
    }
    talk.say(&format!("TIMEOUT {NCCL_WAITS}"))?;
    let is_json = talk.say("SET FORMAT json")? == "OK";
    talk.reader.get_mut().until = Instant::now() + all;
    talk.send("VERBOSE STATUS")?;
    if is_json { talk.json() } else { talk.text() }
}

struct Talk {
    reader: BufReader<Limited>,
}

impl Talk {
    fn send(&mut self, line: &str) -> Result<(), AskError> {
        let stream = &mut self.reader.get_mut().stream;
        // Some bytes into an empty buffer; a peer that takes none is broken.
        let sent = stream.set_write_timeout(Some(CONNECT_WITHIN));
        sent.and_then(|()| stream.write_all(format!("{line}\n").as_bytes())).map_err(failed)
    }

    fn say(&mut self, line: &str) -> Result<String, AskError> {
        self.send(line)?;
        let mut answer = Vec::new();
        let mut limited = self.reader.by_ref().take(MOST_LINE);
        limited.read_until(b'\n', &mut answer).map_err(failed)?;
        let text = String::from_utf8_lossy(&answer);
        let Some(line) = text.strip_suffix('\n') else {
            return Err(AskError::NotNccl(shown(&text)));
        };
        Ok(line.trim_end().to_owned())
    }

    fn json(self) -> Result<Answer, AskError> {
        from_json(self.reader).map_err(|error| match error.io_error_kind() {
            Some(io::ErrorKind::FileTooLarge) => AskError::TooLong,
            Some(_) => failed(error.into()),
            None => AskError::NotUnderstood(error.to_string()),
        })
    }

    fn text(self) -> Result<Answer, AskError> {
        let mut bytes = Vec::new();
        self.reader.take(MOST_TEXT + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MOST_TEXT {
            return Err(AskError::TooLong);
        }
        let text = String::from_utf8_lossy(&bytes);
        let first = || shown(text.lines().next().unwrap_or_default());
        from_text(&text).ok_or_else(|| AskError::NotUnderstood(first()))
    }
}

fn failed(error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => AskError::TooLong,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Late,
        _ => AskError::Broken(error),
    }
}

/// A little of what a stranger said, fit for a log.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').take(64).collect()
}

/// A stream that ends at a moment and after so many bytes.
struct Limited {
    stream: TcpStream,
    until: Instant,
    left: u64,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let wait = self.until.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(wait))?;
        let read = self.stream.read(buffer)?;
        self.left = self.left.saturating_sub(read as u64);
        Ok(read)
    }
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
