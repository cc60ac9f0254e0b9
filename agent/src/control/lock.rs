//! Allows one agent a host: a second one would export everything twice.
//!
//! The lock is a file of root's in the state directory, which agents with different run
//! directories, of a systemd unit and of a DaemonSet's pods share. The kernel holds the lock for
//! the process and drops it when the process ends. No other user can open the file, so no tenant
//! can hold the lock. Agents that are meant to run side by side have state directories of their
//! own.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file in the state directory.
const FILE: &str = "agent.lock";
/// Longer than a PID.
const MAX_LEN: u64 = 16;

/// Holds the lock until it is dropped.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not read: the lock ends with it")] File);

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error(
        "another gpuwho agent is running on this host{}: it holds {path}; stop it first, or, to run \
         two, set paths.state and paths.run for this one", pid_words(.pid)
    )]
    Held {
        /// The file.
        path: PathBuf,
        /// Its PID, as it wrote it; empty where it did not.
        pid: String,
    },
    /// The file cannot be made.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn pid_words(pid: &str) -> String {
    if pid.is_empty() { String::new() } else { format!(" (process {pid})") }
}

impl Lock {
    /// Takes the lock in a state directory.
    pub fn take(state: &Path) -> Result<Self, LockError> {
        let path = state.join(FILE);
        let open = || {
            fs::create_dir_all(state)?;
            let mut options = OpenOptions::new();
            // A link or a pipe of that name is not the agent's.
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            options.custom_flags(flags).open(&path)
        };
        let file = |source| LockError::File { path: path.clone(), source };
        let mut lock = open().map_err(file)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                // For the error message only.
                let _ = (&lock).take(MAX_LEN).read_to_string(&mut pid);
                pid.retain(|c| c.is_ascii_digit());
                return Err(LockError::Held { path, pid });
            }
            Err(error) => return Err(file(error.into())),
        }
        // The lock works without the PID.
        let _ = lock.set_len(0).and_then(|()| write!(lock, "{}", std::process::id()));
        Ok(Self(lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_second_agent_is_refused_with_the_first_ones_pid_and_the_remedy() {
        let state = tempfile::tempdir().unwrap();
        let first = Lock::take(state.path()).unwrap();
        let file = state.path().join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Lock::take(state.path()).unwrap_err().to_string();
        let who = format!(
            "another gpuwho agent is running on this host (process {})",
            std::process::id()
        );
        assert!(error.starts_with(&who) && error.contains("paths.state"), "{error}");
        drop(first);
        Lock::take(state.path()).unwrap();
    }

    #[test]
    fn a_pipe_or_a_link_in_place_of_the_lock_is_refused() {
        let state = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", state.path().join(FILE)).unwrap();
        assert!(matches!(Lock::take(state.path()), Err(LockError::File { .. })));
    }
}
