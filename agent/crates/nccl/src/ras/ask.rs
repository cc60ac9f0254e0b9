//! Queries one of NCCL's status sockets: a few lines each way, then one document, and the socket is
//! closed. A tenant's process listens there: everything that it sends is limited in length and
//! time. Between the greeting and the query there is time to identify the sender.

use super::answer::{Answer, LocalNames, MAX_ENTRIES};
use super::json::{JsonError, from_json};
use gpuwho_model::catalog::nccl::RasOutcome;
use gpuwho_sys::{memory, namespace};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Timeout of a connection on the same host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long NCCL waits for its own processes, in seconds; the default of NCCL's own client.
const NCCL_TIMEOUT_SECONDS: u64 = 5;
/// Timeout of the first lines, which NCCL answers at once. The kernel may have given the connection
/// to a stopped process: then another one that shares the port may answer.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of the rest: twice NCCL's own, because it queries along a chain.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
/// Limit of one line of the handshake.
const MAX_LINE_BYTES: u64 = 512;
/// Limit of a document, which is parsed as it arrives and never stored. A rank takes about 730
/// bytes in each of its communicators: 7,000 processes with six communicators each have 31 MB. The
/// answer of a larger job is rejected and counted as too long.
const MAX_BYTES: u64 = 32 << 20;
/// After a longer document, free memory is returned to the system.
const LARGE: u64 = 1 << 20;

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
    #[error("the answer has more than {MAX_BYTES} bytes, or more than {MAX_ENTRIES} ranks")]
    TooLong,
    #[error("a process that is not known to listen has answered")]
    UnknownServer,
    #[error("`{0}` is not an answer of NCCL")]
    NotNccl(String),
    #[error("the answer has an unknown format: {0}")]
    NotUnderstood(String),
    #[error(
        "NCCL is too old: it answers in text, which is not read (JSON is known from 2.28.7 on)"
    )]
    TooOld,
}

impl AskError {
    /// The catalogue's outcome.
    pub(super) fn outcome(&self) -> RasOutcome {
        match self {
            Self::Namespace(_) | Self::Connect { .. } => RasOutcome::Unreachable,
            Self::Late | Self::Broken(_) => RasOutcome::Late,
            Self::TooLong => RasOutcome::TooLong,
            Self::UnknownServer => RasOutcome::UnknownServer,
            Self::NotNccl(_) | Self::NotUnderstood(_) | Self::TooOld => RasOutcome::NotUnderstood,
        }
    }
}

/// An open conversation.
pub(super) struct Talk {
    reader: BufReader<Limited>,
}

/// Connects to an address, in the network namespace `network` if that is not the agent's own, and
/// exchanges greetings. Times out at `until` or earlier.
pub(super) fn greet(
    at: SocketAddr,
    network: Option<&File>,
    until: Instant,
) -> Result<Talk, AskError> {
    let within = until.saturating_duration_since(Instant::now()).min(CONNECT_TIMEOUT);
    if within.is_zero() {
        return Err(AskError::Late);
    }
    let connect = || TcpStream::connect_timeout(&at, within);
    let stream = match network {
        None => connect().map_err(|source| AskError::Connect { at, source })?,
        Some(network) => {
            let connected = namespace::in_network(network, || Ok(connect()));
            let connected = connected.map_err(AskError::Namespace)?;
            connected.map_err(|source| AskError::Connect { at, source })?
        }
    };
    Talk::begin(stream, until.min(Instant::now() + GREETING_TIMEOUT), MAX_BYTES)
}

impl Talk {
    fn begin(stream: TcpStream, until: Instant, left: u64) -> Result<Self, AskError> {
        let reader = BufReader::new(Limited { stream, until, left });
        let mut talk = Self { reader };
        let hello = talk.exchange("CLIENT PROTOCOL 2")?;
        if !hello.starts_with("SERVER PROTOCOL ") {
            return Err(AskError::NotNccl(shown(&hello)));
        }
        talk.exchange(&format!("TIMEOUT {NCCL_TIMEOUT_SECONDS}"))?;
        // A library without formats would answer in text: it is not asked.
        if talk.exchange("SET FORMAT json")? == "OK" { Ok(talk) } else { Err(AskError::TooOld) }
    }

    /// Both ends of the connection, the server's first.
    pub(super) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let stream = &self.reader.get_ref().stream;
        Some((stream.peer_addr().ok()?, stream.local_addr().ok()?))
    }

    /// Queries the status; times out at `until` or earlier.
    pub(super) fn status(mut self, until: Instant, here: &LocalNames) -> Result<Answer, AskError> {
        self.reader.get_mut().until = until.min(Instant::now() + ANSWER_TIMEOUT);
        self.send("VERBOSE STATUS")?;
        self.json(here)
    }

    fn send(&mut self, line: &str) -> Result<(), AskError> {
        let stream = &mut self.reader.get_mut().stream;
        // Some bytes into an empty buffer; a peer that accepts none is broken.
        let sent = stream.set_write_timeout(Some(CONNECT_TIMEOUT));
        sent.and_then(|()| stream.write_all(format!("{line}\n").as_bytes())).map_err(failed)
    }

    fn exchange(&mut self, line: &str) -> Result<String, AskError> {
        self.send(line)?;
        let mut answer = Vec::new();
        let mut limited = self.reader.by_ref().take(MAX_LINE_BYTES);
        limited.read_until(b'\n', &mut answer).map_err(failed)?;
        let text = String::from_utf8_lossy(&answer);
        let Some(line) = text.strip_suffix('\n') else {
            return Err(AskError::NotNccl(shown(&text)));
        };
        Ok(line.trim_end().to_owned())
    }

    fn json(mut self, here: &LocalNames) -> Result<Answer, AskError> {
        let left = self.reader.get_ref().left;
        let read = from_json(&mut self.reader, here);
        if left - self.reader.get_ref().left > LARGE {
            memory::give_back();
        }
        read.map_err(|error| match error {
            JsonError::TooMany => AskError::TooLong,
            JsonError::Json(error) => match error.io_error_kind() {
                Some(io::ErrorKind::FileTooLarge) => AskError::TooLong,
                Some(io::ErrorKind::InvalidData) | None => {
                    AskError::NotUnderstood(shown(&error.to_string()))
                }
                Some(_) => failed(error.into()),
            },
        })
    }
}

fn failed(error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => AskError::TooLong,
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Late,
        _ => AskError::Broken(error),
    }
}

/// A short, printable part of received text, for a log.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').take(64).collect()
}

/// A stream with a deadline and a byte limit.
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
mod tests;
