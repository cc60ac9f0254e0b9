//! Inputs without an end: what an agent that reads to the end would need all its memory for.

use super::fairness::begin;
use super::{Attack, become_nobody};
use crate::sys;
use rustix::thread::set_name;
use rustix::time::{ClockId, clock_gettime};
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::thread;
use std::time::Duration;

/// The attacks, by name. Arguments: a folder that everybody may write to, then the directories of
/// the tenant's cgroup; of the last the log.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "endless-files", run: endless_files },
    Attack { name: "endless-environment", run: endless_environment },
    Attack { name: "kernel-log", run: kernel_log },
];

/// Bytes of a file that takes none: as far as ext4 goes.
const ENDLESS: u64 = 8 << 40;
/// Bytes of an environment of zeros, which take none either.
const ENVIRONMENT: usize = 64 << 30;

/// Files of the Inspector's: a line and an exposition without an end, and an exposition of a metric
/// with another label in each line.
fn endless_files(arguments: &[String]) -> io::Result<()> {
    let (folder, _node) = begin(arguments)?;
    let records = format!("endless-pid{}.log", std::process::id());
    let uuid = "4a7d0e2c-0000-1111-2222-33334444";
    let names = [records, format!("nccl_inspector_metrics_{uuid}0000.prom")];
    let open = |name: String| OpenOptions::new().append(true).create(true).open(folder.join(name));
    let endless = names.into_iter().map(open).collect::<io::Result<Vec<_>>>()?;
    endless.iter().try_for_each(|file| file.set_len(ENDLESS))?;
    let mut labels = open(format!("nccl_inspector_metrics_{uuid}0001.prom"))?;
    let mut text = String::new();
    for number in 0..200_000 {
        let label = format!("{number:0100}");
        let line = format!("nccl_bus_bandwidth{{rank=\"{number}\",comm_name=\"{label}\"}} 1\n");
        text.push_str(&line);
    }
    labels.write_all(text.as_bytes())?;
    wait()
}

/// An environment and a command line of zeros, and another command name each moment.
fn endless_environment(arguments: &[String]) -> io::Result<()> {
    let (_, _node) = begin(arguments)?;
    sys::show_as_environment(ENVIRONMENT)?;
    thread::spawn(|| -> io::Result<()> {
        for number in 0_u64.. {
            set_name(&CString::new(format!("name {number}"))?)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    wait()
}

/// Lines of the kernel's as fast as they are read, of which most are events, some have no end, and
/// some are forged. No tenant has this much of the log.
fn kernel_log(arguments: &[String]) -> io::Result<()> {
    become_nobody()?;
    let mut log = OpenOptions::new().write(true).open(arguments.first().map_or("", |path| path))?;
    thread::spawn(move || -> io::Result<()> {
        for number in 1_u64.. {
            let (bus, code) = (number % 256, number % 200);
            let text = match number % 4 {
                0 => format!("NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={number}, name=x, y"),
                1 => format!("Killed process {number} (x) total-vm:1kB, anon-rss:1kB"),
                2 => format!(
                    "Tasks in /{} are going to be killed due to memory.oom.group set",
                    "g".repeat(900)
                ),
                _ => format!(
                    "x[{number}]: segfault NVRM: Xid (PCI:0000:17:00): 79{}",
                    "\\x20".repeat(2_000)
                ),
            };
            let end = if number % 1_000 == 0 { "" } else { "\n" };
            let now = clock_gettime(ClockId::Monotonic);
            let at = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
            log.write_all(format!("3,{number},{at},-;{text}{end}").as_bytes())?;
        }
        Ok(())
    });
    wait()
}

/// Says that it is in place, and stays until nobody wants it any more.
fn wait() -> io::Result<()> {
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
