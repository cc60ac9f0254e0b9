//! The agent's own sockets: who is on each device, on one for everybody; `release`, `resume` and
//! `forget` on one for root and the agent's own user.
//!
//! A request is one line of JSON, the answer is one line of JSON.

mod lock;
mod server;
mod talk;

pub use lock::{Lock, LockError};
pub use server::{Access, serve};

use crate::event::recent::EventReport;
use crate::who::HostReport;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The name in the run directory of the socket for everybody.
pub const SOCKET: &str = "gpuwho.sock";
/// That of the socket for root and the agent's own user.
pub const ADMIN_SOCKET: &str = "gpuwho-admin.sock";
/// Who may connect to the socket for everybody, unless `paths.socket_mode` says otherwise.
pub const USUAL_MODE: u32 = 0o666;

/// How long a client waits for the answer: a release waits for the readers to close their handles.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Before a client asks again whose turn it was not.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Who is on each device.
    Who,
    /// The last events.
    Events,
    /// Close every device handle for a while.
    Release {
        /// How long, before the agent comes back by itself.
        seconds: u64,
    },
    /// Come back now.
    Resume,
    /// Miss a device no longer that is gone.
    Forget {
        /// The device.
        uuid: String,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Who`].
    Who {
        /// The table.
        who: Box<HostReport>,
    },
    /// To [`Request::Events`].
    Events {
        /// Those that the client may see.
        events: Box<EventReport>,
    },
    /// Done.
    Done {
        /// What was done.
        message: String,
    },
    /// Not done.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// Too many ask at once: ask again.
    Busy,
}

/// Why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another agent answers on it.
    #[error("another gpuwho agent is running on {path}; stop it first, or set paths.run")]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// It cannot be made.
    #[error("cannot listen on {path}: {source}")]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others are being answered.
    #[error("the agent on {path} is answering too many others; try again")]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// Nobody listens.
    #[error("no gpuwho agent answers on {path}: {source}; start one with `gpuwho agent`")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is there and says nothing.
    #[error("the agent on {path} (process {pid}) does not answer; it is stopped or stuck")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The agent.
        pid: i32,
    },
    /// The answer did not come or cannot be read.
    #[error("the agent on {path} gave no usable answer: {source}")]
    Answer {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What the socket's requests are answered with.
pub trait Answer: Send + Sync {
    /// The table, now.
    fn who(&self) -> HostReport;
    /// The last events as a user may see them; all of them without one.
    fn events(&self, viewer: Option<u32>) -> EventReport;
    /// Lets go of the devices; gives what was done.
    fn release(&self, length: Duration) -> String;
    /// Takes them again.
    fn resume(&self) -> String;
    /// Remembers a device no longer; gives what was done, or why not.
    fn forget(&self, uuid: &str) -> Result<String, String>;
}

/// What the operator has said about the socket for everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its mode.
    pub mode: u32,
    /// Everybody is told whose all processes are.
    pub show_others: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mode: USUAL_MODE, show_others: false }
    }
}

/// Makes the sockets in `run`, that for everybody first; those that a dead agent left are replaced.
pub fn listen(run: &Path, settings: Settings) -> Result<[UnixListener; 2], ControlError> {
    let public = run.join(SOCKET);
    if UnixStream::connect(&public).is_ok() {
        return Err(ControlError::InUse { path: public });
    }
    let make = |path: PathBuf, mode| {
        let make = || {
            fs::create_dir_all(run)?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
            Ok(listener)
        };
        make().map_err(|source| ControlError::Listen { path: path.clone(), source })
    };
    Ok([make(public, settings.mode)?, make(run.join(ADMIN_SOCKET), 0o600)?])
}

/// Asks the agent behind `socket`.
pub fn ask(socket: &Path, request: &Request) -> Result<Reply, ControlError> {
    ask_within(socket, request, CLIENT_PATIENCE)
}

/// The same, which waits for an answer no longer than this.
pub fn ask_within(
    socket: &Path,
    request: &Request,
    patience: Duration,
) -> Result<Reply, ControlError> {
    let until = Instant::now() + patience;
    loop {
        let reply = ask_once(socket, request, until)?;
        if reply != Reply::Busy {
            return Ok(reply);
        }
        if Instant::now() >= until {
            return Err(ControlError::Busy { path: socket.into() });
        }
        thread::sleep(ASK_AGAIN);
    }
}

fn ask_once(socket: &Path, request: &Request, until: Instant) -> Result<Reply, ControlError> {
    let stream = UnixStream::connect(socket)
        .map_err(|source| ControlError::Connect { path: socket.into(), source })?;
    let exchange = || {
        let left = until.saturating_duration_since(Instant::now()).max(ASK_AGAIN);
        stream.set_read_timeout(Some(left))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        // An agent that is too busy answers before it is asked, and hangs up.
        let sent = (&stream).write_all(&text);
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        if line.is_empty() {
            sent?;
        }
        serde_json::from_str(&line).map_err(io::Error::from)
    };
    exchange().map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            // Whoever called listen().
            let pid = socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
            ControlError::Silent { path: socket.into(), pid }
        }
        _ => ControlError::Answer { path: socket.into(), source },
    })
}

#[cfg(test)]
mod tests;
