//! One tenant that fills the probe maps or drives the probe budget of others.

use super::{Attack, become_nobody};
use crate::nccl::Rank;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "fill-communicators", run: fill_communicators },
    Attack { name: "storm", run: storm },
];

/// Processes among which the attacker divides what he does: that he is many helps him nothing.
const PROCESSES: usize = 4;

/// `DEVICE LIBRARY COUNT`: so many communicators, with a call of two operations on each, and unique
/// ids; then says `full` and keeps them until its input closes.
fn fill_communicators(arguments: &[String]) -> io::Result<()> {
    let [device, library, count] = arguments else {
        return Err(io::Error::other("three arguments"));
    };
    let count: usize = count.parse().map_err(io::Error::other)?;
    let mut ranks = ranks(device, library)?;
    let share = count / PROCESSES;
    for rank in &mut ranks {
        for number in 0..share {
            let id = rank.order("id")?;
            rank.order(&format!("init c{number} 1 0 {id}"))?;
            rank.order(&format!("call 1 ncclAllReduce c{number} 16 7"))?;
            rank.order(&format!("call 1 ncclBroadcast c{number} 1048576 7"))?;
        }
    }
    println!("full");
    until_input_closes()
}

/// `DEVICE LIBRARY`: calls without a pause until its input closes.
fn storm(arguments: &[String]) -> io::Result<()> {
    let [device, library] = arguments else { return Err(io::Error::other("two arguments")) };
    let mut ranks = ranks(device, library)?;
    for rank in &mut ranks {
        let id = rank.order("id")?;
        rank.order(&format!("init mine 1 0 {id}"))?;
    }
    println!("storming");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for rank in &mut ranks {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed)
                    && rank.order("storm 200 ncclAllReduce mine 16 7").is_ok()
                {}
            });
        }
        let closed = until_input_closes();
        is_over.store(true, Ordering::Relaxed);
        closed
    })
}

/// Processes of nobody's that hold the device and have the library loaded.
fn ranks(device: &str, library: &str) -> io::Result<Vec<Rank>> {
    become_nobody()?;
    let start = || Rank::holding(Path::new(device), Path::new(library), &[]);
    std::iter::repeat_with(start).take(PROCESSES).collect()
}

fn until_input_closes() -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
