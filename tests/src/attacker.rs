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
mod probes;
mod ras;

use crate::program::{self, NotBuilt};
use std::io;
use std::process::{Command, Stdio};

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
        probes::ATTACKS,
        ras::ATTACKS,
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

/// Gives up root for [`NOBODY`], with no capability left.
pub fn become_nobody() -> io::Result<()> {
    crate::worker::act::become_user(Some(NOBODY))
}
