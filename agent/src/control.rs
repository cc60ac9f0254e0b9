//! The agent's own sockets: a public one for the table of devices and processes, and one for root
//! and the agent's own user for `release`, `resume` and `forget`.
//!
//! A request is one line of JSON, the answer is one line of JSON.

mod client;
mod lock;
mod server;

pub use lock::{Lock, LockError};
pub use server::{Access, serve};

use crate::who::HostReport;
use gpuwho_pipeline::cost::receipts::ReceiptReport;
use gpuwho_pipeline::event::recent::EventReport;
use gpuwho_pipeline::health::report::HealthReport;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the public socket in the run directory.
pub const SOCKET: &str = "gpuwho.sock";
/// Name of the socket for root and the agent's own user.
pub const ADMIN_SOCKET: &str = "gpuwho-admin.sock";
/// Default mode of the public socket (`paths.socket_mode`).
pub const DEFAULT_MODE: u32 = 0o666;

/// How long a client waits for the answer: a release waits for the readers to close their handles.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a client repeats a request after [`Reply::Busy`].
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Devices and their processes.
    Who,
    /// The last events.
    Events,
    /// The health of the devices.
    Health,
    /// What a job, pod or unit had of the devices.
    Receipt {
        /// Its name.
        name: String,
    },
    /// Close every device handle for a time.
    Release {
        /// Seconds after which the agent opens the devices again.
        seconds: u64,
    },
    /// Open the devices again now.
    Resume,
    /// Stop reporting a permanently removed device as missing.
    Forget {
        /// The device.
        uuid: String,
    },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Reply {
    /// The reply to [`Request::Who`].
    Who {
        /// Devices and processes.
        who: Box<HostReport>,
    },
    /// The reply to [`Request::Events`].
    Events {
        /// The events that the client may see.
        events: Box<EventReport>,
    },
    /// The reply to [`Request::Health`].
    Health {
        /// The health of the devices.
        health: Box<HealthReport>,
    },
    /// The reply to [`Request::Receipt`].
    Receipts {
        /// The receipts that the client may see.
        receipts: Box<ReceiptReport>,
    },
    /// The request was carried out.
    Done {
        /// What the agent did.
        message: String,
    },
    /// The request was refused.
    Refused {
        /// The reason and the remedy.
        reason: String,
    },
    /// Too many clients at once: the client should try again.
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
    #[error(
        "cannot listen on {path}: {source}; run the agent as root, or set paths.run to a directory that this user may write"
    )]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agent is busy with other clients.
    #[error("the agent on {path} is busy with other clients; try again")]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// No agent listens.
    #[error("no gpuwho agent answers on {path}: {source}; start one with `gpuwho agent`")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is another user's to use.
    #[error("{path}: only root and the agent's own user may do this; run it with sudo")]
    Denied {
        /// The socket.
        path: PathBuf,
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

/// Carries out the requests of the sockets.
pub trait Answer: Send + Sync {
    /// The current devices and processes.
    fn who(&self) -> HostReport;
    /// The last events as a user may see them; all of them without a user.
    fn events(&self, viewer: Option<u32>) -> EventReport;
    /// The health of the devices, which every user may see.
    fn health(&self) -> HealthReport;
    /// The receipts of a name as a user may see them; all of them without a user.
    fn receipts(&self, name: &str, viewer: Option<u32>) -> ReceiptReport;
    /// Closes the devices for a time; returns what was done.
    fn release(&self, length: Duration) -> String;
    /// Opens them again; returns what was done.
    fn resume(&self) -> String;
    /// Removes a device from the store; returns what was done, or why not.
    fn forget(&self, uuid: &str) -> Result<String, String>;
}

/// The operator's settings of the public socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its mode.
    pub mode: u32,
    /// Whether every user sees all processes.
    pub show_others: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mode: DEFAULT_MODE, show_others: false }
    }
}

/// Makes the sockets in `run`, the public one first, and replaces those that a dead agent left.
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
            listener.set_nonblocking(true)?;
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
            Ok(listener)
        };
        make().map_err(|source| ControlError::Listen { path: path.clone(), source })
    };
    Ok([make(public, settings.mode)?, make(run.join(ADMIN_SOCKET), 0o600)?])
}

/// Sends a request to the agent on `socket`.
pub fn ask(socket: &Path, request: &Request) -> Result<Reply, ControlError> {
    ask_within(socket, request, CLIENT_TIMEOUT)
}

/// The same, with a deadline for the reply.
pub fn ask_within(
    socket: &Path,
    request: &Request,
    timeout: Duration,
) -> Result<Reply, ControlError> {
    let until = Instant::now() + timeout;
    loop {
        let reply = ask_once(socket, request, until)?;
        if reply != Reply::Busy {
            return Ok(reply);
        }
        if Instant::now() >= until {
            return Err(ControlError::Busy { path: socket.into() });
        }
        thread::sleep(RETRY_AFTER);
    }
}

fn ask_once(socket: &Path, request: &Request, until: Instant) -> Result<Reply, ControlError> {
    let stream = UnixStream::connect(socket).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => ControlError::Denied { path: socket.into() },
        _ => ControlError::Connect { path: socket.into(), source },
    })?;
    let exchange = || {
        let left = until.saturating_duration_since(Instant::now()).max(RETRY_AFTER);
        stream.set_read_timeout(Some(left))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        // A busy agent replies before it reads the request, and closes the connection.
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
