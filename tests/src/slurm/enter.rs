//! The mounts that every program of a test bed has for itself: a `/dev` with the nodes of GPUs,
//! the bed's own users, and, for Slurm's cgroup/v2 plugin, the unified hierarchy where a host
//! without v1 has it. Asked for by the harness with command-line arguments, done by the program
//! `enter`, which then becomes the program named last.

use crate::worker::{act, nodes};
use rustix::mount::{MountFlags, mount};
use std::ffi::{CStr, OsString};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a host without cgroup v1 has its hierarchy.
const UNIFIED: &str = "/sys/fs/cgroup";

/// What to have for itself, and what to become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enter {
    /// Files to see in the place of others: what, and where.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Whether `/sys/fs/cgroup` is the unified hierarchy.
    pub unified: bool,
    /// The user to become, and group of the same number; root without.
    pub uid: Option<u32>,
    /// The program and its arguments.
    pub words: Vec<OsString>,
}

impl Enter {
    /// The arguments that say this.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let pair = |(what, place): &(PathBuf, PathBuf)| {
            format!("--bind={}:{}", what.display(), place.display()).into()
        };
        let mut all: Vec<OsString> = self.binds.iter().map(pair).collect();
        all.extend(self.unified.then(|| "--unified".into()));
        all.extend(self.uid.map(|uid| format!("--uid={uid}").into()));
        all.push("--".into());
        all.extend(self.words.iter().cloned());
        all
    }

    /// Reads the arguments.
    pub fn from_arguments(mut arguments: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let mut enter = Self::default();
        for argument in arguments.by_ref().take_while(|argument| argument != "--") {
            let text = argument.to_str().unwrap_or_default();
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            enter.set(key, value).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("bad argument {text}"))
            })?;
        }
        enter.words = arguments.collect();
        Ok(enter)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "--unified" => self.unified = true,
            "--uid" => self.uid = Some(value.parse().ok()?),
            "--bind" => {
                let (what, place) = value.split_once(':')?;
                self.binds.push((what.into(), place.into()));
            }
            _ => return None,
        }
        Some(())
    }

    /// Does it; comes back only with the reason why not.
    pub fn exec(&self) -> io::Error {
        let Some((program, arguments)) = self.words.split_first() else {
            return io::Error::new(io::ErrorKind::InvalidInput, "no program to become");
        };
        match self.prepare() {
            Ok(()) => Command::new(program).args(arguments).exec(),
            Err(error) => error,
        }
    }

    fn prepare(&self) -> io::Result<()> {
        nodes::private_dev()?;
        for (what, place) in &self.binds {
            let named = |error: rustix::io::Errno| {
                io::Error::new(error.kind(), format!("{}: {error}", place.display()))
            };
            rustix::mount::mount_bind(what, place).map_err(named)?;
        }
        if self.unified {
            mount("cgroup2", UNIFIED, "cgroup2", MountFlags::empty(), None::<&CStr>)?;
            // Slurm makes one level by itself, its scope; the slice above it is systemd's work.
            std::fs::create_dir_all(Path::new(UNIFIED).join("system.slice"))?;
        }
        act::become_user(self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_survives_the_command_line() {
        let enter = Enter {
            binds: vec![("/a/passwd".into(), "/etc/passwd".into())],
            unified: true,
            uid: Some(20_001),
            words: ["sbatch", "--", "--uid=7"].map(OsString::from).to_vec(),
        };
        let read = Enter::from_arguments(enter.to_arguments().into_iter()).unwrap();
        assert_eq!(read, enter);
    }

    #[test]
    fn an_unknown_argument_is_named() {
        let error = Enter::from_arguments(["--bnid=/x:/y".into()].into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "bad argument --bnid=/x:/y");
    }
}
