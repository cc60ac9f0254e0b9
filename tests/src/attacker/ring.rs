//! One tenant that fills what the kernel tells of everybody's processes, or hides from it.

use super::{Attack, become_nobody};
use crate::sys;
use rustix::process::{WaitOptions, waitpid};
use rustix::thread::UnshareFlags;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::mpsc::channel;
use std::thread;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "fork-flood", run: fork_flood },
    Attack { name: "open-flood", run: open_flood },
    Attack { name: "own-files", run: own_files },
];

/// `DEVICE PROCESSES`: so many processes hold the device and fork without a pause.
fn fork_flood(arguments: &[String]) -> io::Result<()> {
    flood(arguments, |_| {})
}

/// `DEVICE PROCESSES`: so many processes fork without a pause, and each child opens the device.
fn open_flood(arguments: &[String]) -> io::Result<()> {
    flood(arguments, |device| drop(File::open(device)))
}

/// Runs until it is killed; each child does this and ends.
fn flood(arguments: &[String], act: fn(&str)) -> io::Result<()> {
    let [device, processes] = arguments else { return Err(io::Error::other("two arguments")) };
    become_nobody()?;
    let processes: usize = processes.parse().map_err(io::Error::other)?;
    let _held = File::open(device)?;
    println!("flooding");
    for _ in 1..processes {
        if sys::fork()?.is_none() {
            break;
        }
    }
    loop {
        let Some(child) = sys::fork()? else {
            act(device);
            sys::quit(0);
        };
        waitpid(Some(child), WaitOptions::empty())?;
    }
}

/// `DEVICE`: a thread takes a table of descriptors of its own and opens the device there.
fn own_files(arguments: &[String]) -> io::Result<()> {
    let [device] = arguments else { return Err(io::Error::other("one argument")) };
    become_nobody()?;
    let (sender, opened) = channel();
    let device = device.clone();
    thread::spawn(move || {
        let file = sys::own_namespaces(UnshareFlags::FILES).and_then(|()| File::open(device));
        // Whoever waits for it says what went wrong.
        let _ = sender.send(file.as_ref().map(drop).map_err(io::Error::kind));
        loop {
            thread::park();
        }
    });
    opened.recv().map_err(io::Error::other)?.map_err(io::Error::from)?;
    println!("hidden");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
