//! One tenant that fills what the kernel tells of everybody's processes, or hides from it.

use super::{Attack, become_nobody};
use crate::sys;
use crate::worker::act::{die_with_parent, take_name};
use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit, setrlimit, waitpid};
use rustix::thread::UnshareFlags;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "fork-flood", run: fork_flood },
    Attack { name: "open-flood", run: open_flood },
    Attack { name: "own-files", run: own_files },
    Attack { name: "hide", run: hide },
    Attack { name: "refused", run: refused },
];

/// The name of the process of `hide` that hides.
pub const HIDER: &str = "hider";
/// Descriptors that a scan looks at of one cgroup, beside some hundred of each process.
const SCANNED: usize = 66_000;
/// A second of the kernel's allowances, as a shift of nanoseconds.
const SECOND_SHIFT: u32 = 30;
/// Descriptors of each process of `refused`: as many as are looked at for one opening.
const OF_REFUSED: usize = 4_000;

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
    fork_without_end(device, act)
}

fn fork_without_end(device: &str, act: fn(&str)) -> io::Result<()> {
    loop {
        let Some(child) = sys::fork()? else {
            act(device);
            sys::quit(0);
        };
        waitpid(Some(child), WaitOptions::empty())?;
    }
}

/// `DEVICE DESCRIPTORS FLOODERS`: processes hold more descriptors than a scan looks at, so many others open the
/// device without a pause, and when these have used up the second's openings one with so many descriptors opens
/// it behind them.
fn hide(arguments: &[String]) -> io::Result<()> {
    let [device, descriptors, flooders] = arguments else {
        return Err(io::Error::other("three arguments"));
    };
    let descriptors: usize = descriptors.parse().map_err(io::Error::other)?;
    let flooders: usize = flooders.parse().map_err(io::Error::other)?;
    become_nobody()?;
    let (gate, opener) = rustix::pipe::pipe()?;
    // Before there are descriptors, which make forks slow.
    for _ in 0..flooders {
        child(|| {
            rustix::io::read(&gate, &mut [0; 1])?;
            println!("flooding");
            fork_without_end(device, |device| drop(File::open(device)))
        })?;
    }
    let mut many = descriptors_of(19_000.max(descriptors))?;
    for _ in 0..=SCANNED / many.len() {
        child(|| Ok(()))?;
    }
    many.truncate(descriptors);
    child(|| {
        take_name(HIDER)?;
        let second = boot_ns() >> SECOND_SHIFT;
        let late = ((second + 3) << SECOND_SHIFT) - (1 << (SECOND_SHIFT - 3));
        thread::sleep(Duration::from_nanos(late.saturating_sub(boot_ns())));
        let _device = File::open(device)?;
        println!("hidden");
        park()
    })?;
    rustix::io::write(&opener, &vec![0; flooders])?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// `DEVICE`, which refuses to be opened: processes with many descriptors try without end.
fn refused(arguments: &[String]) -> io::Result<()> {
    let [device] = arguments else { return Err(io::Error::other("one argument")) };
    become_nobody()?;
    let _many = descriptors_of(OF_REFUSED)?;
    println!("trying");
    loop {
        let tries = (0..16).map(|_| {
            let Some(child) = sys::fork()? else {
                drop(File::open(device));
                thread::sleep(Duration::from_secs(1));
                sys::quit(0);
            };
            Ok(child)
        });
        for child in tries.collect::<io::Result<Vec<_>>>()? {
            waitpid(Some(child), WaitOptions::empty())?;
        }
    }
}

/// A child that does this, and then nothing until its parent ends.
fn child(act: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if sys::fork()?.is_none() {
        let lived = die_with_parent().and_then(|()| act());
        if lived.is_ok() {
            let _ = park();
        }
        sys::quit(1);
    }
    Ok(())
}

fn park() -> io::Result<()> {
    loop {
        thread::park();
    }
}

/// So many descriptors, or as many as an ordinary user may have.
fn descriptors_of(count: usize) -> io::Result<Vec<OwnedFd>> {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    // Where it is closed, its number would be the next file's.
    let first = OwnedFd::from(File::open("/dev/null")?);
    let most = usize::try_from(most.unwrap_or(u64::MAX)).unwrap_or(usize::MAX) - 64;
    let mut all = vec![first];
    for _ in 1..count.min(most) {
        all.push(rustix::io::dup(&all[0])?);
    }
    Ok(all)
}

fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or_default()
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
