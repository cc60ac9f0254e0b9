//! The agent's own socket: who is on each device, `release` and `forget`.
//!
//! A request is one line of JSON, the answer is one line of JSON. Anybody on the host may ask who;
//! only root and the agent's own user may make it let go of the devices.

use crate::who::Who;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The socket's name in the run directory.
pub const SOCKET: &str = "gpuwho.sock";

/// A request is a few words.
const LONGEST_REQUEST: u64 = 4096;

/// A client that does not speak must not keep the others waiting.
const PATIENCE: Duration = Duration::from_secs(2);

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Who is on each device.
    Who,
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
        who: Box<Who>,
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
    /// Nobody listens.
    #[error("no gpuwho agent answers on {path}: {source}; start one with `gpuwho agent`")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
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
pub trait Answer: Send {
    /// The table, now.
    fn who(&self) -> Who;
    /// Lets go of the devices; gives what was done.
    fn release(&self, length: Duration) -> String;
    /// Takes them again.
    fn resume(&self) -> String;
    /// Remembers a device no longer; gives what was done, or why not.
    fn forget(&self, uuid: &str) -> Result<String, String>;
}

/// Makes the socket in `run`; a socket that a dead agent left is replaced.
pub fn listen(run: &Path) -> Result<UnixListener, ControlError> {
    let path = run.join(SOCKET);
    if UnixStream::connect(&path).is_ok() {
        return Err(ControlError::InUse { path });
    }
    let make = || {
        fs::create_dir_all(run)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        Ok(listener)
    };
    make().map_err(|source| ControlError::Listen { path: path.clone(), source })
}

/// Answers requests until the process ends.
pub fn serve(listener: &UnixListener, answer: &dyn Answer) {
    for stream in listener.incoming() {
        let outcome = stream.and_then(|stream| converse(stream, answer));
        if let Err(error) = outcome {
            tracing::debug!(%error, "control request not answered");
        }
    }
}

fn converse(mut stream: UnixStream, answer: &dyn Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(LONGEST_REQUEST)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => reply(&request, may_command(&stream), answer),
        Err(error) => Reply::Refused { reason: format!("not a request: {error}") },
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    stream.write_all(&text)
}

fn reply(request: &Request, may_command: bool, answer: &dyn Answer) -> Reply {
    match request {
        Request::Who => Reply::Who { who: Box::new(answer.who()) },
        Request::Release { .. } | Request::Resume | Request::Forget { .. } if !may_command => {
            Reply::Refused { reason: "only root and the agent's own user may do this".into() }
        }
        Request::Release { seconds } => {
            Reply::Done { message: answer.release(Duration::from_secs(*seconds)) }
        }
        Request::Resume => Reply::Done { message: answer.resume() },
        Request::Forget { uuid } => match answer.forget(uuid) {
            Ok(message) => Reply::Done { message },
            Err(reason) => Reply::Refused { reason },
        },
    }
}

fn may_command(stream: &UnixStream) -> bool {
    let us = rustix::process::geteuid();
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == us)
}

/// Asks the agent behind `socket`.
pub fn ask(socket: &Path, request: &Request) -> Result<Reply, ControlError> {
    let stream = UnixStream::connect(socket)
        .map_err(|source| ControlError::Connect { path: socket.into(), source })?;
    let exchange = || {
        // A release waits for the reader to close its handles.
        stream.set_read_timeout(Some(PATIENCE * 5))?;
        let mut text = serde_json::to_vec(request)?;
        text.push(b'\n');
        (&stream).write_all(&text)?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(io::Error::from)
    };
    exchange().map_err(|source| ControlError::Answer { path: socket.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Answer for Fixed {
        fn who(&self) -> Who {
            Who { host: "node1".into(), ..Who::default() }
        }

        fn release(&self, length: Duration) -> String {
            format!("released for {length:?}")
        }

        fn resume(&self) -> String {
            "resumed".into()
        }

        fn forget(&self, uuid: &str) -> Result<String, String> {
            Err(format!("no {uuid}"))
        }
    }

    fn served(run: &Path) -> PathBuf {
        let listener = listen(run).unwrap();
        std::thread::spawn(move || serve(&listener, &Fixed));
        run.join(SOCKET)
    }

    #[test]
    fn who_is_answered_over_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = served(dir.path());
        let who = Box::new(Fixed.who());
        assert_eq!(ask(&socket, &Request::Who).unwrap(), Reply::Who { who });
    }

    #[test]
    fn release_is_for_root_and_the_agent_s_user() {
        let request = Request::Release { seconds: 600 };
        assert_eq!(
            reply(&request, false, &Fixed),
            Reply::Refused { reason: "only root and the agent's own user may do this".into() }
        );
        assert_eq!(
            reply(&request, true, &Fixed),
            Reply::Done { message: "released for 600s".into() }
        );
    }

    #[test]
    fn forgetting_is_for_root_and_refused_with_the_reason() {
        let request = Request::Forget { uuid: "GPU-1".into() };
        assert!(matches!(reply(&request, false, &Fixed), Reply::Refused { .. }));
        assert_eq!(reply(&request, true, &Fixed), Reply::Refused { reason: "no GPU-1".into() });
    }

    #[test]
    fn a_request_that_is_not_one_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let socket = served(dir.path());
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"{\"ask\":\"reboot\"}\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("refused") && answer.contains("reboot"), "{answer}");
    }

    #[test]
    fn a_second_agent_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        served(dir.path());
        let error = listen(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with("another gpuwho agent is running"), "{error}");
    }

    #[test]
    fn a_dead_agent_s_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        drop(listen(dir.path()).unwrap());
        assert!(listen(dir.path()).is_ok());
    }

    #[test]
    fn nobody_listening_is_said_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let error = ask(&dir.path().join(SOCKET), &Request::Who).unwrap_err().to_string();
        assert!(error.ends_with("start one with `gpuwho agent`"), "{error}");
    }
}
