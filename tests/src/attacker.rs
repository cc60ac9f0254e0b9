//! A tenant's attacks on the agent: what the program `nccl-attacker` does, by name. It is started as
//! root where it must first get a `/dev` with device nodes or a cgroup, and gives all privileges up
//! before it attacks ([`become_nobody`]).

mod claims;
pub mod elf;
mod endpoint;
mod engines;
mod events;
mod fairness;
pub mod fuse;
pub mod hang;
pub mod libraries;
mod memory;
mod places;
mod probes;
mod ras;
pub mod ring;
mod squat;
mod tpu;

use crate::program::{self, NotBuilt};
use crate::until::until;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::io::{self, BufRead as _, BufReader};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The user that attacks.
pub const NOBODY: u32 = 65_534;

/// An attack: its name, and what it does with the arguments behind the name.
pub struct Attack {
    /// As it is asked for.
    pub name: &'static str,
    /// Attacks, and returns when it is done or its standard input closes.
    pub run: fn(&[String]) -> io::Result<()>,
}

/// The attack of that name.
pub fn find(name: &str) -> Option<&'static Attack> {
    let all = [
        claims::ATTACKS,
        endpoint::ATTACKS,
        engines::ATTACKS,
        events::ATTACKS,
        fairness::ATTACKS,
        hang::ATTACKS,
        libraries::ATTACKS,
        memory::ATTACKS,
        places::ATTACKS,
        probes::ATTACKS,
        ras::ATTACKS,
        ring::ATTACKS,
        squat::ATTACKS,
        tpu::ATTACKS,
    ];
    all.into_iter().flatten().find(|attack| attack.name == name)
}

/// Starts an attack with these arguments; its input and output are the caller's pipes, and it ends
/// with the caller.
pub fn command(name: &str, arguments: &[&str]) -> Result<Command, NotBuilt> {
    let mut command = Command::new(program::attacker()?);
    command.arg(name).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    crate::sys::die_with_us(&mut command);
    Ok(command)
}

/// What a process had started is gone so long after it was killed, also where a file system that hung kept
/// it in the kernel.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// A process that ends when this is dropped, with all that it has started: the next test meets none of it.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it, in a process group of its own.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        Ok(Self(command.process_group(0).spawn()?))
    }

    /// The same, and its first line.
    pub fn start_and_hear(command: &mut Command) -> io::Result<(Self, String)> {
        let mut running = Self::start(command)?;
        let out = running.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let mut said = String::new();
        BufReader::new(out).read_line(&mut said)?;
        Ok((running, said))
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let group = Pid::from_child(&self.0);
        // Gone already is as good.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
        // The others are no children of this process, which cannot wait for them.
        let gone = until(GONE_WITHIN, || test_kill_process_group(group).err());
        if gone.is_none() {
            eprintln!("processes of group {group:?} do not end");
        }
    }
}

/// Gives up root for [`NOBODY`], with no capability left.
pub fn become_nobody() -> io::Result<()> {
    crate::worker::act::become_user(Some(NOBODY))
}
