//! What a collective call costs its caller while it is counted: `cargo bench -p gpuwho --bench nccl`
//! (root, the fake library built in the same profile) prints rows of `agent/docs/benchmarks.md`; `-- calls`
//! and `-- budget` measure only one of the two parts.
//!
//! Real processes load copies of the fake library, one untouched and the others probed each in a
//! way of its own, and call in turns, so that a change of the machine's speed meets all of them.
//! What a call takes is measured around it, by its caller: the mean of the quicker 99 %, since
//! interruptions are not the probe's. The ways:
//!
//! - a program that does nothing, on the entry, on entry and return, and on both of a session: what
//!   probes cost here, whatever is behind them (the trap);
//! - the agent's own: as it is by default, with every return, and entries only. Reading the maps
//!   once in ten seconds is its consumer;
//! - a record a call through a ring to a reader that wakes for it, as others do it, and adds up. Its
//!   reader's CPU time counts.
//!
//! The other part is the source as a whole, by default, with its probe budget: what is left of that when
//! callers are fast.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and may stop")]

mod budgeted;
mod compared;
mod ranks;
mod table;

use compared::{Nothing, NothingThrough, Ring};
use gpuwho_nccl::probe::{Probed, Settings, Way};
use ranks::Ranks;
use std::path::Path;
use table::Found;

/// Calls a second of a process; 0 is without a pause.
const RATES: [u32; 4] = [2_000, 10_000, 100_000, 0];
/// Processes at once.
const PROCESSES: [usize; 2] = [1, 8];
/// Between two readings of the maps.
const TICK_SECONDS: f64 = 10.0;
/// Times that every way has its turn at every rate.
const ROUNDS: usize = 3;

/// What keeps a copy of the library probed.
#[allow(dead_code, reason = "kept to be dropped")]
enum Arm {
    Untouched,
    Nothing(Nothing),
    NothingThrough(NothingThrough),
    Ours(Box<Probed>),
    Ring(Ring),
}

fn main() {
    let wants = |part: &str| {
        // `cargo bench` adds an argument of its own.
        let mut parts = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
        parts.next().is_none_or(|wanted| wanted == part)
    };
    let calls = if wants("calls") { calls() } else { Ok(()) };
    let budget = if wants("budget") { budgeted::measure() } else { Ok(()) };
    for why in [calls, budget].into_iter().filter_map(Result::err) {
        // As tests do where a machine lacks something.
        println!("skipped: needs root, BPF and the fake NCCL of this profile: {why}");
    }
}

/// What a call pays.
fn calls() -> std::io::Result<()> {
    for processes in PROCESSES {
        let folder = tempfile::tempdir()?;
        let mut arms = arms(folder.path(), processes)?;
        for rate in RATES {
            println!("{}", at_rate(&mut arms, processes, rate)?.row());
        }
    }
    read_out()
}

fn at_rate(
    arms: &mut [(&'static str, Arm, Ranks)],
    processes: usize,
    rate: u32,
) -> std::io::Result<Found> {
    let mut found = Found { processes, rate, ..Found::default() };
    for _ in 0..ROUNDS {
        for (name, arm, ranks) in &mut *arms {
            let before = spent(arm);
            let turn = ranks.turn(rate)?;
            found.calls.entry(name).or_default().push(turn.ns);
            if let Arm::Ring(_) = arm {
                let spent = (spent(arm) - before) / f64::from(turn.calls);
                found.readers.entry(name).or_default().push(spent);
            }
            if let (Arm::Ours(probed), &table::OURS) = (&*arm, &*name) {
                let before = compared::thread_cpu();
                probed.read()?;
                let calls_a_tick = TICK_SECONDS * turn.calls_a_second;
                let spent = (compared::thread_cpu() - before) as f64;
                found.readers.entry(name).or_default().push(spent / calls_a_tick);
            }
        }
    }
    Ok(found)
}

/// CPU nanoseconds of a way's reader.
fn spent(arm: &Arm) -> f64 {
    if let Arm::Ring(ring) = arm { ring.spent() } else { 0.0 }
}

fn arms(folder: &Path, processes: usize) -> std::io::Result<Vec<(&'static str, Arm, Ranks)>> {
    let mut arms = Vec::new();
    let default = Settings::default().timed_rate;
    for name in table::ARMS {
        let library = ranks::library(folder, name)?;
        let arm = match name {
            table::UNTOUCHED => Arm::Untouched,
            table::FLOOR_ENTRY => Arm::Nothing(Nothing::on(&library, false)?),
            table::FLOOR_BOTH => Arm::Nothing(Nothing::on(&library, true)?),
            table::FLOOR_SESSION => Arm::NothingThrough(NothingThrough::on(&library)?),
            table::OURS => ours(&library, Way::Session, Some(default))?,
            table::ALL => ours(&library, Way::Session, Some(0))?,
            table::ENTRIES => ours(&library, Way::Session, None)?,
            table::EACH => ours(&library, Way::Each, Some(0))?,
            _ => Arm::Ring(Ring::on(&library)?),
        };
        arms.push((name, arm, Ranks::start(&library, processes)?));
    }
    Ok(arms)
}

fn ours(library: &Path, way: Way, timed_rate: Option<u32>) -> std::io::Result<Arm> {
    Ok(Arm::Ours(Box::new(Probed::on(library, way, timed_rate)?)))
}

/// What reading the maps costs the agent, once a tick.
fn read_out() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let library = ranks::library(folder.path(), "read")?;
    let probed = Probed::on(&library, Way::Session, Some(0))?;
    let mut ranks = Ranks::start(&library, 8)?;
    ranks.turn(0)?;
    let mut took = Vec::new();
    for _ in 0..101 {
        let before = compared::thread_cpu();
        probed.read()?;
        took.push((compared::thread_cpu() - before) as f64);
    }
    let micros = table::median(&took) / 1e3;
    println!("| reading the maps of eight ranks | {micros:.0} µs of CPU a tick |");
    Ok(())
}
