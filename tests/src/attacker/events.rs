//! Kernel log lines that a process writes through its own name, and who is affected by a fault.

use super::{Attack, become_nobody};
use crate::sys;
use crate::worker::act;
use std::hint::black_box;
use std::io;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] =
    &[Attack { name: "crash", run: crash }, Attack { name: "eat", run: eat }];

/// Takes a command name and crashes. The kernel logs that name and the one of the program's file,
/// which whoever starts it has chosen.
fn crash(arguments: &[String]) -> io::Result<()> {
    become_nobody()?;
    act::take_name(arguments.first().map_or("", String::as_str))?;
    sys::crash()
}

/// Joins cgroups and takes memory until the kernel ends it.
fn eat(directories: &[String]) -> io::Result<()> {
    act::join(directories)?;
    become_nobody()?;
    let mut eaten = Vec::new();
    loop {
        eaten.push(black_box(vec![1_u8; 1 << 20]));
    }
}
